"""fold-views: compose and cancel ops that only move elements.

Input: a view (transpose, reshape, broadcast, reverse, slice) and its producer. Output: one view of
the producer's operand, or no view at all. Invariant: no rule here adds an op that computes or
copies, and `fill`s move outwards, so a scalar stays a scalar for as long as possible.
"""

from __future__ import annotations

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.moving.slices import known_box, pull_view
from stagejit.index.box import Box
from stagejit.index.coordinates import coordinates, keeps_row_major_order
from stagejit.rewrites.driving.driver import Outcome, declined, rewrite
from stagejit.rewrites.moving.insert_chains import is_placed, untouched_before

NAME = "fold-views"


@rewrite(NAME, roots="reshape transpose broadcast reverse extract_slice")
def identity_view(graph: Graph, op: Op) -> Outcome:
    """view %x of the same shape, every element in place  -->  %x"""
    x = op.operands[0]
    if x.shape != op.result.shape:
        return None
    if x.type.size <= 1:
        return x
    here = coordinates(x.shape)
    return x if pull_view(op, here) == here else None


@rewrite(NAME, roots="reshape transpose broadcast reverse extract_slice", of="fill")
def view_of_fill(graph: Graph, op: Op) -> Outcome:
    """view (fill %s)  -->  fill %s"""
    producer = op.operands[0].op
    scalar = producer.operands[0]
    if not op.result.shape:
        return scalar
    return build(graph, "fill", [scalar], shape=op.result.shape)


@rewrite(NAME, roots="reshape", of="reshape")
def reshape_of_reshape(graph: Graph, op: Op) -> Outcome:
    """reshape (reshape %x)  -->  reshape %x"""
    producer = op.operands[0].op
    return build(graph, "reshape", producer.operands, shape=op.result.shape)


@rewrite(NAME, roots="transpose", of="transpose")
def transpose_of_transpose(graph: Graph, op: Op) -> Outcome:
    """transpose (transpose %x by p) by q  -->  transpose %x by p[q]"""
    producer = op.operands[0].op
    inner = producer.attrs["permutation"]
    permutation = tuple(inner[axis] for axis in op.attrs["permutation"])
    return build(graph, "transpose", producer.operands, permutation=permutation)


@rewrite(NAME, roots="transpose broadcast")
def unit_dims_only(graph: Graph, op: Op) -> Outcome:
    """transpose or broadcast %x, only dims of size 1 move or appear  -->  reshape %x"""
    x = op.operands[0]
    if x.type.size != op.result.type.size:
        return None
    pulled = pull_view(op, coordinates(op.result.shape))
    if not keeps_row_major_order(pulled, op.result.shape, x.shape):
        return None
    return build(graph, "reshape", [x], shape=op.result.shape)


@rewrite(NAME, roots="reduce")
def reduce_of_unit_axes(graph: Graph, op: Op) -> Outcome:
    """reduce %x over axes of size 1  -->  reshape %x"""
    (x,) = op.operands
    if op.attrs["fn"] in ("argmax", "argmin") or x.type.size != op.result.type.size:
        return None
    return build(graph, "reshape", [x], shape=op.result.shape)


@rewrite(NAME, roots="broadcast", of="broadcast transpose")
def broadcast_of_view(graph: Graph, op: Op) -> Outcome:
    """broadcast (broadcast or transpose %x)  -->  broadcast %x"""
    producer = op.operands[0].op
    outer = op.attrs["axes"]
    if "axes" in producer.attrs:
        axes = tuple(outer[axis] for axis in producer.attrs["axes"])
    else:
        permutation = producer.attrs["permutation"]
        axes = tuple(outer[permutation.index(axis)] for axis in range(len(permutation)))
    return build(graph, "broadcast", producer.operands, shape=op.result.shape, axes=axes)


@rewrite(NAME, roots="transpose", of="broadcast")
def transpose_of_broadcast(graph: Graph, op: Op) -> Outcome:
    """transpose (broadcast %x)  -->  broadcast %x with permuted axes"""
    producer = op.operands[0].op
    permutation = op.attrs["permutation"]
    axes = tuple(permutation.index(axis) for axis in producer.attrs["axes"])
    return build(graph, "broadcast", producer.operands, shape=op.result.shape, axes=axes)


@rewrite(NAME, roots="reverse", of="reverse")
def reverse_of_reverse(graph: Graph, op: Op) -> Outcome:
    """reverse (reverse %x along a) along b  -->  reverse %x along the axes in one of a, b"""
    producer = op.operands[0].op
    axes = tuple(sorted({*op.attrs["axes"]} ^ {*producer.attrs["axes"]}))
    (x,) = producer.operands
    return build(graph, "reverse", [x], axes=axes) if axes else x


@rewrite(NAME, roots="extract_slice", of="extract_slice")
def extract_of_extract(graph: Graph, op: Op) -> Outcome:
    """extract_slice (extract_slice %x at a) at b  -->  extract_slice %x at a + b * strides of a"""
    producer = op.operands[0].op
    if None in op.attrs["offsets"] or None in producer.attrs["offsets"]:
        return declined("a computed start is clamped to its own operand")
    outer, box = known_box(producer), known_box(op)
    offsets, strides = outer.offsets, outer.strides
    dims = zip(offsets, strides, box.dims(), strict=True)
    whole = Box.of([(a + b * s if n else 0, n, s * t) for a, s, (b, n, t) in dims])
    return _extracted(graph, producer.operands[0], whole)


def _extracted(graph: Graph, value: Value, box: Box) -> Value:
    offsets, sizes, strides = box.offsets, box.sizes, box.strides
    return build(graph, "extract_slice", [value], offsets=offsets, sizes=sizes, strides=strides)


# ------------------------------------------------------------ forwarding


@rewrite(NAME, roots="extract_slice", of="insert_slice")
def extract_of_insert(graph: Graph, op: Op) -> Outcome:
    """extract_slice (insert_slice %s into %d at a) at b  -->  a box of %s, or of %d where
    disjoint; as far as the box can be followed"""
    if None in op.attrs["offsets"] or None in op.operands[0].op.attrs["offsets"]:
        return declined("the boxes of a computed start are not known")
    value, box = op.operands[0], known_box(op)
    while is_placed(value.op):
        before = untouched_before(graph, value, box)
        if before is value:
            placed = known_box(value.op)
            if not placed.contains(box):
                break
            before, box = value.op.operands[0], box.inside(placed)
        value = before
    if value is op.operands[0]:
        return declined("the box is partly inserted, partly not")
    return _extracted(graph, value, box)


@rewrite(NAME, roots="insert_slice", of="insert_slice", operand=1)
def insert_over_insert(graph: Graph, op: Op) -> Outcome:
    """insert_slice %b into (insert_slice %a into %d at p) at p  -->  insert_slice %b into %d at
    p"""
    source, inner = op.operands[:2]
    producer = inner.op
    if producer.operands[0].shape != source.shape:
        return None
    same = all(op.attrs[name] == producer.attrs[name] for name in ("offsets", "strides"))
    if not same or producer.operands[2:] != op.operands[2:]:
        return None
    return build(
        graph, "insert_slice", [source, producer.operands[1], *op.operands[2:]], **op.attrs
    )


RULES = (
    identity_view,
    view_of_fill,
    reshape_of_reshape,
    transpose_of_transpose,
    unit_dims_only,
    reduce_of_unit_axes,
    broadcast_of_view,
    transpose_of_broadcast,
    reverse_of_reverse,
    extract_of_extract,
    extract_of_insert,
    insert_over_insert,
)
