"""Elements of a `gather`: read the index vector, then the operand there.

Input: the op and the index at which its result is wanted. Output: the element, or for a dry run
the reads that it takes. Invariant: every address formed is inside the operand: starts are clamped
in all modes, and mode "fill" replaces what was out of bounds afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.math import functions as vmath
from stagejit.graph.dims import GatherDims
from stagejit.graph.ir import Op, Value
from stagejit.index.affine import Affine, Index, Var
from stagejit.types import DType, i32, i64


class Evaluator(Protocol):
    """What a gather needs of `Elements`, which in turn needs gathers."""

    b: Builder

    def value(self, value: Value, index: Index) -> Register:
        """The element of `value` at `index`."""

    def dynamic(self, register: Register, extent: int) -> Affine:
        """An index variable that stands at `register`."""


def gather_reads(op: Op, index: Index) -> Iterator[tuple[Value, Index]]:
    """The operand indices that element `index` of the gather reads; starts are unknown
    variables."""
    (operand, indices), dims = op.operands, GatherDims.of(op.attrs)
    starts = {}
    for component, axis in enumerate(dims.start_axes):
        yield indices, (*dims.batch_of(index), Affine((), component))
        starts[axis] = Affine.of(Var(_room(op, axis), "s", "dynamic", source=indices))
    yield operand, dims.operand_index(index, starts)


def gather_element(elements: Evaluator, op: Op, index: Index) -> Register:
    """The gathered element; vectors of starts become a vector gather."""
    b, (operand, indices), dims = elements.b, op.operands, GatherDims.of(op.attrs)
    dtype = indices.type.dtype
    starts, inside = {}, None
    for component, axis in enumerate(dims.start_axes):
        raw = elements.value(indices, (*dims.batch_of(index), Affine((), component)))
        start = start_of(b, raw, dtype)
        room = _room(op, axis)
        if op.attrs["mode"] == "fill":
            within = is_inside(b, start, room)
            inside = within if inside is None else inside & within
        starts[axis] = elements.dynamic(clamped(b, start, room), room)
    element = elements.value(operand, dims.operand_index(index, starts))
    if inside is None:
        return element
    lanes = max(element.type.lanes, inside.type.lanes)
    fill = b.const(op.attrs["fill_value"], element_type(op.result.type.dtype).with_lanes(lanes))
    return b.select(inside, b.splat(element, lanes) if lanes else element, fill)


def start_of(b: Builder, raw: Register, dtype: DType) -> Register:
    """A component of an index vector as a signed integer: i64, or i32 for lanes where that holds
    it. Unsigned numbers beyond i64 are beyond every array."""
    if dtype.bits == 64 and not dtype.is_signed:
        raw = b.binary("umin", raw, (1 << 63) - 1)
    narrow = raw.type.lanes > 0 and dtype.bits + (not dtype.is_signed) <= 32
    return vmath.convert(b, raw, dtype, i32 if narrow else i64)


def clamped(b: Builder, start: Register, room: int) -> Register:
    """`start` within [0, room)."""
    last = min(room - 1, (1 << (start.type.bits - 1)) - 1)
    return b.binary("smax", b.binary("smin", start, last), 0)


def is_inside(b: Builder, start: Register, room: int) -> Register:
    """Whether 0 <= start < room."""
    if room < 1 << (start.type.bits - 1):
        return b.compare("lt", start, room, signed=False)
    return b.compare("ge", start, 0)


def _room(op: Op, axis: int) -> int:
    """Number of positions at which the window may start along an operand axis."""
    size: int = op.attrs["sizes"][axis]
    return max(op.operands[0].shape[axis] - size + 1, 1)
