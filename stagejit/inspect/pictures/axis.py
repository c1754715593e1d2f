"""The axis of time along a schedule: a column for each dispatch, and brackets over what repeats.

Input: a plan, a width. Output: places of columns, and the markup of names and brackets. Invariant:
each column has its dispatch in a tooltip; names that are written do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from stagejit.inspect.page import Markup
from stagejit.inspect.pictures.dispatches import label_of
from stagejit.inspect.pictures.drawing import svg
from stagejit.inspect.pictures.drawing.repeats import parts_of
from stagejit.inspect.pictures.words import line_of
from stagejit.schedule.plans.plan import Plan

LEFT = 92.0  # of the columns: the room for a scale
_WIDTH = 1080.0  # of all columns, where they are not too many
_WIDEST, _NARROWEST = 150.0, 3.0
HEIGHT = 34.0  # of names and brackets


@dataclass(frozen=True)
class Axis:
    """Of a plan's dispatches, `column` pixels each."""

    plan: Plan
    column: float

    @staticmethod
    def of(plan: Plan) -> Axis:
        count = max(len(plan.dispatches), 1)
        return Axis(plan, min(max(_WIDTH / count, _NARROWEST), _WIDEST))

    @property
    def right(self) -> float:
        return self.x(max(len(self.plan.dispatches), 1))

    def x(self, position: float) -> float:
        """Where a position begins."""
        return LEFT + position * self.column

    def markup(self, y: float) -> Iterator[Markup]:
        """Names below y, brackets below them."""
        yield svg.line(LEFT, y, self.right, y, "sj-rule")
        free = 0.0
        for at, dispatch in enumerate(self.plan.dispatches):
            name = f"@{dispatch.name}"
            # A name needs not fit its own column, if the ones behind it go without.
            shown = self.x(at) >= free and self.x(at) + svg.width_of(name) <= self.right + 40
            parts = [
                svg.tip(
                    name, f"{dispatch.kind} ({', '.join(dispatch.ops)})", line_of(dispatch.loc)
                ),
                svg.box(self.x(at), y, self.column, 16, "sj-clear", 0),
            ]
            if shown:
                parts.append(svg.text(self.x(at) + 1, y + 12, name, "sj-soft"))
                parts.append(svg.line(self.x(at), y, self.x(at), y + 4, "sj-rule"))
                free = self.x(at) + svg.width_of(name) + 10
            yield svg.thing(*parts)
        yield from self._brackets(y + 20)

    def _brackets(self, y: float) -> Iterator[Markup]:
        for part in parts_of([label_of(dispatch) for dispatch in self.plan.dispatches]):
            if part.copies < 2:
                continue
            for first, last in pairwise([*part.starts, part.stop]):
                x, end = self.x(first) + 1, self.x(last) - 1
                if end - x > 2:
                    yield svg.line(x, y, end, y, "sj-accent")
            middle = (self.x(part.starts[0]) + self.x(part.stop)) / 2
            yield svg.text(middle, y + 13, f"× {part.copies}", "sj-accent", "middle")
