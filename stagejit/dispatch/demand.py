"""Which floating values are stored: those that would cost more to evaluate again than to read.

Input: a state after the forward walk. Output: homes for the dear ones. Invariant: a transcendental
is never evaluated more often than once for each element of its own shape; everything else by Note
[Recompute or store] of `cost.py`, and by Note [Places].

Note [Places]: a tree of halves, such as an associative scan, evaluates nothing twice, but where
each element of its root is evaluated with all that it is made of, the code has every leaf: it
doubles with each level. So an op whose code would be at many places is stored, however cheap it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from stagejit.dispatch import cost
from stagejit.dispatch.group import Group, Location
from stagejit.dispatch.joins import store_in_map
from stagejit.dispatch.legality import refuse_order, refuse_rows
from stagejit.dispatch.state import State
from stagejit.graph.dims import GatherDims
from stagejit.graph.ir import Op, Value
from stagejit.index.coordinates import coordinates, keeps_row_major_order
from stagejit.symbolic import at_most

_LONGEST_CHAIN = 64
# Indices at which the kernel of a group may have the code of a floating op.
MOST_PLACES = 16


@dataclass
class _Demand:
    """How often one group evaluates an op: `aligned` by elementwise readers (one evaluation serves
    them all), `other` through views. `places`: the different indices at which its code stands, of
    both kinds. `location`: where in the group's space, if anywhere."""

    aligned: float = 0.0
    other: float = 0.0
    location: Location | None = None
    aligned_places: int = 1
    other_places: int = 0

    @property
    def evaluations(self) -> float:
        return self.aligned + self.other

    @property
    def places(self) -> int:
        return (self.aligned_places if self.aligned else 0) + self.other_places


@dataclass
class _Demands:
    of: dict[Op, dict[Group, _Demand]] = field(default_factory=dict)

    def add(
        self,
        op: Op,
        group: Group,
        evaluations: float,
        *,
        aligned: bool,
        places: int,
        location: Location | None = None,
    ) -> None:
        demand = self.of.setdefault(op, {}).setdefault(group, _Demand())
        if aligned:
            demand.aligned = max(demand.aligned, evaluations)
            demand.aligned_places = max(demand.aligned_places, places)
        else:
            demand.other += evaluations
            demand.other_places += places
        demand.location = demand.location or location


def store_what_is_dear(state: State) -> None:
    """Walks backwards: the demands on an op are complete before it is looked at."""
    demands = _Demands()
    for op in reversed(state.order):
        home = state.home.get(op)
        if home is None:
            wanted = demands.of.get(op)
            if wanted is None or not state.is_floating(op.result):
                continue
            reason = _too_dear(state, op, wanted)
            if reason:
                home = _store(state, op, wanted)
                state.decide("fuse-producers", op, False, reason)
        if home is not None:
            _demand_operands(state, op, home, _Demand(op.results[0].type.size), demands)
        else:
            for group, demand in demands.of[op].items():
                _demand_operands(state, op, group, demand, demands)


def _demand_operands(
    state: State, op: Op, group: Group, demand: _Demand, demands: _Demands
) -> None:
    here = group.located.get(op.result) if len(op.results) == 1 else None
    for at, operand in enumerate(op.operands):
        if not state.is_floating(operand):
            continue
        times = demand.evaluations
        aligned = op.definition.is_elementwise
        location = (here or demand.location) if aligned else None
        if op.kind == "reduce":
            location, aligned = Location("row", coordinates(operand.shape)), True
        all_of_it = op.definition.accumulates or op.definition.stands_alone  # each element once
        if all_of_it:
            times = operand.type.size
        elif op.kind == "gather" and at == 1:
            times *= operand.shape[-1] / _row_size(op)
        whole = all_of_it or operand.type.size == 1  # read at one index
        places = 1 if whole else demand.places
        demands.add(operand.op, group, times, aligned=aligned, places=places, location=location)


def _row_size(gather: Op) -> int:
    """Elements of the innermost axes that one index vector is for: it is found outside of their
    loops."""
    offset_axes = GatherDims.of(gather.attrs).offset_axes
    size = 1
    for axis in reversed(range(gather.result.type.rank)):
        if axis not in offset_axes:
            break
        size *= max(gather.result.shape[axis], 1)
    return size


def _too_dear(state: State, op: Op, wanted: dict[Group, _Demand]) -> str:
    """Why `op` should be evaluated once and stored; empty if its readers evaluate it."""
    if op in state.recomputed or any(state.deps[op] >> group.id & 1 for group in wanted):
        return ""  # a reader computes what this is made of: it cannot come in between
    flops = op.definition.element_flops(op)
    if not flops:
        return ""
    total = sum(demand.evaluations for demand in wanted.values())
    size, nbytes = op.result.type.size, op.result.type.nbytes
    places = max(demand.places for demand in wanted.values())
    if places > MOST_PLACES:
        return f"its code would stand at {places} places of a kernel"
    if at_most(cast(int, total), size):
        return ""
    chain, transcendental, leaves = _chain(state, op)
    if transcendental:
        return f"{transcendental} would be evaluated {_times(total, size)}"
    readers = len(wanted)
    leaf_nbytes = sum(leaf.type.nbytes for leaf in leaves)
    again = total * chain * cost.BYTES_PER_FLOP + readers * leaf_nbytes
    stored = size * chain * cost.BYTES_PER_FLOP + leaf_nbytes + nbytes * (1 + readers)
    if not at_most(cast(int, stored + cost.DISPATCH_NBYTES), cast(int, again)):
        return ""
    return f"cheaper stored than evaluated {_times(total, size)}"


def _times(total: float, size: int) -> str:
    if not isinstance(size, int) or not isinstance(total, float | int):
        return f"{total} times for {size} elements"
    return f"{total / max(size, 1):.3g} times an element"


def _chain(state: State, op: Op) -> tuple[float, str, set[Value]]:
    """Flops of an element through the floating ops of its size, a transcendental among them, and
    the values of its size that it reads."""
    flops, transcendental = 0.0, ""
    leaves: set[Value] = set()
    pending, seen = [op], {op}
    while pending and len(seen) < _LONGEST_CHAIN:
        current = pending.pop()
        flops += current.definition.element_flops(current)
        if cost.is_transcendental(current):
            transcendental = current.attrs["fn"]
        for operand in current.operands:
            if operand.op in seen or operand.type.size != op.result.type.size:
                continue
            seen.add(operand.op)
            if state.is_floating(operand):
                pending.append(operand.op)
            else:
                leaves.add(operand)
    return flops, transcendental, leaves


def _store(state: State, op: Op, wanted: dict[Group, _Demand]) -> Group:
    """A home for `op`: a reader that has it at hand, and wants it nowhere else, else a dispatch of
    its own."""
    home = None
    for group, demand in wanted.items():
        if demand.other_places:
            continue  # there it would be evaluated again, wherever it is stored
        if demand.location is not None and _may_store(state, group, op, demand.location, wanted):
            home = group
            home.located[op.result] = demand.location
            home.members.add(op)
            state.settle(op, home)
            break
    if home is None:
        home = store_in_map(state, op, wanted)
    for group in wanted:
        if group is not home:
            state.reach.order(1 << home.id, group.id)
    return home


def _may_store(
    state: State, group: Group, op: Op, location: Location, wanted: dict[Group, _Demand]
) -> bool:
    if group.kind not in ("map", "reduce") or not location.one_to_one:
        return False
    into = group.shape if location.space != "kept" else group.kept_shape
    if not keeps_row_major_order(location.index, op.result.shape, into):
        return False
    if group.kind == "map" and op.result.shape != group.shape:
        return False
    if location.space == "row" and refuse_rows(group):
        return False
    if refuse_order(state, group, state.deps[op]):
        return False
    return not any(state.reach.reaches(other.id, group.id) for other in wanted)
