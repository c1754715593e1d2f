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

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.elements.elements import Elements, Memory
from stagejit.codegen.elements.items import Items, Loop, in_vectors, nested, panel_width
from stagejit.codegen.elements.stores import Stores, bind_memory
from stagejit.codegen.elements.streaming import streamed_stores
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Buffer, element_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.rows.cumulative_plan import Nest, plan
from stagejit.codegen.rows.reducers import identity_of
from stagejit.codegen.target import Target
from stagejit.errors import InternalError
from stagejit.index.affine import Index, Var, linearize
from stagejit.types import DType

# For accuracy, what a run comes to is added to what the runs before it came to.
_RUN = 2048  # elements of a run along vectors: a sum for each vector
_RUN_ROWS = 256  # of a run across vectors: a sum for each row
_ROWS_AT_ONCE = 4  # rows that pass while a running value is in a register


def cumulative_kernel(region: ClosedRegion, target: Target) -> Kernel:
    """The kernel of a region of kind `cumulative`."""
    nest = plan(region, target)
    builder = Builder(calls=region.calls)
    memory, stores, args = bind_memory(builder, region, nest.reads, nest.offsets)
    elements = Elements(builder, memory)
    total = _Writer(region, nest, elements, stores, target).emit()
    elements.bound.clear()  # a cycle: they read through the writer
    return Kernel(builder.finish(), args, (), total, region_seconds(region, target))


# -------------------------------------------------------------------- emission


class _Writer:
    """Emits the loops of one cumulative region."""

    def __init__(
        self,
        region: ClosedRegion,
        nest: Nest,
        elements: Elements,
        memory: Sequence[Memory],
        target: Target,
    ) -> None:
        self.nest, self.elements = nest, elements
        self.b, self.op, self.target = elements.b, region.anchor_op, target
        self.fn: str = self.op.attrs["fn"]
        self.dtype = self.op.result.type.dtype
        self.held: DType = self.dtype.accumulator
        streamed = streamed_stores(
            region, nest.reads, nest.offsets, nest.vector, nest.lanes, target
        )
        self.stores = Stores(region, elements, memory, nest.offsets, streamed)
        self.current: Register | None = None  # the running value, in `dtype`
        elements.bound[self.op.result] = self._read_result

    def emit(self) -> int:
        """Writes the kernel's body; returns the number of items."""
        vector = self.nest.vector
        if vector is None or vector in self.nest.axis:
            items = Items.over([Loop(var) for var in self.nest.kept])
            items.emit(self.elements, self._line)
            return items.total
        outer = [Loop(var) for var in self.nest.kept if var is not vector]
        others = math.prod(loop.trips for loop in outer)
        width = panel_width(vector.extent, self.nest.lanes, others, self.target.cores)
        items = Items.over([*outer, Loop(vector, width)])
        panels = [self.b.scratch("running", element_type(self.held), width)]
        rows = math.prod(var.extent for var in self.nest.axis)
        if self._in_runs and rows >= _RUN_ROWS:
            panels.append(self.b.scratch("before", element_type(self.held), width))
        items.emit(self.elements, lambda: self._panel(vector, width, panels))
        return items.total

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
        if self.fn == "logaddexp":
            number: int | float = -math.inf
        else:
            number = identity_of(self.fn, self.held)
        return self.b.const(number, element_type(self.held).with_lanes(lanes))

    def _operand(self) -> Register:
        element = self.elements.value(self.op.operands[0], self.nest.index)
        element = vmath.convert(self.b, element, self.dtype, self.held)
        return self.b.splat(element, self.nest.lanes) if self.nest.lanes else element

    def _store(self, running: Register) -> None:
        self.current = vmath.convert(self.b, running, self.held, self.dtype)
        self.stores.write(list(enumerate(self.nest.places)))

    # ---------------------------------------------------------------- a vector along the axis

    def _line(self) -> None:
        """One line along the axis, from carry to carry."""
        loops = [Loop(var) for var in self.nest.axis if var is not self.nest.vector]
        start = self._identity(self.nest.lanes)
        nested(self.elements, loops, lambda carry: (self._along(carry),), (start,))

    def _along(self, carry: Register) -> Register:
        """The run along the vector variable."""
        vector, lanes = self.nest.vector, self.nest.lanes
        if vector is None:
            running = self._combine(carry, self._operand())
            self._store(running)
            return running
        full = vector.extent // lanes * lanes
        far = full // _RUN * _RUN if self._in_runs else 0

        def run(start: Register, before: Register) -> Sequence[Register]:
            local = self._vectors(start, start + _RUN, self._identity(lanes), before)
            return (self._combine(before, local),)

        if far:
            carry = self.b.loop(0, far, _RUN, (carry,), run)[0]
        if full > far:
            carry = self._vectors(self.b.const(far), self.b.const(full), carry, None)
        if vector.extent > full:
            carry = self._rest(vector, full, carry)
        return carry

    def _vectors(
        self, start: Register, stop: Register, carry: Register, before: Register | None
    ) -> Register:
        """Full vectors; the running value is `before`, then `carry`, then the vector's own."""
        vector, lanes = self.nest.vector, self.nest.lanes
        assert vector is not None

        def body(position: Register, value: Register) -> Sequence[Register]:
            with self.elements.at({vector: position}, vector=vector, lanes=lanes):
                scanned = self._scan(self._operand())
                last = self.b.shuffle(scanned, None, (lanes - 1,) * lanes)
                running = self._combine(value, scanned)
                self._store(running if before is None else self._combine(before, running))
            # The chain from vector to vector is this one operation.
            return (self._combine(value, last),)

        return self.b.loop(start, stop, lanes, (carry,), body, runs=True)[0]

    def _rest(self, vector: Var, full: int, carry: Register) -> Register:
        lanes, used = self.nest.lanes, vector.extent - full
        with self.elements.at(
            {vector: self.b.const(full)},
            vector=vector,
            lanes=lanes,
            mask=self.b.active(used, lanes),
        ):
            running = self._combine(carry, self._scan(self._operand()))
            self._store(running)
        return self.b.shuffle(running, None, (used - 1,) * lanes)

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

    def _panel(self, vector: Var, width: int, panels: Sequence[Buffer]) -> None:
        """Lines side by side, all along the axis. The first panel has their running values, the
        second, if there is one, what the runs before came to."""
        b, lanes = self.b, self.nest.lanes
        start = self.elements.position.env[vector]
        identity = self._identity(lanes)
        for panel in panels:
            b.loop(0, width, lanes, (), lambda at, panel=panel: b.store(identity, panel, at))

        running, *before = panels

        def add(at: Register) -> None:
            total = self._combine(b.load(before[0], at, lanes), b.load(running, at, lanes))
            b.store(total, before[0], at)
            b.store(identity, running, at)

        def end_run() -> None:
            if before:
                b.loop(0, width, lanes, (), add)

        self._over_rows(0, lambda count: self._across(vector, width, start, panels, count), end_run)

    def _over_rows(
        self, depth: int, body: Callable[[int], None], end_run: Callable[[], None]
    ) -> None:
        """Loops over the axis; `body(count)` handles `count` rows from the current one."""
        axis = self.nest.axis
        if not axis:
            body(1)
            return
        b, var = self.b, axis[depth]

        def rows(start: Register, stop: Register, step: int) -> None:
            def at(position: Register) -> None:
                with self.elements.at({var: position}):
                    body(step)

            b.loop(start, stop, step, (), at)

        def run(start: Register) -> None:
            rows(start, start + _RUN_ROWS, _ROWS_AT_ONCE)
            end_run()

        def outer(position: Register) -> None:
            with self.elements.at({var: position}):
                self._over_rows(depth + 1, body, end_run)
            end_run()

        if depth < len(axis) - 1:
            b.loop(0, var.extent, 1, (), outer)
            return
        far = var.extent // _RUN_ROWS * _RUN_ROWS if self._in_runs else 0
        blocks = var.extent // _ROWS_AT_ONCE * _ROWS_AT_ONCE
        if far:
            b.loop(0, far, _RUN_ROWS, (), run)
        if blocks > far:
            rows(b.const(far), b.const(blocks), _ROWS_AT_ONCE)
        if blocks < var.extent:
            rows(b.const(blocks), b.const(var.extent), 1)

    def _across(
        self, vector: Var, width: int, start: Register, panels: Sequence[Buffer], count: int
    ) -> None:
        """Some rows of the panels, vector by vector."""
        in_vectors(
            self.elements,
            Loop(vector, width),
            self.nest.lanes,
            lambda: self._rows(panels, self.elements.position.env[vector] - start, count),
        )

    def _rows(self, panels: Sequence[Buffer], at: Register, count: int) -> None:
        axis = self.nest.axis[-1] if self.nest.axis else None
        running, *before = (self.b.load(panel, at, self.nest.lanes) for panel in panels)
        for row in range(count):
            env = {axis: self.elements.position.env[axis] + row} if axis else {}
            with self.elements.at(env):
                running = self._combine(running, self._operand())
                self._store(self._combine(before[0], running) if before else running)
        self.b.store(running, panels[0], at)


def _log_add_exp(b: Builder, dtype: DType, x: Register, y: Register) -> Register:
    """log(exp(x) + exp(y)) as JAX writes it: max + log1p(exp(-|x - y|)), infinities apart."""

    def emit(fn: str, *args: Register) -> Register:
        return vmath.emit(b, fn, dtype, list(args))

    delta = emit("sub", x, y)
    decay = emit("exp", emit("neg", emit("abs", delta)))
    total = emit("add", emit("max", x, y), emit("log1p", decay))
    return b.select(b.compare("uno", delta, delta), emit("add", x, y), total)
