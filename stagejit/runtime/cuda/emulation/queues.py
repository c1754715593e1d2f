"""Streams and events of an emulated GPU: what is queued, run in one of the orders that are allowed.

Input: operations on streams. Output: they have run, when somebody waits for them. Invariant: those
of a stream run in order, and what waits for an event after it; beyond that a seed decides. So a
program that lacks an event computes something else, with one seed or another.

Note [Who comes first]: each stream has a random priority, and the first that can go on does, so
that some streams fall far behind others; now and then priorities are drawn anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from stagejit.runtime.cuda.emulation.memory import EmulationError

_SAME = 0.75  # how often priorities stay from one operation to the next


@dataclass(eq=False)
class Operation:
    """after: what has to run before, on another stream."""

    run: Callable[[], None]
    after: Operation | None = None
    done: bool = False


@dataclass(eq=False)
class EmulatedStream:
    """Operations that have not run."""

    queued: deque[Operation] = field(default_factory=deque)
    priority: float = 0.0
    busy: bool = False  # with an operation that runs others

    @property
    def can_go_on(self) -> bool:
        after = self.queued[0].after if self.queued else None
        return bool(self.queued) and not self.busy and (after is None or after.done)


@dataclass(eq=False)
class EmulatedEvent:
    """at: the operation that stands for it, none before it is recorded; time: when that ran."""

    at: Operation | None = None
    time: float = 0.0


@dataclass(eq=False)
class Queues:
    """All streams of a device."""

    choose: Random
    streams: list[EmulatedStream] = field(default_factory=list)

    def new(self) -> EmulatedStream:
        self.streams.append(EmulatedStream(priority=self.choose.random()))
        return self.streams[-1]

    def put(
        self, stream: EmulatedStream, run: Callable[[], None], after: Operation | None = None
    ) -> Operation:
        operation = Operation(run, after)
        stream.queued.append(operation)
        return operation

    def finish(self, stream: EmulatedStream) -> None:
        """Runs operations, those of other streams too, until the stream has none."""
        while stream.queued or stream.busy:
            self._step()

    def finish_all(self) -> None:
        while any(stream.queued for stream in self.streams):
            self._step()

    def _step(self) -> None:
        ready = [stream for stream in self.streams if stream.can_go_on]
        if not ready:
            raise EmulationError("all streams wait for each other")
        stream = max(ready, key=lambda one: one.priority)
        operation = stream.queued.popleft()
        if self.choose.random() >= _SAME:
            for one in self.streams:
                one.priority = self.choose.random()
        stream.busy = True
        try:
            operation.run()
        except BaseException:
            for one in self.streams:  # as on a GPU, whose context is lost by a fault
                one.queued.clear()
            raise
        finally:
            stream.busy = False
            operation.done, operation.after = True, None
