"""Kernels of `sort` regions.

Input: a region whose anchor is a `sort`. Output: its kernel. Invariant: sorts are stable, so
the result does not depend on how many threads share rows, or one row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from stagejit.codegen.choices import cheapest
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.cpu.sorting.radix import Radix
from stagejit.codegen.cpu.sorting.selection import Selection
from stagejit.codegen.cpu.sorting.shared_radix import SharedRadix
from stagejit.codegen.cpu.sorting.short import RowInRegisters, RowsInLanes
from stagejit.codegen.cpu.sorting.ways import Way
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.kernels import kernel_of
from stagejit.codegen.nest.tree import Parallel
from stagejit.codegen.sorting.rows import Rows, Shape
from stagejit.codegen.target import Target


def sort_kernel(region: ClosedRegion, target: Target) -> Kernel:
    """The kernel of a region of kind `sort`."""
    rows = Rows(region)
    ways: tuple[Way, ...] = (
        RowsInLanes(rows, target),
        RowInRegisters(rows, target),
        Selection(rows, target),
        Radix(rows, target),
        *SharedRadix.ways(rows, target),
    )
    ranked = cheapest(
        "sort",
        [way for way in ways if way.operations < math.inf],
        lambda way: way.operations,
        lambda way: way.name,
        "operations a row",
    )
    way = ranked.best
    number = math.prod(var.extent for var in rows.shape.kept)
    # Scalar operations are one a cycle: each waits for the one before, or for its place in memory.
    seconds = max(number * way.work / target.clock, region_seconds(region, target))

    def tree(shape: Shape, emitter: Emitter, memory: Sequence[Memory]) -> Parallel:
        rows.bind(emitter, memory)
        return way.items(target.cores)

    kernel = kernel_of(region, [rows.shape], tree, seconds, [ranked.choice])
    if way.passes == 1:
        return kernel
    passes = tuple((number,) for number in range(way.passes))
    return replace(kernel, passes=passes, workspaces=tuple(way.workspaces))
