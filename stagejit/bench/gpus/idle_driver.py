"""A driver that does nothing, to see what the host does around it.

Input: what a `Driver` is asked. Output: addresses of nothing, arrays without content. Invariant: it
keeps account of memory, as a pool does, and runs no kernel; results mean nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from stagejit.base.threads.locks import new_rlock
from stagejit.runtime.cuda.driver import Array, Event, Function, Graph, Source, Stream, T

_FIRST, _ALIGNED = 1 << 32, 256
_NOTHING = object()


class IdleArray:
    """An array of an idle driver's."""

    def __init__(
        self, driver: IdleDriver, address: int, shape: tuple[int, ...], typestr: str, owner: object
    ) -> None:
        self._driver, self._address, self._owner = driver, address, owner
        self._told = {
            "shape": shape, "strides": None, "data": (address, False), "typestr": typestr,
            "stream": None, "version": 3,
        }  # fmt: skip

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return dict(self._told)

    def __del__(self) -> None:
        if self._owner is None:
            self._driver.free_later((self._address,))


class IdleDriver:
    """A `Driver`."""

    name, arch, cores, limits, main = "nothing", "sm_90a", 0, None, Stream(_NOTHING)

    def __init__(self) -> None:
        self._lock, self._next = new_rlock(), _FIRST
        self._free: dict[int, list[int]] = {}
        self._sizes: dict[int, int] = {}
        self._dropped: list[int] = []

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        with self._lock:
            self._free_dropped()
            yield

    def within(self, work: Callable[[], T]) -> T:
        with self._lock:
            self._free_dropped()
            return work()

    def _free_dropped(self) -> None:
        while self._dropped:
            self.free(self._dropped.pop())

    def load(
        self, sources: Sequence[Source], cache_dir: str | None = None
    ) -> Mapping[str, Function]:
        return {source.name: Function(_NOTHING) for source in sources}

    def launch(self, *what: Any) -> None: ...

    def allocate(self, nbytes: int) -> int:
        free = self._free.get(nbytes)
        if free:
            address = free.pop()
        else:
            address, self._next = self._next, self._next + -(-(nbytes + 1) // _ALIGNED) * _ALIGNED
        self._sizes[address] = nbytes
        return address

    def free(self, address: int) -> None:
        self._free.setdefault(self._sizes.pop(address), []).append(address)

    def free_later(self, addresses: Sequence[int]) -> None:
        self._dropped.extend(addresses)

    def copy_in(self, address: int, array: Array, stream: Stream) -> None: ...

    def copy_out(self, array: Array, address: int, stream: Stream) -> None:
        array[...] = 0

    def copy(self, to: int, source: int, nbytes: int, stream: Stream) -> None: ...

    def fill(self, address: int, byte: int, nbytes: int, stream: Stream) -> None: ...

    def store(self, address: int, value: int, nbytes: int, stream: Stream) -> None: ...

    def array(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object = None
    ) -> Any:
        return IdleArray(self, address, shape, dtype.str, owner)

    def delete(self, array: object) -> None: ...

    def new_stream(self) -> Stream:
        return Stream(_NOTHING)

    def new_event(self) -> Event:
        return Event(_NOTHING)

    def record(self, event: Event, stream: Stream) -> None: ...

    def wait(self, stream: Stream, event: Event) -> None: ...

    def seconds(self, start: Event, end: Event) -> float:
        return 0.0

    def synchronize(self, stream: Stream) -> None: ...

    def handle(self, stream: Stream) -> int:
        return 0

    def follow(self, stream: Stream, handle: int) -> None: ...

    def lead(self, handle: int, stream: Stream) -> None: ...

    def capture(self, stream: Stream, queue: Callable[[], None], old: Graph | None = None) -> Graph:
        queue()
        return Graph(_NOTHING)

    has_conditions = True

    def repeat(
        self, stream: Stream, inner: Stream, predicate: int, queue: Callable[[Stream], None]
    ) -> None:
        queue(inner)

    def choose(
        self,
        stream: Stream,
        inner: Stream,
        index: int,
        nbytes: int,
        queues: Sequence[Callable[[Stream], None]],
    ) -> None:
        for queue in queues:
            queue(inner)

    def replay_for(self, handle: int, graph: Graph) -> None: ...

    def replay(self, graph: Graph, stream: Stream) -> None: ...
