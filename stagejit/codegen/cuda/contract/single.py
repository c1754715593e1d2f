"""Products whose sums have a thread each: what is too small, or too odd, for tiles.

Input: a plan. Output: the tree of its nest. Neighbouring threads have neighbours in most memory.
Invariant: a thread reads the elements that its sum needs, and stores what is made of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

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
from stagejit.codegen.nest.spans import Span
from stagejit.codegen.nest.tree import Cell, Do, Node, Parallel, Within, serial

_SECTORS_A_CYCLE = 4  # that the first cache gives
_LATENCY = 40.0  # cycles of a product whose factors are in the first cache
_THREADS = 256


def multiply_add(b: Builder, x: Register, y: Register, total: Register) -> Register:
    """`total + x * y`, rounded once."""
    return b.fma(x, y, total) if total.type.is_float else total + x * y


class SingleSums:
    """The tree of one nest."""

    def __init__(self, plan: Plan, emitter: ThreadEmitter, memory: Sequence[Memory]) -> None:
        self.plan, self.nest = plan, plan.nest
        self.emitter, self.elements, self.b = emitter, emitter.elements, emitter.b
        self.stores = Stores(plan.region, self.elements, memory, plan.offsets)
        self.total = Cell("sum")

    def tree(self) -> Parallel:
        order, choice = best_order(self.nest.axes, self.plan)
        self.emitter.chose(choice.name, choice.reason)
        steps = serial(self.nest.reduce, Do("multiply and add", self._step, (self.total,)))
        if self.nest.cut is not None:
            steps = Within("steps of the part", self._part, steps)
        sums = partial(sum_in, self.plan, self.emitter, self.total)
        store: Node = Within("sums", sums, Do("store", self._store))
        body = (Do("clear", self._clear, (self.total,)), steps, store)
        each = tuple((var, 1) for var in order)
        return Parallel(each, body, together=self.emitter.threads)

    def _part(self) -> AbstractContextManager[None]:
        return part_of(self.plan, self.emitter)

    def _clear(self) -> None:
        elem = element_type(self.nest.dtype)
        zero = self.b.const(self.nest.zero if elem.is_float else 0, elem)
        self.emitter.cells[self.total] = (zero,)

    def _step(self) -> None:
        x, y = (element_of(source, self.elements, self.nest.dtype) for source in self.plan.sources)
        (total,) = self.emitter.cells[self.total]
        self.emitter.cells[self.total] = (multiply_add(self.b, x, y, total),)

    def _store(self) -> None:
        self.stores.write(enumerate(self.plan.indices))


def sum_in(plan: Plan, emitter: ThreadEmitter, total: Cell) -> AbstractContextManager[None]:
    """The anchor's result is the sum that a cell has."""
    result = plan.region.anchor_op.result
    (register,) = emitter.cells[total]
    made = vmath.convert(emitter.b, register, plan.nest.dtype, result.type.dtype)
    return emitter.elements.giving(result, lambda: made)


def part_of(plan: Plan, emitter: ThreadEmitter) -> AbstractContextManager[None]:
    """As many steps as the part of a cut sum has where the loops stand."""
    cut, b = plan.nest.cut, emitter.b
    assert cut is not None
    at = emitter.elements.position.env.get(cut.part, b.const(0))
    is_last = b.compare("eq", at, cut.part.extent - 1)
    steps = b.select(is_last, b.const(cut.last), b.const(cut.step.extent))
    unit = math.gcd(cut.last, cut.step.extent)
    return emitter.covering({cut.step: Span(b.const(0), None, steps, fewest=cut.last, unit=unit)})


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
