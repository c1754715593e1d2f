"""Pointwise ops enter groups: as consumers of what a group computes, or as a result stored beside
others.

Input: a state and a pointwise op without a home. Output: the op has one, with a decision.
Invariant: a refused fusion that would have been possible by shape leaves its reason.
"""

from __future__ import annotations

from collections.abc import Collection

from stagejit.base.symbolic import at_most
from stagejit.dispatch.groups import cost
from stagejit.dispatch.groups.apart import behind
from stagejit.dispatch.groups.chains import LONGEST_CHAIN
from stagejit.dispatch.groups.group import Group, Location, Refusal
from stagejit.dispatch.groups.legality import (
    locate,
    refuse_join,
    refuse_turn,
    switch_of,
)
from stagejit.dispatch.groups.state import State
from stagejit.graph.ir import Op
from stagejit.index.bit_sets import bits

_NEIGHBOURS = 4  # how many earlier maps of a shape are looked at for a merge


def join(state: State, op: Op) -> Group | None:
    """Evaluate `op` in a group that computes one of its operands, the latest that may."""
    numbers = list(bits(state.deps[op]))
    while numbers:
        group = state.groups[numbers.pop()]
        if group.stands_alone:
            assert group.anchor is not None
            state.apart.refuse(op, group, behind(group.anchor))
            continue
        place = locate(state, group, op.result)
        refusal = place if isinstance(place, Refusal) else None
        if isinstance(place, Location):
            refusal = refuse_join(state, group, op, place)
        switch = switch_of(group, place)
        if refusal is not None or not isinstance(place, Location):
            if refusal:
                state.decide(switch, op, False, refusal)
            state.apart.refuse(op, group, refusal or "it reads that from memory, behind other ops")
            continue
        for other in numbers:
            maker = group.anchor or "map"
            reason = f"it is computed with {maker}, which makes another operand of it"
            state.apart.refuse(op, state.groups[other], reason)
        state.settle(op, group, place)
        _close_if_long(state, op)
        state.decide(switch, op, True, f"applied where {group.kind} stores", group)
        return group
    return None


def _close_if_long(state: State, op: Op) -> None:
    """What comes after the end of a long chain reads it from memory, from a group of its own."""
    cut = state.ends.get(op, ())
    if cut and op is cut[-1]:
        for end in cut:
            if end in state.home:
                state.home[end].closed = True


def refuse_length(state: State, op: Op) -> Refusal | None:
    """Why `op` must be stored: readers would evaluate too many ops in a row."""
    if op not in state.ends:
        return None
    reason = Refusal(f"{LONGEST_CHAIN} ops in a row are too many for one dispatch")
    state.decide("fuse-producers", op, False, reason)
    return reason


def store(state: State, op: Op) -> Group:
    """Give a pointwise `op` a home, so that it is evaluated once and stored."""
    return join(state, op) or store_in_map(state, op)


def store_in_map(state: State, op: Op, readers: Collection[Group] = ()) -> Group:
    """Give `op` a home in a dispatch without anchor, before all of `readers`."""
    group = _neighbour(state, op, readers)
    if group is None:
        group = state.new_group(None, op.result.shape, state.deps[op])
        state.maps.setdefault(op.result.shape, []).append(group)
    state.settle(op, group, "out")
    _close_if_long(state, op)
    return group


def _neighbour(state: State, op: Op, readers: Collection[Group]) -> Group | None:
    """A map of the same shape that reads the same array: both results are stored in one pass."""
    if not state.enabled("fuse-producers"):
        return None
    origins, size = state.origins_of(op.results), op.result.type.size
    for group in reversed(state.maps.get(op.result.shape, [])[-_NEIGHBOURS:]):
        others = state.read_by(group)
        together = origins == others or any(
            at_most(size, 2 * v.type.size) for v in origins & others
        )
        waiting = group.closed or any(
            reader is group or state.reach.reaches(reader.id, group.id) for reader in readers
        )
        if not together or waiting or state.deps[op] >> group.id & 1:
            continue
        if refuse_turn(state, group, op, state.deps[op]) is None:
            reason = "stored beside a result that reads the same array"
            state.decide("fuse-producers", op, True, reason, group)
            return group
    return None


def refuse_prologue(state: State, op: Op) -> Refusal | None:
    """Why a floating `op` that is an operand of a contraction must be stored, None for other ops
    too.

    An operand is evaluated where it is packed, once for each parallel item: cheap work only."""
    product = _product_of(state, op)
    if product is None:
        return None
    flops, reason = _chain_flops(state, op)
    if not reason and flops > cost.PROLOGUE_FLOPS:
        reason = f"{flops:g} flops an element, more than once where {product.kind} packs"
    otherwise = f"evaluated where {product.kind} packs its operand, once an item, or in its tiles"
    return None if state.accept("fuse-producers", op, reason, otherwise) else Refusal(reason)


def _product_of(state: State, op: Op) -> Op | None:
    """The contraction that reads `op`, directly or through views and converts."""
    pending = list(state.users[op.result])
    while pending:
        user = pending.pop()
        if user.definition.is_product:
            return user
        if user.definition.is_view or user.definition.is_conversion:
            pending.extend(state.users[user.result])
    return None


def _chain_flops(state: State, op: Op) -> tuple[float, str]:
    """Flops an element of a floating op takes, and why it must not be evaluated more than once."""
    total, pending, seen = 0.0, [op], {op}
    while pending:
        current = pending.pop()
        if current.definition.is_gather or current.definition.is_window:
            return total, f"a {current.kind} is done once"
        if cost.is_transcendental(current):
            function = current.attrs.get("fn", current.kind)
            return total, f"{function} is evaluated once for each element"
        total += current.definition.element_flops(current)
        for operand in current.operands:
            if state.is_floating(operand) and operand.op not in seen:
                seen.add(operand.op)
                pending.append(operand.op)
    return total, ""
