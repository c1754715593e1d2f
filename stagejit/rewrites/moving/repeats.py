"""spread-repeats: what is inserted with its elements repeated is inserted once for each repetition.

Input: an `insert_slice` of a reshaped `broadcast`, which is what `jnp.repeat`, `jnp.tile` and
upsampling by nearest neighbours are. Output: a chain of inserts of what was broadcast. Invariant:
the same elements are written, each once.

Note [Several stores]: the repeated value has no producer that could write it, so it would be stored
once and then copied. The same value inserted several times is stored several times by its producer,
and nothing is read again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from stagejit.base.machine import SHORTEST_RUN_NBYTES
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.rewrites.driving.driver import Outcome, declined, rewrite

NAME = "spread-repeats"

# More stores of one value than this make a kernel long, and reading the value again is cheap.
MOST_STORES = 16


class _Repeat(NamedTuple):
    """Each element of `source` `times` along `axis`: `inner` of them next to each other, or all of
    the axis again and again."""

    source: Value
    axis: int
    times: int
    inner: bool


def _repeat_of(value: Value) -> _Repeat | None:
    """A reshape that joins the one new axis of a broadcast with a neighbour."""
    op = value.op
    if not op.definition.keeps_order or not op.operands[0].op.definition.repeats:
        return None
    wide = op.operands[0]
    source, axes = wide.op.operands[0], wide.op.attrs["axes"]
    new = [axis for axis in range(wide.type.rank) if axis not in axes]
    kept = tuple(wide.shape[axis] for axis in axes)
    if len(new) != 1 or kept != source.shape or tuple(sorted(axes)) != tuple(axes):
        return None
    (at,), times = new, wide.shape[new[0]]
    for axis, inner in ((at - 1, True), (at, False)):
        if not 0 <= axis < source.type.rank or times < 2:
            continue
        joined = source.shape[axis] * times
        if value.shape == (*source.shape[:axis], joined, *source.shape[axis + 1 :]):
            return _Repeat(source, axis, times, inner)
    return None


@rewrite(NAME, roots="insert_slice")
def insert_of_repeat(graph: Graph, op: Op) -> Outcome:
    """insert_slice (reshape (broadcast %x)) into %y  -->  insert_slice %x into ... into %y"""
    repeat = _repeat_of(op.operands[0])
    if repeat is None or not op.operands[0].type.size:
        return None
    if None in op.attrs["offsets"]:
        return declined("the offset is known at run time only")
    source, axis = repeat.source, repeat.axis
    run = math.prod(source.shape[axis + 1 :]) if repeat.inner else math.prod(source.shape[axis:])
    if run * source.type.dtype.itemsize < SHORTEST_RUN_NBYTES:
        return declined(f"runs of {run} elements are repeated faster by a copy")
    if _stores(repeat) > MOST_STORES:
        return declined(f"that would be {_stores(repeat)} stores of one value")
    destination = op.operands[1]
    for number in range(repeat.times):
        step = 1 if repeat.inner else source.shape[axis]
        offsets, strides = list(op.attrs["offsets"]), list(op.attrs["strides"])
        offsets[axis] += number * step * strides[axis]
        strides[axis] *= repeat.times if repeat.inner else 1
        destination = build(
            graph,
            "insert_slice",
            (source, destination),
            op.loc,
            offsets=tuple(offsets),
            strides=tuple(strides),
        )
    return destination


def _stores(repeat: _Repeat) -> int:
    """Inserts of what is repeated, which may be a repetition itself."""
    total, inner = repeat.times, _repeat_of(repeat.source)
    while inner is not None:
        total *= inner.times
        inner = _repeat_of(inner.source)
    return total


RULES = (insert_of_repeat,)
