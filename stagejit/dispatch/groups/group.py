"""`Group`: a dispatch while it grows, and the reachability between groups.

Input: ops in topological order. Output: groups that `assembly.py` turns into dispatches. Invariant:
the order between groups never has a cycle: every edge is checked with `Reach.reaches` first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from stagejit.base.records import record
from stagejit.dispatch.regions import definition_of_anchor
from stagejit.graph.definition import OpDef
from stagejit.graph.ir import Graph, Op, Value
from stagejit.index.affine import Index
from stagejit.index.bit_sets import bits
from stagejit.index.coordinates import Shape, without

Space = Literal["out", "row", "kept"]
_TOLD_AT_ONCE = 16  # groups, see Note [Late orders]


@record
class Location:
    """Which element of a group's space holds an element of a value.

    index: in terms of the value's own coordinates. one_to_one: False for a kept value that is
    spread over its row (a broadcast).
    """

    space: Space
    index: Index
    one_to_one: bool = True


class Refusal(str):
    """Why an op cannot be evaluated in a group; empty where nobody would expect it to be."""


Place = Location | Refusal | None  # None: does not depend on the group


@dataclass(eq=False)
class Group:
    """A dispatch to be. `shape` is the space of its result, for reduces the row space; `axes` are
    those that reduces reduce. `located` are the values that have a place in that space.
    `places` remembers where floating values lie, in the forward walk.
    `closed`: takes no more consumers in, because the chain of its ops is long enough.
    `copies_for`: the update whose destination the group copies, and does nothing else.

    In the end: `ops` are what it evaluates, in order, `reads` the values that it reads, `stores`
    those that it leaves in memory."""

    id: int
    shape: Shape
    anchor: Op | None = None
    axes: tuple[int, ...] = ()
    copies_for: Value | None = None
    members: set[Op] = field(default_factory=set)
    located: dict[Value, Location] = field(default_factory=dict)
    places: dict[Value, Place] = field(default_factory=dict)
    closed: bool = False
    ops: Sequence[Op] = ()
    reads: Sequence[Value] = ()
    stores: dict[Value, None] = field(default_factory=dict)

    @property
    def floating(self) -> list[Op]:
        """What it computes, as others may, too."""
        others = [op for op in self.ops if op not in self.members]
        computing = ("is_elementwise", "is_gather", "is_window")
        return [op for op in others if any(getattr(op.definition, name) for name in computing)]

    @property
    def kind(self) -> str:
        """As decisions name it."""
        return self.definition.kind

    @property
    def definition(self) -> OpDef:
        """What is known of it by its anchor, see `definition_of_anchor`."""
        return definition_of_anchor(self.anchor)

    @property
    def stands_alone(self) -> bool:
        """Whether it evaluates nothing but its anchor, and stores nothing but its results."""
        return self.definition.stands_alone or self.definition.updates

    @property
    def has_kernel(self) -> bool:
        """See `Region`."""
        return not self.definition.is_foreign and not self.definition.has_bodies

    @property
    def kept_shape(self) -> Shape:
        return tuple(size for axis, size in enumerate(self.shape) if axis not in self.axes)

    def kept_index(self, row: Index) -> Index:
        """The kept-space index of a row-space index."""
        return without(row, self.axes)


@dataclass(eq=False)
class Apart:
    """Why groups are several, see `apart.py`.

    refused: why an op is not evaluated in a group that makes what it reads. starts: why an op is
    the first of a group. stored: why a value is in memory and not evaluated by who reads it.
    copied: why a value is copied, by the update that has the copy."""

    refused: dict[tuple[Op, Group], str] = field(default_factory=dict)
    starts: dict[Op, str] = field(default_factory=dict)
    stored: dict[Value, str] = field(default_factory=dict)
    copied: dict[Value, str] = field(default_factory=dict)

    def refuse(self, op: Op, group: Group, reason: str) -> None:
        """It is not evaluated in that group."""
        self.refused[op, group] = reason

    def store(self, value: Value, reason: str) -> None:
        """It is in memory for that reason, if there is no earlier one."""
        self.stored.setdefault(value, reason)


@record(eq=False)
class Grouping:
    """The groups of a graph, those that others need first. bodies: of its loops and branches.
    apart: why they are several."""

    graph: Graph
    groups: Sequence[Group]
    bodies: Mapping[Op, Sequence[Grouping]]
    apart: Apart


class Reach:
    """Which groups come before which, as bit sets closed under transitivity. direct: of each group
    those that it was linked to, from which all others follow.

    Note [Late orders]: a group that gets another one before it may have all of a long program
    behind it. A few of these are told at once. Otherwise what is new is kept with the group, as
    `late`, and found by who asks: in what comes before a group there is all that came late to it.
    """

    def __init__(self) -> None:
        self.direct: list[set[int]] = []
        self._before: list[int] = []  # but for what is late
        self._followers: list[list[int]] = []
        self._late: dict[int, int] = {}
        self._with_late = 0  # the groups that have some

    def add(self, after: int) -> int:
        """A new last group, after those of the bit set."""
        number = len(self.direct)
        self._before.append(self.closure(after))
        self._followers.append([])
        self.direct.append(set())
        self._link(after, number)
        return number

    def closure(self, groups: int) -> int:
        """Those of the bit set, and all that come before one of them."""
        total, seen = groups, 0
        for group in self._latest(groups):
            total |= self._before[group]
        while late := total & self._with_late & ~seen:
            for group in bits(late):
                total |= self._late[group]
            seen |= late
        return total

    def before(self, group: int) -> int:
        """The bit set of the groups that have to come before one."""
        self._before[group] = self.closure(1 << group) & ~(1 << group)
        return self._before[group]

    def reaches(self, first: int, second: int) -> bool:
        """Whether `first` has to come before `second`."""
        return bool(self.before(second) >> first & 1)

    def reaches_any(self, first: int, groups: int) -> bool:
        """Whether `first` has to come before one of the groups of the bit set, or is one."""
        return bool(self.closure(groups) >> first & 1)

    def order(self, groups: int, after: int) -> None:
        """From now on all of the bit set `groups` come before `after`."""
        others = groups & ~(1 << after)
        self._link(others, after)
        new = self.closure(others)
        if not new & ~self._before[after]:
            return
        told, pending = {after}, [after]
        while pending and len(told) < _TOLD_AT_ONCE:
            group = pending.pop()
            self._before[group] |= new
            untold = [each for each in self._followers[group] if each not in told]
            told.update(untold)
            pending += untold
        if pending:  # see Note [Late orders]
            self._before[after] |= new
            self._late[after] = self._late.get(after, 0) | new
            self._with_late |= 1 << after

    def _latest(self, groups: int) -> Iterator[int]:
        """Those that are known to come before no other one of the bit set: in what comes before
        these there are all others, and all that comes before them."""
        while groups:
            group = groups.bit_length() - 1
            yield group
            groups &= ~(self._before[group] | 1 << group)

    def _link(self, groups: int, after: int) -> None:
        for group in self._latest(groups):
            if group not in self.direct[after]:
                self.direct[after].add(group)
                self._followers[group].append(after)
