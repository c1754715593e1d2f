"""Boxes: `extract_slice` is a view of one, `insert_slice` an update of one, and `overlay` what it
gives, as a value that nobody has stored.

An offset of None takes the next of the operands that follow, clamped as in JAX so that the box
fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stagejit.errors import InternalError
from stagejit.graph.definition import (
    Attrs,
    DynamicStart,
    Names,
    OpDef,
    Types,
    define,
    require,
)
from stagejit.graph.ir import Op, Value
from stagejit.graph.meaning.evaluator import Array, Evaluator
from stagejit.graph.text.literals import literal_text
from stagejit.graph.text.syntax import Parts, implied_attributes, joined
from stagejit.graph.text.tokens import Line, Values
from stagejit.index.affine import Affine, Index, Var
from stagejit.index.box import Box
from stagejit.types import TensorType


def _extract_slice(operands: Types, attrs: Attrs) -> TensorType:
    x, *starts = operands
    _require_box(x, starts, attrs["offsets"], attrs["sizes"], attrs["strides"])
    return TensorType(x.dtype, attrs["sizes"])


def _insert_slice(operands: Types, attrs: Attrs) -> TensorType:
    source, destination, *starts = operands
    require(source.dtype is destination.dtype, "source and destination differ in element type")
    _require_box(destination, starts, attrs["offsets"], source.shape, attrs["strides"])
    return destination


def _require_box(
    x: TensorType,
    starts: Types,
    offsets: Sequence[int | None],
    sizes: Sequence[int],
    strides: Sequence[int],
) -> None:
    require(len(offsets) == len(sizes) == len(strides) == x.rank, "a box of another rank")
    dynamic = sum(offset is None for offset in offsets)
    require(dynamic == len(starts), "{} starts for offsets {}", len(starts), offsets)
    require(
        all(t.shape == () and t.dtype.name in ("i32", "i64") for t in starts),
        "starts are i32 or i64 scalars",
    )
    for axis, (offset, size, stride) in enumerate(zip(offsets, sizes, strides, strict=True)):
        extent = (size - 1) * stride + 1 if size else 0
        fits = stride >= 1 and size >= 0 and 0 <= (offset or 0) <= x.shape[axis] - extent
        require(fits, "box {}, {}, {} leaves dimension {}", offsets, sizes, strides, axis)


def boxed(op: Op) -> tuple[Value, tuple[int, ...], Sequence[Value]]:
    """The value of which `op` names a box, the sizes of the box, and the offsets that are read at
    run time. Raises InternalError for an op that names none."""
    at = op.definition.boxed
    if at is None:
        raise InternalError(f"{op} names no box", step="graph", loc=op.loc)
    sizes = op.result.shape if op.definition.is_extract else op.operands[0].shape
    return op.operands[at], sizes, op.operands[at + 1 :]


def known_box(op: Op) -> Box:
    """The box that `op` names; all of its offsets are numbers."""
    return Box(op.attrs["offsets"], boxed(op)[1], op.attrs["strides"])


# ------------------------------------------------------------------ meaning


def _value_of_extract(evaluator: Evaluator, op: Op, x: Array, *starts: Array) -> Array:
    return x[_box(op.attrs, x.shape, op.attrs["sizes"], starts)]


def _value_of_insert(
    evaluator: Evaluator, op: Op, source: Array, destination: Array, *starts: Array
) -> Array:
    result = destination.copy()
    result[_box(op.attrs, destination.shape, source.shape, starts)] = source
    return result


def _box(
    attrs: Mapping[str, Any],
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    starts: Sequence[Array],
) -> tuple[slice, ...]:
    dynamic = iter(starts)
    box = []
    for offset, stride, extent, size in zip(
        attrs["offsets"], attrs["strides"], shape, sizes, strict=True
    ):
        span = (size - 1) * stride + 1 if size else 0
        start = min(max(int(next(dynamic)), 0), extent - span) if offset is None else offset
        box.append(slice(start, start + span, stride))
    return tuple(box)


# --------------------------------------------------------------- index maps


def dynamic_var(op: Op, operand: int, extent: int) -> Affine:
    """The default for a start read at run time: a variable over all clamped positions."""
    return Affine.of(Var(extent, "s", "dynamic", source=op.operands[operand]))


def pull_view(
    op: Op, index: Index, *, strict: bool = False, start: DynamicStart = dynamic_var
) -> Index:
    """The index into operand 0 at which the element `index` of a view lies.

    start(op, operand, extent): the clamped dynamic offset read from `operand`, in [0, extent).
    strict: raises `SplitNeeded` where a division is not exact.
    """
    if op.definition.pull is None:
        raise InternalError(f"{op} is not a view", step="pull")
    return op.definition.pull(op, index, strict, start)


def place(op: Op, index: Index, start: DynamicStart = dynamic_var) -> Index:
    """Where an `insert_slice` puts element `index` of its source."""
    source, into = op.operands[0], op.operands[1]
    starts = _starts(op, into.shape, source.shape, 2, start)
    return tuple(
        part * stride + first
        for part, stride, first in zip(index, op.attrs["strides"], starts, strict=True)
    )


def beneath(op: Op, index: Index, *, strict: bool = False) -> tuple[Index, dict[int, Affine]]:
    """Where the element `index` of an overlay lies in its operand 0, and the axes along which it
    may not: it does where that is a place of these axes, and what they are given here is 0. An
    index may run over the end of an axis of which operand 0 has all places."""
    places, rests, extents = list(index), {}, op.operands[0].shape
    for axis, (offset, stride) in enumerate(
        zip(op.attrs["offsets"], op.attrs["strides"], strict=True)
    ):
        if extents[axis] != op.result.shape[axis]:
            places[axis], rests[axis] = (index[axis] - offset).divmod(stride, strict=strict)
    return tuple(places), rests


def is_beneath(op: Op, places: Index, rests: Mapping[int, Affine]) -> bool | None:
    """Whether the element of an overlay that `beneath` says this of is one of operand 0; None where
    it is here and not there."""
    everywhere = True
    for axis, rest in rests.items():
        (low, high), (least, most) = places[axis].range(), rest.range()
        extent = op.operands[0].shape[axis]
        if high < 0 or low >= extent or least > 0:
            return False
        everywhere = everywhere and low >= 0 and high < extent and most == 0
    return True if everywhere else None


def _pull_extract(op: Op, index: Index, strict: bool, start: DynamicStart) -> Index:
    starts = _starts(op, op.operands[0].shape, op.result.shape, 1, start)
    return tuple(
        part * stride + first
        for part, stride, first in zip(index, op.attrs["strides"], starts, strict=True)
    )


def _starts(
    op: Op,
    whole: tuple[int, ...],
    part: tuple[int, ...],
    first_start: int,
    start: DynamicStart,
) -> list[Affine | int]:
    """Offsets of a box; dynamic ones through `start`.

    whole: shape of the buffer; part: shape of the box; first_start: operand index of the first
    start.
    """
    starts: list[Affine | int] = []
    position = first_start
    for axis, offset in enumerate(op.attrs["offsets"]):
        if offset is not None:
            starts.append(offset)
            continue
        stride = op.attrs["strides"][axis]
        room = whole[axis] - (max(part[axis] - 1, 0) * stride + 1) + 1
        starts.append(start(op, position, max(room, 1)))
        position += 1
    return starts


def source_of_element(value: Value, index: Sequence[int]) -> tuple[Value, tuple[int, ...]] | None:
    """The operand, and the index into it, that this element of `value` is a copy of: index vectors
    such as `concatenate([i[None], 3])` are assembled."""
    op, known, attrs = value.op, value.op.definition, value.op.attrs
    if None in attrs.get("offsets", ()):
        return None
    if known.is_splat:
        return op.operands[0], ()
    if known.is_view and op.operands[0].type.size:
        pulled = pull_view(op, tuple(Affine((), at) for at in index))
        return op.operands[0], tuple(part.const for part in pulled)
    if known.is_insert:
        source, destination = op.operands
        place = [
            divmod(i - o, s)
            for i, o, s in zip(index, attrs["offsets"], attrs["strides"], strict=True)
        ]
        inside = all(
            rest == 0 and 0 <= at < size
            for (at, rest), size in zip(place, source.type.shape, strict=True)
        )
        return (source, tuple(at for at, _ in place)) if inside else (destination, tuple(index))
    return None


# --------------------------------------------------------------------- text


def _write_extract(op: Op, names: Names) -> str:
    return joined(names[op.operands[0]], _place_text(op, 1, names))


def _write_insert(op: Op, names: Names) -> str:
    source, destination = (names[value] for value in op.operands[:2])
    return joined(source, "into", destination, _place_text(op, 2, names))


def _place_text(op: Op, first_start: int, names: Names) -> str:
    starts = iter(op.operands[first_start:])
    offsets = ", ".join(
        names[next(starts)] if offset is None else str(offset) for offset in op.attrs["offsets"]
    )
    strides = op.attrs["strides"]
    text = f"at ({offsets})"
    return text if all(s == 1 for s in strides) else f"{text} strides {literal_text(strides)}"


def _read_extract(
    tokens: Line, definition: OpDef, values: Values, types: list[TensorType]
) -> Parts:
    x = tokens.value(values)
    starts, attrs = _read_place(tokens, values)
    return [x, *starts], attrs | implied_attributes(tokens, definition, types)


def _read_insert(tokens: Line, definition: OpDef, values: Values, types: list[TensorType]) -> Parts:
    source = tokens.value(values)
    tokens.expect("into")
    destination = tokens.value(values)
    starts, attrs = _read_place(tokens, values)
    return [source, destination, *starts], attrs


def _read_place(tokens: Line, values: Values) -> Parts:
    starts: list[Value] = []
    offsets: list[int | None] = []

    def offset() -> None:
        if tokens.kind() == "value":
            starts.append(tokens.value(values))
            offsets.append(None)
        else:
            offsets.append(tokens.integer())

    tokens.expect("at")
    tokens.expect("(")
    tokens.list_until(")", offset)
    strides = tokens.literal() if tokens.accept("strides") else (1,) * len(offsets)
    return starts, {"offsets": tuple(offsets), "strides": strides}


def _destination(op: Op, result: int) -> int:
    return 1


define(
    OpDef(
        kind="extract_slice",
        infer=_extract_slice,
        interpret=_value_of_extract,
        implied=frozenset({"sizes"}),
        write=_write_extract,
        read=_read_extract,
        pull=_pull_extract,
        boxed=0,
    )
)
define(
    OpDef(
        kind="insert_slice",
        infer=_insert_slice,
        interpret=_value_of_insert,
        write=_write_insert,
        read=_read_insert,
        tied_operand=_destination,
        boxed=1,
    )
)
define(
    OpDef(
        kind="overlay",
        infer=_insert_slice,
        interpret=_value_of_insert,
        write=_write_insert,
        read=_read_insert,
        overlays=True,
    )
)
