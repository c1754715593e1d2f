"""Which element of which operand a pointwise op reads: the index maps of views, in one place.

Input: an op and the index at which its result is wanted. Output: the index into each operand.
Access analysis and every kernel generator use these maps, so they cannot disagree. Invariant: maps
are exact; `gather` and dynamic offsets are handled by the callers, who know how to read the
indices.
"""

from __future__ import annotations

from collections.abc import Callable

from stagejit.errors import InternalError
from stagejit.graph.ir import Op
from stagejit.index.affine import Affine, Index, Var, reshape_index

DynamicStart = Callable[[Op, int, int], Affine]


def dynamic_var(op: Op, operand: int, extent: int) -> Affine:
    """The default for a start read at run time: a variable over all clamped positions."""
    return Affine.of(Var(extent, "s", "dynamic", source=op.operands[operand]))


def pull_view(
    op: Op, index: Index, *, strict: bool = False, start: DynamicStart = dynamic_var
) -> Index:
    """The index into operand 0 at which the view's element `index` lies.

    start(op, operand, extent): the clamped dynamic offset read from `operand`, in [0, extent).
    """
    operand = op.operands[0]
    if op.kind == "broadcast":
        axes = op.attrs["axes"]
        return tuple(
            Affine() if extent == 1 else index[axis]
            for axis, extent in zip(axes, operand.shape, strict=True)
        )
    if op.kind == "reshape":
        return reshape_index(index, op.result.shape, operand.shape, strict=strict)
    if op.kind == "transpose":
        pulled = [Affine()] * len(index)
        for position, axis in enumerate(op.attrs["permutation"]):
            pulled[axis] = index[position]
        return tuple(pulled)
    if op.kind == "reverse":
        return tuple(
            Affine((), extent - 1) - part if axis in op.attrs["axes"] else part
            for axis, (part, extent) in enumerate(zip(index, operand.shape, strict=True))
        )
    if op.kind == "extract_slice":
        starts = box_starts(op, operand.shape, op.result.shape, 1, start)
        return tuple(
            part * stride + first
            for part, stride, first in zip(index, op.attrs["strides"], starts, strict=True)
        )
    raise InternalError(f"{op} is not a view", step="pull")


def box_starts(
    op: Op,
    whole: tuple[int, ...],
    part: tuple[int, ...],
    first_start: int,
    start: DynamicStart = dynamic_var,
) -> tuple[Affine, ...]:
    """Offsets of the box of an extract_slice or insert_slice; dynamic ones through `start`.

    whole: shape of the buffer; part: shape of the box; first_start: operand index of the first
    start.
    """
    starts = []
    position = first_start
    for axis, offset in enumerate(op.attrs["offsets"]):
        if offset is not None:
            starts.append(Affine((), offset))
            continue
        stride = op.attrs["strides"][axis]
        room = whole[axis] - (max(part[axis] - 1, 0) * stride + 1) + 1
        starts.append(start(op, position, max(room, 1)))
        position += 1
    return tuple(starts)


def place(op: Op, index: Index, start: DynamicStart = dynamic_var) -> Index:
    """Where an `insert_slice` puts element `index` of its source."""
    source, into = op.operands[0], op.operands[1]
    starts = box_starts(op, into.shape, source.shape, 2, start)
    return tuple(
        part * stride + first
        for part, stride, first in zip(index, op.attrs["strides"], starts, strict=True)
    )
