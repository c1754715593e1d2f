"""Gradients of bound functions outside of any program: nothing copies weights, and values are those
of the moment in which the gradient began, whatever is updated meanwhile."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from tests.binding.networks import array
from tests.binding.test_residuals import NETS, H, N, custom, derived, layers, mlp, picked, shapes

Begun = tuple[Any, Callable[[Any], Any]]  # the value, and what gives the gradient


def pulled(f: Any, x: Any) -> Begun:
    y, back = jax.vjp(f, x)
    return y, lambda t: back(t)[0]


def linearized(f: Any, x: Any) -> Begun:
    y, linear = jax.linearize(f, x)
    return y, lambda t: linear(x * t.sum())


def mapped(f: Any, x: Any) -> Begun:
    return pulled(lambda x: jax.vmap(f)(jnp.stack([x, x / 3])), x)


def map_of_pulled(f: Any, x: Any) -> Begun:
    y, back = jax.vmap(lambda x: jax.vjp(f, x))(jnp.stack([x, x / 3]))
    return y, lambda t: jax.vmap(lambda back, t: back(t)[0])(back, t)


def of_gradient(f: Any, x: Any) -> Begun:
    return pulled(jax.grad(lambda x: (f(x) ** 2).sum()), x)


def of_tangents(f: Any, x: Any) -> Begun:
    return pulled(lambda x: jax.jvp(f, (x,), (jnp.sin(x),))[1], x)


def in_a_program_later(f: Any, x: Any) -> Begun:
    y, back = jax.vjp(f, x)
    return y, lambda t: jax.jit(lambda back, t: back(t)[0])(back, t)


BEGUN = [pulled, linearized, mapped, of_gradient, of_tangents, in_a_program_later]


def _halved(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value / 2 for name, value in params.items()}


def _assert_close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4 * np.abs(wanted).max())


def _of_weights() -> Iterator[Any]:
    """Arrays of JAX's as large as a weight, or as one of its slices."""
    gc.collect()
    for each in jax.live_arrays():
        if {N, H} <= set(each.shape):
            yield each


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("begun", [pulled, linearized, mapped, map_of_pulled, of_gradient])
def test_no_gradient_keeps_copies_of_weights(net: Any, begun: Any) -> None:
    if net is custom and begun is linearized:
        pytest.skip("JAX has no tangents of a custom_vjp")
    params, x = shapes(), jnp.asarray(array(3, N, seed=9))
    nbytes = sum(each.nbytes for each in params.values())
    bound = stagejit.bind(net, params)
    bound(x)
    del params
    before = sum(each.nbytes for each in _of_weights())
    y, back = begun(bound, x)
    t = jnp.cos(y)
    back(t)
    copies = sum(each.nbytes for each in _of_weights()) - before
    kept = bound.memory_analysis()["kept_nbytes"]
    assert copies + kept <= 1.2 * nbytes, (copies / nbytes, kept / nbytes)


@pytest.mark.parametrize("net", [mlp, derived, layers, picked])
@pytest.mark.parametrize("begun", BEGUN)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_gradient_is_of_the_weights_with_which_it_began(
    net: Any, begun: Any, is_compiled: bool
) -> None:
    given = [shapes()]
    given += [_halved(given[0]), _halved(_halved(given[0]))]
    x = jnp.asarray(array(3, N, seed=9))
    bound, wanted, found = stagejit.bind(net, given[0]), [], []
    for params in given:
        bound.update(params)
        found.append(begun(bound, x))
        wanted.append(begun(lambda x, p=params: net(p, x), x))
        if is_compiled:
            found[-1][1](jnp.cos(found[-1][0]))
    for (y, back), (plain, wanted_back) in [*zip(found, wanted, strict=True)][::-1]:
        _assert_close(y, plain)
        for t in (jnp.cos(plain), jnp.sin(plain)):
            _assert_close(back(t), wanted_back(t))


def test_the_gradients_that_a_map_returns_are_right_or_refused() -> None:
    params, x = shapes(), jnp.asarray(array(3, N, seed=9))
    bound = stagejit.bind(mlp, params)
    wanted = map_of_pulled(lambda x: mlp(params, x), x)
    y, back = map_of_pulled(bound, x)
    _assert_close(back(y), wanted[1](y))
    bound.update(_halved(params))
    with pytest.raises(Exception, match="mlp: its weights were updated between"):
        back(y)


def test_what_a_gradient_keeps_goes_with_it() -> None:
    given = [shapes(), _halved(shapes()), shapes()]
    bound, x = stagejit.bind(mlp, given[0]), jnp.asarray(array(3, N, seed=9))
    y, back = jax.vjp(bound, x)
    wanted = jax.vjp(lambda x, p=given[0]: mlp(p, x), x)[1](y)
    _assert_close(back(y)[0], wanted[0])
    old = weakref.ref(given[0]["a"])
    bound.update(given[1])
    tables = [table for weight in bound._weights() for table in weight.tables]
    assert any(len(table.table._lists) > 1 for table in tables)
    given[0] = None
    gc.collect()
    _assert_close(back(y)[0], wanted[0])  # of what its program reads
    assert old() is None
    del back
    gc.collect()
    jax.vjp(bound, x)
    assert all(len(table.table._lists) == 1 for table in tables)


def test_what_nobody_has_any_more_is_an_error() -> None:
    given, x = [shapes(), _halved(shapes())], jnp.asarray(array(3, N, seed=9))
    bound = stagejit.bind(derived, given[0])
    y, back = jax.vjp(bound, x)
    given[0] = None
    gc.collect()
    bound.update(given[1])
    with pytest.raises(Exception, match="derived: its weights were updated between"):
        back(y)
    y, back = jax.vjp(bound, x)
    wanted = jax.vjp(lambda x: derived(given[1], x), x)[1](y)
    _assert_close(back(y)[0], wanted[0])
