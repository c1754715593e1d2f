"""Running values across the threads of a warp, or of a block.

Input: what each thread's elements come to, in registers. Output: for each thread what all before it
come to, and what all come to. Invariant: all threads of the warp, or of the block, take part; the
order of accumulation is that of the threads.
"""

from __future__ import annotations

from stagejit.base.records import record
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.reducers import Accumulator, Panel, Reducer, chosen


@record
class Scanned:
    """before: what all threads before this one come to; total: all of them."""

    before: Accumulator
    total: Accumulator


def across_group(
    b: GridBuilder, reducer: Reducer, own: Accumulator, member: Register, members: int
) -> Scanned:
    """Of groups of so many threads of a warp that follow each other (Hillis and Steele, 1986)."""
    nothing = reducer.initial(b, 0)
    running, distance = own, 1
    while distance < members:
        there = b.compare("ge", member, distance)
        merged = reducer.merge(b, _up(b, running, distance), running)
        running = chosen(b, there, merged, running)
        distance *= 2
    before = chosen(b, b.compare("gt", member, 0), _up(b, running, 1), nothing)
    last = b.lane() - member + (members - 1)
    return Scanned(before, tuple(b.exchange("idx", part, last) for part in running))


def across_block(b: GridBuilder, panel: Panel, own: Accumulator, members: int) -> Scanned:
    """Of all threads, which are `members`: warp by warp, then of the warps. Nobody has read the
    panel since the last barrier."""
    reducer, warps = panel.reducer, members // WARP
    lane, warp = b.lane(), b.warp()
    inside = across_group(b, reducer, own, lane, WARP)
    b.if_(b.compare("eq", lane, 0), lambda: panel.store(inside.total, warp))
    b.barrier()
    place = lane % warps
    of_warps = across_group(b, reducer, panel.load(place, 0), place, warps)
    first = tuple(b.exchange("idx", part, warp) for part in of_warps.before)
    return Scanned(reducer.merge(b, first, inside.before), of_warps.total)


def _up(b: GridBuilder, accumulator: Accumulator, distance: int) -> Accumulator:
    return tuple(b.exchange("up", part, distance) for part in accumulator)
