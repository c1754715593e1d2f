"""`Split`: an axis in groups of nearly equal length, and `Part`, the groups that an item has.

Input: an axis, and how many units a group has at most. Output: what a contraction is tiled by, and
where its groups stand. Invariant: groups cover the axis once, in order; the last one may reach
behind its end by less than a unit.
"""

from __future__ import annotations

from stagejit.base.records import record
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.spans import Span
from stagejit.index.affine import Var


@record
class Split:
    """An axis cut into `groups` of nearly equal numbers of units: the first `big` have one more
    than `small`. A unit is one element, or one vector of the lane axis. An item takes `block`
    groups."""

    var: Var
    unit: int
    groups: int
    small: int
    big: int
    parts: int = 1

    @staticmethod
    def of(var: Var, unit: int, most: int) -> Split:
        units = -(-var.extent // unit)
        groups = -(-units // most)
        small, big = divmod(units, groups)
        return Split(var, unit, groups, small, big)

    @property
    def block(self) -> int:
        """Groups of the largest part."""
        return -(-self.groups // self.parts)

    @property
    def most(self) -> int:
        """Units of the largest group."""
        return self.small + (self.big > 0)

    @property
    def span(self) -> int:
        """Elements of the largest block, rounded up to whole units."""
        whole = (
            min(self.block, self.big) * (self.small + 1)
            + max(self.block - self.big, 0) * self.small
        )
        return whole * self.unit

    def sizes(self) -> list[tuple[int, int]]:
        """(units, number of groups) for each distinct group size."""
        runs = [(self.small + 1, self.big), (self.small, self.groups - self.big)]
        return [(size, count) for size, count in runs if count]

    def start(self, b: Builder, group: Register) -> Register:
        """The first element of a group."""
        extra = b.binary("smin", group, self.big) if self.big else 0
        return (group * self.small + extra) * self.unit

    def part(self, b: Builder, number: Register) -> Part:
        """What the part with that number has."""
        if self.parts == 1:
            return self.whole(b)
        low, high = self._first(b, number), self._first(b, number + 1)
        start, stop = self.start(b, low), self.start(b, high)
        if self.unit * (self.small * self.groups + self.big) > self.var.extent:
            stop = b.binary("smin", stop, self.var.extent)
        return Part(start, None, stop, low=low, high=high)

    def whole(self, b: Builder) -> Part:
        """All groups."""
        return Part(b.const(0), self.var.extent, low=b.const(0), high=b.const(self.groups))

    def _first(self, b: Builder, part: Register) -> Register:
        """The first group of a part; the first parts have one more, as the last that cores begin
        had better be short."""
        small, big = divmod(self.groups, self.parts)
        return part * small + b.binary("smin", part, big) if big else part * small


@record(kw_only=True)
class Part(Span):
    """The elements of some groups: from `low` to the one before `high`."""

    low: Register
    high: Register
