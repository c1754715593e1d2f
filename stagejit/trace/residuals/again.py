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
from stagejit.trace.residuals.alone import Depends, of_arguments, opened, results_of


@dataclass(frozen=True)
class Parts:
    """moved: the numbers of the results of the first part that are none any more; taken: of the
    operands of the second."""

    first: Any
    second: Any
    moved: frozenset[int]
    taken: frozenset[int]


def made_again(first: Any, second: Any, residuals: tuple[tuple[int, int], ...]) -> Parts | None:
    """(%r = weight; return %y, %r), (f %r, %t)  -->  (return %y), (%r = weight; f %r, %t)

    residuals: numbers of results of `first`, each with that of the operand of `second` that it is.
    None where there is nothing to move.
    """
    jaxpr, later = opened(first), opened(second)
    if any(map(_is_of_operand, later.effects)):
        return None
    depends = results_of(jaxpr, of_arguments(jaxpr))
    moved = {
        result: operand
        for result, operand in residuals
        if depends[result] is Depends.ON_WEIGHTS and not isinstance(jaxpr.outvars[result], Literal)
    }
    if not moved:
        return None
    which = [number in moved for number in range(len(depends))]
    made, needed = dead_code_eliminated(jaxpr, which)
    if any(needed):
        return None
    kept, _ = dead_code_eliminated(jaxpr, [not each for each in which], keep_inputs=True)
    operands = [later.invars[moved[number]] for number in sorted(moved)]
    return Parts(
        ClosedJaxpr(kept, first.consts),
        _with(later, second.consts, made, first.consts, operands),
        frozenset(moved),
        frozenset(moved.values()),
    )


def _is_of_operand(effect: Any) -> bool:
    """Whether it is by the number of an operand, as those of references are."""
    return hasattr(effect, "input_index") or hasattr(effect, "input")


def _with(
    later: Any,
    consts: Sequence[Any],
    made: Any,
    consts_made: Sequence[Any],
    operands: Sequence[Any],
) -> Any:
    """`later`, which makes itself those of its operands."""
    inner: dict[Any, Any] = {each: Var(each.aval) for each in made.constvars}
    constants = [*inner.values(), *later.constvars]
    equations = copied(made.eqns, inner)
    renamed = {v: inner[result] for v, result in zip(operands, made.outvars, strict=True)}
    jaxpr = Jaxpr(
        constants,
        [v for v in later.invars if v not in renamed],
        [replaced(v, renamed) for v in later.outvars],
        [*equations, *(with_operands(each, renamed) for each in later.eqns)],
        {*later.effects, *made.effects},
        later.debug_info.with_unknown_names(),
    )
    return ClosedJaxpr(jaxpr, [*consts_made, *consts])


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
