"""`dispatch`: what one launch computes, as graphs of its own, and which memory it writes.

Input: operands, all in memory: one for each input of a part. Output: a result for each output of
the first part: a fresh one, or an update of an operand.
Invariant: what an op of this kind says in its line (its kind, the boxes that it writes) is what its
parts say; nothing else decides about it.

Note [Destinations of a dispatch]: an input that is `donated` is a destination. Nobody evaluates it:
an output that is made of it by `insert_slice`s, or by a scatter, is that memory with the boxes of
these ops overwritten, so the result is tied to the operand. Where a box lies in a box, the inner
one is inserted into an `extract_slice` of the destination, which is inserted back.

Note [Parts]: the first part gives the results. Each further one, a border, gives an update of one
destination of the first, and runs beside it: no part reads what another one writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stagejit.base.records import record
from stagejit.graph.definition import Attrs, Names, OpDef, Types, define, require
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.meaning.evaluator import Evaluator
from stagejit.graph.ops.elementwise import function_of
from stagejit.graph.ops.moving.slices import boxed
from stagejit.graph.text.syntax import Parts, joined
from stagejit.graph.text.tokens import Line, Values
from stagejit.index.box import Box
from stagejit.types import TensorType


@record
class Written:
    """One value that a part writes. inserts: the ops that place it in the destination, innermost
    first; none for a fresh output, and for what a scatter leaves."""

    value: Value
    inserts: tuple[Op, ...] = ()

    @property
    def into(self) -> Value:
        """Has the shape of the memory that is written."""
        return self.inserts[-1].result if self.inserts else self.value


def parts_of(op: Op) -> tuple[Graph, ...]:
    """The first part, then the borders."""
    parts: tuple[Graph, ...] = op.attrs["parts"]
    return parts


def destination(part: Graph, output: int) -> Value | None:
    """The input of a part whose memory an output takes over; None for a fresh one."""
    value = part.outputs[output]
    while not value.op.definition.is_input:
        op = value.op
        at = op.definition.tied_operand(op, value.index)
        if at is None:
            return None
        value = op.operands[at]
    return value if part.is_donated(value) else None


def written(part: Graph, output: int) -> list[Written]:
    """What an output consists of, in the order in which it is placed."""
    if destination(part, output) is None:
        return [Written(part.outputs[output])]
    found = []
    value = part.outputs[output]
    while not value.op.definition.is_input:
        if not value.op.definition.is_insert:  # a scatter
            found.append(Written(value))
            break
        inserts = [value.op]
        while inserts[0].operands[0].op.definition.is_insert:
            inserts.insert(0, inserts[0].operands[0].op)
        found.append(Written(inserts[0].operands[0], tuple(inserts)))
        value = value.op.operands[1]
    return found[::-1]


def placed(
    part: Graph, value: Value, inserts: Sequence[Op], whole: Value, values: Mapping[Value, Value]
) -> Value:
    """Appends what places `value` in `whole` as `inserts` do; `value` without any.

    values: what stands for the offsets that they read now.
    """
    if len(inserts) > 1 and not any(None in insert.attrs["offsets"] for insert in inserts):
        return _placed_at_once(part, value, inserts, whole)
    around = [whole]
    for insert in reversed(inserts[1:]):
        starts = [values[start] for start in insert.operands[2:]]
        type = insert.operands[0].type
        attrs = {**insert.attrs, "sizes": type.shape}
        box = part.add("extract_slice", [around[-1], *starts], type, insert.loc, **attrs)
        around.append(box.result)
    for insert in inserts:
        into = around.pop()
        operands = [value, into, *(values[start] for start in insert.operands[2:])]
        value = part.add("insert_slice", operands, into.type, insert.loc, **insert.attrs).result
    return value


def _placed_at_once(part: Graph, value: Value, inserts: Sequence[Op], whole: Value) -> Value:
    """A box of a box is a box, where the offsets are numbers."""
    offsets, strides = [0] * len(whole.shape), [1] * len(whole.shape)
    for insert in inserts:
        steps = insert.attrs["strides"]
        offsets = [
            first * step + offset
            for first, step, offset in zip(offsets, steps, insert.attrs["offsets"], strict=True)
        ]
        strides = [stride * step for stride, step in zip(strides, steps, strict=True)]
    attrs = {"offsets": tuple(offsets), "strides": tuple(strides)}
    loc = inserts[0].loc
    return part.add("insert_slice", [value, whole], whole.type, loc, **attrs).result


def evaluated(part: Graph) -> list[Op]:
    """The ops that compute something, without those that only name a box of a destination."""
    placing: set[Value] = {value for value in part.inputs if part.is_donated(value)}
    ops = []
    for op in part.ops():
        place = op.definition.boxed
        if place is not None and op.operands[place] in placing:
            placing.add(op.result)
        else:
            ops.append(op)
    return ops


def inside(value: Value) -> Value:
    """What a part makes the result of a dispatch from; the value itself, if it is no such result or
    if borders complete it."""
    op = value.op
    if not op.definition.is_dispatch:
        return value
    if len(parts_of(op)) > 1 and _tied(op, value.index) is not None:
        return value
    return parts_of(op)[0].outputs[value.index]


def anchor_of(ops: Iterable[Op]) -> Op | None:
    """The first of the evaluated ops that needs more than an element of each operand."""
    return next((op for op in ops if not op.definition.is_pointwise), None)


def kind_of(ops: Sequence[Op]) -> str:
    """What a part is, by the ops that it evaluates: the kind of its anchor; without one it is a
    `fill`, a `copy`, or a `map`."""
    anchor = anchor_of(ops)
    return anchor.kind if anchor is not None else kind_without_anchor(ops)


def kind_without_anchor(ops: Iterable[Op]) -> str:
    computing = [op for op in ops if not op.definition.is_insert]
    if computing and all(op.definition.is_splat or op.definition.is_constant for op in computing):
        return "fill"
    if any(op.definition.overlays for op in computing):  # over numbers, or elements
        made_up = [op for op in computing if op.definition.is_free or op.definition.is_splat]
        computing = [op for op in computing if op not in made_up]
    moves = all(op.definition.is_view or op.definition.overlays for op in computing)
    return "copy" if moves else "map"


def name_of(kind: str, ops: Iterable[Op]) -> str:
    """The kind of evaluated ops; of a map with a single function, that."""
    functions = set(filter(None, map(function_of, ops)))
    return functions.pop() if kind == "map" and len(functions) == 1 else kind


# ------------------------------------------------------------------ results


def _dispatch(operands: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    parts = attrs["parts"]
    require(len(parts) > 0, "there is a part")
    taken = [value.type for value in parts[0].inputs]
    for part in parts:
        given = [value.type for value in part.inputs]
        require(given == taken and part.donated == parts[0].donated, "parts take different inputs")
    require(list(operands) == taken, f"{parts[0].name} takes {taken}")
    ties = _ties(parts)
    require(dict(attrs["carried"]) == ties, f"carried={attrs['carried']} is not what parts update")
    require(len(set(ties.values())) == len(ties), "two results update one operand")
    donated = [at for at, is_donated in enumerate(parts[0].donated) if is_donated]
    require(sorted(ties.values()) == donated, "a destination is not updated")
    for border in parts[1:]:
        require(len(border.outputs) == 1, "a border gives one update")
        of_border = destination(border, 0)
        known = of_border is not None and of_border.op.attrs["index"] in ties.values()
        require(known, "a border updates no destination")
    return tuple(value.type for value in parts[0].outputs)


def _ties(parts: Sequence[Graph]) -> dict[int, int]:
    found = ((at, destination(parts[0], at)) for at in range(len(parts[0].outputs)))
    return {at: value.op.attrs["index"] for at, value in found if value is not None}


def _with_parts(graphs: Sequence[Graph]) -> dict[str, Any]:
    if not graphs:
        raise ValueError("a dispatch has a part")
    return {"parts": tuple(graphs), "carried": tuple(_ties(graphs).items())}


def add_dispatch(graph: Graph, operands: Sequence[Value], parts: Sequence[Graph]) -> Op:
    """Appends a dispatch with the types of what its first part gives."""
    types = [value.type for value in parts[0].outputs]
    by_last = (*reversed(evaluated(parts[0])), *reversed(parts[0].ops()))  # or who only places
    loc = next((op.loc for op in by_last if op.loc), graph.return_op.loc)
    return graph.add("dispatch", operands, types, loc, **_with_parts(parts))


# ------------------------------------------------------------------ meaning


def _value_of_dispatch(evaluator: Evaluator, op: Op, *operands: Any) -> list[Any]:
    first, *borders = parts_of(op)
    given = list(operands)
    results = evaluator.graph(first, given)
    for border in borders:
        at = next(r for r, d in op.attrs["carried"] if border.inputs[d] is destination(border, 0))
        inputs = list(given)
        inputs[dict(op.attrs["carried"])[at]] = results[at]
        (results[at],) = evaluator.graph(border, inputs)
    return results


def _tied(op: Op, result: int) -> int | None:
    return next((operand for tied, operand in op.attrs["carried"] if tied == result), None)


def _flops(op: Op) -> int:
    return sum(inner.definition.flops(inner) for part in parts_of(op) for inner in part.ops())


# --------------------------------------------------------------------- text


def _write(op: Op, names: Names) -> str:
    """`KIND READ, ... [into DESTINATION BOX..., ...]`: the boxes of all parts; a `~` stands before
    one that is larger than what is written, as an offset is read at run time."""
    first = parts_of(op)[0]
    given = list(zip(first.inputs, op.operands, strict=True))
    reads = ", ".join(names[value] for own, value in given if not first.is_donated(own))
    into = ", ".join(
        joined(names[value], *_boxes(op, own.op.attrs["index"]))
        for own, value in given
        if first.is_donated(own)
    )
    return joined(kind_of(evaluated(first)), reads, f"into {into}" if into else "")


def _boxes(op: Op, operand: int) -> Iterator[str]:
    for part in parts_of(op):
        for output in range(len(part.outputs)):
            if destination(part, output) is part.inputs[operand]:
                yield from map(_box_text, written(part, output))


def _box_text(made: Written) -> str:
    if not made.inserts:
        return f"~{Box.whole(made.value.shape)}"
    dims = [(0, size, 1) for size in made.value.shape]
    certain = True
    for insert in made.inserts:
        offsets, strides = insert.attrs["offsets"], insert.attrs["strides"]
        for axis, extent in enumerate(boxed(insert)[0].shape):
            first, size, step = dims[axis]
            if offsets[axis] is None:
                dims[axis], certain = (0, extent, 1), False
            else:
                dims[axis] = (first * strides[axis] + offsets[axis], size, step * strides[axis])
    return f"{'' if certain else '~'}{Box.of(dims)}"


def _read(tokens: Line, definition: OpDef, values: Values, types: list[TensorType]) -> Parts:
    """Operands. The parser compares what the line says of the parts with these."""
    tokens.take("name")
    reads = _values(tokens, values)
    into = _values(tokens, values) if tokens.accept("into") else []
    return [*reads, *into], {}


def _values(tokens: Line, values: Values) -> list[Value]:
    """Values, each of which may be followed by boxes."""
    found = []
    while tokens.kind() == "value":
        found.append(tokens.value(values))
        while tokens.accept("~") or tokens.accept("["):
            while not tokens.accept("]"):
                tokens.skip()
        tokens.accept(",")
    return found


define(
    OpDef(
        kind="dispatch",
        infer=_dispatch,
        interpret=_value_of_dispatch,
        write=_write,
        read=_read,
        bodies=parts_of,
        with_bodies=_with_parts,
        is_dispatch=True,
        tied_operand=_tied,
        stands_alone=True,
        flops=_flops,
    )
)
