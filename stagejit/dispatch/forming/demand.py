"""Which floating values are stored: those that would cost more to evaluate again than to read.

Input: a state after the forward walk. Output: homes for the dear ones. Invariant: a transcendental
is never evaluated more often than once for each element of its own shape; everything else by Note
[Recompute or store] of `groups/cost.py`, and by Note [Places].

Note [Repeated]: a map that stores an element several times, side by side, evaluates it once, see
Note [Repeated elements] of `codegen/cpu/repeats.py`. What a view repeats few times is therefore not
stored to save evaluations, but for a transcendental, which may be evaluated for each all the same:
by a kernel whose loops have something else to do.

Note [Places]: a tree of halves, such as an associative scan, evaluates nothing twice, but where
each element of its root is evaluated with all that it is made of, the code has every leaf: it
doubles with each level. So an op whose code would be at many places is stored, however cheap it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from stagejit.base.symbolic import Expr, at_most
from stagejit.dispatch.forming.joins import store_in_map
from stagejit.dispatch.forming.turned import SWITCH, turned_reads
from stagejit.dispatch.groups import cost
from stagejit.dispatch.groups.group import Group, Location
from stagejit.dispatch.groups.legality import refuse_order, refuse_rows
from stagejit.dispatch.groups.state import State
from stagejit.graph.dims import GatherDims
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.moving.slices import pull_view
from stagejit.index.coordinates import coordinates, keeps_row_major_order

_LONGEST_CHAIN = 64
# Indices at which the kernel of a group may have the code of a floating op.
MOST_PLACES = 16
# Times that a map stores an element that it evaluates once.
MOST_REPEATED = 16
_MOST_KNOWN = 64  # of such indices; what more would say is that there are too many


# Which element of an op is wanted, in terms of an element of what the group stores: an index, or,
# where it is computed, names of what computes it. Equal ones are evaluated once.
_Place = tuple[Any, ...]


@dataclass
class _Demand:
    """How often one group evaluates an op, by the place at which its code stands. `location`: where
    in the group's space the op is, if anywhere. `repeated`: how many of these evaluations follow
    each other for one element, see Note [Repeated]."""

    at: dict[_Place, float]
    location: Location | None = None
    repeated: float = 1.0

    @property
    def evaluations(self) -> float:
        return sum(self.at.values())

    @property
    def made(self) -> float:
        """How many of these evaluations are not of the element before; of sizes that are symbols,
        which nothing is divided by, a part."""
        total = self.evaluations
        return total * (1 / self.repeated) if isinstance(total, Expr) else total / self.repeated


def _once(value: Value) -> dict[_Place, float]:
    """Each element of a value, one time."""
    return {coordinates(value.shape): value.type.size}


@dataclass
class _Demands:
    """readers: of what is in memory, the groups that read it anyway."""

    of: dict[Op, dict[Group, _Demand]] = field(default_factory=dict)
    readers: dict[Value, set[Group]] = field(default_factory=dict)

    def add(
        self,
        op: Op,
        group: Group,
        at: Mapping[_Place, float],
        location: Location | None,
        repeated: float,
    ) -> None:
        of_op = self.of.setdefault(op, {})
        demand = of_op.get(group)
        if demand is None:
            demand = of_op[group] = _Demand({}, repeated=repeated)
        elif repeated < demand.repeated:
            demand.repeated = repeated
        for place, evaluations in at.items():
            if place not in demand.at and len(demand.at) >= _MOST_KNOWN:
                place = next(iter(demand.at))
                evaluations += demand.at[place]
            demand.at[place] = _most(demand.at.get(place, 0.0), evaluations)
        demand.location = demand.location or location


def _most(a: float, b: float) -> float:
    """The greater one; where sizes that nobody knows decide that, as much as both."""
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        return max(a, b)
    if at_most(cast(int, a), cast(int, b)):
        return b
    return a if at_most(cast(int, b), cast(int, a)) else a + b


def store_what_is_dear(state: State) -> None:
    """Walks backwards: the demands on an op are complete before it is looked at."""
    demands, turned = _Demands(), turned_reads(state)
    for op in reversed(state.order):
        home = state.home.get(op)
        if home is None:
            wanted = demands.of.get(op)
            if wanted is None or not state.is_floating(op.result):
                continue
            if _is_made_of_readers(state, op, wanted):
                reason = ""
            elif reason := turned.get(op, ""):
                home = _store_apart(state, op, wanted)
                state.decide(SWITCH, op, True, reason)
            elif reason := _too_dear(state, op, wanted, demands.readers):
                home = _store(state, op, wanted)
                state.decide("fuse-producers", op, False, reason)
            if reason:
                state.apart.store(op.result, reason)
        if home is not None:
            # Its own group may want it elsewhere, too: there it is evaluated again.
            again = demands.of.get(op, {}).get(home)
            at = _once(op.results[0])
            _demand_operands(state, op, home, _Demand({**again.at, **at} if again else at), demands)
        else:
            for group, demand in demands.of[op].items():
                _demand_operands(state, op, group, demand, demands)


def _demand_operands(
    state: State, op: Op, group: Group, demand: _Demand, demands: _Demands
) -> None:
    here = group.located.get(op.result) if len(op.results) == 1 else None
    known = op.definition
    repeated = demand.repeated if _is_local(op) else 1.0
    if known.is_view and known.repeats:
        repeated *= _repeated(op, group)
    repeated = repeated if repeated <= MOST_REPEATED else 1.0
    for number, operand in enumerate(op.operands):
        if not operand.type.size:
            continue
        if not state.is_floating(operand):
            demands.readers.setdefault(operand, set()).add(group)
            continue
        location = (here or demand.location) if known.is_elementwise else None
        if known.is_reduce:
            location = Location("row", coordinates(operand.shape))
        demands.add(operand.op, group, _wanted(op, number, demand), location, repeated)


def _is_local(op: Op) -> bool:
    """Whether elements that follow each other are made of some that do."""
    known = op.definition
    return known.is_elementwise or known.is_view or known.is_window


def _repeated(op: Op, group: Group) -> float:
    """How often a map stores an element that a view repeats, one after the other."""
    if not (group.definition.is_elementwise or group.definition.is_view):
        return 1.0
    sizes = op.operands[0].type.size, op.result.type.size
    known_sizes = all(isinstance(size, int) for size in sizes)
    return sizes[1] / sizes[0] if known_sizes and sizes[0] else 1.0


def _wanted(op: Op, number: int, demand: _Demand) -> Mapping[_Place, float]:
    """At which places an operand is evaluated for an op, and how often."""
    operand, known = op.operands[number], op.definition
    if known.accumulates or known.stands_alone:
        return _once(operand)
    if operand.type.size == 1:
        return {coordinates(operand.shape): demand.evaluations}
    if known.is_elementwise:
        return demand.at
    if known.is_window:
        return _at_taps(op, demand)
    times = 1.0
    if known.is_gather and number == 1:  # an index vector is found outside of the loops of a row
        times = operand.shape[-1] / GatherDims.of(op.attrs).row_size(op.result.shape)
    if known.overlays and number == 0:  # it is evaluated where it lies, and little around it
        times = operand.type.size / op.result.type.size
    if known.splits:  # what the last part lacks is not evaluated
        times = operand.type.size / op.result.type.size
    reader = f"{op!r} {number}"
    at: dict[_Place, float] = {}
    for place, evaluations in demand.at.items():
        computed = not known.is_view or (place and isinstance(place[0], str))
        before: _Place = (reader, place) if computed else pull_view(op, place)
        at[before] = at.get(before, 0.0) + evaluations * times
    return at


def _at_taps(window: Op, demand: _Demand) -> Mapping[_Place, float]:
    """The code of a tap is at a place of its own, as far as places are counted."""
    taps = math.prod(window.attrs["sizes"])
    known = min(taps, MOST_PLACES + 1)
    return {
        (f"{window!r} {tap}", place): evaluations * taps / known
        for place, evaluations in demand.at.items()
        for tap in range(known)
    }


def _is_made_of_readers(state: State, op: Op, wanted: dict[Group, _Demand]) -> bool:
    """Whether a reader computes what this is made of: it cannot come in between."""
    return op in state.recomputed or any(state.deps[op] >> group.id & 1 for group in wanted)


def _too_dear(
    state: State, op: Op, wanted: dict[Group, _Demand], readers_of: Mapping[Value, set[Group]]
) -> str:
    """Why `op` should be evaluated once and stored; empty if its readers evaluate it. readers_of:
    see `_Demands`."""
    if not op.definition.element_flops(op):
        return ""
    total = sum(demand.evaluations for demand in wanted.values())
    size, nbytes = op.result.type.size, op.result.type.nbytes
    places = max(len(demand.at) for demand in wanted.values())
    if places > MOST_PLACES:
        return f"its code would stand at {places} places of a kernel"
    if at_most(cast(int, total), size):
        return ""
    element_nbytes, transcendental, leaves = _chain(state, op)
    if transcendental:
        return f"{transcendental} would be evaluated {_times(total, size)}"
    total = sum(demand.made for demand in wanted.values())
    if at_most(cast(int, total), size):
        return ""
    again = total * element_nbytes
    for leaf in leaves:  # a reader that reads one anyway has it at hand
        again += len(wanted.keys() - readers_of.get(leaf, set())) * leaf.type.nbytes
    leaf_nbytes = sum(leaf.type.nbytes for leaf in leaves)
    stored = size * element_nbytes + leaf_nbytes + nbytes * (1 + len(wanted))
    if not at_most(cast(int, stored + cost.DISPATCH_NBYTES), cast(int, again)):
        return ""
    return f"cheaper stored than evaluated {_times(total, size)}"


def _times(total: float, size: int) -> str:
    if not isinstance(size, int) or not isinstance(total, float | int):
        return f"{total} times for {size} elements"
    return f"{total / max(size, 1):.3g} times an element"


def _chain(state: State, op: Op) -> tuple[float, str, set[Value]]:
    """What an element takes through the floating ops of its size, in bytes of traffic, a
    transcendental among them, and the values of its size that it reads."""
    nbytes, transcendental = 0.0, ""
    leaves: set[Value] = set()
    pending, seen = [op], {op}
    while pending and len(seen) < _LONGEST_CHAIN:
        current = pending.pop()
        nbytes += cost.element_nbytes(current)
        if cost.is_transcendental(current):
            transcendental = current.attrs.get("fn", current.kind)
        for operand in current.operands:
            if operand.op in seen or operand.type.size != op.result.type.size:
                continue
            seen.add(operand.op)
            if state.is_floating(operand) and not current.definition.is_window:
                pending.append(operand.op)
            else:  # what is dear is stored before a window takes it for each tap
                leaves.add(operand)
    return nbytes, transcendental, leaves


def _store(state: State, op: Op, wanted: dict[Group, _Demand]) -> Group:
    """A home for `op`: a reader that has it at hand, and does not evaluate it at too many other
    places all the same, else a dispatch of its own."""
    home = None
    for group, demand in wanted.items():
        if len(demand.at) > MOST_PLACES:
            continue
        if demand.location is not None and _may_store(state, group, op, demand.location, wanted):
            home = group
            state.settle(op, home, demand.location)
            break
    return _before(state, home, wanted) if home is not None else _store_apart(state, op, wanted)


def _store_apart(state: State, op: Op, wanted: dict[Group, _Demand]) -> Group:
    return _before(state, store_in_map(state, op, wanted), wanted)


def _before(state: State, home: Group, wanted: Iterable[Group]) -> Group:
    for group in wanted:
        if group is not home:
            state.reach.order(1 << home.id, group.id)
    return home


def _may_store(
    state: State, group: Group, op: Op, location: Location, wanted: dict[Group, _Demand]
) -> bool:
    known = group.definition
    if not (known.is_elementwise or known.is_reduce) or not location.one_to_one:
        return False
    into = group.shape if location.space != "kept" else group.kept_shape
    if not keeps_row_major_order(location.index, op.result.shape, into):
        return False
    if known.is_elementwise and op.result.shape != group.shape:
        return False
    if location.space == "row" and refuse_rows(group):
        return False
    if refuse_order(state, group, state.deps[op]):
        return False
    return not any(state.reach.reaches(other.id, group.id) for other in wanted)
