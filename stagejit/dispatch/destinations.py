"""Destinations: which buffer an `insert_slice` or `scatter` writes, and who writes it.

Input: inserts and scatters in program order. Output: placements of stores in groups, copies where a
destination must not be overwritten. Invariant: the groups that write one buffer are ordered
wherever their boxes overlap, in the order of the value chain; a buffer is shared only by values
that nobody else reads.

Note [Copy on write]: the result of `insert_slice src into dst` takes over the buffer of `dst` if
`dst` is the result of another insert or scatter, uninitialised, or a donated argument, and
everybody else who reads `dst` reads only elements that no later insert overwrites, or reads them
in a dispatch that runs before the insert (a small slice gets one of its own). Otherwise the
result gets a buffer of its own, and somebody stores the contents of `dst` there first: the group
that computes `dst` (as one more store), or a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stagejit.dispatch.group import Group, Placement, bits
from stagejit.dispatch.outputs import stored_outputs
from stagejit.dispatch.state import State
from stagejit.dispatch.updates import updated_boxes
from stagejit.graph.ir import Op, Value, in_memory
from stagejit.graph.ops.control import carried_operands, destination_of, updates_of
from stagejit.index.box import Box
from stagejit.index.box_index import BoxIndex

_DYNAMIC = "; its offset is computed from arrays, so its range is a conservative hull"
_UPDATES_AHEAD = 16


@dataclass(eq=False)
class Contents:
    """One buffer that is written in pieces. `writers`: bit set of the groups that write it;
    `written`: bit sets of groups, with the box that they write. `outer`: the insert that places all
    of it in a larger buffer, which then is its memory. `reads`: boxes that somebody reads before
    the last insert, maybe after it has run: nothing that is inserted later overlaps them.
    `readers`: groups that read old contents, and that every later writer waits for. `read`: old
    contents have a reader, who looks for them in this buffer."""

    writers: int = 0
    written: BoxIndex[int] = field(default_factory=BoxIndex)
    outer: Op | None = None
    scattered: bool = False
    of_argument: bool = False
    read: bool = False
    reads: BoxIndex[None] = field(default_factory=BoxIndex)
    readers: int = 0

    @property
    def groups(self) -> int:
        return self.readers | self.writers

    def overlapping(self, box: Box) -> int:
        """Bit set of the groups that have to come before a write into `box`."""
        total = self.readers
        for groups in self.written.overlapping(box):
            total |= groups
        return total

    def write(self, groups: int, box: Box) -> None:
        """From now on the groups of the bit set write `box`, too."""
        self.writers |= groups
        self.written.remove_within(box)  # who comes after this write comes after those, too
        self.written.add(box, groups)

    def keep(self, boxes: Sequence[Box], readers: int) -> None:
        """From now on somebody reads the boxes, and the groups `readers` old contents."""
        for box in boxes:
            self.reads.add(box, None)
        self.readers |= readers


class Destinations:
    """The contents of every buffer that inserts and scatters write."""

    def __init__(self, state: State, pairs: Mapping[int, int]) -> None:
        """pairs: the donated argument that a result should lie in, by result."""
        self.state = state
        self.of: dict[Value, Contents] = {}
        outputs, stored = state.graph.outputs, stored_outputs(state.graph)
        self.returned = {argument: stored[outputs[result]] for result, argument in pairs.items()}
        self.copies: dict[Value, Group] = {}  # dispatches that copy a value somewhere

    # ----------------------------------------------------------------- entry

    def insert(self, op: Op) -> None:
        contents = self._contents(op, op.operands[1], op.result)
        self._place(op, contents)
        self.of[op.result] = contents
        self.state.deps[op] = contents.groups

    def scatter(self, op: Op) -> None:
        state = self.state
        contents = self._contents(op, op.operands[0], op.result)
        before = state.deps_of_all(op.operands[1:]) | contents.groups
        group = state.new_group("scatter", op, (), before)
        state.settle(op, group)
        contents.write(1 << group.id, state.scalars.box(op))
        contents.scattered = True
        self.of[op.result] = contents

    def control(self, op: Op) -> None:
        """A loop or a branch. Results that update an operand lie where the operand lies."""
        state, carried = self.state, carried_operands(op)
        results = [
            self._contents(op, op.operands[carried[result.index]], result)
            if result.index in carried
            else Contents()
            for result in op.results
        ]
        before = state.deps_of_all(op.operands)
        for contents in results:
            before |= contents.groups
        group = state.new_group(op.kind, op, (), before)
        state.settle(op, group)
        for value, contents in zip(op.results, results, strict=True):
            for box in updated_boxes(value):
                contents.write(1 << group.id, box)
            contents.scattered = True
            self.of[value] = contents

    def path(self, placement: Placement) -> tuple[Value, tuple[Op, ...]]:
        """Where a placement goes: the value whose buffer it writes, and the inserts that say
        where."""
        inserts = [placement.insert] if placement.insert is not None else []
        into = placement.into if placement.insert is None else placement.insert.result
        assert into is not None
        while (outer := self.of[into].outer) is not None:
            inserts.append(outer)
            into = outer.result
        return into, tuple(inserts)

    # --------------------------------------------------------------- contents

    def _contents(self, op: Op, destination: Value, into: Value) -> Contents:
        """The buffer of the result `into` of `op`, with the contents of `destination` in it."""
        state, producer = self.state, destination.op
        if producer.definition.is_empty:
            return Contents()
        known = self.of.get(destination)
        beside = self._reads_beside(op, destination, known)
        if known is not None and beside is not None:
            known.keep(*beside)
            known.read = known.read or self.state.users[destination] != [op]
            return known
        if beside is not None and state.graph.is_donated(destination):
            reason = self._refuse_argument(into, destination)
            state.decide(
                "reuse-arguments", op, not reason, reason or "writes into the donated argument"
            )
            if not reason:
                contents = Contents(of_argument=True)
                contents.keep(*beside)
                return contents
        contents = Contents()
        group = self._first_contents(op, destination, into)
        contents.write(1 << group.id, Box.whole(into.shape))
        return contents

    def _refuse_argument(self, into: Value, argument: Value) -> str:
        """Why the result `into` cannot lie in a donated argument: its memory belongs to the result
        that JAX, or the loop around, pairs it with, and to nobody else."""
        if not self.state.enabled("reuse-arguments"):
            return "reuse-arguments is disabled"
        last, caller = into, self.state.graph.return_op
        while caller not in self.state.users[last]:  # else a later update lies elsewhere
            after = [
                result
                for user in self.state.users[last]
                for result in user.results
                if destination_of(result) is last
            ]
            if len(after) != 1:
                break
            last = after[0]
        returned = self.returned.get(argument.op.attrs["index"])
        return "" if returned is last else "it is donated for another result"

    def _reads_beside(
        self,
        op: Op,
        destination: Value,
        known: Contents | None,
    ) -> tuple[list[Box], int] | None:
        """Boxes of the old contents that others read, and groups that read them before anything
        else is written; None if `op` may overwrite what somebody still reads."""
        written = _overwritten(self.state, op, destination)
        reads: list[Box] = []
        readers = 0
        for user in self.state.users[destination]:
            if user is op or (user.definition.is_extract and self._updates(op, user)):
                continue
            box = _box_read(self.state, user, destination)
            beside = box is not None and not any(box.overlaps(other) for other in written)
            if (
                box is not None
                and beside
                and not _is_overwritten_after(self.state, op, destination, box)
            ):
                reads.append(box)
            elif self._reads_at_once(user):
                readers |= 1 << self.state.home[user].id
            else:
                return None
        if op.operands.count(destination) > 1:
            return None
        if known is not None and any(map(known.reads.any_overlaps, written)):
            return None
        return reads, readers

    def _reads_at_once(self, user: Op) -> bool:
        """Whether `user` reads its operand in one group and nowhere else."""
        return user in self.state.home and (
            user.definition.accumulates
            or (user.definition.is_extract and user.result in self.state.required)
        )

    def _updates(self, op: Op, read: Op) -> bool:
        """Whether `read` only serves to compute, element by element, what `op` writes at the same
        place: a map may then read and write one buffer."""
        if not op.definition.is_insert or not same_place(op, read):
            return False
        state, source = self.state, op.operands[0]
        home = state.home.get(source.op)
        pending, seen = [read.result], {op}
        while pending:
            value = pending.pop()
            for user in state.users[value]:
                if user in seen and (user is not op or value is source):
                    continue
                if not user.definition.is_elementwise or state.home.get(user, home) is not home:
                    return False
                seen.add(user)
                pending.append(user.result)
        return home is not None and home.anchor is None

    def _first_contents(self, op: Op, destination: Value, into: Value) -> Group:
        """Has the contents of `destination` stored in the new buffer of the result `into`."""
        state = self.state
        placement = Placement(destination, into=into)
        home = state.home.get(destination.op)
        if home is not None and not home.stands_alone and state.enabled("fuse-insert"):
            home.placements.append(placement)
            return home
        if not is_free(destination):
            why = self._why_copied(destination)
            state.decide("fuse-insert", op, False, f"copied on write: {why}")
        return self._copy(placement, 0)

    def _copy(self, placement: Placement, before: int) -> Group:
        """A dispatch that stores the value, which lies in memory or costs nothing to make, after
        the groups `before`: one that copies it elsewhere too if there is one."""
        state, value = self.state, placement.value
        group = self.copies.get(value)
        if group is None or is_free(value) or self._refuse(1 << group.id, before):
            group = state.new_group("map", None, value.shape, state.deps_of(value) | before)
            self.copies[value] = group
        else:
            state.reach.order(before, group.id)
        group.placements.append(placement)
        return group

    def _why_copied(self, destination: Value) -> str:
        producer = destination.op
        if producer.definition.is_constant:
            return "the destination is a constant"
        if producer.definition.is_input and not self.state.graph.is_donated(destination):
            return "the destination is an argument that is not donated"
        if producer.definition.is_left:
            return "the destination is the result of a delegated equation"
        if producer.definition.is_call:
            return "the destination is the result of a library call"
        if len(self.state.users[destination]) > 1:
            return "the destination is also read elsewhere"
        return "fuse-insert is disabled"

    # -------------------------------------------------------------- placement

    def _place(self, op: Op, contents: Contents) -> None:
        """Has the source of `op` stored in its box of the destination's buffer."""
        state, source, box = self.state, op.operands[0], self.state.scalars.box(op)
        starts = state.deps_of_all(op.operands[2:])
        before = starts | contents.overlapping(box)
        if not box.count:
            return
        writers = self._writers(op, source)
        reason = self._refuse(writers, before)
        if not reason:
            inner = self.of.get(source)
            if inner is not None:
                inner.outer = op
            else:
                state.home[source.op].placements.append(Placement(source, insert=op))
            state.decide(
                "fuse-insert",
                op,
                True,
                "the producer writes into the destination"
                + ("" if state.scalars.knows(op) else _DYNAMIC),
            )
        else:
            writers = 1 << self._copy(Placement(source, insert=op), before).id
            if not is_free(source):
                state.decide("fuse-insert", op, False, reason)
        for first in bits(state.reach.first_of(writers)):
            state.reach.order(before, first)
        contents.write(writers, box)

    def _writers(self, op: Op, source: Value) -> int:
        """The bit set of the groups that could write the source into its box."""
        state = self.state
        inner = self.of.get(source)
        if inner is not None:
            whole = not (inner.scattered or inner.of_argument or inner.read)
            return inner.writers if whole and state.users[source] == [op] else 0
        home = state.home.get(source.op)
        return 1 << home.id if home is not None and not home.stands_alone else 0

    def _refuse(self, writers: int, before: int) -> str:
        state = self.state
        if not state.enabled("fuse-insert"):
            return "fuse-insert is disabled"
        if not writers:
            return "no dispatch computes the source for this use alone"
        if before & writers:
            return "the producer writes the same place of the destination before"
        if state.reach.closure(before) & writers:
            return "the destination depends on the producer"
        return ""


def same_place(insert: Op, read: Op) -> bool:
    """Whether an `extract_slice` reads what the insert overwrites, computed starts included."""
    return (
        read.result.shape == insert.operands[0].shape
        and read.operands[1:] == insert.operands[2:]
        and all(read.attrs[name] == insert.attrs[name] for name in ("offsets", "strides"))
    )


def reads_to_keep(state: State, op: Op) -> list[Value]:
    """Slices of what an insert, a scatter or a loop overwrites that are worth a copy of their own,
    made before, because all of it would be copied instead: see Note [Copy on write]."""
    destinations = dict.fromkeys(map(destination_of, op.results))
    return [
        user.result
        for destination in destinations
        if destination is not None and _may_be_overwritten(state, destination)
        for user in state.users[destination]
        if user.definition.is_extract
        and user.operands[0] is destination
        and _is_worth_keeping(state, op, user)
    ]


def _may_be_overwritten(state: State, destination: Value) -> bool:
    """Whether updates can lie in its memory: all others get a buffer of their own anyway."""
    producer = destination.op
    if producer.definition.is_input:
        return state.graph.is_donated(destination)
    return producer.definition.updates


def _is_worth_keeping(state: State, op: Op, read: Op) -> bool:
    if 2 * read.result.type.size > read.operands[0].type.size:
        return False
    destination = read.operands[0]
    box, written = _box_read(state, read, destination), _overwritten(state, op, destination)
    if box is not None and not any(box.overlaps(other) for other in written):
        return _is_overwritten_after(state, op, destination, box)
    if not op.definition.is_insert:
        return True
    return not (same_place(op, read) and _only_elementwise(read, op, state.users))


def _overwritten(state: State, op: Op, destination: Value) -> list[Box]:
    """What `op` overwrites of an operand."""
    if not op.definition.has_bodies:
        return [state.scalars.box(op)]
    return [box for value in updates_of(op, destination) for box in updated_boxes(value)]


def _only_elementwise(read: Op, insert: Op, users: Mapping[Value, Sequence[Op]]) -> bool:
    """Whether elementwise ops alone lead from `read` to the source of `insert`."""
    pending, seen = [read], {insert}
    while pending:
        for user in users[pending.pop().result]:
            if user not in seen:
                if not user.definition.is_elementwise:
                    return False
                seen.add(user)
                pending.append(user)
    return True


def _is_overwritten_after(state: State, op: Op, destination: Value, box: Box) -> bool:
    """Whether an update of what `op` makes of `destination` overwrites `box`, one of the next
    few."""
    for _ in range(_UPDATES_AHEAD):
        results = updates_of(op, destination)
        update = state.update_of(results[0]) if len(results) == 1 else None
        if update is None:
            return False
        op, destination = update, results[0]
        if any(box.overlaps(other) for other in _overwritten(state, op, destination)):
            return True
    return False


def _box_read(state: State, user: Op, value: Value) -> Box | None:
    """What an `extract_slice` reads of `value`, where the host knows its offsets. None where it
    starts at `value`."""
    if not user.definition.is_extract or user.operands[0] is not value:
        return None
    if not state.scalars.knows(user):
        return None
    return state.scalars.box(user)


def is_free(value: Value) -> bool:
    """Whether every reader makes the value itself, at no cost."""
    return value.op.definition.is_free and not in_memory(value)
