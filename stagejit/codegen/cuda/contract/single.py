"""Products whose sums have a thread each: what is too small, or too odd, for tiles.

Input: a plan. Output: the tree of its nest. Neighbouring threads have neighbours in most memory.
Invariant: a thread reads the elements that its sum needs, and stores what is made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from stagejit.codegen.contraction.parts import in_part
from stagejit.codegen.cuda.coalescing import best_order, sectors
from stagejit.codegen.cuda.contract.operands import element_of
from stagejit.codegen.cuda.contract.plan import Plan
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.elements.stores import Stores
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.nest.tree import Cell, Do, Node, Parallel, Within, serial
from stagejit.index.affine import Var

_SECTORS_A_CYCLE = 4  # that the first cache gives
_LATENCY = 40.0  # cycles of a product whose factors are in the first cache
_THREADS = 256


def multiply_add(b: Builder, x: Register, y: Register, total: Register) -> Register:
    """`total + x * y`, rounded once."""
    return b.fma(x, y, total) if total.type.is_float else total + x * y


class SingleSums:
    """The tree of one nest. lanes: of a sum."""

    lanes = 0

    def __init__(self, plan: Plan, emitter: ThreadEmitter, memory: Sequence[Memory]) -> None:
        self.plan, self.nest = plan, plan.nest
        self.emitter, self.elements, self.b = emitter, emitter.elements, emitter.b
        self.stores = Stores(plan.region, self.elements, memory, plan.offsets)
        self.elem, self.total = element_type(self.nest.dtype), Cell("sum")

    def tree(self) -> Parallel:
        order, choice = best_order(self.nest.axes, self.plan)
        self.emitter.chose(choice.name, choice.reason)
        return self._whole(order, serial(self.nest.reduce, self._added))

    def _whole(
        self, axes: Sequence[Var], steps: Node, meet: Node = (), members: int = 1
    ) -> Parallel:
        """A sum for each position of axes. meet: comes behind the steps; members: threads of a
        sum."""
        store: Node = Within("sums", self._sum, Do("store", self._store))
        steps = in_part(self.nest, self.emitter, steps)
        body = (Do("clear", self._clear, (self.total,)), steps, meet, store)
        each = tuple((var, 1) for var in axes)
        return Parallel(each, body, together=self.emitter.threads // members)

    def _clear(self) -> None:
        zero = self.nest.zero if self.elem.is_float else 0
        self.emitter.cells[self.total] = (self.b.const(zero, self.elem.with_lanes(self.lanes)),)

    @property
    def _added(self) -> Do:
        return Do("multiply and add", self._step, (self.total,))

    def _step(self) -> None:
        x, y = (element_of(source, self.elements, self.nest.dtype) for source in self.plan.sources)
        (total,) = self.emitter.cells[self.total]
        made, mask = multiply_add(self.b, x, y, total), self.elements.position.mask
        if mask is not None:  # lanes past the end hold +0, which is not neutral
            made = self.b.select(mask, made, total)
        self.emitter.cells[self.total] = (made,)

    def _store(self) -> None:
        self.stores.write(enumerate(self.plan.indices))

    def _sum(self) -> AbstractContextManager[None]:
        """The anchor's result is the sum that the cell has."""
        result, (total,) = self.plan.region.anchor_op.result, self.emitter.cells[self.total]
        made = vmath.convert(self.b, total, self.nest.dtype, result.type.dtype)
        return self.elements.giving(result, lambda: made)


def single_seconds(plan: Plan, device: Device) -> float:
    """Each product loads both factors, a cycle of the first cache or more for the threads of a
    warp; where there are fewer sums than threads, some have nothing to do."""
    order, _ = best_order(plan.nest.axes, plan)
    along = order[-1:] if order else []
    touched = sum(
        max(sectors(form, var, value.type.dtype.itemsize) * WARP / _SECTORS_A_CYCLE, 1.0)
        for source in plan.sources
        for value, form in source.reads
        for var in along
    )
    cycles = max(touched, 1.0) * plan.sums * max(plan.steps, 1) / WARP
    waiting = _LATENCY * max(plan.steps, 1)  # of each thread, one product after the other
    clock = device.peak_flops / 256
    shares = min(device.cores, -(-plan.sums // _THREADS))
    rounds = -(-plan.sums // device.threads)
    return max(cycles / shares, waiting * rounds) / clock
