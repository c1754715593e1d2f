"""Weights in fewer bytes in the bodies of loops and branches, and where they stay as they are."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

import stagejit
from tests.rewrites.weights.test_forms import array, assert_near, rounded

OTHERS = "others than products read it, too"


def in_loop(w: Any, x: Array) -> Array:
    return lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ w), x)


def in_loop_and_outside(w: Any, x: Array) -> Array:
    return in_loop(w, x) @ w.T


def in_branches(w: Any, x: Array) -> Array:
    def one(i: Any, c: Array) -> Array:
        return lax.cond(i == 1, lambda c: jnp.tanh(c @ w), lambda c: jnp.sin(c @ w.T), c)

    return lax.fori_loop(0, 3, one, x)


def carried_as_it_is(w: Any, x: Array) -> Array:
    def one(i: Any, state: Any) -> Any:
        return state[0], jnp.tanh(state[1] @ state[0])

    return lax.fori_loop(0, 3, one, (w, x))[1]


def after_carrying(w: Any, x: Array) -> Array:
    def one(i: Any, state: Any) -> Any:
        return state[0], jnp.tanh(state[1] @ state[0])

    return jnp.matmul(*lax.fori_loop(0, 3, one, (w, x))[::-1])


@pytest.mark.some(2)
@pytest.mark.parametrize("size", [64, 512])
@pytest.mark.parametrize("form", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("f", [in_loop, in_loop_and_outside, in_branches, carried_as_it_is])
def test_products_in_bodies_read_the_form(f: Any, form: Any, size: int) -> None:
    if size == 512 and (f is not in_loop_and_outside or form == "bf16"):
        return  # panels: one program is enough
    w, x = array(size, size) / size**0.5, jnp.asarray(array(5, size, seed=1))
    known = rounded(w, form, (0,))
    bound = stagejit.bind(f, jnp.asarray(w), weights=form, options=stagejit.Options(verify=True))
    # the axis that has no scales is that of the first product that is met
    either = [f(rounded(w, form, summed), x) for summed in ((0,), (1,))]
    found = bound(x)
    assert min(float(jnp.abs(found - wanted).max()) for wanted in either) < 2e-4
    assert list(bound.weight_error) == ["params"]
    if f is not in_branches:
        error = np.linalg.norm(known - w) / np.linalg.norm(w)
        np.testing.assert_allclose(bound.weight_error["params"], error, rtol=1e-3)
    turned = f is in_branches or (f is in_loop_and_outside and size == 64 and form != "int4")
    copies = 2 if turned else 1  # its transpose lies in another order
    bits = {"bf16": 16, "int8": 8, "int4": 4}[form]
    assert bound.memory_analysis()["made_nbytes"] <= copies * (w.size * bits // 8 + 4 * size + 4)
    assert bound.memory_analysis()["original_nbytes"] == 0


def read_by_others_outside(w: Any, x: Array) -> Array:
    return in_loop(w, x) + w[0]


def read_by_others_inside(w: Any, x: Array) -> Array:
    return lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c + (w * c[0, 0]).sum(0)), x) @ w


def read_by_others_in_a_branch(w: Any, x: Array) -> Array:
    return lax.cond(x[0, 0] > 0, lambda x: x @ w, lambda x: x + w[0], x) @ w


def changed_by_the_loop(w: Any, x: Array) -> Array:
    def one(i: Any, state: Any) -> Any:
        return state[0] * 0.5, jnp.tanh(state[1] @ state[0])

    return lax.fori_loop(0, 3, one, (w, x))[1] @ w


def sliced_by_the_loop(w: Any, x: Array) -> Array:
    return lax.scan(lambda c, row: (jnp.tanh(c + row), None), x, w)[0] @ w


def returned_by_a_branch(w: Any, x: Array) -> Array:
    kept = lax.cond(x[0, 0] > 0, lambda: w, lambda: jnp.zeros_like(w))
    return x @ kept + (x @ w)


@pytest.mark.parametrize(
    "f",
    [
        read_by_others_outside,
        read_by_others_inside,
        read_by_others_in_a_branch,
        changed_by_the_loop,
        sliced_by_the_loop,
        returned_by_a_branch,
    ],
)
def test_what_others_read_anywhere_stays_everywhere(f: Any) -> None:
    w, x = jnp.asarray(array(64, 64)) / 8, jnp.asarray(array(5, 64, seed=1))
    bound = stagejit.bind(f, w, weights="int8", options=stagejit.Options(verify=True))
    assert_near(bound(x), f(w, x))
    assert bound.weight_error == {}
    reasons = [d.reason for d in bound.plan(x).decisions if d.rewrite == "store-weights"]
    assert reasons
    assert set(reasons) == {OTHERS}


def test_update_rounds_anew_in_bodies() -> None:
    first, second = array(64, 64) / 8, array(64, 64, seed=5) / 8
    bound = stagejit.bind(in_loop, first, weights="int8")
    x = jnp.asarray(array(5, 64, seed=1))
    bound(x)
    bound.update(second)
    assert_near(bound(x), in_loop(rounded(second, "int8", (0,)), x))


@pytest.mark.parametrize("off", ["store-weights", "evaluate-weights", "simplify-loops"])
def test_switched_off(off: str) -> None:
    w, x = jnp.asarray(array(64, 64)) / 8, jnp.asarray(array(5, 64, seed=1))
    options = stagejit.Options(disable=(off,), verify=True)
    bound = stagejit.bind(in_loop, w, weights="int8", options=options)
    known = w if off == "store-weights" else jnp.asarray(rounded(np.asarray(w), "int8", (0,)))
    assert_near(bound(x), in_loop(known, x))
