"""Kernels of `cumulative` regions for a GPU: running sums, products, maxima, minima and log-sums of
exponentials.

Input: a region whose anchor is a `cumulative` op. Output: its kernel. Where lines lie next to each
other a thread goes along each; where a line is contiguous, threads of a warp or of a block follow
each other along it. Invariant: as in `policies.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from stagejit.codegen.choices import Ranked, cheapest
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import element_code, region_seconds, widest_nbytes
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.kernels import grid_kernel
from stagejit.codegen.cuda.rows.mapping import (
    BARRIER,
    EXCHANGE,
    LATENCY,
    Mapping,
    bandwidth_of,
    block_of,
    powers,
    traffic,
    widths,
)
from stagejit.codegen.cuda.scans.policies import (
    ChunkScan,
    ColumnScan,
    LineScan,
    NeighbourScan,
)
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.nest.tree import Parallel
from stagejit.codegen.places.loops import Loops
from stagejit.codegen.rows.scans import ROWS_AT_ONCE, scan_loops

_MET_NBYTES = 128  # of what members of a line come to, in registers of each
_LOG_SUM = 30.0  # operations of a sum of exponentials for one of a sum


def cumulative_kernel(region: ClosedRegion, device: Device) -> Kernel:
    """The kernel of a region of kind `cumulative`."""
    loops = scan_loops(region, device)
    ranked = best_scan(loops, device)
    mapping = ranked.best

    def tree(loops: Loops, emitter: ThreadEmitter, memory: Sequence[Memory]) -> Parallel:
        return _policy(mapping)(loops, mapping, emitter, memory).tree()

    seconds = region_seconds(region, device)
    return grid_kernel(
        region, device, [loops], tree, seconds, threads=mapping.threads, choices=[ranked.choice]
    )


def _policy(mapping: Mapping) -> type[LineScan] | type[ChunkScan]:
    if not mapping.rows_are_neighbours:
        return NeighbourScan
    return ColumnScan if mapping.members > 1 else LineScan


def best_scan(loops: Loops, device: Device) -> Ranked[Mapping]:
    """The cheapest way for threads to share lines."""
    found = list(ways(loops, device))
    return cheapest("lines", found, lambda m: 1e6 * seconds_of(loops, m, device), str, "us")


def ways(loops: Loops, device: Device) -> Iterator[Mapping]:
    """All that there are, those with fewer threads a line first. A line that a thread goes along by
    itself is one of neighbours even where there is no other."""
    before, axis, after = loops.groups
    kept, held = [*before, *after], loops.region.anchor_op.result.type.dtype.accumulator
    lanes = max(16 // max(widest_nbytes(loops.region), held.itemsize), 1)
    most = _MET_NBYTES // (2 if held.itemsize > 4 else 1)  # to compare pairs takes more of them
    lines = math.prod(var.extent for var in kept)
    last = axis[-1] if axis else None
    if not kept:
        yield Mapping(None, None, 1, 1, WARP, True)
    for fast in reversed(kept):
        for width in widths(loops, fast, lanes):
            for members in powers(WARP):
                if members > 1 and (last is None or members * ROWS_AT_ONCE >= 2 * last.extent):
                    break
                if members > 1 and members * width * held.itemsize > most:
                    break
                threads = members * WARP if members > 1 else block_of(lines // width, 1, device)
                yield Mapping(fast, last, members, width, threads, True)
    if last is None:
        return
    for width in widths(loops, last, lanes):
        for members in powers(device.threads_a_block):
            if members > 1 and members * width >= 2 * last.extent:
                break
            threads = members if members > WARP else block_of(lines, members, device)
            yield Mapping(last, last, members, width, threads, False)


def seconds_of(loops: Loops, mapping: Mapping, device: Device) -> float:
    """Of all lines: of memory, the nearest cache or instructions what takes longest, and what
    chunks of a line wait for each other."""
    before, axis, after = loops.groups
    lines, length = (math.prod(v.extent for v in part) for part in ((*before, *after), axis))
    items = lines // mapping.lanes if mapping.rows_are_neighbours else lines
    at_once = ROWS_AT_ONCE if mapping.rows_are_neighbours else 1
    elements = mapping.step * at_once
    nbytes = widest_nbytes(loops.region) * mapping.lanes * at_once
    far, near = traffic(loops, mapping, (), 1)
    busy = min(-(-items // mapping.together), device.cores) / device.cores
    add = _LOG_SUM if loops.region.anchor_op.attrs["fn"] == "logaddexp" else 1.0
    chunks = -(-length // elements)
    meets = mapping.members if mapping.rows_are_neighbours else math.log2(mapping.members)
    meets *= mapping.members > 1
    each = mapping.lanes * at_once * (element_code(loops.region) + 2 * add)
    each += meets * (add + 4) * (mapping.lanes if mapping.rows_are_neighbours else 1)
    issued = items * mapping.members * chunks * each
    work = max(
        far / bandwidth_of(items, mapping, nbytes, device),
        near / (busy * device.cores * device.l2_bandwidth),
        2 * issued / (busy * device.f32_flops),
    )
    waits = 0.0
    if mapping.rows_are_neighbours:
        waits = 2 * BARRIER + 2e-9 * add * meets if mapping.members > 1 else 0.0
    else:
        waits = meets * EXCHANGE * math.sqrt(add) + (2 * BARRIER if mapping.members > WARP else 0.0)
    waves = max(1.0, items * mapping.members / device.threads)
    return work + waves * chunks * (LATENCY + waits)
