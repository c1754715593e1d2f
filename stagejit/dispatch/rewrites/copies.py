"""elide-copy: what is overwritten is not copied before, where everybody can read it first.

Input: a graph of dispatches, in which whoever overwrites what others read, too, overwrites a copy.
Output: the same without some of these copies. Invariant: the memory that is overwritten instead may
be overwritten, and who reads of it what is overwritten comes first, in any order that edges allow.

A donated argument that is returned as it is lies where it is returned: that copy goes, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.base.records import record
from stagejit.dispatch.in_place import refuse_updates
from stagejit.dispatch.outputs import without_reshapes
from stagejit.dispatch.rewrites.views import Chain, Users, Views, is_passed, users_of, waits
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.dispatches import destination, parts_of
from stagejit.graph.ops.moving.views import behind_aliases
from stagejit.index.box_index import BoxIndex, Entry
from stagejit.rewrites.driving.driver import Log

NAME = "elide-copy"

_PAIRED = "it lies in an argument that is not donated for what is made of the copy"

First = dict[Value, list[Op]]  # by updates those who have to come before them
Read = tuple[Op, Value]  # who reads which version


def elide_copies(log: Log, views: Views) -> None:
    """%1 = copy %0; %2 = f into %1  -->  %1 = after %0, readers of %0; %2 = f into %1"""
    _Copies(log, views).run()


@record
class _Used:
    """How a version of a buffer is used: see `Users`."""

    is_passed: bool
    is_updated: bool
    is_returned: bool


class _Copies:
    """`read`: what is read of the versions of a buffer and not overwritten by a later one: who
    overwrites it after all of these has to wait for who reads it. `used`: how versions are used
    that are copied, maybe by many."""

    def __init__(self, log: Log, views: Views) -> None:
        self.log, self.graph, self.views = log, log.graph, views
        self.read: dict[Chain, BoxIndex[Read]] = {}
        self.used: dict[Value, _Used] = {}

    def run(self) -> None:
        """Copies of arguments last: when all that is made of a copy lies in one memory, the latest
        state of it is what may be returned in the argument's."""
        for of_arguments in (False, True):
            for op in self.graph.ops():
                copying: Op | None = self.views.now(op)
                while copying is not None and copying.definition.is_dispatch:
                    copying = self._without_a_copy(copying, of_arguments)

    def _without_a_copy(self, op: Op, of_arguments: bool) -> Op | None:
        """What is left of a dispatch without one of the copies that it makes, if that is
        anything."""
        for result in op.results:
            copied = _copied(result)
            if copied is None or of_arguments != self.views.memory(copied).op.definition.is_input:
                continue
            users = users_of(self.graph, result)
            if users.update is None and self._is_there(result, copied):
                self.log.apply(NAME, op, "it is returned in the donated argument that it is")
                return self._without(result, copied)
            if users.update is None:
                continue
            outcome = self._refuse_memory(copied) or self._who_comes_first(copied, users)
            if isinstance(outcome, str):
                self.log.decline(NAME, op, outcome)
                continue
            self.log.apply(NAME, op, "what it copied is overwritten when everybody has read it")
            return self._elide(result, copied, outcome)
        return None

    def _is_there(self, result: Value, copied: Value) -> bool:
        """Whether a result that is returned may lie in an argument that it is a copy of."""
        views = self.views
        if not copied.op.definition.is_input or views.returned_in(copied) is not result:
            return False
        chain = views.chain(copied)
        return not self._refuse_memory(copied) and len(chain.versions) == 1 and not chain.is_passed

    def _without(self, result: Value, copied: Value) -> Op | None:
        """What is left of who made a result in whose place there is what it is a copy of."""
        self.used.clear()
        if len(result.op.results) == 1:
            self.log.put(result.op, [copied])
            return None
        self.graph.replace_uses(result, copied)
        return self.views.drop(self.log, result)

    def _refuse_memory(self, value: Value) -> str:
        """Why nobody may write in the memory of a value; empty if that is allowed."""
        memory = self.views.memory(value)
        definition = memory.op.definition
        if definition.is_constant:
            return "it is a constant"
        if definition.is_left:
            return "it is the result of a delegated equation"
        if definition.is_call:
            return "it is the result of a library call"
        if definition.is_input and not self.graph.is_donated(memory):
            return "it is an argument that is not donated"
        if definition.is_input and not self.views.options.enabled("reuse-arguments"):
            return "reuse-arguments is disabled"
        return ""

    def _who_comes_first(self, copied: Value, copy: Users) -> First | str:
        """Who reads what updates of a copy overwrite, by the first of these updates; or why they
        cannot all come first."""
        views, version = self.views, behind_aliases(copied)
        used, chain = self._used(version), views.chain(copy.version)
        earlier = views.chain(version)
        if used.is_passed or chain.is_passed or is_passed(earlier.versions[0]):
            return "a barrier passes it on"
        if used.is_updated:
            return "another update overwrites what is copied"
        memory = views.memory(copied)
        if memory.op.definition.is_input and views.returned_in(memory) is not chain.versions[-1]:
            return _PAIRED
        if used.is_returned:
            return "it is returned as it is"
        return self._first(self._read_of(earlier), chain.versions[1:], copy.version.op)

    def _used(self, version: Value) -> _Used:
        if version not in self.used:
            users, last = users_of(self.graph, version), self.graph.return_op
            is_returned = any(reader is last for reader, _ in users.readers)
            self.used[version] = _Used(users.passed, users.update is not None, is_returned)
        return self.used[version]

    def _first(self, index: BoxIndex[Read], updates: Sequence[Value], copying: Op) -> First | str:
        """The same of what is in `index`. What is taken from there, later updates need not ask
        for: they come after these."""
        first: First = {}
        taken: list[Entry[Read]] = []
        for update in updates:
            for box in self.views.boxes_of(update):
                found = index.take(box)
                taken += found
                for read in (entry.item for entry in found):
                    reader = self.views.now(read[0])
                    if reader is copying or reader not in self.graph:
                        continue
                    reason = self._refuse(update, reader, read[1])
                    if reason:
                        index.put_back(taken)
                        return reason
                    if reader is not update.op:
                        first.setdefault(update, []).append(reader)
        return first

    def _refuse(self, update: Value, reader: Op, version: Value) -> str:
        """Why `reader`, who reads of a version what an update overwrites, cannot come first; empty
        if it can."""
        if reader is update.op:
            return self._refuse_own(update, version)
        late = self.views.order.comes_before(update.op, reader)
        return "it is read after it is overwritten" if late else ""

    def _refuse_own(self, update: Value, version: Value) -> str:
        """Why an op that reads a version cannot overwrite it; empty if it can."""
        if not update.op.definition.is_dispatch:
            return f"the {update.op.kind} reads what it overwrites"
        region = self.views.region(update.op)
        read = [value for value in region.operands if behind_aliases(value) is version]
        return refuse_updates(region, read, update)

    def _read_of(self, chain: Chain) -> BoxIndex[Read]:
        if chain not in self.read:
            self.read[chain] = BoxIndex()
            self._note(self.read[chain], chain.versions)
        return self.read[chain]

    def _note(self, index: BoxIndex[Read], versions: Sequence[Value]) -> None:
        """Adds what is read of more versions. Who overwrites something waits already for those who
        read it before."""
        for number, version in enumerate(versions):
            for box in self.views.boxes_of(version) if number else ():
                index.taken(box)
            for reader, box in self.views.readers(users_of(self.graph, version)):
                index.add(box, (reader, version))

    def _elide(self, result: Value, copied: Value, first: First) -> Op | None:
        """Has the updates of a copy overwrite what is copied; returns what is left of who
        copies."""
        graph, op, views = self.graph, result.op, self.views
        updates, version = views.chain(result).versions[1:], behind_aliases(copied)
        for use in graph.uses(result):
            if not waits(use):
                graph.set_operand(use.user, use.operand, copied)
        self._note(self._read_of(views.chain(version)), (version, *updates))
        views.merge(result, copied)
        self.used.pop(version, None)
        left = None
        if len(op.results) > 1:
            left = views.drop(self.log, result)
            views.order.put_first([left], updates[0])
        else:
            graph.replace_uses(result, copied)
            self.log.put(op, [None])
        for update, readers in first.items():
            views.order.put_first(readers, update)
        return left


def _copied(result: Value) -> Value | None:
    """The operand that a result is a copy of, element by element in its place."""
    part = parts_of(result.op)[0]
    value = without_reshapes(part.outputs[result.index])
    if not value.op.definition.is_input or destination(part, result.index) is not None:
        return None
    copied = result.op.operands[value.op.attrs["index"]]
    return copied if copied.type == result.type else None
