"""Branches that make themselves what they read of weights, and loops of which that is known.

Input: a jaxpr before JAX differentiates it. Output: one that computes the same. Invariant: loops,
branches and calls have the operands that they had; some are not read any more.

What a branch hands to the backward part of that branch is one of several values, by the predicate;
so weights among them do depend on an argument, until each branch has its own.
"""

from __future__ import annotations

import weakref
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


# What the operands of a loop depend on, by its body, of which no other loop has this object.
_given: weakref.WeakKeyDictionary[Any, tuple[Depends, ...]] = weakref.WeakKeyDictionary()


def given_to(closed: Any) -> tuple[Depends, ...] | None:
    """What the arguments of a loop's body depend on, where some are weights or slices of them."""
    return _given.get(closed)


def with_weights_inside(closed: Any) -> Any:
    """cond %p (%w = weight) (branch: f %w)  -->  cond %p (branch: %w = weight; f %w)

    The jaxpr itself where it has neither branches nor loops that read weights. Of loops it is noted
    what their bodies are given, see `given_to`.
    """
    jaxpr, given = opened(closed), given_to(closed)
    if not (_has_bodies(jaxpr) and (given or has_weights(jaxpr))):
        return closed
    return ClosedJaxpr(_changed(jaxpr, given or of_arguments(jaxpr)), closed.consts)


def _has_bodies(jaxpr: Any) -> bool:
    return any(
        jax_name(each.primitive) in ("cond", "scan")
        or any(map(_has_bodies, jaxprs_in(each.params)))
        for each in jaxpr.eqns
    )


def _changed(jaxpr: Any, given: Sequence[Depends]) -> Any:
    values = Values(jaxpr, given)
    return jaxpr.replace(eqns=[_equation(each, values) for each in jaxpr.eqns])


def _equation(equation: Any, values: Values) -> Any:
    """The same with other bodies."""
    name, params = jax_name(equation.primitive), dict(equation.params)
    if name == "cond":
        operands = equation.invars[1:]
        params["branches"] = tuple(_body(b, operands, values) for b in params["branches"])
    elif name == "scan":
        depends = [values.of(each) for each in equation.invars]
        if Depends.ON_WEIGHTS not in depends:
            return equation
        constants, carries = scan_counts(params, len(depends))
        depends[constants : constants + carries] = [Depends.ON_ARGUMENTS] * carries
        operands = equation.invars[:constants]
        body = params["jaxpr"] = _body(params["jaxpr"], operands, values, depends)
        _given[body] = tuple(depends)
    elif name in CALLS and any(map(_has_bodies, jaxprs_in(params))):
        params[CALLS[name]] = _body(params[CALLS[name]], equation.invars, values)
    else:
        return equation
    return equation.replace(params=params)


def _body(
    body: Any, operands: Sequence[Any], values: Values, given: Sequence[Depends] | None = None
) -> Any:
    """One that makes itself those of its first operands that are of weights, where it has branches
    or loops that read them."""
    jaxpr = opened(body)
    if given is not None and not _has_bodies(jaxpr):
        return ClosedJaxpr(jaxpr.replace(), body.consts)
    made, equations = dict[Any, Any](), list[Any]()
    read = {v for each in jaxpr.eqns for v in each.invars if not isinstance(v, Literal)}
    for inner, outer in zip(jaxpr.invars, operands, strict=False):
        origin = _origin(outer, values) if inner in read else None
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
    changed = _changed(changed, given or of_arguments(changed))
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
