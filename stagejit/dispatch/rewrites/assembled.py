"""Buffers that are written in boxes, then placed in a larger buffer: box in box.

Input: a dispatch that copies such a buffer into another one. Output: the dispatches that write
boxes of the buffer write their boxes of the other one instead; the copy places what the buffer held
before, if anything. Invariant: nobody else uses the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stagejit.base.records import record
from stagejit.dispatch.operands import operands_of, read_by
from stagejit.dispatch.rewrites.launch import Inputs, Launch, inputs_of
from stagejit.dispatch.rewrites.targets import DEPENDS, behind_after, find_target, updated
from stagejit.dispatch.rewrites.views import Views, places, users_of
from stagejit.graph.ir import Graph, Op, Use, Value
from stagejit.graph.ops.control import destination_of
from stagejit.graph.ops.dispatches import evaluated, parts_of, placed, written
from stagejit.rewrites.cloning import appended
from stagejit.rewrites.driving.driver import Log


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
            kind = version.op.definition
            return found if kind.is_empty or kind.is_dispatch else None
        earlier, waits = behind_after(into)
        if waits or not places(version) or len(parts_of(version.op)) > 1:
            return None
        user = version.op
        found.insert(0, earlier)


@record
class Assembled:
    """A buffer, the dispatch that copies it into another one, and its operand that the buffer
    is."""

    versions: Sequence[Value]
    copy: Op
    operand: int

    def place(self, log: Log, views: Views) -> str:
        """Has all who write the buffer write into the other one, or says why they cannot."""
        first, *updates = self.versions
        writers = [value.op for value in self.versions if not value.op.definition.is_empty]
        target = find_target(views, self.copy, self.versions[-1], writers, early=True)
        if isinstance(target, str):
            return target
        boxes = views.boxes_of(self.copy.result)
        if any(views.read_in(op, target.version, boxes) for op in writers):
            return DEPENDS
        limit = views.options.operand_limit
        for update in updates:
            more = len({*self._starts}.difference(read_by(update.op)))
            if more and operands_of(update.op) + more > limit:
                return f"a producer has the {limit} operands that one dispatch may have"
        target.start(views, self.copy.result, target.waits)
        uses = views.graph.uses(self.copy.result)
        current, made = updated(self.copy.result), self.copy
        if not first.op.definition.is_empty:
            current = self.copy.result
            views.use(first, [Use(self.copy, self.operand)])
        for version in updates:
            made = self._launch(version, current).put(views.graph, version.op)
            current = made.results[version.index]
            views.put(log, version.op, made, made.results)
            views.moved(current)
        views.use(current, uses)
        if first.op.definition.is_empty:
            views.take_over(self.copy, made, current)
        return ""

    @property
    def _starts(self) -> list[Value]:
        """What says where the buffer is placed."""
        source = self.copy.operands[self.operand]
        return [read for read in read_by(self.copy) if read is not source]

    def _launch(self, version: Value, current: Value) -> Launch:
        """Who makes a version, but of `current`."""
        launch = Launch(version.op)
        launch.reads.update(dict.fromkeys(self._starts))
        del launch.destinations[updated(version)]
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
            before = destination_of(value)
            if before is None:
                outputs.append(made[output])
                continue
            whole = into[current if value is version else before]
            for one in written(part, value.index):
                inserts = (*one.inserts, *(around.inserts if value is version else ()))
                whole = placed(graph, made[one.value], inserts, whole, made)
            outputs.append(whole)
        return outputs
