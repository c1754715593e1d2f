"""Results of a group that its readers had better compute themselves.

Input: a state after the forward walk. Output: some pointwise members of groups float again.
Invariant: no transcendental, no anchor and nothing that a caller wants is ever recomputed (a
transcendental may be evaluated by its only reader instead); bytes moved never grow.

Note [What to keep]: consumers join a group eagerly, so a group may store many functions of one
result (the residuals that a gradient reads, say). A stored value is dropped if its readers can
compute it cheaply from values that are stored anyway, or from fewer bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.base.records import record
from stagejit.dispatch.groups import cost
from stagejit.dispatch.groups.chains import steps
from stagejit.dispatch.groups.group import Group
from stagejit.dispatch.groups.state import State
from stagejit.graph.ir import Op, Value

# Most flops an element that a reader spends to save reading a value.
_CHEAP_FLOPS = 8.0
# Most that what a reader computes adds to its own chain: views cost no flops, but what a reshape
# divides is divided again by the next one.
_MOST_STEPS = 160


@record
class _Recipe:
    """How readers compute a value: from `leaves` in memory, by `ops` with `flops` an element."""

    leaves: frozenset[Value]
    ops: tuple[Op, ...]
    flops: float


_Readers = dict[Value, frozenset[Group] | None]  # None: stored, whoever else reads it


def drop_what_is_cheap(state: State) -> None:
    """All candidates of a group together, else one by one: later members first, because what they
    are computed from may become needed by their readers only."""
    for group in state.groups:
        if group.stands_alone:
            continue
        members = sorted(group.members, key=lambda op: state.position[op], reverse=True)
        readers: _Readers = {op.result: _readers(state, group, op.result) for op in members}
        candidates = [
            op
            for op in members
            if readers[op.result] and _may_float(state, group, op, readers[op.result])
        ]
        if len(candidates) > 1 and _try_drop(state, group, candidates, readers):
            continue
        for op in candidates:
            _try_drop(state, group, [op], readers)


def _may_float(state: State, group: Group, op: Op, reading: frozenset[Group] | None) -> bool:
    return (
        op.definition.is_pointwise
        and op is not group.anchor
        and op.result not in state.required
        and (not cost.is_transcendental(op) or _is_moved(state, group, op, reading))
    )


def _is_moved(state: State, group: Group, op: Op, reading: frozenset[Group] | None) -> bool:
    """Whether `op` would still be evaluated once: by one other group instead of its own."""
    at_home = any(state.home.get(user) is group for user in state.users[op.result])
    return reading is not None and len(reading) == 1 and not at_home


def _readers(state: State, group: Group, value: Value) -> frozenset[Group] | None:
    """The other groups that read `value`, elementwise; None if somebody reads it in another way."""
    found: set[Group] = set()
    if value in state.required:
        return None
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        for user in state.users[current]:
            home = state.home.get(user)
            if not _reads_each_once(user):
                if home is group:
                    continue
                return None
            if home is None:
                if user.result not in seen:
                    seen.add(user.result)
                    pending.append(user.result)
            elif home is not group:
                found.add(home)
    return frozenset(found)


def _reads_each_once(op: Op) -> bool:
    known = op.definition
    return known.is_elementwise or known.is_reduce or (known.rearranges and not known.repeats)


def _try_drop(state: State, group: Group, dropped: Sequence[Op], readers: _Readers) -> bool:
    """Let the members `dropped` float if that saves bytes."""
    recipes = {op: _recipe(state, group, op, dropped, readers) for op in dropped}
    wanted: dict[Value, set[Group]] = {}  # leaf --> who would read it
    saved, added = 0.0, 0.0
    for op, recipe in recipes.items():
        reading = readers[op.result]
        if recipe is None or not reading:
            return False
        size, nbytes = op.result.type.size, op.result.type.nbytes
        saved += nbytes * (1 + len(reading))
        added += cost.BYTES_PER_FLOP * recipe.flops * size * len(reading)
        for leaf in recipe.leaves:
            wanted.setdefault(leaf, set()).update(reading)
    for leaf, reading_leaf in wanted.items():
        inside = leaf in readers
        known = readers[leaf] if inside else _readers(state, group, leaf)
        added += leaf.type.nbytes * len(reading_leaf - (known or frozenset()))
        if inside and known is not None and not known:
            added += leaf.type.nbytes  # it would be stored for this purpose
    if added >= saved:
        return False
    for leaf, reading_leaf in wanted.items():
        before = readers.get(leaf)
        if before is not None:
            readers[leaf] = before | reading_leaf
    for op, recipe in recipes.items():
        assert recipe is not None
        _let_float(state, op, recipe, readers)
    return True


def _let_float(state: State, op: Op, recipe: _Recipe, readers: _Readers) -> None:
    for dropped in recipe.ops:
        group = state.home.pop(dropped, None)
        if group is not None:
            group.members.remove(dropped)
            state.recomputed.add(dropped)
            state.deps[dropped] = state.deps_of_all(dropped.operands)
    for reader in readers[op.result] or ():
        state.reach.order(state.deps_of_all(recipe.leaves), reader.id)
    readers[op.result] = frozenset()
    state.decide("fuse-producers", op, True, "its readers compute it: cheaper than storing it")


def _recipe(
    state: State, group: Group, op: Op, dropped: Sequence[Op], readers: _Readers
) -> _Recipe | None:
    """How to compute `op` outside of its group; None if that would not be cheap."""
    leaves: set[Value] = set()
    ops: dict[Op, None] = {op: None}
    moved = cost.is_transcendental(op)  # evaluated once, wherever that is
    pending, flops = [op], 0.0 if moved else op.definition.element_flops(op)
    length = steps(op)
    while pending:
        for operand in pending.pop().operands:
            producer = operand.op
            if producer in ops:
                continue
            inside = state.home.get(producer) is group
            if not inside and not state.is_floating(operand):
                leaves.add(operand)
                continue
            stored = inside and producer not in dropped and readers[operand] != frozenset()
            if stored or not producer.definition.is_pointwise or cost.is_transcendental(producer):
                if not inside or producer in dropped:
                    return None  # a transcendental that is not stored
                leaves.add(operand)
                continue
            ops[producer] = None
            flops += producer.definition.element_flops(producer)
            length += steps(producer)
            pending.append(producer)
            if flops > _CHEAP_FLOPS or length > _MOST_STEPS:
                return None
    members = tuple(o for o in ops if state.home.get(o) is group)
    return _Recipe(frozenset(leaves), members, flops)
