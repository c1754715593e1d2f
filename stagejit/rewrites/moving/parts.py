"""map-parts: an elementwise function of what is put together is put together of its values.

Input: a `map` of a concatenation, a stack, or complex numbers of two parts. Output: a chain of
inserts of maps of the parts. Invariant: each element is computed once, of the same operands.

Note [Parts of a map]: what is put together is stored, so that each part is written once, and a map
of it would read all of that again to write as much. The map of a part is evaluated with what makes
the part, and goes straight to its place. Others that the map reads are read in boxes, so where
these are a few elements wide, only what lies so already is: all elements are the same, or do not
depend on the axes that are cut, or others read it in these boxes, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.moving.slices import known_box
from stagejit.index.box import Box
from stagejit.rewrites.driving.driver import Outcome, declined, rewrite
from stagejit.rewrites.moving.chains import Chain, chain_of
from stagejit.rewrites.moving.insert_chains import is_placed

NAME = "map-parts"

# Each is a dispatch of its own where nothing else joins them.
MOST_PARTS = 8
# Runs that are shorter are read, and written, element by element.
SHORTEST_RUN_NBYTES = 64


@rewrite(NAME, roots="map", counts=True)
def map_of_parts(graph: Graph, op: Op) -> Outcome:
    """map f (insert_slice %a ... into empty), %y  -->  insert_slice (map f %a, a box of %y) ...

    map f (reshape (insert_slice ...)), %y  -->  reshape (map f (insert_slice ...), reshape %y)"""
    placed = [x for x in op.operands if is_placed(_unshaped(x).op)]
    few = [x for x in placed if _is_short(_unshaped(x))]
    if len(few) < len(placed):
        return declined(f"it may be put together of more than {MOST_PARTS} parts")
    found = ((x, _filled(graph, x)) for x in few)
    operand, chain = next(((x, chain) for x, chain in found if chain is not None), (None, None))
    if operand is None or chain is None:
        return None
    if not all(_reads_alone(graph, op, x) for x in {operand, chain.result}):
        return declined("others read what is put together, so it is stored")
    alone = sum(part.source.type.size for part in chain.parts if _is_alone(graph, part.source))
    if 2 * alone < op.result.type.size:
        return declined("most of what is put together is stored for others, too")
    boxes = [known_box(part.insert) for part in chain.parts]
    shaped = operand is not chain.result
    others = [x for x in dict.fromkeys(op.operands) if x is not operand]
    if any(_is_narrow(chain.result, box) for box in boxes) and not all(
        x.op.definition.is_splat or (not shaped and _lies_in(graph, x, boxes)) for x in others
    ):
        return declined("what else it reads would be read element by element")
    if not shaped:
        return _built(graph, op, chain, boxes)
    read = [chain.result if x is operand else _shaped(graph, x, chain) for x in op.operands]
    made = build(graph, "map", read, op.loc, **op.attrs)
    return build(graph, "reshape", (made,), shape=op.result.shape)


def _unshaped(value: Value) -> Value:
    """What a value is, in a shape of its own."""
    return value.op.operands[0] if value.op.definition.keeps_order else value


def _is_short(value: Value) -> bool:
    """Whether it is made by few inserts, one after the other."""
    for _ in range(MOST_PARTS):
        value = value.op.operands[1]
        if not is_placed(value.op):
            return True
    return False


def _filled(graph: Graph, value: Value) -> Chain | None:
    """The chain of at least two parts that puts all of a value together."""
    if not all(isinstance(size, int) for size in value.shape):
        return None
    chain = chain_of(graph, _unshaped(value).op)
    return chain if chain is not None and chain.is_filled and len(chain.parts) > 1 else None


def _reads_alone(graph: Graph, op: Op, value: Value) -> bool:
    """Whether it is the only one to read a value, or a reshape of it is that it reads."""
    users = {use.user for use in graph.uses(value)}
    return users == {op} or (
        len(users) == 1 and next(iter(users)).definition.keeps_order and value not in op.operands
    )


def _shaped(graph: Graph, value: Value, chain: Chain) -> Value:
    shape = chain.result.shape
    if value.op.definition.is_splat:
        return build(graph, "fill", value.op.operands, shape=shape)
    return build(graph, "reshape", (value,), shape=shape)


def _is_alone(graph: Graph, source: Value) -> bool:
    """Whether nobody else reads it, or what it is another shape of."""
    while len(graph.uses(source)) == 1:
        if not source.op.definition.keeps_order:
            return True
        source = source.op.operands[0]
    return False


def _is_narrow(value: Value, box: Box) -> bool:
    """Whether a box of an array is a few elements here and there."""
    run = 1
    for size, count, stride in zip(
        reversed(value.shape), reversed(box.sizes), reversed(box.strides), strict=True
    ):
        run *= count if stride == 1 else 1
        if count != size:
            break
    whole = run == math.prod(box.sizes)
    return not whole and run * value.type.dtype.itemsize < SHORTEST_RUN_NBYTES


def _lies_in(graph: Graph, value: Value, boxes: Sequence[Box]) -> bool:
    """Whether narrow boxes of a value are no more to read than what lies there already."""
    op = value.op
    if op.definition.is_splat or is_placed(op):
        return True
    if op.definition.repeats:
        kept = op.attrs["axes"]
        return all(
            box.sizes[axis] == size
            for box in boxes
            for axis, size in enumerate(value.shape)
            if axis in kept
        )
    readers = [use.user for use in graph.uses(value) if use.user.definition.is_extract]
    read = {known_box(user) for user in readers if None not in user.attrs["offsets"]}
    return read.issuperset(boxes)


def _built(graph: Graph, op: Op, chain: Chain, boxes: Sequence[Box]) -> Value:
    type = op.result.type
    made = build(graph, "empty", (), shape=type.shape, dtype=type.dtype)
    for part, box in zip(chain.parts, boxes, strict=True):
        read = [part.source if x is chain.result else _box_of(graph, x, box) for x in op.operands]
        mapped = build(graph, "map", read, **op.attrs)
        made = build(
            graph, "insert_slice", (mapped, made), offsets=box.offsets, strides=box.strides
        )
    return made


def _box_of(graph: Graph, value: Value, box: Box) -> Value:
    """A box of a value; of what is repeated along axes, the repetitions that are in the box."""
    op = value.op
    if op.definition.is_splat:
        return build(graph, "fill", op.operands, shape=box.sizes)
    if op.definition.repeats:
        (source,), kept, cut = op.operands, op.attrs["axes"], [*box.dims()]
        dims = [
            cut[axis] if source.shape[at] == value.shape[axis] else (0, 1, 1)
            for at, axis in enumerate(kept)
        ]
        inner = _box_of(graph, source, Box.of(dims))
        return build(graph, "broadcast", (inner,), shape=box.sizes, axes=kept)
    if box.sizes == value.shape:
        return value
    return build(
        graph, "extract_slice", (value,), offsets=box.offsets, sizes=box.sizes, strides=box.strides
    )


RULES = (map_of_parts,)
