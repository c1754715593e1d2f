"""Loops of kernels: one inside the other, in vectors, and shared by threads as parallel items.

Input: loops, outermost first, and what runs inside. Output: their code, with `Elements` standing
where the loops do; the number of items and the code that turns an item back into loop positions.
Invariant: items are independent; which thread runs one never changes a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stagejit.codegen.elements.elements import Elements
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register
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


def nested(
    elements: Elements,
    loops: Sequence[Loop],
    body: Callable[..., Sequence[Register] | None],
    carried: Sequence[Register] = (),
) -> Sequence[Register]:
    """`carried = body(*carried)` inside all loops, which `elements` knows; returns the last."""
    if not loops:
        return body(*carried) or ()
    loop, *rest = loops

    def iteration(position: Register, *values: Register) -> Sequence[Register]:
        with elements.at({loop.var: position}):
            return nested(elements, rest, body, values)

    return elements.b.loop(0, loop.var.extent, loop.step, tuple(carried), iteration)


def in_vectors(
    elements: Elements,
    loop: Loop,
    lanes: int,
    body: Callable[[], None],
    *,
    straight: bool = False,
) -> None:
    """`body` at each vector of an item's part of a blocked loop: full ones, then one masked.

    straight: the full vectors of an unblocked loop are code one after the other; their positions
    are numbers, so that what depends on no other loop leaves the loops around."""
    b, var, extent = elements.b, loop.var, loop.var.extent
    start, stop, full = span(elements, loop, lanes)

    def whole(position: Register) -> None:
        with elements.at({var: position}, vector=var, lanes=lanes):
            body()

    def rest() -> None:
        mask = b.active(extent % lanes, lanes)
        with elements.at({var: full}, vector=var, lanes=lanes, mask=mask):
            body()

    if straight:
        for number in range(extent // lanes):
            whole(b.const(number * lanes))
    elif extent >= lanes:
        b.loop(start, full, lanes, (), whole)
    if extent % lanes and loop.step >= extent:
        rest()
    elif extent % lanes:
        b.if_(b.compare("lt", full, stop), rest)


def span(elements: Elements, loop: Loop, lanes: int) -> tuple[Register, Register, Register]:
    """(start, end, end of the full vectors) of an item's part of a blocked loop; of all of a loop
    that no item stands in."""
    b, extent = elements.b, loop.var.extent
    start = elements.position.env.get(loop.var, b.const(0))
    if not extent % loop.step:
        return start, start + loop.step, start + loop.step // lanes * lanes
    stop = b.binary("smin", start + loop.step, extent)
    return start, stop, stop - b.urem(stop, lanes) if extent % lanes else stop


def own_items(
    b: Builder,
    among: tuple[int, int] | None,
    item: Callable[[Register], None],
    *,
    last: bool = True,
) -> None:
    """The loop over those of this call's items that are a nest's own. among: how many items of
    other nests come first, and how many are its own; None where it is the only nest of a kernel."""
    if among is None:
        b.loop(b.lo, b.hi, 1, (), item, runs=True)
        return
    before, count = among
    low = b.binary("smax", b.lo, before)
    high = b.hi if last else b.binary("smin", b.hi, before + count)
    b.loop(low, high, 1, (), lambda number: item(number - before))


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

    def emit(
        self,
        elements: Elements,
        body: Callable[[], Sequence[Register] | None],
        before: int | None = None,
        *,
        last: bool = True,
    ) -> None:
        """The loop over this call's items, with `body` inside all loops; positions are in the
        environment of `elements`. before: items of the kernel that come first; None where it has
        no others, last: whether none follow."""

        def item(number: Register) -> None:
            with elements.at(self._positions(elements, number)):
                nested(elements, self.inner, body)

        own_items(elements.b, None if before is None else (before, self.total), item, last=last)

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
