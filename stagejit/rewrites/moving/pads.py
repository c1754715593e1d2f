"""fold-pads: a pad joins the pad around it, the one it is added to, or the window that reads it.

Input: an `insert_slice` into a `fill`, which is what a pad is. Output: one pad, or the padding of a
convolution. Invariant: a pad that somebody else reads stays as it is, so nothing is computed twice.

Note [Sums of pads]: what is put together of parts by pads that are added, as every other element is
in `associative_scan`, or as the gradients of slices are, is a concatenation, but that a zero is
added to each part: a zero of the other sign turns into it.
"""

from __future__ import annotations

from typing import NamedTuple

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.isomorphic import attribute_key
from stagejit.graph.ops import build
from stagejit.graph.ops.moving.slices import known_box
from stagejit.index.box_index import are_disjoint
from stagejit.rewrites.algebra import scalar_of
from stagejit.rewrites.driving.driver import Outcome, declined, rewrite
from stagejit.rewrites.moving.insert_chains import is_placed

NAME = "fold-pads"

Sizes = tuple[int, ...]


class Pad(NamedTuple):
    """`source` inside a fill: `low` elements before, `strides - 1` between, `high` after."""

    op: Op
    source: Value
    border: Value
    low: tuple[int, ...]
    strides: tuple[int, ...]
    high: tuple[int, ...]


def pad_of(value: Value) -> Pad | None:
    """The pad that made a value; None for another value, or where it lies at an unknown place."""
    op = value.op
    if not op.definition.is_insert or not op.operands[1].op.definition.is_splat:
        return None
    source, whole, low = op.operands[0], op.result.shape, op.attrs["offsets"]
    if None in low or 0 in source.shape:
        return None
    pairs = zip(source.shape, op.attrs["strides"], strict=True)
    strides = tuple(1 if size == 1 else stride for size, stride in pairs)
    high = tuple(extent - first - (size - 1) * stride - 1 for extent, first, size, stride
                 in zip(whole, low, source.shape, strides, strict=True))  # fmt: skip
    return Pad(op, source, op.operands[1].op.operands[0], low, strides, high)


def same_border(first: Value, second: Value) -> bool:
    if first is second:
        return True
    x, y = scalar_of(first), scalar_of(second)
    return x is not None and y is not None and bool(x.tobytes() == y.tobytes())


@rewrite(NAME, roots="insert_slice", counts=True)
def pad_of_pad(graph: Graph, op: Op) -> Outcome:
    """insert_slice (insert_slice %x into fill %v) into fill %v --> insert_slice %x into fill %v"""
    outer = pad_of(op.result)
    inner = pad_of(outer.source) if outer else None
    if outer is None or inner is None:
        return None
    if not same_border(inner.border, outer.border):
        return declined("the two borders have different values")
    if len(graph.uses(inner.op.result)) > 1:
        return declined("the inner pad has other readers")
    offsets = tuple(o + s * i for o, s, i in zip(outer.low, outer.strides, inner.low, strict=True))
    strides = tuple(a * b for a, b in zip(outer.strides, inner.strides, strict=True))
    return build(graph, "insert_slice", (inner.source, op.operands[1]),
                 offsets=offsets, strides=strides)  # fmt: skip


@rewrite(NAME, roots="conv", counts=True)
def pad_into_conv(graph: Graph, op: Op) -> Outcome:
    """conv (insert_slice %x into fill %v), %w  -->  conv %x, %w, with more padding, border=%v"""
    pad = pad_of(op.operands[0])
    if pad is None:
        return None
    border = scalar_of(pad.border)
    if border is None:
        return declined("the border is known at run time only")
    batch, feature, *spatial = op.attrs["lhs_spec"]
    if any(pad.low[a] or pad.high[a] or pad.strides[a] != 1 for a in (batch, feature)):
        return declined("the pad is not only around the window's axes")
    if any(not use.user.definition.is_windowed for use in graph.uses(pad.op.result)):
        return declined("the pad has other readers")
    number = border.item() if border != 0 else 0  # either zero adds nothing
    if not _continues(op, number):
        return declined("the window has a border of its own, of another value")
    if number != 0 and any(pad.strides[axis] != 1 for axis in spatial):
        return declined("what is between the elements is not zero")
    dilation = op.attrs["lhs_dilation"]
    padding = tuple(
        (low + pad.low[axis] * step, high + pad.high[axis] * step)
        for (low, high), axis, step in zip(op.attrs["padding"], spatial, dilation, strict=True)
    )
    dilated = tuple(d * pad.strides[axis] for d, axis in zip(dilation, spatial, strict=True))
    attrs = {name: value for name, value in op.attrs.items() if name != "border"}
    attrs |= {"padding": padding, "lhs_dilation": dilated}
    attrs |= {"border": number} if number != 0 else {}
    return build(graph, "conv", (pad.source, op.operands[1]), **attrs)


def _continues(conv: Op, border: int | float) -> bool:
    """Whether the window's own border, if it has any, goes on with this value."""
    own = any(size > 0 for pair in conv.attrs["padding"] for size in pair)
    return not own or attribute_key(conv.attrs.get("border", 0)) == attribute_key(border)


@rewrite(NAME, roots="map", of="insert_slice", counts=True)
def map_of_pads(graph: Graph, op: Op) -> Outcome:
    """map f (pad %x by %v), (pad %y by %w) apart  -->  map f %x, %w and map f %v, %y in one pad"""
    pads = [pad for value in op.operands if (pad := pad_of(value))]
    if len(op.operands) != 2 or len(pads) != 2:
        return None
    if any(len(graph.uses(pad.op.result)) > 1 for pad in pads):
        return declined("one of the pads has other readers")
    if not are_disjoint([known_box(pad.op) for pad in pads]):
        return declined("the pads have values at the same places")
    borders = [pad.border for pad in pads]
    made = build(graph, "map", borders, **op.attrs)
    made = build(graph, "fill", [made], shape=op.result.shape)
    for at, pad in enumerate(pads):
        for value, offsets, strides in _parts(graph, pad):
            sides = [build(graph, "fill", [border], shape=value.shape) for border in borders]
            sides[at] = value
            part = build(graph, "map", sides, **op.attrs)
            made = build(graph, "insert_slice", (part, made), offsets=offsets, strides=strides)
    return made


def _parts(graph: Graph, pad: Pad) -> list[tuple[Value, Sizes, Sizes]]:
    """What lies in a pad, with offsets and strides: the parts of a concatenation that nobody else
    reads, so that they are stored there only."""
    at, places = pad.source, (pad.op.attrs["offsets"], pad.op.attrs["strides"])
    found: list[tuple[Value, Sizes, Sizes]] = []
    while is_placed(at.op) and len(graph.uses(at)) == 1:
        value, whole = at.op.operands
        inside = zip(*places, at.op.attrs["offsets"], at.op.attrs["strides"], strict=True)
        placed = [(low + step * offset, step * stride) for low, step, offset, stride in inside]
        offsets, strides = zip(*placed, strict=True)
        found.append((value, offsets, strides))
        at = whole
    return found[::-1] if found and at.op.definition.is_empty else [(pad.source, *places)]


RULES = (pad_of_pad, pad_into_conv, map_of_pads)
