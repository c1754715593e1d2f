"""Residuals that weights alone determine move to the part that reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

import stagejit.runtime.bound  # noqa: F401  (which lowers weights for XLA)
from stagejit.errors import GoneError
from stagejit.runtime.gradients.again import (
    Parts,
    made_again,
    of_one_moment,
    weights_of,
    with_weights_as_operands,
    with_weights_inside,
)
from stagejit.trace.calls.moments import snapshot_operand
from stagejit.trace.weights import Budget, Weight, known_p, weight_p

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
) -> Parts:
    made = jax.make_jaxpr(first)(SHAPE)
    operands = second.__code__.co_argcount
    return made_again(made, jax.make_jaxpr(second)(*[SHAPE] * operands), residuals)


def is_left(parts: Parts) -> bool:
    return not (parts.moved or parts.taken or parts.added or parts.moments)


def test_a_weight_and_what_is_made_of_it_move_and_values_stay() -> None:
    def first(x: Any) -> Any:
        w = weight()
        return x @ w, jnp.cos(x), w, w.T * MASK

    def second(cos: Any, w: Any, made: Any, t: Any) -> Any:
        return ((t * cos) @ w) @ made, made

    parts = split(first, second, ((1, 0), (2, 1), (3, 2)))
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
    (found,) = jaxpr_as_fun(parts.second)(X)
    np.testing.assert_array_equal(found, both(X)[1])
    defined = [v for eqn in parts.second.jaxpr.eqns for v in eqn.outvars]
    assert not {id(v) for v in defined} & {id(w)}


def test_nothing_moves_that_an_argument_determines() -> None:
    assert is_left(split(lambda x: (x, x * weight()), lambda r, t: r * t, ((1, 0),)))
    assert is_left(split(lambda x: (x, jnp.ones((N, N))), lambda r, t: r * t, ((1, 0),)))
    assert is_left(split(lambda x: (x, weight()), lambda r, t: r * t, ()))  # a result, no residual


def test_nothing_moves_where_effects_go_by_the_numbers_of_operands() -> None:
    made = jax.make_jaxpr(lambda x: (x, weight()))(SHAPE)

    def second(w: Any, ref: Any) -> Any:
        ref[...] = w
        return w

    reading = jax.make_jaxpr(second)(SHAPE, jax.new_ref(X))
    assert reading.effects
    assert is_left(made_again(made, reading, ((1, 0),)))


# -- bodies of loops ------------------------------------------------------------------------------


def body(x: Any, w: Any) -> Any:
    """Hands on what is computed of the slice of a weight."""
    return x @ (2 * known_p.bind(w)), jnp.cos(x), (2 * known_p.bind(w)).T


def rest(cos: Any, made: Any, t: Any) -> Any:
    return (t * cos) @ made


def split_body(first: Callable[..., Any]) -> Parts:
    made = jax.make_jaxpr(first)(SHAPE, SHAPE)
    return made_again(made, jax.make_jaxpr(rest)(*[SHAPE] * 3), ((1, 0), (2, 1)))


def test_a_body_hands_on_slices_of_weights_instead_of_what_it_computes_of_them() -> None:
    parts = split_body(body)
    assert (parts.moved, parts.taken, parts.added) == (frozenset({2}), frozenset({1}), (1,))
    product, cos = jaxpr_as_fun(parts.first)(X, X + 1)
    np.testing.assert_array_equal(product, body(X, X + 1)[0])
    (found,) = jaxpr_as_fun(parts.second)(X + 1, cos, X.T)
    np.testing.assert_array_equal(found, rest(cos, body(X, X + 1)[2], X.T))


def squared(x: Any, w: Any) -> Any:
    return x, x, known_p.bind(w) @ known_p.bind(w)


def test_a_body_hands_on_what_it_would_compute_again_in_each_iteration() -> None:
    assert is_left(split_body(squared))
    assert is_left(split_body(jax.jit(squared)))


def test_a_body_hands_on_what_is_not_known_to_be_of_weights() -> None:
    assert is_left(split_body(lambda x, w: (x, x, 2 * w)))


# -- weights as operands --------------------------------------------------------------------------


def read_twice(x: Any) -> Any:
    return x @ weight() + weight(), weight()


def test_weights_are_operands_and_weights_again() -> None:
    made = jax.make_jaxpr(read_twice)(SHAPE)
    assert weights_of(made) == [W]
    lifted = with_weights_as_operands(made, [W])
    assert not weights_of(lifted)
    for one, other in zip(
        jaxpr_as_fun(lifted)(X + 1, X), (X @ (X + 1) + X + 1, X + 1), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    inside = with_weights_inside(lifted, {0: W})
    assert str(inside).count("stagejit_weight") == 1
    for one, other in zip(jaxpr_as_fun(inside)(X), read_twice(X), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not weights_of(with_weights_inside(jax.make_jaxpr(lambda w, x: x)(X, X), {0: W}))


# -- moments --------------------------------------------------------------------------------------


def moved() -> Parts:
    return split(lambda x: (x @ weight(), weight()), lambda r, t: (t @ r, 2 * t), ((1, 0),))


def test_the_second_part_computes_of_the_moment_of_the_first_or_fails() -> None:
    first, second = jnp.array([1, 2, 7], jnp.uint32), jnp.array([1, 2, 8], jnp.uint32)
    W.moment = Weight("moment of f", first, False, Budget(1.0))
    try:
        parts = of_one_moment(moved())
        assert parts.moments == (W.moment,)
        _, then = jaxpr_as_fun(parts.first)(X)
        np.testing.assert_array_equal(then, first)
        np.testing.assert_array_equal(jaxpr_as_fun(parts.second)(then, X)[1], 2 * X)
        W.moment.put(second, is_copy=False)
        with pytest.raises(GoneError, match="f: its weights were updated"):
            jaxpr_as_fun(parts.second)(then, X)
    finally:
        W.moment = None


def test_parts_that_read_no_weights_of_a_bound_function_return_no_moment() -> None:
    parts = moved()
    assert of_one_moment(parts) is parts
    assert of_one_moment(parts, is_held=True) is parts


def test_both_parts_take_the_same_snapshot() -> None:
    W.moment = Weight("moment of f", jnp.zeros(3, jnp.uint32), True, Budget(0.0))
    try:
        held = of_one_moment(moved(), is_held=True)
        assert held.is_held
        assert snapshot_operand(held.first) == 0
        assert snapshot_operand(held.second) == 1  # behind the number
        again = of_one_moment(Parts(held.first, held.second), is_held=True)  # of second order
        assert not again.is_held
        assert again.added == (0,)
        assert snapshot_operand(again.first) == 0
        assert snapshot_operand(again.second) in (1, 3)
        assert len(again.second.in_avals) == len(held.second.in_avals) + 2
    finally:
        W.moment = None
