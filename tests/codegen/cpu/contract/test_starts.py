"""Operands of products that are slices at offsets which only a call knows: they are read where they
lie, at starts that are clamped as JAX clamps them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.options import Options
from tests.acceptance.running import f32

pytestmark = pytest.mark.native
OPTIONS = Options(verify=True)
STARTS = (-(2**31), -3, 0, 2, 5, 99, 2**31 - 1)


def attended(c: Any, q: Any, at: Any) -> Any:
    return jnp.einsum("hd,htd->ht", q, lax.dynamic_index_in_dim(c, at, keepdims=False))


def inside(c: Any, q: Any, at: Any) -> Any:
    zero = at * 0
    part = lax.dynamic_slice(c, (at, zero, at // 2, zero), (1, *c.shape[1:2], 9, c.shape[3]))
    return jnp.einsum("hd,htd->ht", q, part[0])


def widened(c: Any, q: Any, at: Any) -> Any:
    return attended(c.astype(jnp.bfloat16), q, at).astype(jnp.float32)


def from_the_left(c: Any, q: Any, at: Any) -> Any:
    return lax.dynamic_index_in_dim(c, at, keepdims=False)[0] @ c[0, 1].T


def reversed_(c: Any, q: Any, at: Any) -> Any:
    return attended(lax.rev(c, (2,)), q, at)


def of_a_slice(c: Any, q: Any, at: Any) -> Any:
    return attended(lax.dynamic_slice_in_dim(c, at - 1, 4), q, at // 3)


def in_a_loop(c: Any, q: Any, at: Any) -> Any:
    numbers = jnp.stack([at, at // 2, -at])
    return lax.scan(lambda s, n: (s, attended(c, q, n)), 0, numbers)[1]


def convolved(c: Any, q: Any, at: Any) -> Any:
    kernel = q.reshape(1, 1, *q.shape)[:, :, :3, :3]
    image = lax.dynamic_index_in_dim(c, at, keepdims=False)[:, None]
    return lax.conv_general_dilated(image, kernel, (1, 1), "SAME")


@pytest.mark.parametrize(
    "f",
    [attended, inside, widened, from_the_left, reversed_, of_a_slice, in_a_loop, convolved],
    ids=lambda f: f.__name__,
)
def test_at_clamped_starts(f: Any) -> None:
    c, q = f32(6, 4, 12, 40), f32(4, 40, seed=1)
    ours = stagejit.jit(f, options=OPTIONS)
    for at in STARTS:
        wanted = f(c, q, jnp.int32(at))  # op by op: XLA adds starts of slices of slices unclamped
        np.testing.assert_allclose(ours(c, q, jnp.int32(at)), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint32, np.int16])
def test_starts_of_every_kind(kind: Any) -> None:
    c, q, at = f32(6, 4, 12, 40), f32(4, 40, seed=1), kind(np.iinfo(kind).max)
    for number in (at, kind(3), kind(np.iinfo(kind).min)):
        wanted = jax.jit(attended)(c, q, number)
        found = stagejit.jit(attended, options=OPTIONS)(c, q, number)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def packed(f: Any, *args: Any) -> list[str]:
    lines = stagejit.jit(f, options=OPTIONS).explain(*args).as_text(kernels=True).splitlines()
    return [line for line in lines if " pack: " in line]


@pytest.mark.parametrize("f", [attended, inside, in_a_loop], ids=lambda f: f.__name__)
def test_what_is_read_at_a_start_is_not_packed(f: Any) -> None:
    assert packed(f, f32(6, 4, 32, 64), f32(4, 64, seed=1), np.int32(2)) == []


def test_a_place_that_is_divided_is_evaluated() -> None:
    """Rows of 33 in memory that are read as rows of 22: no step of a tile is one in memory."""

    def f(c: Any, q: Any, at: Any) -> Any:
        return lax.dynamic_slice(c, (at, at), (6, 33)).reshape(9, 22) @ q

    args = f32(50, 77), f32(22, 64, seed=1), np.int32(44)
    assert any("left operand" in line for line in packed(f, *args))
    found = stagejit.jit(f, options=OPTIONS)(*args)
    np.testing.assert_allclose(found, jax.jit(f)(*args), rtol=1e-5, atol=1e-5)


def test_what_is_computed_at_a_start_is_evaluated() -> None:
    def f(c: Any, q: Any, at: Any) -> Any:
        return jnp.einsum("hd,htd->ht", q, jnp.exp(lax.dynamic_index_in_dim(c, at, keepdims=False)))

    args = f32(6, 4, 12, 40), f32(4, 40, seed=1), np.int32(2)
    found = stagejit.jit(f, options=OPTIONS)(*args)
    np.testing.assert_allclose(found, jax.jit(f)(*args), rtol=1e-5, atol=1e-5)
