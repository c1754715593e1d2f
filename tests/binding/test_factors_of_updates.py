"""scale-weights: factors that an update makes infinite, or zero: never other values than the
function has; what cannot be computed so is refused."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.errors import OptionsError
from stagejit.rewrites.weights.scales import NAME

NUMBERS = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-30, 2.0)
REFUSED = "would give (an Inf|a zero) or a NaN that weights of products are (multiplied|divided) by"


def layer(fn: str, x: Any, w: Any, s: Any) -> Any:
    made = x @ w + 0.5
    return jnp.clip(made * s if fn == "mul" else made / s, -3, 3)


def straight(fn: str, params: Any, x: Any) -> Any:
    for w, s in zip(*params, strict=True):
        x = layer(fn, x, w, s)
    return x


def computed(fn: str, params: Any, x: Any) -> Any:
    """The factor is, of two weights."""
    ws, ss = params
    return straight(fn, (ws, [s * jnp.exp(ss[0] * 0) for s in ss]), x)


def scanned(fn: str, params: Any, x: Any) -> Any:
    return lax.scan(lambda c, each: (layer(fn, c, *each), None), x, params)[0]


def branches(fn: str, params: Any, x: Any) -> Any:
    def body(c: Any, each: Any) -> Any:
        return lax.cond(c[0, 0] > 9, lambda c: c, lambda c: layer(fn, c, *each), c), None

    return lax.scan(body, x, params)[0]


def nested(fn: str, params: Any, x: Any) -> Any:
    pairs = jax.tree.map(lambda a: a.reshape(2, 2, *a.shape[1:]), params)
    return lax.scan(lambda c, pair: (scanned(fn, pair, c), None), x, pairs)[0]


NETS = [straight, computed, scanned, branches, nested]
FOLDED = (straight, computed, scanned, branches)
X = jnp.asarray(np.random.default_rng(0).uniform(1, 2, (8, 16)), jnp.float32)


def params_with(number: float, net: Any = scanned) -> Any:
    """Weights are 0 nearly everywhere."""
    stacked = jnp.stack([jnp.eye(16)] * 4), jnp.ones((4, 16)).at[2, 7].set(number)
    return tuple(map(list, stacked)) if net in (straight, computed) else stacked


def is_folded(bound: Any) -> bool:
    return any(d.rewrite == NAME and d.applied for d in bound.plan(X).decisions)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("fn", ["mul", "div"])
@pytest.mark.parametrize("net", NETS)
def test_an_update_gives_what_the_function_gives_or_is_refused(
    net: Any, fn: str, number: float
) -> None:
    f = partial(net, fn)
    bound = stagejit.bind(f, params_with(1, net))
    around = jax.jit(bound)
    before = np.asarray(bound(X)), np.asarray(around(X))
    other = params_with(number, net)
    with np.errstate(all="ignore"):
        is_finite = np.isfinite(number if fn == "mul" else 1 / np.float64(number))
    assert is_folded(bound) == (net in FOLDED)
    if is_finite or net not in FOLDED:
        bound.update(other)
        wanted = (np.asarray(f(other, X)),) * 2
    else:
        with pytest.raises(OptionsError, match=REFUSED):
            bound.update(other)
        wanted = before
    for program, expected in zip((bound, around), wanted, strict=True):
        np.testing.assert_allclose(program(X), expected, rtol=1e-6)
    anew = stagejit.bind(f, other)
    np.testing.assert_allclose(anew(X), f(other, X), rtol=1e-6)


def test_a_factor_of_a_program_that_is_gone_refuses_nothing() -> None:
    f = partial(scanned, "mul")
    bound = stagejit.bind(f, params_with(1))
    bound(X)
    assert is_folded(bound)
    bound.clear_cache()
    gc.collect()
    bound.update(other := params_with(np.inf))
    np.testing.assert_allclose(bound(X), f(other, X), rtol=1e-6)
    assert not is_folded(bound)


def test_what_was_seen_of_a_factor_is_true_after_an_update() -> None:
    """Of weights that are gone when another program is compiled."""
    f = partial(scanned, "mul")
    bound = stagejit.bind(f, params_with(1))
    bound(X)
    wanted = np.asarray(f(params_with(2), X))
    bound.update(params_with(2))
    gc.collect()
    for rows in (8, 3):
        np.testing.assert_allclose(bound(X[:rows]), wanted[:rows], rtol=1e-6)
    with pytest.raises(OptionsError, match=REFUSED):
        bound.update(params_with(np.inf))
    np.testing.assert_allclose(bound(X), wanted, rtol=1e-6)


def test_where_nothing_is_scaled_nothing_is_refused() -> None:
    f = partial(scanned, "div")
    bound = stagejit.bind(f, params_with(1), options=stagejit.Options(disable=NAME))
    bound(X)
    bound.update(other := params_with(0))
    np.testing.assert_allclose(bound(X), f(other, X), rtol=1e-6)
