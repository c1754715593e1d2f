"""Destinations: what an `insert_slice`, a scatter, a loop or a branch updates, as groups.

Input: such ops in program order. Output: for each of them a group that writes into a buffer, and
one that copies its first contents there where somebody else may use them, too. Invariant: whoever
updates a buffer comes after all who did before; which copies are worth it, and who could place a
value itself, is not asked here: see `rewrites/copies.py` and `rewrites/inserts.py`.

Note [Small reads]: where a small part of a buffer is read by somebody who has to wait for an update
of it, be it a slice, or what a gather or a window finds, the part gets a dispatch of its own, which
can come first: else all of the buffer would be copied. For the same reason that dispatch joins none
that waits for an update of what it reads, see `legality.refuse_turn`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stagejit.base.symbolic import at_most
from stagejit.dispatch.groups.state import State, may_be_overwritten
from stagejit.dispatch.ranges.updates import updated_boxes
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.control import destination_of, updates_of
from stagejit.index.box import Box

_UPDATES_AHEAD = 16
_MOST_ON_THE_WAY = 16  # values of the size of a buffer that are made of it


def update(state: State, op: Op) -> None:
    """A group for an insert, a scatter, a loop or a branch, none for one that changes nothing."""
    before = state.deps_of_all(op.operands)
    for result in op.results:
        destination = destination_of(result)
        if destination is not None:
            before |= _contents(state, op, destination, result)
    if not op.definition.is_insert:
        state.settle(op, state.new_group(op, (), before))
    elif state.scalars.box(op).count:
        state.deps[op] = 1 << state.new_group(op, (), before).id
    else:
        state.deps[op] = before


def _contents(state: State, op: Op, destination: Value, into: Value) -> int:
    """Has the contents of `destination` in the memory of the result `into` of `op`, which is its
    own or a copy; returns who stores them there, as a bit set."""
    if destination.op.definition.is_empty:
        return 0
    alone = state.users[destination] == [op] and op.operands.count(destination) == 1
    if alone and destination.op.definition.updates:
        return state.deps_of(destination)
    reason = f"a {op.kind} overwrites a copy, for others may use it as it was"
    state.apart.copied[into] = reason
    group = state.new_group(None, destination.shape, state.deps_of(destination))
    group.copies_for = into
    return 1 << group.id


def same_place(insert: Op, read: Op) -> bool:
    """Whether an `extract_slice` reads what the insert overwrites, computed starts included."""
    return (
        read.result.shape == insert.operands[0].shape
        and read.operands[1:] == insert.operands[2:]
        and all(read.attrs[name] == insert.attrs[name] for name in ("offsets", "strides"))
    )


def reads_to_keep(state: State, op: Op) -> list[Value]:
    """Parts of what an insert, a scatter or a loop overwrites that are worth a copy of their own,
    made before, because all of it would be copied instead: see Note [Small reads]."""
    destinations = dict.fromkeys(map(destination_of, op.results))
    return [
        read.result
        for destination in destinations
        if destination is not None and may_be_overwritten(state.graph, destination)
        for read in _parts_read(state, destination)
        if _is_worth_keeping(state, op, destination, read)
    ]


def _parts_read(state: State, whole: Value) -> Iterator[Op]:
    """The ops that take small parts of a value, or of what has its size and is made of it."""
    pending, seen = [whole], {whole}
    while pending and len(seen) <= _MOST_ON_THE_WAY:
        value = pending.pop()
        for user in state.users[value]:
            known = user.definition
            if not known.is_pointwise or user.operands[0] is not value:
                continue
            if at_most(2 * user.result.type.size, whole.type.size):
                yield user
            elif user.result not in seen:
                seen.add(user.result)
                pending.append(user.result)


def _is_worth_keeping(state: State, op: Op, destination: Value, read: Op) -> bool:
    """read: takes a small part of a destination of `op`."""
    if not read.definition.is_extract or read.operands[0] is not destination:
        return True
    box = state.scalars.box(read) if state.scalars.knows(read) else None
    written = _overwritten(state, op, destination)
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
