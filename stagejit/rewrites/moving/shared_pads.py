"""share-pads: pads of one value, at several places, are boxes of one wider pad.

Input: the whole graph. Output: pads of a value with the same border replaced by boxes of one.
Invariant: every element is as before; who wants a pad in memory of its own has it.

Note [Shifted sums]: the gradient of a stencil adds pads of one value, each moved by a step. Who
computes that value would write it once for each of them, and the borders, too; it is written once,
and what reads the pads reads boxes that overlap, as the stencil itself does.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.graph.ir import Graph, Value
from stagejit.graph.ops import build
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.moving.pads import Pad, pad_of, same_border

NAME = "share-pads"


def share_pads(log: Log) -> bool:
    """%a = pad %x, %b = pad %x elsewhere  -->  %a, %b = extract_slice (pad %x around both)

    Whether there were any."""
    graph = log.graph
    found: dict[Value, list[Pad]] = {}
    for op in graph.ops():
        pad = pad_of(op.result) if op.definition.is_insert else None
        if pad is not None and all(isinstance(size, int) for size in op.result.shape):
            found.setdefault(pad.source, []).append(pad)
    shared = False
    for pads in found.values():
        while pads:
            alike: list[Pad] = []
            others: list[Pad] = []
            for pad in pads:
                (alike if same_border(pads[0].border, pad.border) else others).append(pad)
            shared |= len(alike) > 1 and _share(log, alike)
            pads = others
    return shared


def _share(log: Log, pads: Sequence[Pad]) -> bool:
    """One pad for those that may be boxes of it; whether there are any."""
    fit = []
    for pad in pads:
        if reason := _refused(log.graph, pad):
            log.decline(NAME, pad.op, reason)
        else:
            fit.append(pad)
    if len(fit) < 2:
        return False
    first = fit[0]
    low = [max(sizes) for sizes in zip(*(pad.low for pad in fit), strict=True)]
    high = [max(sizes) for sizes in zip(*(pad.high for pad in fit), strict=True)]
    shape = [a + size + b for a, size, b in zip(low, first.source.shape, high, strict=True)]
    stored = sum(pad.op.result.type.size for pad in fit)
    whole = build(log.graph, "fill", (first.border,), first.op.loc, shape=tuple(shape))
    if whole.type.size >= stored:
        log.decline(NAME, first.op, "one pad around all of them is larger than they are")
        return False
    whole = build(
        log.graph, "insert_slice", (first.source, whole), first.op.loc,
        offsets=tuple(low), strides=first.op.attrs["strides"],
    )  # fmt: skip
    for pad in fit:
        offsets = tuple(a - b for a, b in zip(low, pad.low, strict=True))
        box = build(
            log.graph, "extract_slice", (whole,), pad.op.loc,
            offsets=offsets, sizes=pad.op.result.shape, strides=(1,) * len(offsets),
        )  # fmt: skip
        log.replace(NAME, pad.op, box, f"a box of one pad for {len(fit)}")
    return True


def _refused(graph: Graph, pad: Pad) -> str:
    """Why a pad is none of several that may be one."""
    if any(stride != 1 for stride in pad.strides):
        return "there is something between its elements"
    readers = [use.user.definition for use in graph.uses(pad.op.result)]
    if not all(each.is_elementwise or each.is_extract or each.is_reduce for each in readers):
        return "who reads it wants it in memory of its own"
    return ""
