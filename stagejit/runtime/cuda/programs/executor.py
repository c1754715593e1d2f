"""Runs CUDA programs on a driver.

Input: a program with all that it needs, addresses or arrays. Output: results in the memory that is
given for them, or arrays. Invariants: a call queues everything on streams that begin and end on the
driver's main one, so memory may go back to the pool as soon as all is queued; a call of a program
in which the host has nothing to do returns before the device is done.

Note [Graphs]: what a fixed program queues depends on its addresses alone. The second time that it
is called with the same ones (the pool hands out what came back last, and memory comes back in the
reverse order, so that is soon), it is captured, and replayed from then on. Of addresses that come
no more, the graph is given to new ones.
"""

from __future__ import annotations

import contextlib
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, finalize

import numpy as np

from stagejit.errors import InternalError
from stagejit.locks import new_lock, remembered
from stagejit.runtime.cuda.driver import Array, Driver, Event, Function, Graph, Source, Stream
from stagejit.runtime.cuda.programs import host_calls
from stagejit.runtime.cuda.programs.holding import Held
from stagejit.runtime.cuda.programs.program import (
    Body,
    Branch,
    Call,
    Copy,
    CudaProgram,
    Delegate,
    Dispatched,
    Launch,
    Loop,
    Record,
    Step,
    Store,
    Wait,
    While,
    bodies,
)
from stagejit.runtime.program import BufferRef, ForeignArray, Space
from stagejit.types import TensorType, dtype_named

_MOST_GRAPHS = 4  # of a program
_MOST_SEEN = 16  # sets of addresses that are remembered
_FEWEST, _MOST = 2, 4096  # launches for which a graph is worth it


@dataclass(eq=False)
class Executable:
    """A program, the sources of its kernels, its constants and the equations that are left to jax;
    the physical types of its arguments and results."""

    program: CudaProgram
    sources: tuple[Source, ...]
    constants: tuple[Array, ...]
    equations: tuple[Any, ...]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    loaded: WeakKeyDictionary[Any, Loaded] = field(default_factory=WeakKeyDictionary)

    def on(self, driver: Driver) -> Loaded:
        """The program on a device."""
        found = self.loaded.get(driver)
        if found is None:
            with driver.current():
                found = self.loaded.setdefault(driver, Loaded(self, driver))
        return found


class Loaded:
    """A program on a device: its kernels, constants, events and graphs."""

    def __init__(self, executable: Executable, driver: Driver) -> None:
        self.executable, self.driver = executable, driver
        self.program = program = executable.program
        self.functions: Mapping[str, Function] = driver.load(executable.sources)
        side = _side_streams(driver, program.streams - 1)
        self.streams: list[Stream] = [driver.main, *side]
        self.events: list[Event] = [driver.new_event() for _ in range(program.events)]
        self.constants: list[int] = []
        for array in executable.constants:
            self.constants.append(driver.allocate(array.nbytes))
            if array.nbytes:
                driver.copy_in(self.constants[-1], np.ascontiguousarray(array), driver.main)
        finalize(self, driver.free_later, self.constants)
        self.graphs: OrderedDict[tuple[int, ...], Graph] = OrderedDict()
        self.seen: OrderedDict[tuple[int, ...], None] = OrderedDict()

    # ---------------------------------------------------------------- calls

    def on_host(self, arrays: Sequence[Array]) -> list[Array]:
        """Takes and returns arrays of the host."""
        driver, kept = self.driver, list[int]()
        with Held(driver) as held:
            try:
                for array in arrays:
                    kept.append(driver.allocate(array.nbytes))
                    if array.nbytes:
                        driver.copy_in(kept[-1], np.ascontiguousarray(array), driver.main)
                given, results = list(kept), [*map(self._fresh(kept), self.program.result_nbytes)]
                given += self._constants(kept)
                self.queue(given, results, held)
                made = []
                for ref, type in zip(self.program.outputs, self.executable.outputs, strict=True):
                    made.append(np.empty(type.shape, type.dtype.numpy))
                    if type.nbytes:
                        address = _Addresses(given, results, ()).of(ref)
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
    ) -> list[Any]:
        """Takes arguments in the memory of the device, and returns the driver's arrays. addresses:
        those of arguments, from a function that allocates memory for this call; types: shapes and
        dtypes that results have for the user."""
        driver, program, kept = self.driver, self.program, list[int]()
        fresh = self._fresh(kept)
        with Held(driver) as held:
            try:
                given = [*addresses(fresh), *self._constants(kept)]
                for at in program.overwritten:
                    if at < program.arguments:
                        given[at] = self._copied(given[at], program.arg_nbytes[at], fresh)
                results = [*map(fresh, program.result_nbytes)]
                self.queue(given, results, held)
                del kept[len(kept) - len(results) :]
                return self._arrays(given, results, types)
            finally:
                for address in reversed(kept):
                    driver.free(address)

    def _arrays(
        self,
        given: Sequence[int],
        results: Sequence[int],
        types: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
    ) -> list[Any]:
        """Results as arrays that own their memory: a copy of what is an argument, or there
        twice."""
        places, taken, made = _Addresses(given, results, ()), set[int](), []
        for ref, type in zip(self.program.outputs, self.executable.outputs, strict=True):
            address = places.of(ref)
            if ref.space != "result" or ref.index in taken:
                source, address = address, self.driver.allocate(type.nbytes)
                if type.nbytes:
                    self.driver.copy(address, source, type.nbytes, self.driver.main)
            elif ref.offset_nbytes:
                raise InternalError(f"a result begins inside of {ref}", step="cuda")
            else:
                taken.add(ref.index)
            made.append(address)
        for number, address in enumerate(results):
            if number not in taken:
                self.driver.free(address)
        return [
            self.driver.array(address, shape, dtype)
            for address, (shape, dtype) in zip(made, types, strict=True)
        ]

    def _fresh(self, kept: list[int]) -> Callable[[int], int]:
        """Allocates memory for this call."""

        def allocate(nbytes: int) -> int:
            kept.append(self.driver.allocate(nbytes))
            return kept[-1]

        return allocate

    def _copied(self, source: int, nbytes: int, fresh: Callable[[int], int]) -> int:
        address = fresh(nbytes)
        if nbytes:
            self.driver.copy(address, source, nbytes, self.driver.main)
        return address

    def _constants(self, kept: list[int]) -> list[int]:
        """Addresses of constants, copied where the program writes into them."""
        first, program = self.program.arguments, self.program
        fresh = self._fresh(kept)
        return [
            self._copied(address, program.arg_nbytes[first + at], fresh)
            if first + at in program.overwritten
            else address
            for at, address in enumerate(self.constants)
        ]

    # ---------------------------------------------------------------- queueing

    def queue(self, given: Sequence[int], results: Sequence[int], held: Held) -> None:
        """Queues a call. given: addresses of arguments and constants."""
        driver, program = self.driver, self.program
        arenas = [driver.allocate(nbytes) if nbytes else 0 for nbytes in program.arena_nbytes]
        try:
            places = _Addresses(given, results, arenas)
            if not self.is_captured:
                _Queueing(self, places, held).steps(program.steps, ())
                return
            key = (*given, *results, *arenas)
            graph = self.graphs.get(key)
            if graph is None and key in self.seen:
                graph = self._captured(key, places, held)
            if graph is None:
                self.seen[key] = None
                if len(self.seen) > _MOST_SEEN:
                    self.seen.popitem(last=False)
                _Queueing(self, places, held).steps(program.steps, ())
            else:
                self.graphs.move_to_end(key)
                driver.replay(graph, driver.main)
        except BaseException:
            self._meet()
            raise
        finally:
            for address in filter(None, reversed(arenas)):
                driver.free(address)

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
        return self.program.is_fixed and _FEWEST <= _launches(self.program.steps) <= _MOST

    def _captured(self, key: tuple[int, ...], places: _Addresses, held: Held) -> Graph:
        old = self.graphs.popitem(last=False)[1] if len(self.graphs) >= _MOST_GRAPHS else None

        def queue() -> None:
            _Queueing(self, places, held).steps(self.program.steps, ())

        graph = self.graphs[key] = self.driver.capture(self.driver.main, queue, old)
        return graph


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


@dataclass(frozen=True)
class _Addresses:
    given: Sequence[int]
    results: Sequence[int]
    arenas: Sequence[int]

    def of(self, ref: BufferRef, turns: Sequence[int] = ()) -> int:
        spaces: Mapping[Space, Sequence[int]]
        spaces = {"arg": self.given, "result": self.results, "arena": self.arenas}
        address = spaces[ref.space][ref.index] + ref.offset_nbytes
        for stride, turn in zip(ref.loop_strides_nbytes, turns, strict=False):
            address += stride * turn
        return address


@dataclass(frozen=True)
class _Queueing:
    """Walks a program once. turns: numbers of the turns of the loops around a step."""

    loaded: Loaded
    places: _Addresses
    held: Held

    def steps(self, steps: Sequence[Step], turns: tuple[int, ...]) -> None:
        for step in steps:
            self._step(step, turns)

    def _step(self, step: Step, turns: tuple[int, ...]) -> None:
        driver, streams = self.loaded.driver, self.loaded.streams
        match step:
            case Dispatched(steps=inner) | Body(steps=inner):
                self.steps(inner, turns)
            case Launch():
                self._launch(step, turns)
            case Record(stream, event):
                driver.record(self.loaded.events[event], streams[stream])
            case Wait(stream, event):
                driver.wait(streams[stream], self.loaded.events[event])
            case Copy(stream, destination, source, nbytes):
                to, start = self.places.of(destination, turns), self.places.of(source, turns)
                if to != start and nbytes:
                    driver.copy(to, start, nbytes, streams[stream])
            case Store(stream, place, nbytes, first, by):
                value = first + by * (turns[-1] if turns else 0)
                driver.store(self.places.of(place, turns), value, nbytes, streams[stream])
            case Loop(trip, body):
                for turn in range(trip):
                    self.steps(body, (*turns, turn))
            case While(stream, condition, predicate, body):
                self.steps(condition, turns)
                while self._read(stream, predicate, 1, turns):
                    self.steps(body, turns)
                    self.steps(condition, turns)
            case Branch(stream, index, nbytes, branches):
                number = self._read(stream, index, nbytes, turns)
                self.steps(branches[min(max(number, 0), len(branches) - 1)], turns)
            case Call(stream, _, operands, results):
                arrays = [self._fetch(x, stream, turns) for x in operands]
                with self.held.released():
                    made = host_calls.call(step, arrays)
                self._put(results, made, stream, turns)
            case Delegate(stream, number, _, operands, results):
                equation = self.loaded.executable.equations[number]
                taken = [None if x is None else self._fetch(x, stream, turns) for x in operands]
                with self.held.released():
                    made = host_calls.evaluate(equation, taken)
                self._put(results, made, stream, turns)

    def _launch(self, step: Launch, turns: tuple[int, ...]) -> None:
        words = [self.places.of(ref, turns) for ref in step.buffers]
        numbers = (*step.params, 0, step.items)
        x, y, z = (*step.threads, 1, 1)[:3]
        self.loaded.driver.launch(
            self.loaded.functions[step.kernel],
            (step.blocks, 1, 1),
            (x, y, z),
            step.shared_nbytes,
            self.loaded.streams[step.stream],
            struct.pack(f"{len(words)}Q{len(numbers)}q", *words, *numbers),
        )

    # ---------------------------------------------------------------- the host in between

    def _read(self, stream: int, ref: BufferRef, nbytes: int, turns: tuple[int, ...]) -> int:
        """An integer in the memory of the device."""
        found = np.empty(1, f"i{nbytes}")
        address = self.places.of(ref, turns)
        self.loaded.driver.copy_out(found, address, self.loaded.streams[stream])
        return int(found[0])

    def _fetch(self, array: ForeignArray, stream: int, turns: tuple[int, ...]) -> Array:
        found = np.empty(array.dims, dtype_named(array.dtype).numpy)
        if array.nbytes:
            address = self.places.of(array.ref, turns)
            self.loaded.driver.copy_out(found, address, self.loaded.streams[stream])
        return found

    def _put(
        self,
        arrays: Sequence[ForeignArray | None],
        made: Sequence[Array],
        stream: int,
        turns: tuple[int, ...],
    ) -> None:
        for array, value in zip(arrays, made, strict=True):
            if array is not None and array.nbytes:
                given = np.ascontiguousarray(value, dtype_named(array.dtype).numpy)
                if given.nbytes != array.nbytes:
                    what = f"{given.dtype}{list(given.shape)} where {array} was promised"
                    raise InternalError(what, step="cuda")
                address = self.places.of(array.ref, turns)
                self.loaded.driver.copy_in(address, given, self.loaded.streams[stream])
