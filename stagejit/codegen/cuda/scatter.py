"""Kernels of `scatter` regions for a GPU: updates written into, or combined with, an array at
computed places.

Input: a region whose anchor is a `scatter`; its result's buffer holds the operand already. Output:
its kernel. Invariant: deterministic. Updates of one element are applied in the order of the index
vectors, by one thread, or, where the order does not matter, by atomics. See the Notes of
`elements/scatters.py`.

Note [Who applies what]: each thread has one element of one window, where no two windows are at the
same place or atomics combine them. Otherwise a thread, or a warp, owns elements of the destination:
those of a batch, of a range of the owned axis, of one place in all windows. It looks at all index
vectors in order and applies those that are its own; the threads of a warp look at 32 of them at a
time, vote, and share the elements of each window that is found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from stagejit.base.records import record
from stagejit.codegen.choices import Ranked, cheapest
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import element_code, region_seconds
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.kernels import grid_kernel
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.elements.scatters import UpdateLoops, Updates, update_loops
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.grid.rules import ATOMICS
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import storage_type
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.nest.tree import Chunk, Do, Loop, Node, Parallel, When, Within, serial
from stagejit.index.affine import Var
from stagejit.types import DType

_THREADS = 256  # of a block
# Cycles:
_LOOK = 12.0  # to read an index vector that is in the nearest cache, compare and clamp it
_FAR = 400.0  # until an element of the destination is there, so that it can be combined
_ISSUED = 4  # instructions a cycle and multiprocessor, of a warp each
_ATOMIC = 4.0  # of a multiprocessor, for an element


@record
class _Way:
    """How updates are shared out. kind: "elements" (a thread each), "threads" or "warps" (that own
    `ranges` ranges of the owned axis)."""

    kind: str
    ranges: int = 1

    def __str__(self) -> str:
        if self.kind == "elements":
            return "a thread for each update"
        return f"{self.kind} own {self.ranges} ranges"


def scatter_kernel(region: ClosedRegion, device: Device) -> Kernel:
    """The kernel of a region of kind `scatter`."""
    loops = update_loops(region, device)
    loops = loops.in_vectors(loops.window[::-1], but=loops.op.operands[1])
    way = _way(loops, device)

    def tree(loops: UpdateLoops, emitter: ThreadEmitter, memory: Sequence[Memory]) -> Parallel:
        return _Policy(loops, way.best, emitter, memory).tree()

    seconds, threads = region_seconds(region, device), min(_THREADS, device.threads_a_block)
    choices = [way.choice]
    return grid_kernel(region, device, [loops], tree, seconds, threads=threads, choices=choices)


# -------------------------------------------------------------------- the choice


def atomic_of(fn: str, dtype: DType) -> str | None:
    """The atomic that combines exactly, so that their order does not matter; None if there is
    none."""
    if fn == "add":
        name = "add" if dtype.is_integer else ""
    elif dtype.is_float:
        name = {"min": "fminimum", "max": "fmaximum"}.get(fn, "")
    elif dtype.is_integer:
        name = f"{'s' if dtype.is_signed else 'u'}{fn}"
    else:
        name = ""
    return name if storage_type(dtype).elem in ATOMICS.get(name, ()) else None


def _way(loops: UpdateLoops, device: Device) -> Ranked[_Way]:
    op = loops.op
    alone = not loops.ordered
    if alone or atomic_of(op.attrs["fn"], op.result.type.dtype):
        what = (
            "no two windows are at one place" if alone else "atomics, whose order is all the same"
        )
        return cheapest("owners", [_Way("elements")], lambda _: 1.0, lambda _: what, "a window")
    most = op.result.shape[loops.owned_axis] if loops.owned_axis >= 0 else 1
    ranges = sorted({min(1 << bit, most) for bit in range(most.bit_length() + 1)})
    ways = [_Way("threads", count) for count in ranges]
    if not loops.moving:
        ways += [_Way("warps", count) for count in ranges]
    return cheapest("owners", ways, lambda way: _cycles(loops, way, device), str, "cycles")


def _cycles(loops: UpdateLoops, way: _Way, device: Device) -> float:
    """Until all is done: as long as one thread takes, or as all multiprocessors do."""
    vectors = math.prod(var.extent for var in loops.ordered)
    free = math.prod(var.extent for var in loops.free)
    still = math.prod(var.extent for var in loops.window if var not in loops.moving)
    moving = math.prod(var.extent for var in loops.window if var in loops.moving)
    element = 4 + element_code(loops.region)
    if way.kind == "warps":
        lanes, warps, rounds = 1, free * way.ranges, -(-still // WARP)
        looks = -(-vectors // WARP) * 2
    else:
        lanes, warps, rounds = WARP, -(-free * way.ranges * still // WARP), moving
        looks = vectors
    own = vectors / way.ranges  # of the windows, those that one applies
    alone = looks * _LOOK + own * (_FAR + rounds * element)
    # The threads of a warp that own different ranges apply their windows one after the other.
    found = min(own * min(lanes, way.ranges), vectors) if still < WARP else own
    issued = warps * (looks * _LOOK + found * (_LOOK + rounds * element))
    return max(alone * max(warps * WARP / device.threads, 1), issued / _ISSUED / device.cores)


# -------------------------------------------------------------------- loops and statements


class _Policy:
    """The loops of one scatter, and what they do."""

    def __init__(
        self, loops: UpdateLoops, way: _Way, emitter: ThreadEmitter, memory: Sequence[Memory]
    ) -> None:
        self.loops, self.way, self.emitter, (into,) = loops, way, emitter, memory
        self.b, self.elements, self.into = emitter.b, emitter.elements, into
        self.range = Var(way.ranges, "p")
        self.updates = Updates(loops, emitter.elements, into, self.range)
        self.step = Var(math.prod(var.extent for var in loops.ordered), "v")
        # The threads of a warp follow each other along it.
        still = [var for var in loops.window if var not in loops.moving]
        self.still = [var for var in still if var is not loops.vector]
        if loops.vector in still:
            self.still.append(loops.vector)
        self.moving = [var for var in loops.window if var in loops.moving]

    def tree(self) -> Parallel:
        if self.way.kind == "elements":
            return self._each()
        if self.way.kind == "threads":
            return self._threads()
        return self._warps()

    def _each(self) -> Parallel:
        """A thread for each element of the updates."""
        loops = self.loops
        variables = [*loops.free, *loops.ordered, *self.moving, *self.still]
        atomic = atomic_of(loops.op.attrs["fn"], loops.op.result.type.dtype)
        if not loops.ordered or atomic is None:
            body: Node = Do("combine", self.updates.combine)
        else:
            body = Do(f"atomic {loops.op.attrs['fn']}", lambda: self._atomic(atomic))
        window = Within("starts", self.updates.window, self._applied(body))
        return self._parallel(variables, window)

    def _threads(self) -> Parallel:
        """A thread for each place in windows and each range."""
        loops = self.loops
        body = serial(self.moving, Do("combine", self.updates.combine))
        windows = serial(loops.ordered, Within("starts", self._window, self._applied(body)))
        return self._parallel([*loops.free, *self._ranges(), *self.still], windows)

    def _warps(self) -> Parallel:
        """A warp for each range."""
        looked = Loop(self.step, (Chunk(WARP, Do("look at 32", self._look), tail="padded"),))
        items = [*self.loops.free, *self._ranges()]
        return self._parallel(items, looked, width=WARP)

    def _parallel(self, variables: Sequence[Var], body: Node, width: int = 1) -> Parallel:
        together = self.emitter.threads // width
        return Parallel(tuple((var, 1) for var in variables), body, together=together)

    def _ranges(self) -> list[Var]:
        return [self.range] if self.way.ranges > 1 else []

    def _applied(self, body: Node) -> Node:
        return When("inside", lambda: self.updates.inside, body)

    def _window(self) -> AbstractContextManager[None]:
        return self.updates.window(own=self.way.ranges > 1)

    def _atomic(self, name: str) -> None:
        buffer, update = self.into.buffer, self.updates.update()
        at = self.elements.scalar_index(self.updates.offset - self.into.base)
        self.b.atomic(name, update, buffer, at)

    # ---------------------------------------------------------------- by warps

    def _look(self) -> None:
        """At as many index vectors as a warp has threads; then applies those that are its own."""
        b, first = self.b, self.elements.position.env[self.step]
        own = first + self.emitter.member
        with self._vector(b.binary("smin", own, self.step.extent - 1)), self._window():
            found = b.compare("lt", own, self.step.extent)
            if self.updates.inside is not None:
                found = found & self.updates.inside
            found = b.vote("ballot", found)

        def one(_: Register, left: Register) -> Sequence[Register]:
            which = b.cast("zext", b.unary("cttz", left), "i64")
            with self._vector(first + which), self.updates.window():
                self._elements()
            return [left & (left - 1)]

        count = b.cast("zext", b.unary("ctpop", found), "i64")
        b.loop(0, count, 1, (found,), one)

    def _elements(self) -> None:
        """One window: each thread of the warp has the same places in all of them."""
        size = math.prod(var.extent for var in self.still)

        def one(number: Register) -> None:
            with self._standing(self.still, number):
                self.updates.combine()

        if size > WARP:
            self.b.loop(self.emitter.member, size, WARP, (), one)
        else:
            some = self.b.compare("lt", self.emitter.member, size)
            self.b.if_(some, lambda: one(self.emitter.member))

    def _vector(self, number: Register) -> AbstractContextManager[None]:
        return self._standing(self.loops.ordered, number)

    @contextmanager
    def _standing(self, variables: Sequence[Var], number: Register) -> Iterator[None]:
        """Where variables stand at the iteration with that number, of all of them."""
        env: dict[Var, Register] = {}
        for at, var in reversed(list(enumerate(variables))):
            env[var] = number % var.extent if at else number
            number = number // var.extent
        with self.elements.at(env):
            yield
