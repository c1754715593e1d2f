"""Accumulators of several threads become one that all of them know.

Input: accumulators of a row's members, in registers. Output: their merge, the same bits in all
members. Invariant: all threads of the warps, or of the block, that members are in take part.

Note [Barriers]: what members write to shared memory others read behind a barrier, and nobody writes
there again before another one: where a row meets once only, there is one before it does, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.base.records import record
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.nodes import I8
from stagejit.codegen.reducers import Accumulator, Panel, Reducer, merge_all


def shared_panel(b: GridBuilder, reducer: Reducer, size: int) -> Panel:
    """Accumulators in shared memory."""
    types = [part.type for part in reducer.initial(b, 0)]
    stored = [I8 if type.elem == "i1" else type for type in types]
    buffers = tuple(b.shared("partial", type, size) for type in stored)
    return Panel(b, reducer, buffers, aligned=True)


def across_warp(
    b: GridBuilder, reducer: Reducer, accumulator: Accumulator, members: int
) -> Accumulator:
    """Of groups of so many threads of a warp that follow each other."""
    distance = members // 2
    while distance:
        other = tuple(b.exchange("xor", part, distance) for part in accumulator)
        accumulator = reducer.merge(b, accumulator, other)
        distance //= 2
    return accumulator


def across_block(
    b: GridBuilder, panels: Sequence[Panel], accumulators: Sequence[Accumulator], members: int,
    *, once: bool,
) -> list[Accumulator]:  # fmt: skip
    """Of all threads, which are `members`: warp by warp, then of the warps. once: whether a row
    meets nowhere else, see Note [Barriers]."""
    warps = members // WARP
    of_warps = [
        across_warp(b, panel.reducer, accumulator, WARP)
        for panel, accumulator in zip(panels, accumulators, strict=True)
    ]

    def save() -> None:
        for panel, accumulator in zip(panels, of_warps, strict=True):
            panel.store(accumulator, b.warp())

    if once:
        b.barrier()
    b.if_(b.compare("eq", b.lane(), 0), save)
    b.barrier()
    return [
        across_warp(b, panel.reducer, panel.load(b.thread_of_block() % warps, 0), warps)
        for panel in panels
    ]


@record
class Column:
    """Where members that are `together` threads apart meet: of each thread `lanes` accumulators."""

    b: GridBuilder
    members: int
    together: int
    lanes: int

    def save(self, panel: Panel, accumulator: Accumulator) -> None:
        panel.store(accumulator, self.b.thread_of_block() * max(self.lanes, 1))

    def merged(self, panel: Panel) -> Accumulator:
        """Of all members, behind a barrier."""
        return merge_all(self.b, panel.reducer, self.parts(panel))

    def parts(self, panel: Panel) -> list[Accumulator]:
        """What each member saved, behind a barrier."""
        lanes = max(self.lanes, 1)
        first, row = self.b.thread_of_block() % self.together * lanes, self.together * lanes
        return [panel.load(first + member * row, self.lanes) for member in range(self.members)]
