"""Branches that make themselves what they read of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun

import stagejit.runtime.bound  # noqa: F401  (which lowers weights for XLA)
from stagejit.trace.residuals.inside import given_to, with_weights_inside
from stagejit.trace.weights import Budget, Weight, weight_p

N = 4
ARRAY = np.arange(N * N, dtype=np.float32).reshape(N, N) / 10
W = Weight("w", jnp.asarray(ARRAY), False, Budget(1000.0))
X = jnp.asarray(ARRAY) - 0.5


def weight() -> Any:
    return weight_p.bind(weight=W)  # type: ignore[no-untyped-call]


def branched(x: Any, w: Any) -> Any:
    return lax.cond(x.sum() > 0, lambda x: jnp.sin(x) @ w, lambda x: x @ w.T, x)


def looped(x: Any) -> Any:
    w = weight()
    return lax.scan(lambda x, i: (branched(x * i, w), x), x, jnp.arange(3.0))[0]


def nested(x: Any) -> Any:
    return jax.jit(branched)(x, weight().T)


def inner(x: Any) -> Any:
    w = weight()
    return lax.cond(x[0, 0] > 9, lambda x: x, lambda x: branched(x, w), x)


def changed(function: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The jaxpr, and with weights inside."""
    made = jax.make_jaxpr(function)(X)
    return made, with_weights_inside(made)


def read_by_branches(closed: Any) -> list[tuple[int, ...]]:
    """The shapes of operands that some branch reads, for each `cond`."""
    found = []
    for equation in getattr(closed, "jaxpr", closed).eqns:
        branches = equation.params.get("branches", ())
        read = {
            at
            for branch in branches
            for at, operand in enumerate(branch.jaxpr.invars)
            if any(v is operand for eqn in branch.jaxpr.eqns for v in eqn.invars)
        }
        if branches:
            found.append(tuple(sorted(read)))
        for body in (*branches, *(equation.params.get(n) for n in ("jaxpr",))):
            if body is not None:
                found += read_by_branches(body)
    return found


@pytest.mark.parametrize(
    "function", [lambda x: branched(x, weight()), lambda x: branched(x, weight().T[::-1]),
                 looped, nested, inner]
)  # fmt: skip
def test_branches_ask_for_weights_themselves(function: Callable[[Any], Any]) -> None:
    before, after = changed(function)
    np.testing.assert_array_equal(jaxpr_as_fun(after)(X)[0], jaxpr_as_fun(before)(X)[0])
    assert max(map(len, read_by_branches(before))) == 2
    assert max(map(len, read_by_branches(after))) == 1, after
    types = [[str(v.aval) for v in each.invars] for each in (before.jaxpr, after.jaxpr)]
    assert types[0] == types[1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: branched(x, weight() @ weight()),  # a loop would compute it in each iteration
        lambda x: branched(x, weight() * x),
        lambda x: branched(x, jnp.eye(N)),
        lambda x: branched(x, lax.scan(lambda c, w: (c, w + 1), 0.0, weight())[1]),
    ],
)
def test_branches_get_what_is_computed_outside(function: Callable[[Any], Any]) -> None:
    before, after = changed(function)
    assert read_by_branches(after) == read_by_branches(before)


@pytest.mark.parametrize("function", [lambda x: x @ weight(), lambda x: branched(x, x)])
def test_other_programs_stay_what_they_are(function: Callable[[Any], Any]) -> None:
    before, after = changed(function)
    assert after is before


# -- loops ----------------------------------------------------------------------------------------


def layers(x: Any) -> Any:
    def layer(x: Any, read: Any) -> Any:
        w, bias, b = read
        return x * w + bias + b, None

    wide = weight() * x[0, 0]
    return lax.scan(lambda x, read: layer(x + wide, read), x, (weight(), wide, X))[0]


def given(closed: Any) -> list[list[str]]:
    """For each loop."""
    loops = [each for each in closed.jaxpr.eqns if each.primitive.name == "scan"]
    return [[each.name for each in given_to(loop.params["jaxpr"]) or ()] for loop in loops]


def test_it_is_known_which_operands_of_a_loop_are_weights() -> None:
    before, after = changed(lambda x: (layers(x), layers(x * 2)))
    constant, carry, slices = "ON_ARGUMENTS", "ON_ARGUMENTS", ["ON_WEIGHTS", "ON_ARGUMENTS"]
    assert given(after) == [[constant, carry, *slices, "ON_NOTHING"]] * 2
    assert given(before) == [[], []]


def test_a_body_of_several_loops_is_known_by_each() -> None:
    def two(x: Any) -> Any:
        def body(x: Any, w: Any) -> Any:
            return x @ w, None

        made = weight()[None]
        return lax.scan(body, x, made)[0], lax.scan(body, x, x[None])[0]

    _, after = changed(two)
    assert given(after) == [["ON_ARGUMENTS", "ON_WEIGHTS"], []]


def test_loops_in_loops_are_known_by_what_the_outer_one_is_given() -> None:
    def outer(x: Any) -> Any:
        def step(x: Any, w: Any) -> Any:
            return lax.scan(lambda x, row: (x + row, None), x, w)[0], None

        return lax.scan(step, x, weight()[None])[0]

    _, after = changed(outer)
    (loop,) = (each for each in after.jaxpr.eqns if each.primitive.name == "scan")
    body = with_weights_inside(loop.params["jaxpr"])
    assert given(body) == [["ON_ARGUMENTS", "ON_WEIGHTS"]]
