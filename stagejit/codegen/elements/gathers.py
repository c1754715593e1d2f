"""Elements of a `gather`: read the index vector, then the operand there.

Input: the op and the index at which its result is wanted. Output: the element, or for a dry run
the reads that it takes. Invariant: every address formed is inside the operand: starts are clamped
in all modes, and mode "fill" replaces what was out of bounds afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.math import functions as vmath
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
    operand, indices = op.operands
    starts = {}
    for component, axis in enumerate(op.attrs["start_axes"]):
        yield indices, _vector_index(op, index, component)
        starts[axis] = Affine.of(Var(_room(op, axis), "s", "dynamic", source=indices))
    yield operand, _operand_index(op, index, starts)


def gather_element(elements: Evaluator, op: Op, index: Index) -> Register:
    """The gathered element; vectors of starts become a vector gather."""
    b, (operand, indices) = elements.b, op.operands
    dtype = indices.type.dtype
    starts, inside = {}, None
    for component, axis in enumerate(op.attrs["start_axes"]):
        raw = elements.value(indices, _vector_index(op, index, component))
        start = start_of(b, raw, dtype)
        room = _room(op, axis)
        if op.attrs["mode"] == "fill":
            within = is_inside(b, start, room)
            inside = within if inside is None else inside & within
        starts[axis] = elements.dynamic(clamped(b, start, room), room)
    element = elements.value(operand, _operand_index(op, index, starts))
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


def _batch_index(op: Op, index: Index) -> list[Affine]:
    """The result index without the window axes: an index into `indices` without its last axis."""
    return [part for axis, part in enumerate(index) if axis not in op.attrs["offset_axes"]]


def _vector_index(op: Op, index: Index, component: int) -> Index:
    return (*_batch_index(op, index), Affine((), component))


def _operand_index(op: Op, index: Index, starts: dict[int, Affine]) -> Index:
    batch = _batch_index(op, index)
    from_batch = dict(
        zip(
            op.attrs["operand_batch_axes"],
            (batch[axis] for axis in op.attrs["index_batch_axes"]),
            strict=True,
        )
    )
    window: Sequence[Affine] = [index[axis] for axis in op.attrs["offset_axes"]]
    remaining = iter(window)
    parts = []
    for axis in range(op.operands[0].type.rank):
        part = from_batch.get(axis, starts.get(axis, Affine()))
        if axis not in op.attrs["collapsed_axes"] and axis not in from_batch:
            part = part + next(remaining)
        parts.append(part)
    return tuple(parts)
