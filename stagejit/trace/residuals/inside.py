"""Branches that make themselves what they read of weights.

Input: a jaxpr before JAX differentiates it. Output: one that computes the same. Invariant: loops,
branches and calls have the operands that they had; some are not read any more.

What a branch hands to the backward part of that branch is one of several values, by the predicate;
so weights among them do depend on an argument, until each branch has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stagejit.compat import ClosedJaxpr, Jaxpr, Literal, scan_counts
from stagejit.trace.calls.primitives import jax_name
from stagejit.trace.residuals.again import copied, replaced, with_operands
from stagejit.trace.residuals.alone import (
    CALLS,
    Depends,
    Values,
    has_weights,
    jaxprs_in,
    of_arguments,
    opened,
)
from stagejit.trace.weights import weight_p

# What costs as much as reading: all else is computed outside, as a loop or a branch that has it
# would compute it each time, if it is beyond the budget.
_CHEAP = frozenset(
    (
        "broadcast_in_dim", "convert_element_type", "copy", "expand_dims", "neg", "reshape", "rev",
        "slice", "squeeze", "transpose",
    )
)  # fmt: skip


def with_weights_inside(closed: Any) -> Any:
    """cond %p (%w = weight) (branch: f %w)  -->  cond %p (branch: %w = weight; f %w)

    The jaxpr itself where it has no such branch.
    """
    jaxpr = opened(closed)
    if not (_has_branches(jaxpr) and has_weights(jaxpr)):
        return closed
    return ClosedJaxpr(_changed(jaxpr), closed.consts)


def _has_branches(jaxpr: Any) -> bool:
    return any(
        jax_name(equation.primitive) == "cond"
        or any(map(_has_branches, jaxprs_in(equation.params)))
        for equation in jaxpr.eqns
    )


def _changed(jaxpr: Any) -> Any:
    values = Values(jaxpr, of_arguments(jaxpr))
    return jaxpr.replace(eqns=[_equation(each, values) for each in jaxpr.eqns])


def _equation(equation: Any, values: Values) -> Any:
    """The same with other bodies."""
    name, params = jax_name(equation.primitive), dict(equation.params)
    if name == "cond":
        operands = equation.invars[1:]
        params["branches"] = tuple(_body(b, operands, values) for b in params["branches"])
    elif (name in CALLS or name == "scan") and any(map(_has_branches, jaxprs_in(params))):
        parameter, operands = CALLS.get(name, "jaxpr"), equation.invars
        if name == "scan":
            operands = operands[: scan_counts(params, len(operands))[0]]
        params[parameter] = _body(params[parameter], operands, values)
    else:
        return equation
    return equation.replace(params=params)


def _body(body: Any, operands: Sequence[Any], values: Values) -> Any:
    """One that makes itself those of its first operands that are of weights."""
    jaxpr = opened(body)
    made, equations = dict[Any, Any](), list[Any]()
    for inner, outer in zip(jaxpr.invars, operands, strict=False):
        origin = _origin(outer, values)
        if origin is not None:
            renamed = dict[Any, Any]()
            equations += copied(origin, renamed)
            made[inner] = renamed[outer]
    changed = Jaxpr(
        jaxpr.constvars,
        jaxpr.invars,
        [replaced(each, made) for each in jaxpr.outvars],
        [*equations, *(with_operands(each, made) for each in jaxpr.eqns)],
        jaxpr.effects,
        jaxpr.debug_info,
    )
    changed = _changed(changed)
    return ClosedJaxpr(changed, body.consts) if body is not jaxpr or body.consts else changed


def _origin(outer: Any, values: Values) -> list[Any] | None:
    """The equations that a value of weights is from, the first one first; None where it is another,
    or costs more than to read it."""
    found = list[Any]()
    while True:
        if isinstance(outer, Literal) or values.of(outer) is not Depends.ON_WEIGHTS:
            return None
        equation = values.origins.get(outer)
        if equation is None:
            return None
        found.insert(0, equation)
        if equation.primitive is weight_p:
            return found
        if jax_name(equation.primitive) not in _CHEAP or len(equation.invars) != 1:
            return None
        outer = equation.invars[0]
