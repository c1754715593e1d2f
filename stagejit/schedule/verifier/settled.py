"""What has settled when a dispatch starts, by the barriers of a plan and by nothing else.

Input: a plan, and the order that its barriers imply. Output: a VerificationError for a conflict
that they leave open. Invariant: what a barrier names counts for its other end and for those that
come after that one by barriers; see Note [What has settled] in `hazards.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stagejit.errors import VerificationError
from stagejit.index.bit_sets import bits
from stagejit.index.box import Box
from stagejit.index.box_index import BoxIndex
from stagejit.schedule.plan import Plan

_FEW = 16  # barriers that are looked at one by one


class Settled:
    """See the module's docstring. before[p]: the positions that barriers order before p."""

    def __init__(self, plan: Plan, before: Sequence[int]) -> None:
        self.before = before
        self.names = [dispatch.name for dispatch in plan.dispatches]
        position = {name: at for at, name in enumerate(self.names)}
        self.targets: dict[tuple[int, str], int] = {}  # of barriers with ranges, as bit sets
        self.ranges: dict[tuple[int, str, int], list[Box]] = {}
        self.indexes: dict[tuple[int, str], BoxIndex[tuple[int, Box]]] = {}
        for barrier in plan.barriers:
            source, target = position[barrier.src], position[barrier.dst]
            key = source, barrier.buffer
            self.targets[key] = self.targets.get(key, 0) | 1 << target
            self.ranges.setdefault((*key, target), []).extend(barrier.ranges)

    def check(self, first: int, second: int, hazard: str, buffer: str, box: Box) -> None:
        """Raises VerificationError if a part of what `first` touches is open when `second`
        starts."""
        open_parts = [box] if box.count else []
        for settled in self._of(first, second, buffer, box):
            open_parts = [part for piece in open_parts for part in piece.minus(settled)]
            if not open_parts:
                break
        if open_parts:
            where = ", ".join(f"{buffer}{part}" for part in open_parts)
            src, dst = self.names[first], self.names[second]
            raise VerificationError(f"plan: @{dst} does not wait for @{src}: {hazard} on {where}")

    def _of(self, first: int, second: int, buffer: str, box: Box) -> Iterator[Box]:
        """What has settled of one source and buffer, as far as it may overlap `box`."""
        key = first, buffer
        known = self.targets.get(key, 0) & (self.before[second] | 1 << second)
        if known.bit_count() <= _FEW:
            for target in bits(known):
                yield from self.ranges[*key, target]
            return
        if key not in self.indexes:
            index = self.indexes[key] = BoxIndex()
            for target in bits(self.targets[key]):
                for one in self.ranges[*key, target]:
                    index.add(one, (target, one))
        for target, one in self.indexes[key].overlapping(box):
            if known >> target & 1:
                yield one
