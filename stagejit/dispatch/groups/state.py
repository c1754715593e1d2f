"""`State`: what dispatch formation knows so far. The steps of `formation.py` read and extend it.

Input: a graph and options. Output: groups, and for every op where it is evaluated. Invariant: an op
with a `home` is evaluated in that group and stored where others need it; a pointwise op without one
is evaluated by every group that reads it; every other value lies in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from stagejit.base.decisions import Decision
from stagejit.base.symbolic import Int
from stagejit.dispatch.groups.chains import ends_of_chains
from stagejit.dispatch.groups.group import Apart, Group, Location, Reach, Space
from stagejit.dispatch.ranges.scalars import NOTHING, Scalars
from stagejit.graph.ir import Graph, Op, Value, in_memory
from stagejit.graph.ops.control import updates_of
from stagejit.index.coordinates import coordinates
from stagejit.options import Options
from stagejit.rewrites.driving.driver import describe

_MOST_ORIGINS = 24
_Choice = tuple[str, Op, bool, str]  # a decision, as long as nobody asks for its text


class State:
    """See the module's docstring.

    deps[op]: bit set of the groups that must have run before `op` can be evaluated elsewhere.
    required: values that have to be stored, whoever reads them, and why. apart: why groups are
    several.
    ends: ops that end a chain, and with which others, see `ends_of_chains`.
    scalars: offsets that the host knows; inputs: those of the inputs that it does.
    """

    def __init__(self, graph: Graph, options: Options, inputs: Mapping[Value, Int]) -> None:
        self.graph, self.options = graph, options
        self.order: list[Op] = graph.ops()
        self.scalars = Scalars(self.order, inputs) if self.enabled("host-offsets") else NOTHING
        self.position = {op: at for at, op in enumerate(self.order)}
        self.users: dict[Value, list[Op]] = _users(graph, self.order)
        self._has_updates = any(op.definition.updates for op in self.order)
        self._updates: dict[Value, Op | None] = {}
        self.groups: list[Group] = []
        self.maps: dict[tuple[int, ...], list[Group]] = {}  # groups without an anchor, by shape
        self.reach = Reach()
        self.home: dict[Op, Group] = {}
        self.deps: dict[Op, int] = {}
        self.ends = ends_of_chains(self.order, self.users)
        self.origins: dict[Op, frozenset[Value]] = {}
        self.overwritten_by: dict[Group, set[Value]] = {}  # of what it reads, see `overwritten`
        self._overwritten: dict[Op, frozenset[Value]] = {}  # of floating ops, if there is any
        self._settled: dict[Group, list[Op]] = {}  # since `_read_by` was last asked for
        self._read_by: dict[Group, set[Value]] = {}
        self.required: dict[Value, str] = {}
        self.apart = Apart()
        self.recomputed: set[Op] = set()  # evaluated by each reader, whatever the times
        self._decided: dict[_Choice, Group | None] = {}  # and where that put the op

    # ------------------------------------------------------------- questions

    def is_floating(self, value: Value) -> bool:
        """Whether readers of `value` evaluate it themselves."""
        return (
            value.op.definition.is_pointwise and value.op not in self.home and not in_memory(value)
        )

    def deps_of(self, value: Value) -> int:
        """Groups that must have run before `value` can be read or evaluated outside of them."""
        home = self.home.get(value.op)
        return 1 << home.id if home is not None else self.deps.get(value.op, 0)

    def deps_of_all(self, values: Iterable[Value]) -> int:
        total = 0
        for value in values:
            total |= self.deps_of(value)
        return total

    def origins_of(self, values: Iterable[Value]) -> frozenset[Value]:
        """Values in memory that evaluating `values` reads, those behind elementwise results too,
        as long as their groups grow."""
        found: set[Value] = set()
        for value in values:
            home = self.home.get(value.op)
            ended = home is not None and home.closed
            found |= {value} if ended else self.origins.get(value.op) or {value}
        return frozenset(found)

    def read_by(self, group: Group) -> AbstractSet[Value]:
        """The origins of all that is evaluated in a group."""
        known = self._read_by.setdefault(group, set())
        for op in self._settled.pop(group, ()):
            known |= self.origins.get(op) or set(op.results)
        return known

    def overwritten(self, values: Iterable[Value]) -> frozenset[Value]:
        """Of the values in memory that evaluating `values` reads those that an update overwrites,
        maybe where they are."""
        found: frozenset[Value] = frozenset()
        if not self._has_updates:
            return found
        for value in values:
            behind = self._overwritten.get(value.op) if value.op not in self.home else None
            if behind is not None:
                found |= behind
            elif self._may_be_overwritten(value) and not self.is_floating(value):
                found |= {value}
        return found

    def _may_be_overwritten(self, value: Value) -> bool:
        return may_be_overwritten(self.graph, value) and self.update_of(value) is not None

    def update_of(self, value: Value) -> Op | None:
        """The only op that updates `value`, None if there is none or there are several."""
        if value not in self._updates:
            users = self.users[value]
            updates = [op for op in users if updates_of(op, value)]
            self._updates[value] = updates[0] if len(updates) == 1 else None
        return self._updates[value]

    # --------------------------------------------------------------- changes

    def new_group(
        self,
        anchor: Op | None,
        shape: tuple[int, ...],
        after: int,
        axes: tuple[int, ...] = (),
    ) -> Group:
        """A group that runs after those of the bit set."""
        group = Group(self.reach.add(after), shape, anchor, axes)
        self.groups.append(group)
        return group

    def require(self, values: Iterable[Value], reason: str) -> None:
        """They are stored, whoever reads them."""
        for value in values:
            self.required.setdefault(value, reason)
            self.apart.store(value, reason)

    def settle(self, op: Op, group: Group, at: Location | Space | None = None) -> None:
        """`op` is evaluated in `group` from now on; its operands' groups come before. at: where in
        its space, a name for the op's own coordinates; None for what nobody may follow there."""
        if at is not None:
            at = at if isinstance(at, Location) else Location(at, coordinates(op.result.shape))
            group.located[op.result] = at
        group.members.add(op)
        if self._has_updates:
            read = self.overwritten(v for v in op.operands if self.home.get(v.op) is not group)
            self.overwritten_by.setdefault(group, set()).update(read)
        before = self.deps_of_all(op.operands) & ~(1 << group.id)
        self.reach.order(before, group.id)
        self.home[op] = group
        self._settled.setdefault(group, []).append(op)
        self.deps[op] = 1 << group.id

    def note_pointwise(self, op: Op) -> None:
        """Remember what lies behind a pointwise op."""
        self.deps[op] = self.deps_of_all(op.operands)
        if overwritten := self.overwritten(op.operands):
            self._overwritten[op] = overwritten
        behind = self.origins_of(op.operands)
        self.origins[op] = behind if len(behind) <= _MOST_ORIGINS else frozenset(op.results)

    def decide(
        self, rewrite: str, op: Op, applied: bool, reason: str, into: Group | None = None
    ) -> None:
        """into: where an op is evaluated because of it, if nothing later takes it out again."""
        self._decided[rewrite, op, applied, reason] = into

    def accept(self, rewrite: str, op: Op, refusal: str | None, reason: str) -> bool:
        """Whether nothing refuses it; says so, and why."""
        self.decide(rewrite, op, not refusal, refusal or reason)
        return not refusal

    @property
    def decisions(self) -> list[Decision]:
        """All of them, of a walk that is over: what a later one undid is declined in the end."""
        found = list[Decision]()
        for (rewrite, op, applied, reason), into in self._decided.items():
            if into is not None and op not in into.members and op not in into.ops:
                applied, reason = False, f"undone, for its readers compute it; at first {reason}"
            found.append(Decision(rewrite, describe(op), applied, reason, op.loc, self.graph))
        return found

    def enabled(self, switch: str) -> bool:
        return self.options.enabled(switch)


def may_be_overwritten(graph: Graph, value: Value) -> bool:
    """Whether updates can lie in its memory: all others get a buffer of their own anyway."""
    producer = value.op
    if producer.definition.is_input:
        return graph.is_donated(value)
    return producer.definition.updates


def _users(graph: Graph, order: list[Op]) -> dict[Value, list[Op]]:
    users: dict[Value, list[Op]] = {value: [] for value in graph.inputs}
    for op in order:
        users.update((result, []) for result in op.results)
        for value in dict.fromkeys(op.operands):
            users[value].append(op)
    for value in dict.fromkeys(graph.outputs):
        users[value].append(graph.return_op)
    return users
