"""Runs CUDA programs on a driver.

Input: a program with all that it needs, addresses or arrays. Output: results in the memory that is
given for them, or arrays. Invariants: a call queues everything on streams that begin and end on the
driver's main one, so memory may go back to the pool as soon as all is queued; a call of a program
in which the host has nothing to do returns before the device is done.

Note [Graphs]: what a fixed program queues depends on its addresses alone. The second time that it
is called with the same ones (the pool hands out what came back last, and memory comes back in the
reverse order, so that is soon), it is captured, and replayed from then on. Of addresses that come
no more, the graph is given to new ones, unless it has nodes that decide.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from stagejit.base.records import record
from stagejit.base.threads.locks import new_lock, remembered
from stagejit.errors import InternalError
from stagejit.runtime.cuda.driver import Array, Driver, Graph, Source, Stream
from stagejit.runtime.cuda.programs import timing
from stagejit.runtime.cuda.programs.holding import Held
from stagejit.runtime.cuda.programs.kept import Kept, Weights
from stagejit.runtime.cuda.programs.program import CudaProgram, Launch, Step, bodies
from stagejit.runtime.cuda.programs.queueing import Addresses, Parts, Queueing
from stagejit.runtime.cuda.programs.timing import Path
from stagejit.runtime.hosting.program_steps import BufferRef, Loop
from stagejit.runtime.hosting.sites import Site
from stagejit.types import TensorType

_MOST_GRAPHS = 4  # of a program
_MOST_SEEN = 16  # sets of addresses that are remembered
_FEWEST, _MOST = 1, 4096  # launches for which a graph is worth it
NO_DONORS: Mapping[int, object] = MappingProxyType({})


@dataclass(eq=False)
class Executable:
    """A program, the sources of its kernels, its constants and the equations that are left to jax;
    the physical types of its arguments and results. weights: gives the last of its arguments, those
    that no call does, as they are then. cache_dir: see `Options`; sites: of all dispatches."""

    program: CudaProgram
    sources: tuple[Source, ...]
    constants: tuple[Array, ...]
    equations: tuple[Any, ...]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    weights: Callable[[], Sequence[Array]] = tuple
    cache_dir: str | None = None
    sites: Mapping[Path, Site] = field(default_factory=dict)
    loaded: WeakKeyDictionary[Any, Loaded] = field(default_factory=WeakKeyDictionary)

    @remembered
    def given(self) -> int:
        """How many of its arguments a call gives."""
        return len(self.inputs) - len(self.weights())

    def on(self, driver: Driver) -> Loaded:
        """The program on a device."""
        found = self.loaded.get(driver)
        if found is None:
            with driver.current():
                found = self.loaded.get(driver)
                if found is None:
                    found = self.loaded[driver] = Loaded(self, driver)
        return found


@record
class Placed:
    """Where all of a call is: arguments and constants, results, arenas; what is copied before, as
    (to, from, bytes); and where each result of the function is wanted."""

    given: tuple[int, ...]
    results: tuple[int, ...]
    arenas: tuple[int, ...]
    before: tuple[tuple[int, int, int], ...]
    wanted: tuple[int, ...]


class Loaded:
    """A program on a device: its kernels, constants, weights, events and graphs."""

    def __init__(self, executable: Executable, driver: Driver) -> None:
        self.executable, self.driver = executable, driver
        self.program = program = executable.program
        events = [driver.new_event() for _ in range(program.events)]
        functions, fork = driver.load(executable.sources, executable.cache_dir), driver.new_event()
        self.parts = Parts(driver, functions, events, fork, executable.equations)
        self.streams: list[Stream] = [driver.main, *_side_streams(driver, program.streams - 1)]
        self._kept = Kept(driver, executable.constants)
        self._weights = Weights(driver, executable.weights, in_place=program.is_on_device)
        self.graphs: OrderedDict[tuple[int, ...], Graph] = OrderedDict()
        self.seen: OrderedDict[tuple[int, ...], None] = OrderedDict()

    @property
    def constants(self) -> Sequence[int]:
        return self._kept.places

    # ---------------------------------------------------------------- calls

    def on_host(self, arrays: Sequence[Array]) -> list[Array]:
        """Takes and returns arrays of the host."""
        driver, kept = self.driver, list[int]()
        with Held(driver) as held:
            try:
                weights = self._weights.now()
                for array in arrays:
                    kept.append(driver.allocate(array.nbytes))
                    if array.nbytes:
                        driver.copy_in(kept[-1], np.ascontiguousarray(array), driver.main)
                given = list(kept)
                results = [_fresh(driver, kept, n) for n in self.program.result_nbytes]
                given += self._more(weights, len(given), kept)
                self.queue(given, results, held)
                made = []
                for ref, type in zip(self.program.outputs, self.executable.outputs, strict=True):
                    made.append(np.empty(type.shape, type.dtype.numpy))
                    if type.nbytes:
                        address = Addresses(given, results, ()).of(ref)
                        driver.copy_out(made[-1], address, driver.main)
                driver.synchronize(driver.main)
                return made
            finally:
                for address in reversed(kept):
                    driver.free(address)

    def on_device(
        self,
        addresses: Callable[[Callable[[int], int]], list[int]],
        types: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
        donors: Mapping[int, object] = NO_DONORS,
    ) -> list[Any]:
        """Takes arguments in the memory of the device, and returns the driver's arrays. addresses:
        those of arguments, from a function that allocates memory for this call; types: shapes and
        dtypes that results have for the user; donors: by argument that may be written into, who
        keeps its memory."""
        if self.is_captured:
            return self.driver.within(lambda: self._call(addresses, types, donors, None))
        with Held(self.driver) as held:
            return self._call(addresses, types, donors, held)

    def _call(
        self,
        addresses: Callable[[Callable[[int], int]], list[int]],
        types: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
        donors: Mapping[int, object],
        held: Held | None,
    ) -> list[Any]:
        driver, kept, results = self.driver, list[int](), list[int]()
        try:
            weights, given = self._weights.now(), addresses(partial(_fresh, driver, kept))
            for at in self.program.overwritten:
                if at < len(given) and at not in donors:
                    given[at] = self._copied(given[at], self.program.arg_nbytes[at], kept)
            given = [*given, *self._more(weights, len(given), kept)]
            for nbytes in self.program.result_nbytes:
                results.append(driver.allocate(nbytes))
            self.queue(given, results, held)
            made = self._arrays(given, results, types, donors)
            results.clear()
            return made
        finally:
            for address in reversed((*kept, *results) if results else kept):
                driver.free(address)

    def on_stream(self, handle: int, placed: Callable[[Sequence[int]], Placed]) -> None:
        """Queues a call behind what is queued on a stream of somebody else's, by its CUDA handle;
        what is queued there later comes after it. Its memory is theirs. placed: where all is, of
        where weights and constants are."""
        if self.is_captured:
            self.driver.within(lambda: self._on_stream(handle, placed, None))
            return
        with Held(self.driver) as held:
            self._on_stream(handle, placed, held)

    def _on_stream(
        self, handle: int, places: Callable[[Sequence[int]], Placed], held: Held | None
    ) -> None:
        driver, weights = self.driver, self._weights.now()
        placed = places([*weights.places, *self.constants])
        self._weights.lead(handle)
        key = (*placed.given, *placed.results, *placed.arenas, *placed.wanted)
        timer = self._timer()
        graph = None if timer else self.graphs.get(key)
        if graph is None and self.is_captured and timer is None:
            graph = self._captured(key, placed, held)
        if graph is not None:
            self.graphs.move_to_end(key)
            driver.replay_for(handle, graph)
            driver.follow(driver.main, handle)  # memory that it reads goes back in that order
            return
        driver.follow(driver.main, handle)
        try:
            self._walk(placed, self.streams, held, timer=timer)
        except BaseException:
            self._meet()
            raise
        finally:
            driver.lead(handle, driver.main)

    def _walk(
        self,
        placed: Placed,
        streams: Sequence[Stream],
        held: Held | None,
        inner: Sequence[Sequence[Stream]] = (),
        timer: timing.Timer | None = None,
    ) -> None:
        """Queues a call launch by launch."""
        driver, places = self.driver, Addresses(placed.given, placed.results, placed.arenas)
        for to, source, nbytes in placed.before:
            if nbytes:
                driver.copy(to, source, nbytes, streams[0])
        walk = Queueing(self.parts, places, streams, held, inner, timer)
        walk.steps(self.program.steps, ())
        for (_, ref, nbytes), to in zip(self.sources, placed.wanted, strict=False):
            if nbytes and places.of(ref) != to:
                driver.copy(to, places.of(ref), nbytes, streams[0])

    def _arrays(
        self,
        given: Sequence[int],
        results: Sequence[int],
        types: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
        donors: Mapping[int, object],
    ) -> list[Any]:
        """Results as arrays that own their memory, or have it of a donor: a copy of what is an
        argument, or there twice."""
        driver, given_away, made = self.driver, set[int](), list[Any]()
        for (at, ref, nbytes), (shape, dtype) in zip(self.sources, types, strict=True):
            if at is not None:
                made.append(driver.array(results[at], shape, dtype))
                continue
            if ref.space == "arg" and not ref.offset_nbytes and ref.index not in given_away:
                owner = donors.get(ref.index)
                if owner is not None:
                    given_away.add(ref.index)
                    made.append(driver.array(given[ref.index], shape, dtype, owner))
                    continue
            source, address = Addresses(given, results, ()).of(ref), driver.allocate(nbytes)
            if nbytes:
                driver.copy(address, source, nbytes, driver.main)
            made.append(driver.array(address, shape, dtype))
        for number in self.unused:
            driver.free(results[number])
        return made

    @remembered
    def sources(self) -> tuple[tuple[int | None, BufferRef, int], ...]:
        """For each result of the function its memory among the program's results, if it has it for
        itself; where it is; its bytes."""
        taken, made = set[int](), list[tuple[int | None, BufferRef, int]]()
        for ref, type in zip(self.program.outputs, self.executable.outputs, strict=True):
            own = ref.space == "result" and ref.index not in taken
            if own and ref.offset_nbytes:
                raise InternalError(f"a result begins inside of {ref}", step="cuda")
            if own:
                taken.add(ref.index)
            made.append((ref.index if own else None, ref, type.nbytes))
        return tuple(made)

    @remembered
    def unused(self) -> tuple[int, ...]:
        """Results of the program that no result of the function is."""
        taken = {at for at, _, _ in self.sources}
        return tuple(n for n in range(len(self.program.result_nbytes)) if n not in taken)

    def _copied(self, source: int, nbytes: int, kept: list[int]) -> int:
        address = _fresh(self.driver, kept, nbytes)
        if nbytes:
            self.driver.copy(address, source, nbytes, self.driver.main)
        return address

    def _more(self, weights: Kept, first: int, kept: list[int]) -> Sequence[int]:
        """Addresses of weights and constants, behind the `first` arguments, copied where the
        program writes into them."""
        program = self.program
        return [
            self._copied(address, program.arg_nbytes[at], kept)
            if at in program.overwritten
            else address
            for at, address in enumerate((*weights.places, *self.constants), first)
        ]

    # ---------------------------------------------------------------- queueing

    def queue(self, given: Sequence[int], results: Sequence[int], held: Held | None) -> None:
        """Queues a call. given: addresses of arguments and constants; held: of programs that the
        host does something for in between."""
        driver = self.driver
        arenas = [driver.allocate(nbytes) if nbytes else 0 for nbytes in self.program.arena_nbytes]
        try:
            key = (*given, *results, *arenas)
            graph, timer = self.graphs.get(key), self._timer()
            if graph is None or timer is not None:
                placed = Placed(tuple(given), tuple(results), tuple(arenas), (), ())
                capture = self.is_captured and timer is None
                graph = self._captured(key, placed, held) if capture else None
            if graph is None:
                self._walk(placed, self.streams, held, timer=timer)
            else:
                driver.replay(graph, driver.main)
        except BaseException:
            self._meet()
            raise
        finally:
            for address in reversed(arenas):
                if address:
                    driver.free(address)

    def _timer(self) -> timing.Timer | None:
        """For who records times, see `timing.py`."""
        if not timing.is_on():
            return None
        return timing.Timer(self.program.name, self.executable.sites, self.driver)

    def _meet(self) -> None:
        """Where a call ends before its last step, a function of Python having raised: the main
        stream waits for what others still do, as memory goes back to the pool in its order."""
        driver, main = self.driver, self.streams[0]
        with contextlib.suppress(Exception):  # of a device that is lost; why is known already
            for stream in self.streams[1:]:
                event = driver.new_event()
                driver.record(event, stream)
                driver.wait(main, event)

    @remembered
    def is_captured(self) -> bool:
        """Whether calls become graphs."""
        program = self.program
        if not program.is_on_device or not _FEWEST <= _launches(program.steps) <= _MOST:
            return False
        return not program.conditions or self.driver.has_conditions

    def _captured(self, key: tuple[int, ...], placed: Placed, held: Held | None) -> Graph | None:
        """A graph of addresses that come again, see Note [Graphs]."""
        if key not in self.seen:
            self.seen[key] = None
            if len(self.seen) > _MOST_SEEN:
                self.seen.popitem(last=False)
            return None
        program = self.program
        old = self.graphs.popitem(last=False)[1] if len(self.graphs) >= _MOST_GRAPHS else None
        count = program.streams  # none of them the main one
        side = _side_streams(self.driver, count * (1 + program.conditions))
        streams, *inner = (side[at : at + count] for at in range(0, len(side), count))

        def queue() -> None:
            self._walk(placed, streams, held, inner)

        if program.conditions:  # nodes that decide are not given other parameters
            old = None
        graph = self.graphs[key] = self.driver.capture(streams[0], queue, old)
        return graph


def _fresh(driver: Driver, kept: list[int], nbytes: int) -> int:
    """Memory for one call."""
    kept.append(driver.allocate(nbytes))
    return kept[-1]


def _launches(steps: tuple[Step, ...]) -> int:
    """How many a call queues, each turn of a loop counted."""
    count = 0
    for step in steps:
        times = step.trip if isinstance(step, Loop) else 1
        count += isinstance(step, Launch) + times * sum(map(_launches, bodies(step)))
    return count


_streams: WeakKeyDictionary[Any, list[Stream]] = WeakKeyDictionary()
_lock = new_lock()


def _side_streams(driver: Driver, count: int) -> list[Stream]:
    """Streams beside the main one, which all programs share: each program begins and ends on that
    one."""
    with _lock:
        known = _streams.setdefault(driver, [])
        known += [driver.new_stream() for _ in range(count - len(known))]
        return known[:count]
