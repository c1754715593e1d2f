"""Residuals that weights alone determine move to the part that reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

import stagejit.runtime.bound  # noqa: F401  (which lowers weights for XLA)
from stagejit.trace.residuals.again import Given, Parts, made_again
from stagejit.trace.residuals.alone import Depends
from stagejit.trace.weights import Budget, Weight, weight_p

N = 4
ARRAY = np.arange(N * N, dtype=np.float32).reshape(N, N)
W = Weight("w", jnp.asarray(ARRAY), False, Budget(1000.0))
MASK = np.tri(N, dtype=np.float32)
SHAPE = jax.ShapeDtypeStruct((N, N), jnp.float32)
X = jnp.asarray(ARRAY) * 0.5 + 1


def weight() -> Any:
    return weight_p.bind(weight=W)  # type: ignore[no-untyped-call]


def split(
    first: Callable[..., Any], second: Callable[..., Any], residuals: tuple[tuple[int, int], ...]
) -> Parts | None:
    made = jax.make_jaxpr(first)(SHAPE)
    operands = second.__code__.co_argcount
    return made_again(made, jax.make_jaxpr(second)(*[SHAPE] * operands), residuals)


def test_a_weight_and_what_is_made_of_it_move_and_values_stay() -> None:
    def first(x: Any) -> Any:
        w = weight()
        return x @ w, jnp.cos(x), w, w.T * MASK

    def second(cos: Any, w: Any, made: Any, t: Any) -> Any:
        return ((t * cos) @ w) @ made, made

    parts = split(first, second, ((1, 0), (2, 1), (3, 2)))
    assert parts is not None
    assert (parts.moved, parts.taken) == (frozenset({2, 3}), frozenset({1, 2}))
    product, cos = jaxpr_as_fun(parts.first)(X)
    np.testing.assert_array_equal(product, first(X)[0])
    found = jaxpr_as_fun(parts.second)(cos, X)
    for one, other in zip(found, second(*first(X)[1:], X), strict=True):
        np.testing.assert_array_equal(one, other)
    assert "mul" not in str(parts.first)  # nobody there reads what was made


def test_parts_of_the_same_variables_stay_apart() -> None:
    """As JAX makes them by a policy of `checkpoint`."""

    def both(x: Any) -> Any:
        w = weight() * MASK
        return w, x @ w

    made = jax.make_jaxpr(both)(SHAPE)
    (x,), (w, product) = made.jaxpr.invars, made.jaxpr.outvars
    first = made.replace(jaxpr=made.jaxpr.replace(outvars=[w]))
    second = made.replace(jaxpr=made.jaxpr.replace(invars=[w, x], eqns=made.jaxpr.eqns[-1:],
                                                   outvars=[product]))  # fmt: skip
    parts = made_again(first, second, ((0, 0),))
    assert parts is not None
    (found,) = jaxpr_as_fun(parts.second)(X)
    np.testing.assert_array_equal(found, both(X)[1])
    defined = [v for eqn in parts.second.jaxpr.eqns for v in eqn.outvars]
    assert not {id(v) for v in defined} & {id(w)}


def test_nothing_moves_that_an_argument_determines() -> None:
    assert split(lambda x: (x, x * weight()), lambda r, t: r * t, ((1, 0),)) is None
    assert split(lambda x: (x, jnp.ones((N, N))), lambda r, t: r * t, ((1, 0),)) is None
    assert split(lambda x: (x, weight()), lambda r, t: r * t, ()) is None  # a result, no residual


def test_nothing_moves_where_effects_go_by_the_numbers_of_operands() -> None:
    made = jax.make_jaxpr(lambda x: (x, weight()))(SHAPE)

    def second(w: Any, ref: Any) -> Any:
        ref[...] = w
        return w

    reading = jax.make_jaxpr(second)(SHAPE, jax.new_ref(X))
    assert reading.effects
    assert made_again(made, reading, ((1, 0),)) is None


# -- bodies of loops ------------------------------------------------------------------------------

SLICES = Given((None, None, 0), (Depends.ON_ARGUMENTS, Depends.ON_WEIGHTS), (False, True))


def body(x: Any, w: Any) -> Any:
    """Hands on what is computed of the slice of a weight."""
    return x @ (2 * w), jnp.cos(x), (2 * w).T


def rest(cos: Any, made: Any, x: Any, t: Any) -> Any:
    return ((t * cos) @ made) + x


def split_body(first: Callable[..., Any], given: Given | None) -> Parts | None:
    made = jax.make_jaxpr(first)(SHAPE, SHAPE)
    return made_again(made, jax.make_jaxpr(rest)(*[SHAPE] * 4), ((1, 0), (2, 1)), given)


def test_a_body_hands_on_slices_of_weights_instead_of_what_it_computes_of_them() -> None:
    parts = split_body(body, SLICES)
    assert parts is not None
    assert (parts.moved, parts.taken, parts.added) == (frozenset({2}), frozenset({1}), (1,))
    product, cos = jaxpr_as_fun(parts.first)(X, X + 1)
    np.testing.assert_array_equal(product, body(X, X + 1)[0])
    (found,) = jaxpr_as_fun(parts.second)(cos, X, X + 1, X.T)
    np.testing.assert_array_equal(found, rest(cos, body(X, X + 1)[2], X, X.T))


def test_a_slice_that_is_handed_on_anyway_is_handed_on_once() -> None:
    forwarded = replace(SLICES, forwards=(None, None, 1), may_be_added=(False, False))
    parts = split_body(body, forwarded)
    assert parts is not None
    assert (parts.taken, parts.added) == (frozenset({1}), ())
    (found,) = jaxpr_as_fun(parts.second)(jnp.cos(X), X + 1, X.T)
    np.testing.assert_array_equal(found, rest(jnp.cos(X), body(X, X + 1)[2], X + 1, X.T))


def squared(x: Any, w: Any) -> Any:
    return x, x, w @ w


def test_a_body_hands_on_what_it_would_compute_again_in_each_iteration() -> None:
    assert split_body(squared, SLICES) is None
    assert split_body(jax.jit(squared), SLICES) is None


def test_a_body_hands_on_what_it_computes_where_slices_may_not_go() -> None:
    assert split_body(body, replace(SLICES, may_be_added=(True, False))) is None
    assert split_body(body, None) is None
