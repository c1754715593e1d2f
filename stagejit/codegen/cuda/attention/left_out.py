"""Which tiles of keys a mask of positions leaves nothing of.

Input: the scores of an attention. Output: a `Mask`, and for a tile whether it may leave something.
Invariant: where it leaves nothing of a tile, all its scores are `low`, or none is present: without
the tile, sums and weights are the same, if each row has a score that is larger by so much that exp
of the difference is 0; where `low` is -inf, or none is present, in any case.

A mask compares integers that are sums of positions: causal ones, windows, what lies behind a length
that is known. Over a tile such a sum has its extremes at the corners. What is made of anything else
may be on or off anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import and_, or_

import numpy as np

from stagejit.base.records import record
from stagejit.codegen.cuda.attention.nest import Attention, Group
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import I1
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.attention import depends_on, linear_path
from stagejit.graph.ops.elementwise import function_of
from stagejit.graph.ops.moving.slices import pull_view
from stagejit.index.affine import Affine, Index, Var

Corners = Mapping[Var, tuple[Register, Register]]  # the first and the last position of a tile
_Test = Callable[[Builder, Corners], Register]  # whether something may be, in a tile
_NEGATED = {"ge": "lt", "lt": "ge", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


@record
class Mask:
    """low: the score of what it leaves out; -inf where that has no other weight than 0 anyway."""

    low: float
    leaves: _Test

    @property
    def certain(self) -> bool:
        """Whether what it leaves out has no weight whatever other scores are."""
        return self.low == -np.inf


def mask_of(attention: Attention) -> Mask | None:
    """The mask that scores are made with at last, if positions tell where it is on."""
    scores, index = attention.op.attrs["scores"], attention.at.f
    if not _keeps_zeros(attention.op.attrs["weights"]):
        return None
    if len(scores.outputs) == 2:
        leaves = _may_be(scores.outputs[1], index, True)
        return Mask(-np.inf, leaves) if leaves else None
    f, index = _behind_views(scores.outputs[0], index)
    if function_of(f.op) != "select":
        return None
    condition, *cases = f.op.operands
    for kept, case in ((True, cases[1]), (False, cases[0])):
        low = _number(case)
        leaves = _may_be(condition, index, kept) if low is not None and low < 0 else None
        if low is not None and leaves is not None:
            return Mask(float(low), leaves)
    return None


def corners(
    b: Builder, group: Group, first: Register, count: int
) -> dict[Var, tuple[Register, Register]]:
    """Of the variables of a group, where so many elements of it start there."""
    last = first + (count - 1)
    if group.extent % count:
        last = b.binary("smin", last, group.extent - 1)
    found: dict[Var, tuple[Register, Register]] = {}
    inner = 1
    for at, var in reversed(list(enumerate(group.variables))):
        low, high = first // inner, last // inner
        if at:
            runs_on = b.compare("ne", low // var.extent, high // var.extent)
            low, high = (
                b.select(runs_on, b.const(0), low % var.extent),
                b.select(runs_on, b.const(var.extent - 1), high % var.extent),
            )
        found[var] = low, high
        inner *= var.extent
    return found


def _keeps_zeros(weights: Graph) -> bool:
    """Whether 0 surely stays 0 in a body, and does not become NaN."""
    (made,), source = weights.outputs, weights.inputs[0]
    scales = [op for op in linear_path(made, source) or () if function_of(op) in ("mul", "div")]
    others = [x for op in scales for x in op.operands if not depends_on(x, source)]
    numbers = [_number(x) for x in others]
    return all(number is not None and np.isfinite(number) and number for number in numbers)


# -------------------------------------------------------------------- what may be


def _may_be(value: Value, index: Index, wanted: bool) -> _Test | None:
    """Whether some element of a tile of a bool is as wanted; None: nobody knows."""
    value, index = _behind_views(value, index)
    op, fn = value.op, function_of(value.op)
    number = _number(value)
    if number is not None:
        return lambda b, _: b.const(int(bool(number) == wanted), I1)
    if fn == "not":
        return _may_be(op.operands[0], index, not wanted)
    if fn in ("and", "or"):
        parts = [_may_be(operand, index, wanted) for operand in op.operands]
        return _all(parts) if (fn == "and") == wanted else _any(parts)
    if fn == "select":
        cases = [_number(case) for case in op.operands[1:]]
        if None in cases or bool(cases[0]) == bool(cases[1]):
            return None
        return _may_be(op.operands[0], index, wanted == bool(cases[0]))
    if fn in _NEGATED:
        return _compares(op, index, fn if wanted else _NEGATED[fn])
    return None


def _all(parts: list[_Test | None]) -> _Test | None:
    known = [part for part in parts if part is not None]
    return (lambda b, at: reduce(and_, (part(b, at) for part in known))) if known else None


def _any(parts: list[_Test | None]) -> _Test | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return lambda b, at: reduce(or_, (part(b, at) for part in known))


def _compares(op: Op, index: Index, fn: str) -> _Test | None:
    """Of two sums of positions, somewhere in a tile."""
    sides = [_sum_of_positions(operand, index) for operand in op.operands]
    if sides[0] is None or sides[1] is None:
        return None
    apart = sides[0] - sides[1]

    def holds(b: Builder, at: Corners) -> Register:
        least, most = _extreme(b, apart, at, 0), _extreme(b, apart, at, 1)
        if fn == "ne":
            return b.compare("ne", least, 0) | b.compare("ne", most, 0)
        if fn == "eq":
            return b.compare("le", least, 0) & b.compare("ge", most, 0)
        return b.compare(fn, most if fn in ("ge", "gt") else least, 0)

    return holds


def _extreme(b: Builder, form: Affine, at: Corners, which: int) -> Register:
    """The least (0) or the largest (1) value of a form in a tile."""
    total = b.const(form.const)
    for var, coeff in form.terms:
        ends = at.get(var) or (b.const(0), b.const(var.extent - 1))
        total = total + ends[which if coeff > 0 else 1 - which] * coeff
    return total


def _sum_of_positions(value: Value, index: Index) -> Affine | None:
    """An integer as a form of variables, where it cannot wrap."""
    value, index = _behind_views(value, index)
    op, dtype = value.op, value.type.dtype
    if not dtype.is_integer:
        return None
    number, made = _number(value), None
    if number is not None:
        return Affine((), int(number))
    if op.definition.counts:
        made = index[op.attrs["axis"]]
    elif op.definition.is_conversion:
        made = _sum_of_positions(op.operands[0], index)
    elif function_of(op) in ("add", "sub"):
        sides = [_sum_of_positions(operand, index) for operand in op.operands]
        if sides[0] is not None and sides[1] is not None:
            made = sides[0] + sides[1] if function_of(op) == "add" else sides[0] - sides[1]
    if made is None:
        return None
    low, high = made.range()
    info = np.iinfo(dtype.numpy)
    return made if info.min <= low and high <= info.max else None


def _behind_views(value: Value, index: Index) -> tuple[Value, Index]:
    while value.op.definition.is_view and len(value.op.operands) == 1:
        index = pull_view(value.op, index)
        value = value.op.operands[0]
    return value, index


def _number(value: Value) -> float | None:
    """What all elements are."""
    while value.op.definition.is_splat or value.op.definition.is_view:
        value = value.op.operands[0]
    op = value.op
    if not op.definition.is_constant or value.type.size != 1 or not value.type.dtype.is_native:
        return None
    number: float = np.asarray(op.attrs["value"]).reshape(()).item()
    return number
