"""Attention with masks: what is left out changes no bit, whatever the operands hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import stagejit
from tests.randomness import RNG

OFF = stagejit.Options(disable=("skip-zeros",))
HEADS, TOKENS, D = 2, 70, 40


def attention(mask: Callable[[Array], Any]) -> Callable[..., Array]:
    def fn(q: Array, k: Array, v: Array) -> Array:
        scores = jnp.einsum("htd,hsd->hts", q, k) / 6
        places = jnp.arange(scores.shape[-1])
        kept = jnp.where(mask(places), scores, -jnp.inf)
        return jnp.einsum("hts,hsd->htd", jax.nn.softmax(kept, -1), v)

    return fn


MASKS: dict[str, Callable[[Array], Any]] = {
    "causal": lambda at: at[:, None] >= at,
    "lengths": lambda at: at < 23,
    "segments": lambda at: at[:, None] // 16 == at // 16,
    "later": lambda at: at[:, None] < at,  # the last row has nothing
}


def operands(*special: float) -> list[Any]:
    made = [RNG.standard_normal((HEADS, TOKENS, D), dtype=np.float32) for _ in range(3)]
    for place, number in enumerate(special):
        made[place % 3][1, 7 + 20 * place, 5] = number
    return made


def grad(fn: Callable[..., Array]) -> Callable[..., Any]:
    return jax.grad(lambda *a: (fn(*a) * jnp.cos(jnp.arange(D))).sum(), (0, 1, 2))


@pytest.mark.some(2)
@pytest.mark.parametrize("special", [(), (np.inf, np.nan, -np.inf)])
@pytest.mark.parametrize("name", MASKS)
def test_no_bit_changes(name: str, special: tuple[float, ...]) -> None:
    fn, args = attention(MASKS[name]), operands(*special)
    for each in (fn, grad(fn)):
        on = stagejit.jit(each, options=stagejit.Options(verify=True))(*args)
        off = stagejit.jit(each, options=OFF)(*args)
        jax.tree.map(np.testing.assert_array_equal, on, off)
    if not special and name != "later":
        wanted = fn(*args)
        np.testing.assert_allclose(stagejit.jit(fn)(*args), wanted, rtol=2e-5, atol=2e-6)


def test_libraries_attention_in_batches_and_16_bits() -> None:
    q, k, v = (RNG.standard_normal((2, 64, 3, 32), dtype=np.float32) for _ in range(3))

    def fn(q: Array, k: Array, v: Array) -> Array:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    for args in ((q, k, v), [jnp.asarray(a, jnp.bfloat16) for a in (q, k, v)]):
        on, off = stagejit.jit(fn)(*args), stagejit.jit(fn, options=OFF)(*args)
        np.testing.assert_array_equal(on, off)
        tolerance = 2e-5 if args[0].dtype == np.float32 else 2e-2
        np.testing.assert_allclose(
            np.asarray(on, float), np.asarray(jax.jit(fn)(*args), float), rtol=tolerance,
            atol=tolerance,
        )  # fmt: skip


def test_explain_tells_what_is_left_out() -> None:
    explained = stagejit.jit(attention(MASKS["causal"])).explain(*operands())
    assert any(decision.rewrite == "skip-zeros" for decision in explained.decisions)
    told = " ".join(map(str, explained.chosen))
    assert "tiles of which anything is stored" in told
    assert "from the first to the last step in which the left is not zero" in told
