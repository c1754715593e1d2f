"""`Driver`: what programs ask of a GPU, in the words of the CUDA driver.

Input: sources of kernels, addresses, streams. Output: work that is queued. There are two: that of
PyCUDA, and the emulated one (`emulation/driver.py`), which runs the same on a CPU.

Invariants, which callers count on and every driver keeps:
- What is queued on one stream runs in the order in which it was queued; between streams nothing is
  ordered but by events. Nothing else waits: `free`, `launch` and the copies inside of a device
  return before the work is done.
- Memory of the pool is in the order of the stream `main`: what is freed may be handed out at once,
  to work that is queued on `main` (or on streams that wait for `main`) later. So whoever uses
  other streams lets them wait for `main` first, and `main` for them at the end.
- The stream `main` and the legacy default stream of the process are in one order: what is queued on
  either comes after what was queued on the other. Graphs are captured on other streams than `main`,
  which nobody disturbs by using the default one.
- Addresses are numbers, and aligned to 16 bytes at least where the pool hands them out.
- Handles (functions, streams, events, graphs) are the driver's own and live as long as somebody
  holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NewType, Protocol, TypeVar

import numpy as np

from stagejit.base.records import record
from stagejit.codegen.cuda.device import Limits

T = TypeVar("T")
Function = NewType("Function", object)
Stream = NewType("Stream", object)
Event = NewType("Event", object)
Graph = NewType("Graph", object)
Array = np.ndarray[Any, np.dtype[Any]]


@record
class Source:
    """A kernel in CUDA C++, which includes nothing.

    name: of its `extern "C"` function. threads: of a block, along up to three axes. shared_nbytes:
    dynamic shared memory of a launch, beside what the kernel declares.
    """

    name: str
    text: str
    threads: tuple[int, ...]
    shared_nbytes: int = 0


class Driver(Protocol):
    """One device, with a pool of its memory. Methods may be called on any thread, one at a time,
    inside of `current()`."""

    @property
    def name(self) -> str:
        """What a person would call the device."""

    @property
    def arch(self) -> str:
        """The architecture to compile for, such as "sm_90a"."""

    @property
    def cores(self) -> int:
        """Its multiprocessors; 0 where it has none."""

    @property
    def limits(self) -> Limits | None:
        """Of each of them; None where it has none."""

    @property
    def main(self) -> Stream:
        """The stream on which programs begin and end."""

    def current(self) -> AbstractContextManager[object]:
        """Inside of it the calling thread uses the device."""

    def within(self, work: Callable[[], T]) -> T:
        """`work()` inside of `current()`, by a shorter way."""

    # ---------------------------------------------------------------- kernels

    def load(
        self, sources: Sequence[Source], cache_dir: str | None = None
    ) -> Mapping[str, Function]:
        """The kernels by name. Those that are not in memory, nor in the cache on disk (by hash of
        source, architecture and compiler), are compiled side by side. cache_dir: see `Options`;
        None: where the driver has its code anyway."""

    def launch(
        self,
        function: Function,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_nbytes: int,
        stream: Stream,
        arguments: bytes,
    ) -> None:
        """arguments: of 8 bytes each, pointers and integers, as the kernel lists them."""

    # ---------------------------------------------------------------- memory

    def allocate(self, nbytes: int) -> int:
        """The address of so many bytes of the pool (of none: any address). Raises MemoryError."""

    def free(self, address: int) -> None:
        """Gives back what `allocate` gave."""

    def free_later(self, addresses: Sequence[int]) -> None:
        """As `free`, from anywhere, as finalizers are: when the device is used the next time."""

    def copy_in(self, address: int, array: Array, stream: Stream) -> None:
        """Copies a contiguous array of the host to the device. The array may be changed, or go, as
        soon as this returns."""

    def copy_out(self, array: Array, address: int, stream: Stream) -> None:
        """Fills a contiguous array of the host after all that is queued on the stream, for which it
        waits."""

    def copy(self, to: int, source: int, nbytes: int, stream: Stream) -> None:
        """Copies inside of the device; the ranges do not overlap."""

    def fill(self, address: int, byte: int, nbytes: int, stream: Stream) -> None:
        """Sets each of `nbytes` bytes."""

    def store(self, address: int, value: int, nbytes: int, stream: Stream) -> None:
        """Stores an integer of 1, 2, 4 or 8 bytes, the lowest first; negative ones as two's
        complement. It can be captured."""

    def array(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object = None
    ) -> Any:
        """What a user gets as a result: an array in this memory of the pool, which goes back there
        with the array; or in memory of `owner`, which lives as long. It can be handed in again: it
        has `__cuda_array_interface__`, or lies in the memory of the host. Its content is there in
        the order of `main`."""

    def delete(self, array: object) -> None:
        """Says to whoever touches an array that it was donated, if it is one of a kind that can."""

    # ---------------------------------------------------------------- order

    def new_stream(self) -> Stream:
        """One that does not wait for the default stream of the process."""

    def new_event(self) -> Event: ...

    def record(self, event: Event, stream: Stream) -> None:
        """The event stands for all that is queued on the stream by now, and for nothing else, also
        where it stood for something before."""

    def wait(self, stream: Stream, event: Event) -> None:
        """What is queued on the stream from now on comes after what the event stands for now."""

    def seconds(self, start: Event, end: Event) -> float:
        """Between the two on the device, after it has waited for the second. What `record` was
        called for stands for a time, too."""

    def synchronize(self, stream: Stream) -> None:
        """Returns when all that is queued on the stream is done. Raises what a kernel did wrong."""

    def handle(self, stream: Stream) -> int:
        """The CUDA handle of a stream, for others who are to follow it."""

    def follow(self, stream: Stream, handle: int) -> None:
        """What is queued on the stream from now on comes after all that is queued on a stream of
        somebody else's, given by its CUDA handle (1: the legacy default stream, 2: that of the
        thread)."""

    def lead(self, handle: int, stream: Stream) -> None:
        """What is queued on a stream of somebody else's from now on comes after all that is queued
        on a stream of ours."""

    # ---------------------------------------------------------------- graphs

    def capture(self, stream: Stream, queue: Callable[[], None], old: Graph | None = None) -> Graph:
        """What `queue()` queues on the stream, and on those that wait for it meanwhile, as a graph;
        nothing of it runs. Not on `main`. old: a graph of the same launches with other arguments
        that nobody replays any more; it may be changed and returned."""

    @property
    def has_conditions(self) -> bool:
        """Whether graphs may have loops and branches that the device decides about. Not to be
        asked for the first time while a graph is captured."""

    def repeat(
        self, stream: Stream, inner: Stream, predicate: int, queue: Callable[[Stream], None]
    ) -> None:
        """Into the graph that is being captured: as long as the byte at an address is not 0, what
        `queue(inner)` queues on that stream, which is not captured yet, and on those that wait for
        it. At the end those have come together on `inner`."""

    def choose(
        self,
        stream: Stream,
        inner: Stream,
        index: int,
        nbytes: int,
        queues: Sequence[Callable[[Stream], None]],
    ) -> None:
        """The same of `queues[i](inner)`, for the integer i of `nbytes` bytes at an address,
        clamped to them."""

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Queues all of the graph."""

    def replay_for(self, handle: int, graph: Graph) -> None:
        """Queues all of the graph on a stream of somebody else's."""
