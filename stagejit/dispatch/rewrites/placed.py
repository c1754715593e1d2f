"""read-placed: who reads a value that is also placed in a larger buffer reads it there.

Input: a graph of dispatches. Output: the same, where some dispatches store a value one time less.
Invariant: nobody overwrites the box that is read instead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial

from stagejit.base.machine import SHORTEST_RUN_NBYTES
from stagejit.base.symbolic import at_most
from stagejit.dispatch.in_place import says_where
from stagejit.dispatch.ranges.accesses import Touch, write_of
from stagejit.dispatch.rewrites.launch import Inputs, Launch, inputs_of
from stagejit.dispatch.rewrites.views import Users, Views, users_of
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.dispatches import destination, parts_of, written
from stagejit.index.box import Box
from stagejit.rewrites.cloning import appended
from stagejit.rewrites.driving.driver import Log

NAME = "read-placed"


def read_where_placed(log: Log, views: Views) -> None:
    """%v, %b = ...; f %v  -->  %b = ...; f (a box of %b)"""
    for op in log.graph.ops():
        stored: Op | None = views.now(op)
        while stored is not None:  # it may store other values twice, too
            stored = _redirected(log, views, stored)


def _redirected(log: Log, views: Views, op: Op) -> Op | None:
    """The dispatch without one of its results, whose readers read another store of the same
    value."""
    if not op.definition.is_dispatch or len(op.results) == 1:
        return None
    part = parts_of(op)[0]
    times = Counter(made.value for at in range(len(part.outputs)) for made in written(part, at))
    for result in op.results:
        if times[part.outputs[result.index]] < 2 or destination(part, result.index) is not None:
            continue
        users = users_of(log.graph, result)
        returned = any(reader is log.graph.return_op for reader, _ in users.readers)
        if users.update is not None or users.passed or returned:
            continue
        found = _another(log, views, users)
        if found is not None:
            log.apply(NAME, op, "its readers read it where it is placed")
            return _redirect(log, views, users, *found)
    return None


def _another(log: Log, views: Views, users: Users) -> tuple[Value, Box] | None:
    """Where else a result, which nobody updates, lies: another result, and a box of it."""
    result = users.version
    region = views.region(result.op)
    value = region.stores[region.results.index(result)].value
    reasons, found = [], []
    for store, other in zip(region.stores, region.results, strict=True):
        if store.value is value and other is not result:
            touch = write_of(region, store, other)
            reasons.append(_refuse(views, users, touch))
            last = views.chain(other).versions[-1].op
            found += [] if reasons[-1] else [(last.place, other, touch.box)]
    if not found:
        log.decline(NAME, result.op, reasons[0])
        return None
    # The buffer that lives longest anyway: nothing has to stay alive for the readers.
    _, other, box = max(found, key=lambda one: one[0])
    return other, box


def _refuse(views: Views, users: Users, placed: Touch) -> str:
    """Why the readers of a result cannot read it in the box `placed`."""
    box = placed.box
    if not placed.exact or box.static_offsets is None:
        return "where it is placed is known at run time only"
    for reader, value in users.readers:
        if not reader.definition.is_dispatch or value is not users.version or views.region(
            reader).stands_alone:  # fmt: skip
            return "a reader wants it in memory of its own"
        for part in views.region(reader).parts:
            own = [own for own, operand in zip(part.inputs, part.operands, strict=True)
                   if operand is value]  # fmt: skip
            if any(says_where(part, one) for one in own):
                return "it says where something is placed"
    run = _run_of(box, placed.value.shape) * placed.value.type.dtype.itemsize
    if not any(at_most(enough, run) for enough in (SHORTEST_RUN_NBYTES, users.version.type.nbytes)):
        return f"it is placed in pieces of {run} bytes"
    chain = views.chain(placed.value)
    itself = [touch for touch in views.writes_to(placed.value) if touch.box.overlaps(box)]
    early = any(
        reader is update.op or views.order.comes_before(update.op, reader)
        for update in chain.overwriting(placed.value, box)
        for reader, _ in users.readers
    )
    if early or len(itself) > 1 or chain.is_passed:
        return "it is overwritten before its last reader has run"
    return ""


def _redirect(log: Log, views: Views, users: Users, other: Value, box: Box) -> Op:
    """Has the readers read a box of `other`, and nobody store the result; returns who stored it."""
    graph, result, chain = log.graph, users.version, views.chain(other)
    readers = []
    for op in dict.fromkeys(reader for reader, _ in users.readers):
        launch = Launch(op)
        # A later version that it reads anyway has the same elements there.
        version = max((other, *launch.reads), key=lambda value: chain.number.get(value, -1))
        launch.reads = {version if read is result else read: None for read in launch.reads}
        launch.parts = [
            (part.name, partial(_reading, op, part, result, version, box)) for part in parts_of(op)
        ]
        new = launch.put(graph, op)
        views.put(log, op, new, new.results)
        readers.append(new)
    for update in chain.overwriting(other, box)[:1]:  # the others come after it
        views.order.put_first(readers, update)
    return views.drop(log, result)


def _reading(
    op: Op, part: Graph, result: Value, other: Value, box: Box, graph: Graph, reads: Inputs,
    into: Inputs,
) -> list[Value]:  # fmt: skip
    """The part of a reader of `result` that reads a box of `other` instead."""
    given = inputs_of(op, part, reads, into)
    missing = [own for own in part.inputs if own not in given]
    if missing:
        view = reads[other]
        if box != Box.whole(view.shape):
            view = build(graph, "extract_slice", [view], result.op.loc,
                         offsets=box.offsets, sizes=box.sizes, strides=box.strides)  # fmt: skip
        given |= dict.fromkeys(missing, view)
    made = appended(graph, part.ops(), given)
    return [made[value] for value in part.outputs]


def _run_of(box: Box, shape: Sequence[int]) -> int:
    """Elements of the box that lie side by side in a buffer of `shape`."""
    whole = [box.strides[d] == 1 and box.sizes[d] == shape[d] for d in range(len(shape))]
    first = next((d for d in reversed(range(len(shape))) if not whole[d]), 0)
    sizes = box.sizes[first:] if not shape or box.strides[first] == 1 else box.sizes[first + 1 :]
    return math.prod(sizes)
