"""Parallel items: how the outer loops of a kernel become the range `[0, total)` that threads share.

Input: loops, outermost first. Output: the number of items and the code that turns an item back
into loop positions. Invariant: items are independent; which thread runs one never changes a
value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stagejit.codegen.elements import Elements
from stagejit.codegen.ir import Value as Register
from stagejit.index.affine import Var

# Enough items that two or a few dozen cores balance, few enough that an item is worth claiming.
ENOUGH_ITEMS = 64


# Elements along the lanes that one item takes where it goes through many rows of them: wide enough
# to stream, narrow enough that a few running values of each stay in the nearest cache.
WIDEST_PANEL, NARROWEST_PANEL = 512, 128


def panel_width(extent: int, lanes: int, others: int, cores: int) -> int:
    """How many of `extent` elements along the lanes one item takes, in whole vectors, if there are
    `others` items beside it."""
    wanted = -(-4 * cores // others)  # a few items a core
    width = max(min(-(-extent // wanted), WIDEST_PANEL), NARROWEST_PANEL)
    return min(-(-width // lanes), -(-extent // lanes)) * lanes


@dataclass(frozen=True)
class Loop:
    """`for var in range(0, var.extent, step)`."""

    var: Var
    step: int = 1

    @property
    def trips(self) -> int:
        return -(-self.var.extent // self.step)


@dataclass(frozen=True)
class Items:
    """The loops before `inner` are flattened into items, outermost slowest; `inner` loops run
    inside."""

    leading: tuple[Loop, ...]
    inner: tuple[Loop, ...]

    @staticmethod
    def over(loops: Sequence[Loop]) -> Items:
        """As many leading loops as give enough items."""
        count, product = 0, 1
        while count < len(loops) and product < ENOUGH_ITEMS:
            product *= loops[count].trips
            count += 1
        return Items(tuple(loops[:count]), tuple(loops[count:]))

    @property
    def total(self) -> int:
        return math.prod(loop.trips for loop in self.leading)

    def emit(self, elements: Elements, body: Callable[[], None]) -> None:
        """The loop over this call's items, with `body` inside all loops; positions are in the
        environment of `elements`."""
        b = elements.b

        def item(number: Register) -> None:
            with elements.at(self._positions(elements, number)):
                self._nested(elements, body, 0)

        b.loop(b.lo, b.hi, 1, (), item, runs=True)

    def _nested(self, elements: Elements, body: Callable[[], None], depth: int) -> None:
        """The inner loops from `depth` on."""
        if depth == len(self.inner):
            body()
            return
        loop = self.inner[depth]

        def iteration(position: Register) -> None:
            with elements.at({loop.var: position}):
                self._nested(elements, body, depth + 1)

        elements.b.loop(0, loop.var.extent, loop.step, (), iteration)

    def _positions(self, elements: Elements, number: Register) -> dict[Var, Register]:
        b = elements.b
        positions: dict[Var, Register] = {}
        for at, loop in reversed(list(enumerate(self.leading))):
            if at == 0:
                positions[loop.var] = number * loop.step
            else:
                positions[loop.var] = b.urem(number, loop.trips) * loop.step
                number = b.udiv(number, loop.trips)
        return positions
