"""Buffers that are written in boxes, then placed in a larger buffer: box in box.

Input: a dispatch that copies such a buffer into another one. Output: the dispatches that write the
buffer write their boxes of the other one instead. Invariant: nobody else uses the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from stagejit.dispatch.operands import read_by
from stagejit.dispatch.rewrites.launch import Inputs, Launch, inputs_of
from stagejit.dispatch.rewrites.targets import DEPENDS, behind_after, find_target
from stagejit.dispatch.rewrites.views import Views, places, users_of
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import destination_of
from stagejit.graph.ops.dispatches import evaluated, parts_of, placed, written
from stagejit.rewrites.cloning import appended
from stagejit.rewrites.driver import Log


def versions_of(graph: Graph, last: Value, copy: Op) -> list[Value] | None:
    """The versions of a buffer that nobody but `copy` reads, and that nobody but dispatches writes
    in boxes, first to last; None for any other buffer."""
    found, user = [last], copy
    while True:
        version = found[0]
        users = users_of(graph, version)
        readers = [(copy, last)] if version is last else []
        if users.passed or list(users.readers) != readers or (
            users.update is not None and users.update.op is not user):  # fmt: skip
            return None
        into = destination_of(version)
        if into is None:
            return found if _is_writable(version) else None
        earlier, waits = behind_after(into)
        if waits or earlier.type != version.type or not places(version):
            return None
        user = version.op
        found.insert(0, earlier)


def _is_writable(first: Value) -> bool:
    """Whether who makes the first version of a buffer could write it elsewhere."""
    definition = first.op.definition
    return definition.is_empty or (definition.is_dispatch and len(parts_of(first.op)) == 1)


@dataclass(frozen=True)
class Assembled:
    """A buffer, and the dispatch that copies it into another one."""

    versions: Sequence[Value]
    copy: Op

    def place(self, log: Log, views: Views) -> str:
        """Has all who write the buffer write into the other one, or says why they cannot."""
        writers = [value.op for value in self.versions if not value.op.definition.is_empty]
        target = find_target(views, self.copy, self.versions[-1], writers, early=True)
        if isinstance(target, str):
            return target
        boxes = views.boxes_of(self.copy.result)
        if any(views.read_in(op, target.version, boxes) for op in writers):
            return DEPENDS
        updating = views.updating(target.version)
        current, made = views.order.after(target.version, target.waits), self.copy
        for version in self.versions:
            if not version.op.definition.is_empty:
                made = self._launch(version, current).put(views.graph, version.op)
                current = made.results[version.index]
                views.put(log, version.op, made, made.results)
        target.continue_with(views, self.copy, current, updating)
        views.take_over(self.copy, made, current)
        return ""

    def _launch(self, version: Value, current: Value) -> Launch:
        """Who makes a version, but of `current`."""
        launch = Launch(version.op)
        starts = (read for read in read_by(self.copy) if read is not self.versions[-1])
        launch.reads.update(dict.fromkeys(starts))
        before = destination_of(version)
        if before is not None:
            del launch.destinations[before]
        launch.destinations[current] = None
        name = parts_of(version.op)[0].name
        launch.parts = [(name, partial(self._part, version, current))]
        return launch

    def _part(
        self, version: Value, current: Value, graph: Graph, reads: Inputs, into: Inputs
    ) -> list[Value]:
        op, copied = version.op, parts_of(self.copy)[0]
        part = parts_of(op)[0]
        made = appended(graph, evaluated(part), inputs_of(op, part, reads, into))
        made |= appended(graph, evaluated(copied), inputs_of(self.copy, copied, reads, {}))
        (around,) = written(copied, 0)
        outputs = []
        for value, output in zip(op.results, part.outputs, strict=True):
            before, outer = destination_of(value), around.inserts if value is version else ()
            if before is None and value is not version:
                outputs.append(made[output])
                continue
            whole = into[current] if value is version or before is None else into[before]
            for one in written(part, value.index):
                inserts = (*one.inserts, *outer)
                whole = placed(graph, made[one.value], inserts, whole, made)
            outputs.append(whole)
        return outputs
