"""Kernels of `cumulative` regions: running sums, products, maxima, minima and log-sums of
exponentials.

Input: a region whose anchor is a `cumulative` op. Output: its kernel. The other dimensions are
the items. Where the axis is contiguous, a vector lies along it: its lanes are combined by shifts,
and a carry joins vectors. Where another dimension is, each lane runs on its own, and a panel of
running values stays in the nearest cache while rows stream past. Invariant: each stored element
is written once, by one item, and the order of accumulation depends on shapes and lanes only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.nest.items import (
    in_items,
    panel_in_words,
    panel_width,
)
from stagejit.codegen.nest.kernels import kernel_of
from stagejit.codegen.nest.tree import At, Cell, Chunk, Do, Loop, Node, Parallel, serial, vectors
from stagejit.codegen.reducers import Accumulator, Panel
from stagejit.codegen.rows.scans import ROWS_AT_ONCE, ScanPolicy, scan_loops
from stagejit.codegen.target import Target
from stagejit.index.affine import Var

# For accuracy, what a run comes to is added to what the runs before it came to.
_RUN = 2048  # elements of a run along vectors: a sum for each vector
_RUN_ROWS = 256  # of a run across vectors: a sum for each row


def cumulative_kernel(region: ClosedRegion, target: Target) -> Kernel:
    """The kernel of a region of kind `cumulative`."""
    loops = scan_loops(region, target)
    before, along, after = loops.groups
    loops = loops.in_vectors((*after[::-1], *before[::-1], *along[-1:])).in_streams()
    seconds = region_seconds(region, target)
    return kernel_of(
        region, [loops], lambda *at: _Policy(*at).tree(), seconds, loops.choices, target
    )


class _Policy(ScanPolicy):
    """The loops of one cumulative region, and what they do."""

    def shifted_in(self) -> Register:
        (identity,) = self.nothing()
        if identity.const != 0 or self.reducer.dtype.is_float:
            return identity
        # LLVM shifts zeros in by a slow expansion, if it knows that they are zeros.
        zero = self.b.binary("smin", self.b.lo, 0)
        elem = identity.type.elem
        narrow = self.b.cast("trunc", zero, elem) if elem != "i64" else zero
        return self.b.splat(narrow, self.lanes)

    def tree(self) -> Parallel:
        vector, rows = self.nest.vector, math.prod(var.extent for var in self.axis)
        along = vector is None or vector in self.axis
        run = _RUN if along else _RUN_ROWS
        if self.in_runs and rows > run:
            self.emitter.chose("runs", f"sums of {run} of {rows} elements meet the others")
        if vector is None or along:
            return in_items([(var, 1) for var in self.kept], self._line(), self.nest.target.cores)
        outer = [(var, 1) for var in self.kept if var is not vector]
        ahead, cores = self.nest.ahead, self.nest.target.cores
        if ahead and self.axis:  # the rows that come next
            self.elements.ahead = ahead.along(self.axis[-1], ROWS_AT_ONCE)
        lanes, target = self.nest.lanes, self.nest.target
        seconds = region_seconds(self.nest.region, target)
        width = panel_width(self.kept, vector, lanes, target, seconds, far=ahead is not None)
        self.emitter.chose("panel", panel_in_words(vector, width, cores))
        panels = [Panel.of(self.b, self.reducer, "running", width)]
        if self.in_runs and rows >= _RUN_ROWS:
            panels.append(Panel.of(self.b, self.reducer, "before", width))
        lines = self._panel(vector, width, panels)
        return in_items([*outer, (vector, width)], lines, self.nest.target.cores)

    # ---------------------------------------------------------------- a vector along the axis

    def _line(self) -> Node:
        """One line along the axis, from carry to carry."""
        others = [var for var in self.axis if var is not self.nest.vector]
        return (self.set("start", self.carry, self.nothing), serial(others, self._along()))

    def _along(self) -> Node:
        """The run along the vector variable."""
        vector, lanes = self.nest.vector, self.nest.lanes
        if vector is None:
            return self.set("add one", self.carry, self._one)
        full = vector.extent // lanes * lanes
        far = full // _RUN * _RUN if self.in_runs else 0
        scan = self.set("scan a vector", self.carry, lambda: self._vector(self.carry, None))
        chunks = [Chunk(lanes, scan, vector=True, tail="masked")]
        if far:
            chunks.insert(0, Chunk(_RUN, self._run(vector)))
        return Loop(vector, tuple(chunks))

    def _run(self, vector: Var) -> Node:
        """Starts from nothing; what it comes to is added to the carry at its end."""
        local = Cell("run")

        def joined() -> Accumulator:
            return self.merged(self.held(self.carry), self.held(local))

        scan = self.set("scan a vector", local, lambda: self._vector(local, self.carry))
        return (
            self.set("start", local, self.nothing),
            Loop(vector, (Chunk(self.nest.lanes, scan, vector=True),)),
            self.set("end the run", self.carry, joined),
        )

    def _one(self) -> Accumulator:
        running = self.merged(self.held(self.carry), self.operand())
        self.store(running)
        return running

    def _vector(self, cell: Cell, before: Cell | None) -> Accumulator:
        """Stores a vector; the running value is `before`, then `cell`, then the vector's own."""
        lanes, used = self.nest.lanes, self.elements.used_lanes()
        assert used is not None
        (scanned,) = self.scanned(self.operand())
        last = self.b.shuffle(scanned, None, (used - 1,) * lanes) if used == lanes else None
        running = self.merged(self.held(cell), (scanned,))
        self.store(running if before is None else self.merged(self.held(before), running))
        if last is None:
            return (self.b.shuffle(running[0], None, (used - 1,) * lanes),)
        return self.merged(self.held(cell), (last,))  # all that joins one vector to the next

    # ---------------------------------------------------------------- a line in each lane

    def _panel(self, vector: Var, width: int, panels: Sequence[Panel]) -> Node:
        """Lines side by side, all along the axis. The first panel has their running values, the
        second, if there is one, what the runs before came to."""
        lanes, column = self.nest.lanes, Var(width, "column")
        running, *before = panels

        def clear(panel: Panel) -> None:
            panel.store(self.nothing(), self.elements.position.env[column])

        def add() -> None:
            at = self.elements.position.env[column]
            total = self.merged(before[0].load(at, lanes), running.load(at, lanes))
            before[0].store(total, at)
            clear(running)

        def clear_all() -> None:
            for panel in panels:
                clear(panel)

        start = vectors(column, lanes, Do("start", clear_all))
        end_run: Node = vectors(column, lanes, Do("end the run", add)) if before else ()
        across, run = partial(self._across, vector, panels), _RUN_ROWS if self.in_runs else 0
        return (start, self.along(self.axis, across, end_run, run))

    def _across(self, vector: Var, panels: Sequence[Panel], count: int) -> Node:
        """Some rows of the panels, vector by vector."""
        row = self.axis[-1] if self.axis else None
        running, *before = all_cells = [Cell("running"), Cell("before")][: len(panels)]

        def load() -> Iterator[Accumulator]:
            at = self.emitter.offset(vector)
            return (panel.load(at, self.nest.lanes) for panel in panels)

        def one() -> Accumulator:
            total = self.merged(self.held(running), self.operand())
            self.store(self.merged(self.held(before[0]), total) if before else total)
            return total

        def save() -> None:
            panels[0].store(self.held(running), self.emitter.offset(vector))

        add = self.set("add one", running, one)
        rows = [At(((row, number),) if row else (), add) for number in range(count)]
        body: Node = (self.emitter.set("load", all_cells, load), *rows, Do("save", save))
        return vectors(vector, self.nest.lanes, body)
