"""Groups become regions: what each one reads, evaluates and stores.

Input: a state in which everything has its place. Output: `Draft`s in an order that respects all
dependences. Invariant: a value is stored iff some other region, a placement or the caller reads it;
ops that nobody needs are in no region.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import replace

from stagejit.dispatch.group import Group
from stagejit.dispatch.outputs import stored_outputs, without_reshapes
from stagejit.dispatch.region import Draft, Store, draft_of
from stagejit.dispatch.state import State
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.control import read_operands


def emit(state: State) -> list[Draft]:
    """Consumers first, because what they read decides what producers store."""
    for value in stored_outputs(state.graph).values():
        _store_plain(state, value)
    order = _ordered(state)
    regions = []
    for group in reversed(order):
        stores = _stores(state, group)
        if not stores and not group.definition.is_left:
            continue
        ops, inputs = _walk(state, group, stores)
        for value in inputs:
            _store_plain(state, value)
        regions.append((group, ops, inputs, stores))
    formed = [
        draft_of(group.kind, ops, inputs, stores, group.anchor, state.scalars)
        for group, ops, inputs, stores in reversed(regions)
    ]
    return [_named(state, draft, number) for number, draft in enumerate(formed)]


def _ordered(state: State) -> list[Group]:
    """Groups before those that need them, otherwise in the order of what they finish."""
    followers: dict[int, list[int]] = {}
    for group in state.groups:
        for before in state.reach.direct[group.id]:
            followers.setdefault(before, []).append(group.id)
    finish = [_finish(state, group) for group in state.groups]
    waiting = [len(before) for before in state.reach.direct]
    ready = [(finish[at], at) for at, missing in enumerate(waiting) if not missing]
    heapq.heapify(ready)
    order = []
    while ready:
        _, at = heapq.heappop(ready)
        order.append(state.groups[at])
        for after in followers.get(at, ()):
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(ready, (finish[after], after))
    return order


def _finish(state: State, group: Group) -> int:
    """Program position of the last op that the group evaluates or places."""
    places = [
        placement.insert or (placement.into.op if placement.into else placement.value.op)
        for placement in group.placements
    ]
    ops = [*group.members, *places, *([group.anchor] if group.anchor else [])]
    return max((state.position.get(op, -1) for op in ops), default=-1)


def _store_plain(state: State, value: Value) -> None:
    while value.op.definition.forwards:
        value = value.op.operands[value.index]
    home = state.home.get(value.op)
    if home is not None and not home.stands_alone:
        home.plain[value] = None


def _stores(state: State, group: Group) -> list[Store]:
    if group.anchor is not None and group.stands_alone:
        return [Store(value, value) for value in group.anchor.results]
    plain = [value for value in group.plain if value.type.size]
    plain.sort(key=lambda value: (state.position[value.op], value.index))
    stores = [Store(value, value) for value in plain]
    for placement in group.placements:
        if not placement.value.type.size:
            continue
        if placement.insert is not None:
            stores.append(Store(placement.value, placement.insert.result, (placement.insert,)))
        elif placement.into is not None:
            stores.append(Store(placement.value, placement.into))
    return stores


def _walk(state: State, group: Group, stores: Iterable[Store]) -> tuple[list[Op], list[Value]]:
    """Ops that the group evaluates for its stores, and the values that it reads from memory."""
    ops: set[Op] = set()
    inputs: dict[Value, None] = {}
    if group.anchor is not None and (group.definition.has_bodies or group.definition.is_call):
        read = map(without_reshapes, read_operands(group.anchor))
        return [group.anchor], list(dict.fromkeys(read))
    pending: list[Value] = (
        list(group.anchor.results) if group.anchor and group.definition.is_left else []
    )
    for store in stores:
        pending.append(store.value)
        ops.update(store.inserts)
        pending.extend(start for insert in store.inserts for start in insert.operands[2:])
    while pending:
        value = pending.pop()
        if value.op in ops or value in inputs:
            continue
        if state.is_floating(value) or state.home.get(value.op) is group:
            ops.add(value.op)
            pending.extend(read_operands(value.op))
        else:
            inputs[value] = None
    position = state.position
    return (
        sorted(ops, key=lambda op: position[op]),
        sorted(inputs, key=lambda v: (position.get(v.op, -1), v.op.id, v.index)),
    )


def _named(state: State, draft: Draft, number: int) -> Draft:
    computed = (op for op in draft.ops if op.definition.is_elementwise or op.definition.is_gather)
    floating = tuple(op for op in computed if op not in state.home)
    return replace(draft, name=f"{draft.name}.{number}", floating=floating)
