"""An embedding of which rows are picked, and by which hidden states are multiplied, lies in memory
once, in fewer bytes: both read the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

import stagejit
from stagejit import Options
from tests.rewrites.weights.test_forms import array, rounded

WIDTH = 512
TOKENS = jnp.asarray([3, 700, 0], jnp.int32)


def tied(table: Any, tokens: Array) -> Any:
    return jnp.tanh(table[tokens]) @ table.T


def one_row(table: Any, tokens: Array) -> Any:
    """Of a dynamic slice, and of one outside of any product."""
    row = lax.dynamic_slice_in_dim(table, tokens[0], 1)
    return row @ table.T, table[tokens[1]]


def sampled(table: Any, tokens: Array) -> Any:
    """A loop that reads its own token again."""

    def step(i: Any, tokens: Array) -> Array:
        return jnp.argmax(jnp.roll(table[tokens], i, 1) @ table.T, 1).astype(jnp.int32)

    return lax.fori_loop(0, 4, step, tokens)


PROGRAMS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (tied, one_row, sampled)}


@pytest.mark.some(3)
@pytest.mark.parametrize("rows", [768, 701])  # in panels, and not
@pytest.mark.parametrize(("form", "bits"), [("bf16", 16), ("int8", 8), ("int4", 4)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_both_read_what_is_stored(name: str, form: Any, bits: int, rows: int) -> None:
    f, table = PROGRAMS[name], array(rows, WIDTH)
    known = jnp.asarray(rounded(table, form, (1,)))
    bound = stagejit.bind(f, jnp.asarray(table), weights=form, options=Options(verify=True))
    found, wanted = bound(TOKENS), f(known, TOKENS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), found, wanted)
    assert list(bound.weight_error) == ["params"]
    # In loops matrices that are in no panels lie as both of their readers want them.
    copies = 2 if name == "sampled" and rows % 128 and bits != 4 else 1
    size = -(-rows // 32) * 32 * WIDTH if bits == 4 else table.size
    assert bound.memory_analysis()["kept_nbytes"] <= copies * size * bits // 8 + 4 * rows


def test_gradients_and_batches_go_through() -> None:
    table, scale = array(768, WIDTH), jnp.asarray(array(3, WIDTH, seed=1))

    def f(table: Any, scale: Array, tokens: Array) -> Any:
        return (jnp.tanh(table[tokens] * scale) @ table.T / 20).std()

    known = jnp.asarray(rounded(table, "int8", (1,)))
    bound = stagejit.bind(f, table, weights="int8")
    wanted = jax.grad(lambda s: f(known, s, TOKENS))(scale)
    for g in (jax.grad(bound), stagejit.jit(jax.grad(bound))):
        np.testing.assert_allclose(g(scale, TOKENS), wanted, rtol=1e-3, atol=1e-6)
    batch = jnp.stack([scale, 2 * scale])
    both = [f(known, each, TOKENS) for each in batch]
    found = jax.vmap(lambda each: bound(each, TOKENS))(batch)
    np.testing.assert_allclose(found, both, rtol=1e-3, atol=1e-4)


def test_dont_store_what_is_read_whole_by_others() -> None:
    table = array(768, WIDTH)
    bound = stagejit.bind(lambda w, t: tied(w, t) + (w * t[0]).sum(), table, weights="int8")
    reasons = [d.reason for d in bound.plan(TOKENS).decisions if d.rewrite == "store-weights"]
    assert reasons == ["others than products read it, too"]
