"""`EmulatedDriver`: a GPU on the CPU.

Input: what a `Driver` is asked. Output: the same as on a GPU, or an `EmulationError`. Invariants:
work is queued and runs in an order that the seed decides (`queues.py`), when somebody waits for it;
pieces of memory are apart from each other (`memory.py`), and NaN where nobody has written; the pool
hands memory out again as early as it may.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import jax
import numpy as np

from stagejit.base.records import record
from stagejit.base.threads.locks import new_rlock
from stagejit.codegen.cuda.device import Limits, device_named
from stagejit.codegen.ir.grid.shared_memory import STATIC_NBYTES
from stagejit.runtime.cuda.driver import Array, Event, Function, Graph, Source, Stream, T
from stagejit.runtime.cuda.emulation.compiling import Launcher, launchers
from stagejit.runtime.cuda.emulation.launching import launch_kernel
from stagejit.runtime.cuda.emulation.memory import UNWRITTEN, EmulationError, Pages, view
from stagejit.runtime.cuda.emulation.queues import EmulatedEvent, EmulatedStream, Queues
from stagejit.runtime.objects.object_cache import ObjectCache, cache_in


@record
class _Kernel:
    """shared_nbytes: that a launch may ask for."""

    name: str
    launcher: Launcher
    shared_nbytes: int


@dataclass
class _Captured:
    """What was queued while a graph was captured on a stream, to be queued again. others: streams
    that waited meanwhile."""

    origin: EmulatedStream
    calls: list[Callable[[], object]] = field(default_factory=list)
    others: list[EmulatedStream] = field(default_factory=list)


class EmulatedDriver:
    """A `Driver`. seed: of the order of what streams leave open; threads: the order of threads in
    kernels, one of `launching.ORDERS`; cache: where code is kept on disk;
    conditions: whether graphs may decide, as those of drivers before CUDA 12.4 may not."""

    def __init__(
        self,
        *,
        arch: str = "sm_90a",
        seed: int = 0,
        threads: str = "forward",
        cache: ObjectCache | None = None,
        conditions: bool = True,
    ) -> None:
        self._arch, self.threads, self._cache = arch, threads, cache
        self._has_conditions = conditions
        self._queues = Queues(Random(seed))
        self._main = self._queues.new()
        self._pieces: dict[int, Pages] = {}
        self._free: dict[int, list[Pages]] = {}
        self._dropped: deque[int] = deque()
        self._capturing: _Captured | None = None
        self._lock = new_rlock()

    @property
    def name(self) -> str:
        return f"emulated {self._arch}"

    @property
    def arch(self) -> str:
        return self._arch

    @property
    def cores(self) -> int:
        return 0

    @property
    def limits(self) -> Limits | None:
        return None

    @property
    def main(self) -> Stream:
        return Stream(self._main)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        with self._lock:
            while self._dropped:
                self.free(self._dropped.popleft())
            yield

    def within(self, work: Callable[[], T]) -> T:
        with self.current():
            return work()

    # ---------------------------------------------------------------- kernels

    def load(
        self, sources: Sequence[Source], cache_dir: str | None = None
    ) -> Mapping[str, Function]:
        store = self._cache if cache_dir is None else cache_in(cache_dir)
        device, made = device_named(self._arch), launchers(sources, store)
        for source in sources:
            if source.shared_nbytes > device.block_shared_nbytes:
                what = f"{source.name} wants {source.shared_nbytes} bytes of shared memory"
                raise EmulationError(f"{what}, more than a block of {device.name} may have")
        return {
            source.name: Function(_Kernel(source.name, made[source.name], source.shared_nbytes))
            for source in sources
        }

    def launch(
        self,
        function: Function,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_nbytes: int,
        stream: Stream,
        arguments: bytes,
    ) -> None:
        kernel, words = cast(_Kernel, function), np.frombuffer(arguments, np.uint64).tolist()
        if shared_nbytes > max(kernel.shared_nbytes, STATIC_NBYTES):
            what = f"{shared_nbytes} bytes of shared memory, but was not loaded for as much"
            raise EmulationError(f"a launch of {kernel.name} asks for {what}")

        def run() -> None:
            found = launch_kernel(kernel.launcher, grid, block, words, self.threads, shared_nbytes)
            if found:
                raise EmulationError(f"kernel {kernel.name}: {found}")

        self._put(stream, run)

    # ---------------------------------------------------------------- memory

    def allocate(self, nbytes: int) -> int:
        """Memory that was given back comes first, and is NaN again in the order of `main`."""
        free = self._free.get(nbytes)
        if not free:
            piece = Pages(nbytes)
        else:
            piece = free.pop()
            self.fill(piece.address, UNWRITTEN, nbytes, self.main)
        self._pieces[piece.address] = piece
        return piece.address

    def free(self, address: int) -> None:
        piece = self._pieces.pop(address)
        self._free.setdefault(piece.nbytes, []).append(piece)

    def free_later(self, addresses: Sequence[int]) -> None:
        self._dropped.extend(addresses)

    def trim(self) -> None:
        """Gives memory that nobody uses back to the system."""
        self._queues.finish_all()
        self._free.clear()

    def copy_in(self, address: int, array: Array, stream: Stream) -> None:
        given = array.reshape(-1).view(np.uint8).copy()
        self._put(stream, lambda: _assign(address, given))

    def copy_out(self, array: Array, address: int, stream: Stream) -> None:
        self.synchronize(stream)
        array.reshape(-1).view(np.uint8)[...] = view(address, array.nbytes)

    def copy(self, to: int, source: int, nbytes: int, stream: Stream) -> None:
        self._put(stream, lambda: _assign(to, view(source, nbytes)))

    def fill(self, address: int, byte: int, nbytes: int, stream: Stream) -> None:
        self._put(stream, lambda: _assign(address, np.full(nbytes, byte, np.uint8)))

    def store(self, address: int, value: int, nbytes: int, stream: Stream) -> None:
        given = (value % (1 << 8 * nbytes)).to_bytes(nbytes, "little")
        self._put(stream, lambda: _assign(address, np.frombuffer(given, np.uint8)))

    def array(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object = None
    ) -> Any:
        """An array of jax's on the CPU: nobody else knows this device."""
        made = np.empty(shape, dtype)
        self.copy_out(made, address, self.main)
        if owner is None:
            self.free(address)
        return jax.device_put(made, jax.local_devices(backend="cpu")[0])

    def delete(self, array: object) -> None:
        """Nobody has an array that can be."""

    # ---------------------------------------------------------------- order

    def new_stream(self) -> Stream:
        return Stream(self._queues.new())

    def new_event(self) -> Event:
        return Event(EmulatedEvent())

    def record(self, event: Event, stream: Stream) -> None:
        known, queue = cast(EmulatedEvent, event), cast(EmulatedStream, stream)

        def run() -> None:
            known.time = time.perf_counter()

        def queued() -> None:
            known.at = self._queues.put(queue, run)

        self._do(queued)

    def wait(self, stream: Stream, event: Event) -> None:
        known, queue = cast(EmulatedEvent, event), cast(EmulatedStream, stream)
        if self._capturing is not None:
            self._capturing.others.append(queue)
        self._do(lambda: self._queues.put(queue, _nothing, known.at))

    def seconds(self, start: Event, end: Event) -> float:
        self._queues.finish_all()
        return cast(EmulatedEvent, end).time - cast(EmulatedEvent, start).time

    def synchronize(self, stream: Stream) -> None:
        if self._capturing is not None:
            raise EmulationError("nothing can be waited for while a graph is captured")
        self._queues.finish(cast(EmulatedStream, stream))
        for piece in self._pieces.values():
            piece.check()

    def handle(self, stream: Stream) -> int:
        return 0

    def follow(self, stream: Stream, handle: int) -> None:
        """There are no streams of anybody else."""

    def lead(self, handle: int, stream: Stream) -> None:
        """There are none."""

    # ---------------------------------------------------------------- graphs

    def capture(self, stream: Stream, queue: Callable[[], None], old: Graph | None = None) -> Graph:
        if self._capturing is not None:
            raise EmulationError("a graph is captured already")
        self._capturing = captured = _Captured(cast(EmulatedStream, stream))
        try:
            queue()
        finally:
            self._capturing = None
        return Graph(captured)

    @property
    def has_conditions(self) -> bool:
        return self._has_conditions

    def repeat(
        self, stream: Stream, inner: Stream, predicate: int, queue: Callable[[Stream], None]
    ) -> None:
        turn = self._inside(inner, queue)

        def run() -> None:
            while view(predicate, 1)[0]:
                turn()

        self._put(stream, run)

    def choose(
        self,
        stream: Stream,
        inner: Stream,
        index: int,
        nbytes: int,
        queues: Sequence[Callable[[Stream], None]],
    ) -> None:
        turns = [self._inside(inner, queue) for queue in queues]

        def run() -> None:
            number = int.from_bytes(view(index, nbytes).tobytes(), "little", signed=True)
            turns[min(max(number, 0), len(turns) - 1)]()

        self._put(stream, run)

    def _inside(self, inner: Stream, queue: Callable[[Stream], None]) -> Callable[[], None]:
        """Does what is queued, in whatever order streams leave open."""
        outer, captured = self._capturing, _Captured(cast(EmulatedStream, inner))
        if outer is None or not self._has_conditions:
            raise EmulationError("no graph is captured, or none that decides")
        self._capturing = captured
        try:
            queue(inner)
        finally:
            self._capturing = outer

        def run() -> None:
            for call in captured.calls:
                call()
            self._queues.finish(captured.origin)
            if any(stream.queued for stream in captured.others):
                raise EmulationError("streams of a turn have not come together at its end")

        return run

    def replay(self, graph: Graph, stream: Stream) -> None:
        captured, queue = cast(_Captured, graph), cast(EmulatedStream, stream)
        self._after(captured.origin, queue)
        for call in captured.calls:
            self._do(call)
        self._after(queue, captured.origin)

    def replay_for(self, handle: int, graph: Graph) -> None:
        """There are no streams of anybody else."""
        self.replay(graph, self.main)

    def _after(self, later: EmulatedStream, earlier: EmulatedStream) -> None:
        if later is not earlier:
            self._queues.put(later, _nothing, self._queues.put(earlier, _nothing))

    def _put(self, stream: Stream, run: Callable[[], None]) -> None:
        queue = cast(EmulatedStream, stream)
        self._do(lambda: self._queues.put(queue, run))

    def _do(self, queued: Callable[[], object]) -> None:
        """Now, or when the graph is replayed that is being captured."""
        if self._capturing is None:
            queued()
        else:
            self._capturing.calls.append(queued)


def _nothing() -> None: ...


def _assign(address: int, values: Array) -> None:
    view(address, values.nbytes)[...] = values
