"""What the caller requires of arguments and results: the layouts of `jax.experimental.layout`.

Input: a program with JAX's layouts of its arguments and results, as `in_shardings=Format(...)` and
`out_shardings` give them. Output: `LayoutRequirement`s, and the program as it is for arrays that
lie so. Invariants: nobody else makes a requirement; what is compiled takes and gives row-major
arrays, of the axes in the order in which they lie.

Note [Transposes that are none]: XLA's arrays are logical, ours physical. Outside of our call, the
program transposes an argument into the order in which it lies, which is a bitcast for XLA, and
inside of it transposes back, which is a view that is fused into whoever reads it. A result that
lies otherwise is transposed by whoever stores it, or by a copy of its own where nobody can: an
explicit dispatch. Without this, XLA copies before and after the call.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from jax import lax
from jax.extend import core as jex_core

from stagejit.base.decisions import Decision
from stagejit.base.records import record
from stagejit.compat import is_extended, shaped_like
from stagejit.index.layout import Layout
from stagejit.index.wanted import LayoutRequirement, in_words

NAME = "caller-layouts"

Requirements = tuple[LayoutRequirement | None, ...]


@record
class Formats:
    """Of each argument and result what the caller requires; None where it is row-major. Of none of
    them, where all are.

    refused: requirements that XLA fulfils, by copies around our call, and why."""

    inputs: Requirements
    outputs: Requirements
    refused: tuple[tuple[LayoutRequirement, str], ...] = ()

    @property
    def any(self) -> bool:
        return any((*self.inputs, *self.outputs))

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """One for each requirement."""
        kept = [wanted for wanted in (*self.inputs, *self.outputs) if wanted is not None]
        return (
            *(Decision(NAME, w.source, True, f"lies in {in_words(w.layout)}") for w in kept),
            *(Decision(NAME, w.source, False, reason) for w, reason in self.refused),
        )


NO_FORMATS = Formats((), ())


def formats_of(jaxpr: Any, inputs: Sequence[Any] | None, outputs: Sequence[Any] | None) -> Formats:
    """jaxpr: a whole program. inputs, outputs: JAX's layouts; None, or `Layout.AUTO`, for those
    that the compiler chooses, which are row-major."""
    if not any(map(_is_turned, (*(inputs or ()), *(outputs or ())))):
        return NO_FORMATS
    names = jaxpr.jaxpr.debug_info.safe_arg_names(len(jaxpr.in_avals))
    refused: list[tuple[LayoutRequirement, str]] = []
    made = []
    for what, avals, layouts in (
        ([f"argument {name}" for name in names], jaxpr.in_avals, inputs),
        ([f"result {at}" for at in range(len(jaxpr.out_avals))], jaxpr.out_avals, outputs),
    ):
        found: list[LayoutRequirement | None] = []
        for source, aval, layout in zip(what, avals, layouts or [None] * len(avals), strict=True):
            wanted = _requirement(source, layout)
            reason = "" if wanted is None else _refusal(aval, layout)
            if wanted is not None and reason:
                refused.append((wanted, reason))
            found.append(None if reason else wanted)
        made.append(tuple(found))
    return Formats(made[0], made[1], tuple(refused))


def _is_turned(layout: Any) -> bool:
    order = getattr(layout, "major_to_minor", None)  # there is none of what XLA chooses
    return order is not None and not Layout(tuple(order)).is_row_major


def _requirement(source: str, layout: Any) -> LayoutRequirement | None:
    if not _is_turned(layout):
        return None
    return LayoutRequirement(Layout(tuple(layout.major_to_minor)), source)


def _refusal(aval: Any, layout: Any) -> str:
    """Why XLA transposes an array and we do not; "" where we do."""
    if layout.tiling:
        return "XLA cuts it into tiles: it copies before or after our call"
    if is_extended(aval):
        return "its elements are words: XLA copies before or after our call"
    return ""


# By the program, then by the orders: the compiler knows what it has compiled by its jaxpr.
_physical: weakref.WeakKeyDictionary[Any, dict[Formats, Any]] = weakref.WeakKeyDictionary()
_formats: weakref.WeakKeyDictionary[Any, Formats] = weakref.WeakKeyDictionary()


def as_it_lies(jaxpr: Any, formats: Formats) -> Any:
    """The program for arrays of which the axes are in the order in which they lie."""
    known = _physical.setdefault(jaxpr, {})
    if formats not in known:
        made = known[formats] = _as_it_lies(jaxpr, formats)
        _formats[made] = formats
    return known[formats]


def orders_of_results(jaxpr: Any) -> tuple[tuple[int, ...] | None, ...]:
    """In which order the axes of the results of such a program are; nothing for any other one."""
    formats = _formats.get(jaxpr, NO_FORMATS)
    return tuple(None if wanted is None else wanted.layout.order for wanted in formats.outputs)


def _as_it_lies(jaxpr: Any, formats: Formats) -> Any:
    inner = jaxpr.jaxpr
    inputs, before = [], []
    for var, wanted in zip(inner.invars, formats.inputs, strict=True):
        turned = var
        if wanted is not None:
            order = wanted.layout.order
            turned = _variable(var.aval, order)
            before.append(_transpose(turned, var, _inverse(order)))
        inputs.append(turned)
    outputs, after = [], []
    for var, wanted in zip(inner.outvars, formats.outputs, strict=True):
        turned = var
        if wanted is not None:
            turned = _variable(var.aval, wanted.layout.order)
            after.append(_transpose(var, turned, wanted.layout.order))
        outputs.append(turned)
    equations = [*before, *inner.eqns, *after]
    made = jex_core.Jaxpr(
        inner.constvars, inputs, outputs, equations, inner.effects, inner.debug_info
    )
    return jex_core.ClosedJaxpr(made, jaxpr.consts)


def around(enclosed: Any, formats: Formats, jaxpr: Any) -> Any:
    """The program that calls `enclosed`, which takes arrays as they lie, for logical ones.

    enclosed: a jaxpr of one equation, a marked call. jaxpr: the program as it was."""
    call = enclosed.jaxpr.eqns[0]
    inputs, before, operands = [], [], []
    for operand, aval, wanted in zip(call.invars, jaxpr.in_avals, formats.inputs, strict=True):
        given = operand
        if wanted is not None:
            given = jex_core.Var(aval)
            before.append(_transpose(given, operand, wanted.layout.order))
        inputs.append(given)
        operands.append(operand)
    outputs, after = [], []
    for result, aval, wanted in zip(call.outvars, jaxpr.out_avals, formats.outputs, strict=True):
        taken = result
        if wanted is not None:
            taken = jex_core.Var(aval)
            after.append(_transpose(result, taken, _inverse(wanted.layout.order)))
        outputs.append(taken)
    inner = enclosed.jaxpr
    made = jex_core.Jaxpr(
        (), inputs, outputs, [*before, call, *after], inner.effects, inner.debug_info
    )
    return jex_core.ClosedJaxpr(made, ())


def _variable(aval: Any, order: Sequence[int]) -> Any:
    return jex_core.Var(shaped_like(aval, tuple(aval.shape[axis] for axis in order)))


def _transpose(operand: Any, result: Any, permutation: Sequence[int]) -> Any:
    params = {"permutation": tuple(permutation)}
    return jex_core.new_jaxpr_eqn([operand], [result], lax.transpose_p, params, set())


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))
