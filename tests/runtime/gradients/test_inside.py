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
from stagejit.runtime.gradients.inside import with_weights_inside_bodies
from stagejit.trace.weights import Budget, Weight, known_p, weight_p

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
    return made, with_weights_inside_bodies(made) or made


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


def with_constant(x: Any) -> Any:
    w = weight()
    return lax.scan(lambda x, row: (x * w + row, None), x, weight())[0]


def known(closed: Any) -> list[list[int]]:
    """For each loop, which operands its body says are known."""
    found = []
    for equation in getattr(closed, "jaxpr", closed).eqns:
        if equation.primitive.name == "scan":
            found.append(_known_in(equation.params["jaxpr"].jaxpr))
    return found


def _known_in(body: Any) -> list[int]:
    for call in body.eqns:
        inner = call.params["jaxpr"].jaxpr if call.primitive.name == "jit" else None
        if inner is not None:
            said = {v for e in inner.eqns if e.primitive is known_p for v in e.invars}
            return [at for at, v in enumerate(inner.invars) if v in said]
    return []


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (layers, [[2]]),
        (with_constant, [[0, 2]]),
        (lambda x: (layers(x), layers(x * 2)), [[2], [2]]),
        (lambda x: lax.scan(lambda x, i: (x * weight(), None), x, jnp.arange(3.0))[0], [[]]),
        (lambda x: lax.scan(lambda x, row: (x + row, None), x, x)[0], [[]]),
    ],
)
def test_bodies_of_loops_say_which_slices_are_of_weights(
    function: Callable[[Any], Any], wanted: list[list[int]]
) -> None:
    before, after = changed(function)
    assert known(before) == [[] for _ in wanted]
    assert known(after) == wanted
    for one, other in zip(jaxpr_as_fun(after)(X), jaxpr_as_fun(before)(X), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_what_is_changed_is_not_changed_again() -> None:
    _, after = changed(lambda x: (layers(x), branched(x, weight())))
    assert with_weights_inside_bodies(after) is None


def test_bodies_with_effects_stay() -> None:
    def loop(x: Any) -> Any:
        def body(x: Any, w: Any) -> Any:
            jax.debug.callback(lambda: None)
            return x + w, None

        return lax.scan(body, x, weight())[0]

    before, after = changed(loop)
    assert after is before
