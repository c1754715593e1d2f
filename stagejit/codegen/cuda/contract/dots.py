"""Products whose sums some threads of a warp share: few and long ones, such as those of a matrix
and a vector.

Input: a plan. Output: the tree of its nest. Each thread of a group sums up some steps, neighbours
at once where memory has them, then the group adds up what its threads have. Invariant: all threads
of a warp exchange registers; one of each group stores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_

from stagejit.base.records import record
from stagejit.codegen.cuda.coalescing import sectors
from stagejit.codegen.cuda.contract.plan import Plan
from stagejit.codegen.cuda.contract.sides import neighbours
from stagejit.codegen.cuda.contract.single import SingleSums
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.nest.tree import Do, Parallel, serial, vectors
from stagejit.index.affine import Var

_LATENCY = 400.0  # cycles until what a thread has asked for is there
_AT_ONCE = 4  # turns of a thread whose loads are on their way together
_THREADS = 256  # of a block
_SECTORS_A_CYCLE = 4  # that the first cache of a multiprocessor gives


@record
class Dot:
    """members: threads of a sum. along: the variable whose steps they share, `lanes` each."""

    members: int
    along: Var
    lanes: int

    def __str__(self) -> str:
        return (
            f"{self.members} threads for each sum, {self.lanes} neighbours each along "
            f"{self.along.name} of {self.along.extent}"
        )


def dots(plan: Plan) -> Iterator[Dot]:
    """All ways to share a sum."""
    for var in plan.nest.reduce:
        lanes = min(neighbours(plan, source, var) for source in plan.sources)
        for members in (4, 8, 16, WARP):
            if members <= var.extent:
                yield Dot(members, var, lanes)


def dot_seconds(plan: Plan, dot: Dot, device: Device) -> float:
    """The busier of the first caches and of threads that wait for them."""
    turns = plan.steps // dot.along.extent * -(-dot.along.extent // (dot.members * dot.lanes))
    touched = sum(
        max(sectors(form, dot.along, value.type.dtype.itemsize) * dot.lanes * dot.members, 1.0)
        for source in plan.sources
        for value, form in source.reads
    )
    blocks = -(-plan.sums * dot.members // _THREADS)
    cores = min(device.cores, blocks)
    rounds = math.ceil(plan.sums * dot.members / device.threads)
    caches = plan.sums * turns * touched / _SECTORS_A_CYCLE / cores
    waiting = rounds * -(-turns // _AT_ONCE) * _LATENCY
    return max(caches, waiting + _LATENCY) * 256 / device.peak_flops


class DotSums(SingleSums):
    """The tree of one nest."""

    def __init__(
        self, plan: Plan, dot: Dot, emitter: ThreadEmitter, memory: Sequence[Memory]
    ) -> None:
        super().__init__(plan, emitter, memory)
        self.dot, self.lanes = dot, dot.lanes if dot.lanes > 1 else 0

    def tree(self) -> Parallel:
        dot, others = self.dot, [var for var in self.nest.reduce if var is not self.dot.along]
        steps = serial(others, vectors(dot.along, dot.members * dot.lanes, self._added))
        meet = Do("add what threads have", self._meet, (self.total,))
        return self._whole(self.nest.axes, steps, meet, dot.members)

    def _meet(self) -> None:
        """First the lanes of each thread, then the threads."""
        (total,) = self.emitter.cells[self.total]
        if total.type.lanes:
            total = self.b.reduce("fadd" if self.elem.is_float else "add", total)
        distance = self.dot.members // 2
        while distance:
            total = total + self.b.exchange("xor", total, distance)
            distance //= 2
        self.emitter.cells[self.total] = (total,)

    def _store(self) -> None:
        emitter = self.emitter
        first = [self.b.compare("eq", emitter.member, 0)]
        exists = [emitter.exists] if emitter.exists is not None else []
        self.b.if_(reduce(and_, first + exists), super()._store)
