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
from collections.abc import Callable, Sequence
from functools import partial

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.cpu.rows.reducers import identity_of
from stagejit.codegen.elements.elements import Memory, Stores
from stagejit.codegen.elements.footprint import Footprint
from stagejit.codegen.elements.loops import Loops, Walked, loops_of
from stagejit.codegen.elements.space import Space
from stagejit.codegen.elements.streaming import in_streams
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Buffer, element_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.items import in_items, panel_width
from stagejit.codegen.nest.kernels import kernel_of
from stagejit.codegen.nest.tree import At, Cell, Chunk, Do, Loop, Node, Parallel, serial, vectors
from stagejit.codegen.target import Target
from stagejit.errors import InternalError
from stagejit.index.affine import Affine, Index, Var, linearize
from stagejit.types import DType

# For accuracy, what a run comes to is added to what the runs before it came to.
_RUN = 2048  # elements of a run along vectors: a sum for each vector
_RUN_ROWS = 256  # of a run across vectors: a sum for each row
_ROWS_AT_ONCE = 4  # rows that pass while a running value is in a register


def cumulative_kernel(region: ClosedRegion, target: Target) -> Kernel:
    """The kernel of a region of kind `cumulative`."""
    loops = _plan(region, target)

    def tree(loops: Loops, emitter: Emitter, memory: Sequence[Memory]) -> Parallel:
        return _Policy(loops, emitter, memory).tree()

    return kernel_of(region, [loops], tree, region_seconds(region, target), loops.choices)


def _plan(region: ClosedRegion, target: Target) -> Loops:
    """Loops before, along and after the axis; the ones along it visit its elements in the order of
    accumulation."""
    op = region.anchor_op
    shape, axis = op.result.shape, op.attrs["axis"]

    def walk(footprint: Footprint, index: Index) -> Walked:
        if op.attrs["reverse"]:
            last = Affine((), shape[axis] - 1)
            index = (*index[:axis], last - index[axis], *index[axis + 1 :])
        footprint.value(op.operands[0], index)
        footprint.asked.append((op.result, index))
        places = [footprint.reshaped(index, shape, store.value.shape) for store in region.stores]
        return index, places, list(map(footprint.write, region.stores, places))

    groups = (range(axis), (axis,), range(axis + 1, len(shape)))
    loops = loops_of(region, target, Space(shape, "c"), groups, walk, {op.result})
    before, along, after = loops.groups
    return in_streams(loops.in_vectors((*after[::-1], *before[::-1], *along[-1:])))


class _Policy:
    """The loops of one cumulative region, and what they do."""

    def __init__(self, nest: Loops, emitter: Emitter, memory: Sequence[Memory]) -> None:
        self.nest, self.emitter, self.elements = nest, emitter, emitter.elements
        before, self.axis, after = nest.groups
        self.kept = (*before, *after)
        self.b, self.op, self.target = emitter.b, nest.region.anchor_op, nest.target
        self.fn: str = self.op.attrs["fn"]
        self.dtype = self.op.result.type.dtype
        self.held: DType = self.dtype.accumulator
        self.stores = Stores(nest.region, self.elements, memory, nest.offsets, nest.streamed)
        self.current: Register | None = None  # the running value, in `dtype`
        self.carry = Cell("carry")  # along the axis
        self.elements.bound[self.op.result] = self._read_result

    def tree(self) -> Parallel:
        vector = self.nest.vector
        if vector is None or vector in self.axis:
            return in_items([(var, 1) for var in self.kept], self._line(), self.target.cores)
        outer = [(var, 1) for var in self.kept if var is not vector]
        others = math.prod(var.extent for var, _ in outer)
        width = panel_width(vector.extent, self.nest.lanes, others, self.target.cores)
        panels = [self.b.scratch("running", element_type(self.held), width)]
        rows = math.prod(var.extent for var in self.axis)
        if self._in_runs and rows >= _RUN_ROWS:
            panels.append(self.b.scratch("before", element_type(self.held), width))
        lines = self._panel(vector, width, panels)
        return in_items([*outer, (vector, width)], lines, self.target.cores)

    @property
    def _in_runs(self) -> bool:
        """Whether roundings add up: a product's do so in any order, a maximum has none."""
        return self.fn in ("add", "logaddexp") and self.held.is_float

    def _read_result(self, index: Index) -> Register:
        if (
            linearize(index, self.op.result.shape)
            != linearize(self.nest.index, self.op.result.shape)
            or self.current is None
        ):
            raise InternalError(
                f"{self.op} is used at another element", step="codegen", loc=self.op.loc
            )
        return self.current

    # ---------------------------------------------------------------- arithmetic

    def _combine(self, first: Register, second: Register) -> Register:
        if self.fn == "logaddexp":
            return _log_add_exp(self.b, self.held, first, second)
        return vmath.emit(self.b, self.fn, self.held, [first, second])

    def _identity(self, lanes: int) -> Register:
        number = identity_of(self.fn, self.held)
        return self.b.const(number, element_type(self.held).with_lanes(lanes))

    def _operand(self) -> Register:
        element = self.elements.value(self.op.operands[0], self.nest.index)
        element = vmath.convert(self.b, element, self.dtype, self.held)
        return self.b.splat(element, self.nest.lanes) if self.nest.lanes else element

    def _store(self, running: Register) -> None:
        self.current = vmath.convert(self.b, running, self.held, self.dtype)
        self.stores.write(enumerate(self.nest.places))

    def _set(self, what: str, cell: Cell, register: Callable[[], Register]) -> Do:
        def run() -> None:
            self.emitter.cells[cell] = (register(),)

        return Do(what, run, (cell,))

    def _in(self, cell: Cell) -> Register:
        return self.emitter.cells[cell][0]

    # ---------------------------------------------------------------- a vector along the axis

    def _line(self) -> Node:
        """One line along the axis, from carry to carry."""
        others = [var for var in self.axis if var is not self.nest.vector]
        start = self._set("start", self.carry, lambda: self._identity(self.nest.lanes))
        return (start, serial(others, self._along()))

    def _along(self) -> Node:
        """The run along the vector variable."""
        vector, lanes = self.nest.vector, self.nest.lanes
        if vector is None:
            return self._set("add one", self.carry, self._one)
        full = vector.extent // lanes * lanes
        far = full // _RUN * _RUN if self._in_runs else 0
        scan = self._set("scan a vector", self.carry, lambda: self._vector(self.carry, None))
        chunks = [Chunk(lanes, scan, vector=True, tail="masked")]
        if far:
            chunks.insert(0, Chunk(_RUN, self._run(vector)))
        return Loop(vector, tuple(chunks))

    def _run(self, vector: Var) -> Node:
        """Starts from nothing; what it comes to is added to the carry at its end."""
        local = Cell("run")

        def end() -> Register:
            return self._combine(self._in(self.carry), self._in(local))

        scan = self._set("scan a vector", local, lambda: self._vector(local, self.carry))
        return (
            self._set("start", local, lambda: self._identity(self.nest.lanes)),
            Loop(vector, (Chunk(self.nest.lanes, scan, vector=True),)),
            self._set("end the run", self.carry, end),
        )

    def _one(self) -> Register:
        running = self._combine(self._in(self.carry), self._operand())
        self._store(running)
        return running

    def _vector(self, cell: Cell, before: Cell | None) -> Register:
        """Stores a vector; the running value is `before`, then `cell`, then the vector's own."""
        lanes, used = self.nest.lanes, self.elements.used_lanes()
        assert used is not None
        scanned = self._scan(self._operand())
        last = self.b.shuffle(scanned, None, (used - 1,) * lanes) if used == lanes else None
        running = self._combine(self._in(cell), scanned)
        self._store(running if before is None else self._combine(self._in(before), running))
        if last is None:
            return self.b.shuffle(running, None, (used - 1,) * lanes)
        return self._combine(self._in(cell), last)  # all that joins one vector to the next

    def _scan(self, register: Register) -> Register:
        """Lane k becomes the combination of lanes 0 to k (Hillis and Steele, 1986)."""
        lanes = register.type.lanes
        identity = self._identity(lanes)
        if identity.const == 0 and not self.held.is_float:
            # LLVM shifts zeros in by a slow expansion, if it knows that they are zeros.
            zero = self.b.binary("smin", self.b.lo, 0)
            elem = identity.type.elem
            narrow = self.b.cast("trunc", zero, elem) if elem != "i64" else zero
            identity = self.b.splat(narrow, lanes)
        distance = 1
        while distance < lanes:
            shifted = self.b.shuffle(
                register,
                identity,
                [lane - distance if lane >= distance else lanes for lane in range(lanes)],
            )
            register = self._combine(shifted, register)
            distance *= 2
        return register

    # ---------------------------------------------------------------- a line in each lane

    def _panel(self, vector: Var, width: int, panels: Sequence[Buffer]) -> Node:
        """Lines side by side, all along the axis. The first panel has their running values, the
        second, if there is one, what the runs before came to."""
        b, lanes, column = self.b, self.nest.lanes, Var(width, "column")
        running, *before = panels

        def clear(panel: Buffer) -> None:
            b.store(self._identity(lanes), panel, self.elements.position.env[column])

        def add() -> None:
            at = self.elements.position.env[column]
            total = self._combine(b.load(before[0], at, lanes), b.load(running, at, lanes))
            b.store(total, before[0], at)
            b.store(self._identity(lanes), running, at)

        starts = [vectors(column, lanes, Do("start", partial(clear, panel))) for panel in panels]
        end_run: Node = vectors(column, lanes, Do("end the run", add)) if before else ()
        across = partial(self._across, vector, panels)
        return (*starts, self._over_rows(self.axis, across, end_run))

    def _over_rows(self, axis: Sequence[Var], across: Callable[[int], Node], end_run: Node) -> Node:
        """Loops over the axis; `across(count)` handles `count` rows from the current one."""
        if not axis:
            return across(1)
        var, *inner = axis
        if inner:
            return serial([var], (self._over_rows(inner, across, end_run), end_run))
        chunks = [Chunk(rows, across(rows)) for rows in (_ROWS_AT_ONCE, 1)]
        if self._in_runs:
            run = (Loop(var, tuple(chunks[:1])), end_run)
            chunks.insert(0, Chunk(_RUN_ROWS, run))
        return Loop(var, tuple(chunks))

    def _across(self, vector: Var, panels: Sequence[Buffer], count: int) -> Node:
        """Some rows of the panels, vector by vector."""
        row = self.axis[-1] if self.axis else None
        running, *before = cells = [Cell(panel.name) for panel in panels]

        def load() -> None:
            at = self.emitter.offset(vector)
            for panel, cell in zip(panels, cells, strict=True):
                self.emitter.cells[cell] = (self.b.load(panel, at, self.nest.lanes),)

        def one() -> Register:
            combined = self._combine(self._in(running), self._operand())
            self._store(self._combine(self._in(before[0]), combined) if before else combined)
            return combined

        def save() -> None:
            self.b.store(self._in(running), panels[0], self.emitter.offset(vector))

        add = self._set("add one", running, one)
        rows = [At(((row, number),) if row else (), add) for number in range(count)]
        body: Node = (Do("load", load, tuple(cells)), *rows, Do("save", save))
        return vectors(vector, self.nest.lanes, body)


def _log_add_exp(b: Builder, dtype: DType, x: Register, y: Register) -> Register:
    """log(exp(x) + exp(y)) as JAX writes it: max + log1p(exp(-|x - y|)), infinities apart."""

    def emit(fn: str, *args: Register) -> Register:
        return vmath.emit(b, fn, dtype, list(args))

    delta = emit("sub", x, y)
    decay = emit("exp", emit("neg", emit("abs", delta)))
    total = emit("add", emit("max", x, y), emit("log1p", decay))
    return b.select(b.compare("uno", delta, delta), emit("add", x, y), total)
