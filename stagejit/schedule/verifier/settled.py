"""What has settled when a dispatch starts, by the barriers of a plan and by nothing else.

Input: a plan, and the order that its barriers imply. Output: a VerificationError for a conflict
that they leave open. Invariant: what a barrier names counts for its other end and for those that
come after that one by barriers; see Note [What has settled] in `reduction.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from stagejit.errors import VerificationError
from stagejit.index.box import Box
from stagejit.index.box_index import NumberedBoxes, left_of
from stagejit.schedule.plans.plan import Plan


class Settled:
    """See the module's docstring. before[p]: the positions that barriers order before p."""

    def __init__(self, plan: Plan, before: Sequence[int]) -> None:
        self.before = before
        self.names = [dispatch.name for dispatch in plan.dispatches]
        position = {name: at for at, name in enumerate(self.names)}
        self.settled: dict[tuple[int, str], NumberedBoxes] = defaultdict(NumberedBoxes)
        for barrier in plan.barriers:
            key = position[barrier.src], barrier.buffer
            self.settled[key].add(position[barrier.dst], barrier.ranges)

    def check(self, first: int, second: int, hazard: str, buffer: str, box: Box) -> None:
        """Raises VerificationError if a part of what `first` touches is open when `second`
        starts."""
        reached = self.before[second] | 1 << second
        open_parts = left_of(box, self.settled[first, buffer].around(box, reached))
        if open_parts:
            where = ", ".join(f"{buffer}{part}" for part in open_parts)
            src, dst = self.names[first], self.names[second]
            raise VerificationError(f"plan: @{dst} does not wait for @{src}: {hazard} on {where}")
