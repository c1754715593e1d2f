"""Walks a CUDA program and queues what it says, launch by launch.

Input: a program on a device, where its buffers are, a stream for each of the program's. Output:
work that is queued. Invariant: nothing is waited for but what the host has to read, or to do itself
in between.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stagejit.base.records import record
from stagejit.errors import InternalError
from stagejit.runtime.cuda.driver import Array, Driver, Event, Function, Stream
from stagejit.runtime.cuda.programs import host_calls
from stagejit.runtime.cuda.programs.holding import Held
from stagejit.runtime.cuda.programs.program import (
    Body,
    Branch,
    Call,
    Copy,
    Delegate,
    Dispatched,
    Launch,
    Record,
    Step,
    Store,
    Wait,
    While,
    streams_of,
)
from stagejit.runtime.cuda.programs.timing import Path, Timer
from stagejit.runtime.hosting.program_steps import BufferRef, ForeignArray, Loop, Space
from stagejit.types import dtype_named


@dataclass(frozen=True)
class Parts:
    """What a program has on a device. functions: kernels by name; fork: one more event; equations:
    left to jax."""

    driver: Driver
    functions: Mapping[str, Function]
    events: Sequence[Event]
    fork: Event
    equations: Sequence[Any]


@record
class Addresses:
    """Where the buffers of a program are. given: arguments and constants."""

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


@record
class Queueing:
    """Walks a program once. streams: of its numbers; inner: the same inside of the conditions of a
    graph, by how many are around; where there are any, a graph is captured in which the device
    decides. turns: of the loops around a step. timer: of who wants to know how long dispatches
    take; path: where they are, for it."""

    parts: Parts
    places: Addresses
    streams: Sequence[Stream]
    held: Held | None
    inner: Sequence[Sequence[Stream]] = ()
    timer: Timer | None = None
    path: Path = ()

    def steps(self, steps: Sequence[Step], turns: tuple[int, ...]) -> None:
        for step in steps:
            self._step(step, turns)

    def _step(self, step: Step, turns: tuple[int, ...]) -> None:
        driver, streams = self.parts.driver, self.streams
        match step:
            case Dispatched() | Body() if self.timer is not None:
                self._timed(self.timer, step, turns)
            case Dispatched(steps=inner) | Body(steps=inner):
                self.steps(inner, turns)
            case Launch():
                self._launch(step, turns)
            case Record(stream, event):
                driver.record(self.parts.events[event], streams[stream])
            case Wait(stream, event):
                driver.wait(streams[stream], self.parts.events[event])
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
            case While() | Branch() if self.inner:
                self._decided(step, turns)
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
                with self._released():
                    made = host_calls.call(step, arrays)
                self._put(results, made, stream, turns)
            case Delegate(stream, number, _, operands, results):
                equation = self.parts.equations[number]
                taken = [None if x is None else self._fetch(x, stream, turns) for x in operands]
                with self._released():
                    made = host_calls.evaluate(equation, taken)
                self._put(results, made, stream, turns)

    def _timed(self, timer: Timer, step: Dispatched | Body, turns: tuple[int, ...]) -> None:
        """With an event before and after a dispatch."""
        if isinstance(step, Body):
            replace(self, path=(*self.path, step.number)).steps(step.steps, turns)
            return
        stream, path = self.streams[step.stream], (*self.path, step.name)
        start = timer.mark(stream)
        replace(self, path=path).steps(step.steps, turns)
        timer.note(path, start, stream)

    def _decided(self, step: While | Branch, turns: tuple[int, ...]) -> None:
        """By the device."""
        driver, number = self.parts.driver, step.stream
        stream, inner = self.streams[number], self.inner[0][number]
        if isinstance(step, While):
            self.steps(step.condition, turns)
            turn = self._inside((*step.body, *step.condition), number, turns)
            driver.repeat(stream, inner, self.places.of(step.predicate, turns), turn)
        else:
            cases = [self._inside(case, number, turns) for case in step.branches]
            index = self.places.of(step.index, turns)
            driver.choose(stream, inner, index, step.index_nbytes, cases)

    def _inside(
        self, steps: Sequence[Step], number: int, turns: tuple[int, ...]
    ) -> Callable[[Stream], None]:
        """Queues what a condition is around, on streams of its own: they begin behind the one that
        is given, and what a level is made of brings them together there."""
        walk = replace(self, streams=self.inner[0], inner=self.inner[1:])
        others = sorted(streams_of(steps) - {number})

        def queue(origin: Stream) -> None:
            driver, fork = self.parts.driver, self.parts.fork
            if others:
                driver.record(fork, origin)
            for other in others:
                driver.wait(walk.streams[other], fork)
            walk.steps(steps, turns)

        return queue

    def _released(self) -> AbstractContextManager[None]:
        if self.held is None:
            raise InternalError("the host has something to do in between", step="cuda")
        return self.held.released()

    def _launch(self, step: Launch, turns: tuple[int, ...]) -> None:
        words = [self.places.of(ref, turns) for ref in step.buffers]
        numbers = (*step.params, 0, step.items)
        x, y, z = (*step.threads, 1, 1)[:3]
        self.parts.driver.launch(
            self.parts.functions[step.kernel],
            (step.blocks, 1, 1),
            (x, y, z),
            step.shared_nbytes,
            self.streams[step.stream],
            struct.pack(f"{len(words)}Q{len(numbers)}q", *words, *numbers),
        )

    # ---------------------------------------------------------------- the host in between

    def _read(self, stream: int, ref: BufferRef, nbytes: int, turns: tuple[int, ...]) -> int:
        """An integer in the memory of the device."""
        found = np.empty(1, f"i{nbytes}")
        address = self.places.of(ref, turns)
        self.parts.driver.copy_out(found, address, self.streams[stream])
        return int(found[0])

    def _fetch(self, array: ForeignArray, stream: int, turns: tuple[int, ...]) -> Array:
        found = np.empty(array.dims, dtype_named(array.dtype).numpy)
        if array.nbytes:
            address = self.places.of(array.ref, turns)
            self.parts.driver.copy_out(found, address, self.streams[stream])
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
                self.parts.driver.copy_in(address, given, self.streams[stream])
