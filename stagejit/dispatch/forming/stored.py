"""What each group evaluates, reads, and leaves in memory.

Input: a state in which everything has its place. Output: its groups in an order that respects all
dependences. Invariant: a value is stored iff another group or the caller reads it; ops that nobody
needs are in no group.
"""

from __future__ import annotations

from stagejit.dispatch.groups.group import Group
from stagejit.dispatch.groups.state import State
from stagejit.dispatch.outputs import stored_outputs, without_reshapes
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.control import destination_of, read_operands
from stagejit.graph.order import first_order


def store_what_is_read(state: State) -> list[Group]:
    """Consumers first, because what they read decides what producers store."""
    for value in stored_outputs(state.graph).values():
        _store(state, value)
    kept = []
    for group in reversed(_ordered(state)):
        group.stores = dict.fromkeys(_stores(state, group))
        if group.stores or group.definition.is_left:
            ops, reads = _walk(state, group)
            group.ops, group.reads = list(ops), list(reads)
            for value in group.reads:
                _store(state, value)
            kept.append(group)
    return kept[::-1]


def _ordered(state: State) -> list[Group]:
    """Groups before those that need them, otherwise in the order of what they finish."""
    if len(state.groups) < 2:
        return list(state.groups)
    finish = {group: _finish(state, group) for group in state.groups}
    before = {
        group: [state.groups[other] for other in direct]
        for group, direct in zip(state.groups, state.reach.direct, strict=True)
    }
    return first_order(before, finish.__getitem__)


def _finish(state: State, group: Group) -> int:
    """Program position of the last op that the group evaluates, or copies for."""
    after = group.copies_for.op if group.copies_for is not None else group.anchor
    ops = group.members if after is None else {*group.members, after}
    return max((state.position[op] for op in ops), default=-1)


def _store(state: State, value: Value) -> None:
    while value.op.definition.forwards:
        value = value.op.operands[value.index]
    home = state.home.get(value.op)
    if home is not None:
        home.stores[value] = None


def _stores(state: State, group: Group) -> list[Value]:
    anchor = group.anchor
    if anchor is not None and group.stands_alone:
        return list(anchor.results)
    copied = destination_of(group.copies_for) if group.copies_for is not None else None
    stores = [value for value in (*group.stores, copied) if value is not None and value.type.size]
    return sorted(stores, key=lambda value: (state.position.get(value.op, -1), value.index))


def _walk(state: State, group: Group) -> tuple[dict[Op, None], dict[Value, None]]:
    """Ops that the group evaluates for what it stores, and the values that it reads from memory,
    both right before who needs them first: where constants, and what is made of what all steps
    read, stand in a program is different in the first one of steps that repeat."""
    anchor = group.anchor
    if anchor is not None and not group.has_kernel:
        operands = read_operands(anchor)
        plain = operands if anchor.definition.is_left else map(without_reshapes, operands)
        return {anchor: None}, dict.fromkeys(plain)
    ops: dict[Op, None] = {}
    reads: dict[Value, None] = {}
    pending = list(reversed(group.stores))
    while pending:
        value = pending[-1]
        op = value.op
        if not (op is anchor or state.is_floating(value) or state.home.get(op) is group):
            reads[pending.pop()] = None
            continue
        missing = [v for v in read_operands(op) if v.op not in ops and v not in reads]
        pending += reversed(missing)
        if not missing:
            ops[pending.pop().op] = None
    return ops, reads
