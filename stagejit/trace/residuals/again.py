"""Residuals that weights alone determine: the backward part makes them anew.

Input: the two jaxprs of which JAX makes a forward and a backward program. Output: two that compute
the same, where the second has the equations of what it would be handed. Invariant: residuals that
depend on an argument stay as they are, in their order.

Note [Residuals]: JAX splits a program in two, for `grad` by linearizing it, under `scan` and
`checkpoint` by partial evaluation, and hands what the second part needs of the first from one to
the other. A weight is a value like any other there. So the forward program would return a copy of
each weight in each call, and the backward program would read these copies, pack them, and know
nothing of them. `weight_p` has no operands: the second part can ask for a weight itself, and for
all that is computed of weights alone, which is made once however many programs read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import Var

from stagejit.compat import ClosedJaxpr, Jaxpr, Literal, dead_code_eliminated
from stagejit.trace.calls.primitives import jax_name
from stagejit.trace.residuals.alone import (
    Depends,
    jaxprs_in,
    of_arguments,
    opened,
    results_of,
)


@dataclass(frozen=True)
class Parts:
    """moved: the numbers of the results of the first part that are none any more; taken: of the
    operands of the second. added: the arguments of the first that are operands of the second from
    now on, behind its other residuals."""

    first: Any
    second: Any
    moved: frozenset[int]
    taken: frozenset[int]
    added: tuple[int, ...] = ()


@dataclass(frozen=True)
class Given:
    """What is known of the arguments of a first part. forwards: for each residual that the second
    takes, which of these it is, or None. depends: on what each does. may_be_added: whether the
    second can be handed it."""

    forwards: tuple[int | None, ...]
    depends: tuple[Depends, ...]
    may_be_added: tuple[bool, ...]


# What a loop would compute in each iteration, if it is not made once.
_DEAR = frozenset(
    ("cond", "conv_general_dilated", "dot_general", "ragged_dot_general", "scan", "sort")
)


def made_again(
    first: Any, second: Any, residuals: tuple[tuple[int, int], ...], given: Given | None = None
) -> Parts | None:
    """(%r = weight; return %y, %r), (f %r, %t)  -->  (return %y), (%r = weight; f %r, %t)

    residuals: numbers of results of `first`, each with that of the operand of `second` that it is.
    given: of a body of a loop, some of whose arguments are slices of weights: these go to the
        second part, instead of what is computed of them. None where any argument may be anything.
    None where there is nothing to move.
    """
    jaxpr, later = opened(first), opened(second)
    if any(map(_is_of_operand, later.effects)):
        return None
    depends = results_of(jaxpr, given.depends if given else of_arguments(jaxpr))
    moved = {
        result: operand
        for result, operand in residuals
        if depends[result] is Depends.ON_WEIGHTS and not isinstance(jaxpr.outvars[result], Literal)
    }
    if not moved:
        return None
    which = [number in moved for number in range(len(depends))]
    made, needed = dead_code_eliminated(jaxpr, which)
    read = [number for number, is_needed in enumerate(needed) if is_needed]
    if read and not (given and _may_be_handed_on(made, read, given)):
        return made_again(first, second, residuals) if given else None
    forwards = given.forwards if given else ()
    known = {at: v for at, v in zip(forwards, later.invars, strict=False) if at is not None}
    added = [at for at in read if at not in known]
    known |= {at: Var(jaxpr.invars[at].aval) for at in added}
    operands = list(later.invars)
    operands[len(forwards) : len(forwards)] = [known[at] for at in added]
    inner: dict[Any, Any] = {each: Var(each.aval) for each in made.constvars}
    constants = [*inner.values(), *later.constvars]
    inner |= dict(zip(made.invars, (known[at] for at in read), strict=True))
    equations = copied(made.eqns, inner)
    results = [later.invars[moved[number]] for number in sorted(moved)]
    renamed = {v: inner[result] for v, result in zip(results, made.outvars, strict=True)}
    changed = Jaxpr(
        constants,
        [v for v in operands if v not in renamed],
        [replaced(v, renamed) for v in later.outvars],
        [*equations, *(with_operands(each, renamed) for each in later.eqns)],
        {*later.effects, *made.effects},
        later.debug_info.with_unknown_names(),
    )
    kept, _ = dead_code_eliminated(jaxpr, [not each for each in which], keep_inputs=True)
    return Parts(
        ClosedJaxpr(kept, first.consts),
        ClosedJaxpr(changed, [*first.consts, *second.consts]),
        frozenset(moved),
        frozenset(moved.values()),
        tuple(added),
    )


def _is_of_operand(effect: Any) -> bool:
    """Whether it is by the number of an operand, as those of references are."""
    return hasattr(effect, "input_index") or hasattr(effect, "input")


def _may_be_handed_on(made: Any, read: Sequence[int], given: Given) -> bool:
    """Arguments of a loop's body, where computing of them is as cheap as reading."""
    if not all(given.may_be_added[at] or at in given.forwards for at in read):
        return False
    return not _is_dear(made)


def _is_dear(jaxpr: Any) -> bool:
    return any(
        jax_name(each.primitive) in _DEAR or any(map(_is_dear, jaxprs_in(each.params)))
        for each in jaxpr.eqns
    )


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


def with_operands(equation: Any, renamed: dict[Any, Any]) -> Any:
    """The equation, which reads other variables."""
    if not any(not isinstance(v, Literal) and v in renamed for v in equation.invars):
        return equation
    return equation.replace(invars=[replaced(v, renamed) for v in equation.invars])


def replaced(atom: Any, renamed: dict[Any, Any]) -> Any:
    return atom if isinstance(atom, Literal) else renamed.get(atom, atom)
