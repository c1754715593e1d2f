"""fuse-insert: who computes a value writes it where it is placed.

Input: a graph of dispatches, in which a value that is placed in a larger buffer is stored, then
copied there. Output: the same, where most of these copies are stores of who computes the value, one
for each place. Invariant: a dispatch that writes into a buffer depends on nothing that comes after
itself, and overwrites nothing that anybody has to read later.

A value that is a buffer, written in boxes by several dispatches, is placed by all of them: box in
box.

Note [Most stores]: a dispatch is made anew for each store that it is given. So who has many gets no
more, and the next copies become one dispatch, which reads the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from stagejit.dispatch.in_place import refuse_updates
from stagejit.dispatch.operands import read_by, stores_of
from stagejit.dispatch.rewrites.assembled import Assembled, versions_of
from stagejit.dispatch.rewrites.launch import Inputs, Launch, inputs_of
from stagejit.dispatch.rewrites.targets import Target, find_target, updated
from stagejit.dispatch.rewrites.views import Views, users_of
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import destination_of
from stagejit.graph.ops.dispatches import anchor_of, destination, evaluated, parts_of, written
from stagejit.rewrites.cloning import appended
from stagejit.rewrites.driver import Log

NAME = "fuse-insert"

_DYNAMIC = "; its offset is computed from arrays, so its range is a conservative hull"
_NOBODY = "no dispatch computes the source for this use alone"
_MOST_STORES = 32  # see Note [Most stores]


@dataclass(frozen=True)
class _Copy:
    """A dispatch that does nothing but store a value elsewhere. own: the input of its part that is
    stored; source: what it stands for."""

    op: Op
    own: Value
    source: Value

    @property
    def part(self) -> Graph:
        return parts_of(self.op)[0]


def fuse_inserts(log: Log, views: Views) -> None:
    """%v = f; %b = place %v into %d  -->  %v, %b = f into %d"""
    _Inserts(log, views).run()


class _Inserts:
    """`copies`: by values in memory a dispatch that copies them somewhere; `refused`: why who
    writes a buffer cannot write where that is copied."""

    def __init__(self, log: Log, views: Views) -> None:
        self.log, self.graph, self.views = log, log.graph, views
        self.copies: dict[Value, Op] = {}
        self.refused: dict[Op, str] = {}

    def run(self) -> None:
        for op in reversed(self.graph.ops()):  # from the outside to the inside
            self._place_buffer(self.views.now(op))
        for op in self.graph.ops():
            copy = self._copy_of(self.views.now(op))
            if copy is not None:
                self._place(copy)

    def _place_buffer(self, op: Op) -> None:
        """Has those who write a buffer that is placed as a whole write where it is placed."""
        copy = self._copy_of(op)
        if copy is None or not self._is_tied(copy.source) or not self._is_tied(op.result):
            return
        versions = versions_of(self.graph, copy.source, op)
        if versions is not None:
            reason = Assembled(versions, op).place(self.log, self.views)
            if reason:
                self.refused[op] = reason
            else:
                self.log.apply(NAME, op, "the producers write into the destination")

    def _is_tied(self, value: Value) -> bool:
        return destination_of(value) is not None

    def _place(self, copy: _Copy) -> None:
        """Has who computes a value, or copies it already, copy it once more."""
        op = copy.op
        host, value = self._host(copy)
        range = "" if self.views.writes_to(op.result)[0].exact else _DYNAMIC
        if host is None or value is None:
            self.copies[copy.source] = op
            reason = self.refused.get(op, _NOBODY)
        else:
            reason = self._fuse(copy, host, value)
            reason = reason or ("" if host is copy.source.op else _NOBODY)
        if not reason:
            self.log.apply(NAME, op, f"the producer writes into the destination{range}")
        elif reason is not _NOBODY or self._is_tied(op.result):
            self.log.decline(NAME, op, reason)

    def _copy_of(self, op: Op) -> _Copy | None:
        """The copy that a dispatch is: of a value into a box, or of the first contents of a
        buffer."""
        if not op.definition.is_dispatch or len(op.results) > 1 or len(parts_of(op)) > 1:
            return None
        if op not in self.graph.nx:
            return None
        (part,) = parts_of(op)
        made = written(part, 0)
        own = made[0].value
        if len(made) > 1 or not own.op.definition.is_input or part.is_donated(own):
            return None
        if not made[0].inserts and users_of(self.graph, op.result).update is None:
            return None
        return _Copy(op, own, op.operands[own.op.attrs["index"]])

    def _host(self, copy: _Copy) -> tuple[Op | None, Value | None]:
        """The dispatch that could store the copy, too, and the value inside of it."""
        maker = copy.source.op
        if maker.definition.is_dispatch:
            part = parts_of(maker)[0]
            anchor = anchor_of(evaluated(part))
            alone = anchor is not None and anchor.definition.stands_alone
            fresh = destination(part, copy.source.index) is None
            if fresh and not alone and len(stores_of(maker)) < _MOST_STORES:
                return maker, part.outputs[copy.source.index]
        known = self.copies.get(copy.source)
        host = known and self.views.now(known)
        if host is None or len(stores_of(host)) >= _MOST_STORES:
            return None, None
        own = next(
            own
            for own, operand in zip(parts_of(host)[0].inputs, host.operands, strict=True)
            if operand is copy.source
        )
        return host, own

    # -------------------------------------------------------------------- how

    def _fuse(self, copy: _Copy, host: Op, value: Value) -> str:
        """Has `host` store the copy of `value`, which it has; or says why it cannot."""
        target = None
        if destination_of(copy.op.result) is not None:
            found = find_target(self.views, copy.op, copy.source, [host])
            if isinstance(found, str):
                return found
            target = found
        updating = self.views.updating(target.version) if target is not None else ()
        made = self._together(copy, host, value, target)
        kept = [one for one in host.results if not self._is_dropped(copy, host, one)]
        now = dict(zip(kept, made.results, strict=False))
        same = target is not None and target.version.op is host
        result = now[target.version] if target is not None and same else made.results[-1]
        fault = self._overwrites_itself(result, target)
        if fault:
            self.graph.erase(made)
            return fault
        self.views.put(self.log, host, made, [now.get(one) for one in host.results])
        if target is None:
            self.views.use(result, self.graph.uses(copy.op.result))
        else:
            target.continue_with(self.views, copy.op, result, () if same else updating)
        self.views.take_over(copy.op, made, result)
        return ""

    def _together(self, copy: _Copy, host: Op, value: Value, target: Target | None) -> Op:
        """A dispatch that does what `host` and the copy do."""
        launch = Launch(host)
        launch.reads.update((read, None) for read in read_by(copy.op) if read is not copy.source)
        number, into, before = -1, None, None
        if target is not None:
            before = target.version
            if before.op is host:  # which updates the buffer once more
                number, before = before.index, updated(before)
                del launch.destinations[before]
            waits = [op for op in target.waits if not self.views.order.comes_before(op, host)]
            into = self.views.order.after(before, waits)
            launch.destinations[into] = None
        dropped = [one.index for one in host.results if self._is_dropped(copy, host, one)]
        build = partial(_fused, copy, host, value, before, into, number, dropped)
        launch.parts = [(parts_of(host)[0].name, build)]
        return launch.put(self.graph, copy.op)

    def _is_dropped(self, copy: _Copy, host: Op, result: Value) -> bool:
        """Whether a result of `host` was only made to be copied."""
        return result is copy.source and all(use.user is copy.op for use in self.graph.uses(result))

    def _overwrites_itself(self, result: Value, target: Target | None) -> str:
        """Why a dispatch cannot overwrite what it reads of the buffer of one of its results."""
        if target is None:
            return ""
        read = self.views.read_in(result.op, target.version, self.views.boxes_of(result)[-1:])
        return refuse_updates(self.views.region(result.op), read, result)


def _fused(
    copy: _Copy,
    host: Op,
    value: Value,
    before: Value | None,
    destination: Value | None,
    number: int,
    dropped: Sequence[int],
    graph: Graph,
    reads: Inputs,
    into: Inputs,
) -> list[Value]:
    """The part of `host` with what `copy` does to `value`: to a fresh output, to `destination`, or
    to the output `number`, which was an update of `before` and is one of `destination`."""
    part = parts_of(host)[0]
    if destination is not None and before is not None:
        into = {**into, before: into[destination]}
    made = appended(graph, part.ops(), inputs_of(host, part, reads, into))
    outputs = [made[output] for output in part.outputs]
    given = inputs_of(copy.op, copy.part, reads, {}) | {copy.own: made[value]}
    for own in copy.part.inputs:
        if copy.part.is_donated(own) and destination is not None:
            given[own] = outputs[number] if number >= 0 else into[destination]
    copied = appended(graph, copy.part.ops(), given)[copy.part.outputs[0]]
    if number >= 0:
        outputs[number] = copied
    else:
        outputs.append(copied)
    return [output for at, output in enumerate(outputs) if at not in dropped]
