"""The two programs of a gradient: both read the weights where they are.

Input: the two jaxprs that JAX makes of one that reads weights. Output: two that compute the same,
where the second makes itself what weights alone determine. Invariant: residuals that depend on an
argument stay as they are, in their order.

Note [Residuals]: JAX splits a program in two and hands what the second part needs of the first from
one to the other. A weight is a value like any other there. So the forward program would return a
copy of each weight in each call, and the backward program would read these copies, pack them, and
know nothing of them. `weight_p` has no operands: the second part can ask for a weight itself, and
for all that is computed of weights alone, which is made once however many programs read it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import Var, new_jaxpr_eqn
from jax.interpreters.partial_eval import dce_jaxpr

from stagejit.compat import ClosedJaxpr, Jaxpr, Literal
from stagejit.runtime.gradients.alone import (
    Depends,
    jaxprs_in,
    of_arguments,
    opened,
    results_of,
)
from stagejit.runtime.lowering.snapshots import AVAL as SNAPSHOT
from stagejit.trace.calls.moments import after_p, at_p, check_p, has_numbers, snapshot_operand
from stagejit.trace.calls.primitives import jax_name
from stagejit.trace.weights import Weight, known_p, weight_p


@dataclass(frozen=True)
class Parts:
    """moved: the numbers of the results of the first part that are none any more; taken: of the
    operands of the second. added: operands of the first that the second takes before its others.
    moments: of these many weights, the first part returns the number of the moment in the end, and
    the second takes it before all else. is_held: both take a snapshot of it, the first before all
    else, the second behind the numbers."""

    first: Any
    second: Any
    moved: frozenset[int] = frozenset()
    taken: frozenset[int] = frozenset()
    added: tuple[int, ...] = ()
    moments: tuple[Weight, ...] = ()
    is_held: bool = False


def weights_of(jaxpr: Any) -> list[Weight]:
    """Those that the jaxpr asks for itself, not in what it calls."""
    found = (each for each in opened(jaxpr).eqns if each.primitive is weight_p)
    return list(dict.fromkeys(each.params["weight"] for each in found))


def moments_in(jaxpr: Any) -> tuple[Weight, ...]:
    """Those of all weights that are asked for, also in what is called."""
    own = (weight if weight.is_moment else weight.moment for weight in weights_of(jaxpr))
    found = dict.fromkeys(each for each in own if each is not None)
    for equation in opened(jaxpr).eqns:
        for inner in jaxprs_in(equation.params):
            found |= dict.fromkeys(moments_in(inner))
    return tuple(found)


def reads_weights(jaxpr: Any) -> bool:
    """Whether it asks for weights itself, or is given what is of weights."""
    return any(each.primitive in (weight_p, known_p) for each in opened(jaxpr).eqns)


def with_weights_as_operands(closed: Any, weights: Sequence[Weight]) -> Any:
    """%w = weight; f %w, %x  -->  (%w, %x): f %w, %x"""
    jaxpr = opened(closed)
    operands = {each: Var(each.aval) for each in weights}
    renamed, equations = dict[Any, Any](), []
    for equation in jaxpr.eqns:
        if equation.primitive is weight_p:
            renamed[equation.outvars[0]] = operands[equation.params["weight"]]
        else:
            equations.append(with_operands(equation, renamed))
    results = [replaced(each, renamed) for each in jaxpr.outvars]
    invars = [*operands.values(), *jaxpr.invars]
    info = jaxpr.debug_info.with_unknown_names()
    made = Jaxpr(jaxpr.constvars, invars, results, equations, jaxpr.effects, info)
    return ClosedJaxpr(made, closed.consts)


def with_weights_inside(closed: Any, weights: Mapping[int, Weight]) -> Any:
    """(%w, %x): f %w, %x  -->  %w = weight; f %w, %x, for the operands of these numbers"""
    jaxpr = opened(closed)
    variables = {weight: Var(weight.aval) for weight in weights.values()}
    renamed = {jaxpr.invars[at]: variables[weight] for at, weight in weights.items()}
    made: Any = Jaxpr(
        jaxpr.constvars,
        [v for v in jaxpr.invars if v not in renamed],
        [replaced(v, renamed) for v in jaxpr.outvars],
        [with_operands(each, renamed) for each in jaxpr.eqns],
        jaxpr.effects,
        jaxpr.debug_info.with_unknown_names(),
    )
    read = {v for each in made.eqns for v in each.invars if not isinstance(v, Literal)}
    read |= {v for v in made.outvars if not isinstance(v, Literal)}
    asked = [asking_for(weight, v) for weight, v in variables.items() if v in read]
    return ClosedJaxpr(made.replace(eqns=[*asked, *made.eqns]), closed.consts)


def asking_for(weight: Weight, variable: Any) -> Any:
    """%v = weight"""
    return new_jaxpr_eqn([], [variable], weight_p, {"weight": weight}, set())


# What a loop would compute in each iteration, if it is not made once.
_DEAR = frozenset(
    ("cond", "conv_general_dilated", "dot_general", "ragged_dot_general", "scan", "sort")
)


def made_again(first: Any, second: Any, residuals: Sequence[tuple[int, int]]) -> Parts:
    """(%r = weight; return %y, %r), (f %r, %t)  -->  (return %y), (%r = weight; f %r, %t)

    residuals: numbers of results of `first`, each with that of the operand of `second` that it is.
    """
    jaxpr, later = opened(first), opened(second)
    moved = _moved(jaxpr, residuals)
    if not moved or any(map(is_of_operand, later.effects)):
        return Parts(first, second)
    made, needed = dce_jaxpr(jaxpr, _flags(jaxpr, moved))
    added = tuple(number for number, is_needed in enumerate(needed) if is_needed)
    operands = [Var(v.aval) for v in made.invars]
    inner: dict[Any, Any] = {each: Var(each.aval) for each in made.constvars}
    constants = [*inner.values(), *later.constvars]
    inner |= dict(zip(made.invars, operands, strict=True))
    equations = copied(made.eqns, inner)
    results = [later.invars[moved[number]] for number in sorted(moved)]
    renamed = {v: replaced(result, inner) for v, result in zip(results, made.outvars, strict=True)}
    changed = Jaxpr(
        constants,
        [*operands, *(v for v in later.invars if v not in renamed)],
        [replaced(v, renamed) for v in later.outvars],
        [*equations, *(with_operands(each, renamed) for each in later.eqns)],
        {*later.effects, *made.effects},
        later.debug_info.with_unknown_names(),
    )
    others = [not each for each in _flags(jaxpr, moved)]
    kept, _ = dce_jaxpr(jaxpr, others, True)
    return Parts(
        ClosedJaxpr(kept, first.consts),
        ClosedJaxpr(changed, [*first.consts, *second.consts]),
        frozenset(moved),
        frozenset(moved.values()),
        added,
    )


def _moved(jaxpr: Any, residuals: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Those of the residuals that the second part makes."""
    depends = results_of(jaxpr, of_arguments(jaxpr))
    found = {}
    for number, operand in residuals:
        if depends[number] is Depends.ON_WEIGHTS:
            made, needed = dce_jaxpr(jaxpr, _flags(jaxpr, {number}))
            if not any(needed) or not _is_dear(made):
                found[number] = operand
    return found


def _flags(jaxpr: Any, numbers: Collection[int]) -> list[bool]:
    return [number in numbers for number in range(len(jaxpr.outvars))]


def _is_dear(jaxpr: Any) -> bool:
    return any(
        jax_name(each.primitive) in _DEAR or any(map(_is_dear, jaxprs_in(each.params)))
        for each in jaxpr.eqns
    )


def of_one_moment(parts: Parts, *, is_held: bool = False) -> Parts:
    """(return %y), (%w = weight; f %w, %t)
    -->  (return %y, %then), (%now = weight; check %then, %now; %w = weight; f %w, %t)

    Where the weights are updated in between, the second part fails instead of computing with those
    of another moment than the first. is_held: unless both are given a snapshot of a moment that is
    held, which they get from whoever calls the first one, if that has none.
    """
    first, second = opened(parts.first), opened(parts.second)
    known = snapshot_operand(first)
    if is_held or known is not None:
        moments = moments_in(second)
    else:
        read = (weight.moment for weight in weights_of(second))
        moments = tuple(dict.fromkeys(each for each in read if each is not None))
    if not moments:
        return parts
    is_held = is_held and known is None
    given = [] if known is None else [first.invars[known]]
    new = [Var(SNAPSHOT)] if is_held else []
    then = [Var(each.aval) for each in moments]
    returning = first.replace(
        invars=[*new, *first.invars],
        outvars=[*first.outvars, *then],
        eqns=[*first.eqns, *_asking_at(moments, then, [*given, *new])],
        debug_info=first.debug_info.with_unknown_names(),
    )
    taken = [Var(each.aval) for each in moments]
    snapshot = [Var(each.aval) for each in (*given, *new)]
    equations, results = [], list(second.outvars)
    for moment, operand in zip(moments, taken, strict=True):
        now, checked = Var(moment.aval), Var(moment.aval)
        equations += _asking_at([moment], [now], snapshot)
        named = {"function": moment.name.removeprefix("moment of ")}
        equations.append(new_jaxpr_eqn([operand, now], [checked], check_p, named, set()))
        for at, value in enumerate(results):
            if not has_numbers(value.aval):
                continue
            results[at] = Var(value.aval)
            behind = new_jaxpr_eqn([value, checked], [results[at]], after_p, {}, set())
            equations.append(behind)
    checking = second.replace(
        invars=[*taken, *snapshot, *second.invars],
        outvars=results,
        eqns=[*second.eqns, *equations],
        debug_info=second.debug_info.with_unknown_names(),
    )
    return Parts(
        ClosedJaxpr(returning, parts.first.consts),
        ClosedJaxpr(checking, parts.second.consts),
        parts.moved,
        parts.taken,
        parts.added if known is None else (known, *parts.added),
        moments,
        is_held,
    )


def _asking_at(
    weights: Sequence[Weight], variables: Sequence[Any], snapshot: Sequence[Any]
) -> list[Any]:
    """%v = weight, for each; of the moment of a snapshot, if there is one."""
    if not snapshot:
        return list(map(asking_for, weights, variables))
    read = [Var(each.aval) for each in weights]
    at = [
        new_jaxpr_eqn([v, *snapshot], [made], at_p, {}, set())
        for v, made in zip(read, variables, strict=True)
    ]
    return [*map(asking_for, weights, read), *at]


def is_of_operand(effect: Any) -> bool:
    """Whether it is by the number of an operand, as those of references are."""
    return hasattr(effect, "input_index") or hasattr(effect, "input")


def copied(equations: Iterable[Any], renamed: dict[Any, Any]) -> list[Any]:
    """The same of variables of their own, which `renamed` says afterwards, as it does before of
    what they read: JAX may have made both parts of the same variables."""
    found = []
    for equation in equations:
        operands = [replaced(each, renamed) for each in equation.invars]
        renamed.update((each, Var(each.aval)) for each in equation.outvars)
        results = [renamed[each] for each in equation.outvars]
        found.append(equation.replace(invars=operands, outvars=results))
    return found


def with_operands(equation: Any, renamed: Mapping[Any, Any]) -> Any:
    """The equation, which reads other variables."""
    if not any(not isinstance(v, Literal) and v in renamed for v in equation.invars):
        return equation
    return equation.replace(invars=[replaced(v, renamed) for v in equation.invars])


def replaced(atom: Any, renamed: Mapping[Any, Any]) -> Any:
    return atom if isinstance(atom, Literal) else renamed.get(atom, atom)
