"""Products of integers of few bits, which are summed as floats while these are exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit import extending
from stagejit.codegen.cpu.contract import plan
from stagejit.codegen.cpu.contract.tiles import blocks
from stagejit.codegen.target import Target
from stagejit.errors import InternalError

HOST = Target.host()
# Who has no instructions for products of bytes, which they would be summed by.
NO_QUADS = {"features": ",".join(
    f"-{part[1:]}" if part[1:] in ("avx512vnni", "avxvnni", "dotprod", "i8mm") else part
    for part in HOST.features.split(","))}  # fmt: skip
PLAIN = extending.cpu("plain", **NO_QUADS)
OPTIONS = stagejit.Options(verify=True, delegate=False, extensions=PLAIN)


def product(a: Any, b: Any, dtype: Any = jnp.int32) -> Any:
    return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=dtype)


def convolution(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(
        x, w, (1, 1), ((2, 1), (0, 3)), rhs_dilation=(1, 2), preferred_element_type=jnp.int32
    )


def as_floats(f: Any, *args: Any) -> bool:
    return " sums: as f32" in stagejit.jit(f, options=OPTIONS).explain(*args).as_text(kernels=True)


def wrapped(a: Any, b: Any, dtype: Any = np.int32) -> Any:
    return (np.asarray(a, np.int64) @ np.asarray(b, np.int64)).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "most"), [(np.int8, 1024), (np.uint8, 258), (np.int16, 0), (np.uint16, 0)]
)
def test_the_longest_exact_sums(dtype: Any, most: int) -> None:
    """Of the largest products; one more is a sum that no float of 32 bits holds."""
    info = np.iinfo(dtype)
    largest = info.min or info.max
    for steps in (1, max(most, 1), most + 1, 1500, 2 * most + 1):
        a, b = np.full((5, steps), largest, dtype), np.full((steps, 33), largest, dtype)
        a[0] = 1
        assert as_floats(product, a, b) == (most > 0), steps
        found = stagejit.jit(product, options=OPTIONS)(a, b)
        np.testing.assert_array_equal(found, wrapped(a, b))


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.int16, jnp.uint32])
def test_results_that_keep_the_low_bits_of_a_sum(dtype: Any) -> None:
    r = np.random.default_rng(0)
    a, b = (r.integers(-128, 127, shape, np.int8) for shape in ((17, 1300), (1300, 40)))
    found = stagejit.jit(product, static_argnums=2, options=OPTIONS)(a, b, dtype)
    np.testing.assert_array_equal(found, wrapped(a, b, np.dtype(dtype)))
    assert as_floats(lambda a, b: product(a, b, dtype), a, b)


def test_sums_that_wrap() -> None:
    """Each block is a float; the sum of all is beyond 32 bits."""
    steps = (1 << 17) + 77
    a, b = np.full((2, steps), -128, np.int8), np.full((steps, 17), -128, np.int8)
    found = stagejit.jit(product, options=OPTIONS)(a, b)
    np.testing.assert_array_equal(found, wrapped(a, b))


def test_blocks_that_are_too_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unblocked(problem: Any) -> Any:
        ranked = blocks.choose(problem)
        return replace(ranked, best=replace(ranked.best, blocked=None, k_block=0))

    monkeypatch.setattr(plan, "choose", unblocked)
    monkeypatch.setattr(plan, "byte_signs", lambda target: frozenset())
    a, b = np.ones((5, 1025), np.int8), np.ones((1025, 33), np.int8)
    with pytest.raises(InternalError, match="sums of 1025 products are rounded"):
        stagejit.jit(product).lower(a, b).as_text("loops")


FORMS = ("mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->mn", "bmk,bkn->bmn", "mkj,nkj->mn",
         "k,kn->n", "mkj,jkn->nm")  # fmt: skip
SMALL = {
    **NO_QUADS,
    "l1_nbytes": 512,
    "l2_nbytes": 4096,
    "l3_nbytes": 8192,
    "cores": 4,
}  # blocked, streamed
CPUS = {"host": NO_QUADS, "avx2": {"like": "avx2"}, "sse2": {"like": "sse2"}, "tiny": SMALL}


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("seed", range(24))
def test_sums_in_blocks(seed: int, cpu: str) -> None:
    """Of extreme values, in any layout, and in parts."""
    r = np.random.default_rng(seed)
    form, dtype = FORMS[seed % len(FORMS)], (np.int8, np.uint8)[seed // len(FORMS) % 2]
    info = np.iinfo(dtype)
    long = int(r.choice([257, 259, 1023, 1025, 2049, 1500, 3000]))
    sizes = {"b": 3, "m": int(r.integers(1, 40)), "n": int(r.integers(1, 70)), "k": long, "j": 2}
    sizes = {**sizes, "j": int(r.integers(2, 300)), "k": 37} if "j" in form else sizes
    sides = form.split("->")[0].split(",")
    ends = info.min, info.max
    a, b = (r.choice(ends, [sizes[axis] for axis in side]).astype(dtype) for side in sides)

    def f(a: Any, b: Any) -> Any:
        return jnp.einsum(form, a, b, preferred_element_type=jnp.int32)

    machine = extending.cpu("small", **CPUS[cpu])
    options = stagejit.Options(extensions=machine, verify=True, delegate=False)
    wanted = np.einsum(form, a.astype(np.int64), b.astype(np.int64)).astype(np.int32)
    np.testing.assert_array_equal(stagejit.jit(f, options=options)(a, b), wanted)
    parts = stagejit.Options(extensions=machine, split={"contract": 3})
    scaled = stagejit.jit(lambda a, b: f(a, b).astype(jnp.float32) * 0.5, options=parts)
    np.testing.assert_array_equal(scaled(a, b), wanted.astype(np.float32) * 0.5)


@pytest.mark.parametrize("seed", range(6))
def test_any_shape(seed: int) -> None:
    r = np.random.default_rng(seed)
    m, k, n = (int(size) for size in r.integers(1, (200, 3000, 200)))
    a, b = (r.integers(-128, 128, shape, np.int8) for shape in ((m, k), (k, n)))
    f = stagejit.jit(lambda a, b: jnp.maximum(product(a, b), 7) * 3, options=OPTIONS)
    np.testing.assert_array_equal(f(a, b), np.maximum(wrapped(a, b), 7) * 3)


@pytest.mark.parametrize("channels", [7, 171, 400])
def test_borders_of_a_convolution(channels: int) -> None:
    r = np.random.default_rng(1)
    x, w = (
        r.integers(-128, 128, (2, channels, 9, 8), np.int8),
        r.integers(-128, 128, (5, channels, 3, 2), np.int8),
    )
    assert as_floats(convolution, x, w)
    found = stagejit.jit(convolution, options=OPTIONS)(x, w)
    wanted = convolution(*(jnp.asarray(side, jnp.int32) for side in (x, w)))
    np.testing.assert_array_equal(found, wanted)
