"""map-parts: an elementwise function of what is put together is put together of its values.

Input: a `map` of a concatenation, a stack, complex numbers of two parts, or a pad. Output: a chain
of inserts of maps of the parts, for a pad into the value of its border. And a box of what is put
together, which is put together of boxes. Invariant: each element is computed once, of the same
operands.

Note [Parts of a map]: what is put together is stored, so that each part is written once, and a map
of it would read all of that again to write as much. The map of a part is evaluated with what makes
the part, and goes straight to its place. Others that the map reads are read in boxes, so where
these are a few elements wide, and many, only what lies so already is: all elements are the same, or
do not depend on the axes that are cut, or others read it in these boxes, too. What arguments are
put together of is copied before anybody reads it; whoever computes a part stores it there.

Note [Borders of a map]: around a pad there is one value if the others that the map reads have one
there, too: they are the same everywhere, or pads with the same border. Else the border is mapped in
boxes, each of which is a kernel of its own, so that this pays for large arrays only.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.base.loc import UNKNOWN, Loc
from stagejit.base.machine import SHORTEST_RUN_NBYTES
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.moving.slices import known_box
from stagejit.index.box import Box
from stagejit.index.box_index import left_of
from stagejit.rewrites.driving.driver import Outcome, declined, rewrite
from stagejit.rewrites.moving.chains import Chain, chain_of
from stagejit.rewrites.moving.insert_chains import is_placed

NAME = "map-parts"

Piece = tuple[Value, Box]  # what lies in a box

# Each is a dispatch of its own where nothing else joins them.
MOST_PARTS = 8
# That many bytes take longer to copy than a call of a kernel or two, and to compile one.
LARGE_NBYTES = 256 << 10


@rewrite(NAME, roots="map", counts=True)
def map_of_parts(graph: Graph, op: Op) -> Outcome:
    """map f (insert_slice %a ... into empty), %y  -->  insert_slice (map f %a, a box of %y) ...

    map f (insert_slice %a into fill %v), (fill %w)  -->  insert_slice (map f %a, fill %w) into
    fill (map f %v, %w)

    map f (reshape (insert_slice ...)), %y  -->  reshape (map f (insert_slice ...), reshape %y)"""
    placed = [x for x in op.operands if is_placed(_unshaped(x).op)]
    few = [x for x in placed if _is_short(_unshaped(x))]
    if len(few) < len(placed):
        return declined(f"it may be put together of more than {MOST_PARTS} parts")
    found = ((x, _chain(graph, x)) for x in few)
    operand, chain = next(((x, chain) for x, chain in found if chain is not None), (None, None))
    if operand is None or chain is None:
        return None
    if not all(_reads_alone(graph, op, x) for x in {operand, chain.result}):
        return declined("others read what is put together, so it is stored")
    stored = sum(part.source.type.size for part in chain.parts if _is_stored(graph, part.source))
    if 2 * stored > op.result.type.size:
        return declined("most of what is put together is stored for others, too")
    found_borders = [] if chain.is_filled else [_border(graph, chain, x) for x in op.operands]
    borders = [border for border in found_borders if border is not None]
    pieces = [(part.source, known_box(part.insert)) for part in chain.parts]
    shaped = operand is not chain.result
    if len(borders) < len(found_borders):
        around = [] if shaped else _around(graph, chain, pieces)
        if not around:
            return declined("what else it reads is not the same all around the pad")
        borders, pieces = [], [*pieces, *around]
    others = [x for x in dict.fromkeys(op.operands) if x is not operand]
    boxes = [box for _, box in pieces]
    if _are_narrow(chain.result, boxes) and not all(
        x.op.definition.is_splat or (not shaped and _lies_in(graph, x, boxes)) for x in others
    ):
        return declined("what else it reads would be read element by element")
    if not shaped:
        return _built(graph, op, chain, pieces, borders)
    read = [chain.result if x is operand else _shaped(graph, x, chain) for x in op.operands]
    made = build(graph, "map", read, op.loc, **op.attrs)
    return build(graph, "reshape", (made,), shape=op.result.shape)


@rewrite(NAME, roots="extract_slice", of="insert_slice", counts=True)
def box_of_parts(graph: Graph, op: Op) -> Outcome:
    """extract_slice (insert_slice %a ... into %e) at b  -->  insert_slice (a box of %a) ... into
    a box of %e, if all of %a is copied in any case"""
    chain = None if None in op.attrs["offsets"] else _chain(graph, op.operands[0])
    if chain is None or not _reads_alone(graph, op, chain.result):
        return None
    whole = known_box(op)
    solid = [whole, *(known_box(part.insert) for part in chain.parts)]
    if not all(box.is_solid for box in solid):
        return declined("boxes with strides are not cut")
    common = [(part, whole.intersection(known_box(part.insert))) for part in chain.parts]
    read = [(part, box) for part, box in common if box.count]
    if not read or read[0][1] == whole:
        return None  # it is no more than a box of one part: see `views.extract_of_insert`
    if not all(_is_copied(part.source) or box == known_box(part.insert) for part, box in read):
        return declined("whoever computes a part stores it there, and all of it")
    made = _base(graph, op, None if chain.is_filled else chain.base.op.operands[0])
    for part, box in read:
        inner = _box_of(graph, part.source, box.inside(known_box(part.insert)))
        offsets = box.inside(whole).offsets
        made = build(graph, "insert_slice", (inner, made), offsets=offsets, strides=box.strides)
    return made


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


def _chain(graph: Graph, value: Value) -> Chain | None:
    """The chain that makes a value: a pad, or at least two parts that are all of it."""
    last = _unshaped(value).op
    if not is_placed(last) or not all(isinstance(size, int) for size in value.shape):
        return None
    chain = chain_of(graph, last)
    whole = chain is not None and chain.is_filled and len(chain.parts) == 1
    return None if whole else chain


def _border(graph: Graph, chain: Chain, value: Value) -> Value | None:
    """The one element of a value around all parts of a pad."""
    if value.op.definition.is_splat:
        return value.op.operands[0]
    other = chain if _unshaped(value) is chain.result else _chain(graph, value)
    if other is None or other.is_filled:
        return None
    if other is not chain:
        # Places are of what is put together, whatever shape a map reads it in.
        places = [{known_box(part.insert) for part in each.parts} for each in (chain, other)]
        if other.result.shape != chain.result.shape or places[0] != places[1]:
            return None
    return other.base.op.operands[0]


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


def _is_stored(graph: Graph, source: Value) -> bool:
    """Whether others read it, or what it is another shape of, so that whoever computes it may
    store it within what is put together."""
    while not source.op.definition.is_input:
        users = graph.links.after[source.op]  # of which there may be thousands
        if len(users) > 1 or len(graph.uses(source)) > 1:
            return True
        if not source.op.definition.keeps_order:
            return False
        source = source.op.operands[0]
    return False


def _is_copied(source: Value) -> bool:
    """Whether it has to be copied to where it is put together: nobody computes it."""
    while source.op.definition.keeps_order or source.op.definition.is_extract:
        source = source.op.operands[0]
    return source.op.definition.is_input or source.op.definition.is_splat


def _around(graph: Graph, chain: Chain, pieces: Sequence[Piece]) -> list[Piece]:
    """The boxes around all parts of a large pad, if they are few."""
    whole, boxes = Box.whole(chain.result.shape), [box for _, box in pieces]
    if chain.result.type.nbytes < LARGE_NBYTES or not all(box.is_solid for box in boxes):
        return []
    around = left_of(whole, boxes, MOST_PARTS - len(boxes))
    if around == [whole]:
        return []
    return [(build(graph, "fill", chain.base.op.operands, shape=b.sizes), b) for b in around]


def _are_narrow(value: Value, boxes: Sequence[Box]) -> bool:
    """Whether boxes of an array are many runs of a few elements."""
    runs = 0
    for box in boxes:
        run, itemsize = box.run(value.shape), value.type.dtype.itemsize
        if run < box.count and run * itemsize < SHORTEST_RUN_NBYTES:
            runs += box.count // run
    return 4 * runs * SHORTEST_RUN_NBYTES > value.type.nbytes


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


def _built(
    graph: Graph, op: Op, chain: Chain, pieces: Sequence[Piece], borders: Sequence[Value]
) -> Value:
    whole, loc = chain.result, chain.base.op.loc
    border = build(graph, "map", borders, loc, **op.attrs) if borders else None
    made = _base(graph, op, border, loc)
    for source, box in pieces:
        read = [source if x is whole else _box_of(graph, x, box) for x in op.operands]
        mapped = build(graph, "map", read, **op.attrs)
        made = build(
            graph, "insert_slice", (mapped, made), offsets=box.offsets, strides=box.strides
        )
    return made


def _base(graph: Graph, op: Op, border: Value | None, loc: Loc = UNKNOWN) -> Value:
    """What is there before the parts, in the shape of an op's result. border: None if they are all
    of it."""
    type = op.result.type
    if border is None:
        return build(graph, "empty", (), shape=type.shape, dtype=type.dtype)
    return build(graph, "fill", (border,), loc, shape=type.shape)


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


RULES = (map_of_parts, box_of_parts)
