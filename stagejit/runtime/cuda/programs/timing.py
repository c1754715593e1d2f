"""Times of dispatches on a GPU, as long as somebody records them.

Input: events of a driver around what a dispatch queues. Output: `Timed`s. Invariants: outside of
recordings no event is made; while there is one, calls are queued launch by launch, as graphs have
no events to ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stagejit.base.records import record
from stagejit.base.threads.locks import new_lock
from stagejit.runtime.cuda.driver import Driver, Event, Stream
from stagejit.runtime.hosting.sites import Site, inside, site_of
from stagejit.schedule.plans.plan import Plan

# Of a dispatch: its name, behind those of the loops and branches around it and the numbers of their
# bodies.
Path = tuple[str | int, ...]


@record
class Timer:
    """Of calls of a function: what there is to time."""

    function: str
    sites: Mapping[Path, Site]
    driver: Driver

    def mark(self, stream: Stream) -> Event:
        """An event of now."""
        event = self.driver.new_event()
        self.driver.record(event, stream)
        return event

    def note(self, path: Path, start: Event, stream: Stream) -> None:
        """A dispatch ends that began with an event."""
        site = self.sites.get(path)
        if site is not None:
            timed = Timed(self.function, site, self.driver, start, self.mark(stream))
            with _lock:
                for recording in _open:
                    recording.timed.append(timed)


@record
class Timed:
    """One execution of a dispatch: from when what comes before it on its stream was done to when
    it was."""

    function: str
    site: Site
    driver: Driver
    start: Event
    end: Event

    def seconds(self) -> float:
        """On the device, which is waited for."""
        with self.driver.current():
            return self.driver.seconds(self.start, self.end)


@dataclass(eq=False)
class Recording:
    """What was timed from its begin to its end."""

    timed: list[Timed] = field(default_factory=list)


_open: list[Recording] = []
_lock = new_lock()


def begin() -> Recording:
    """From now on calls are timed."""
    made = Recording()
    with _lock:
        _open.append(made)
    return made


def end(recording: Recording) -> None:
    """No longer for this one."""
    with _lock:
        _open.remove(recording)


def is_on() -> bool:
    """Whether somebody records."""
    return bool(_open)


def sites_of(plan: Plan, around: str = "", path: Path = ()) -> Iterator[tuple[Path, Site]]:
    """Of all dispatches of a plan."""
    for dispatch in plan.dispatches:
        own = (*path, dispatch.name)
        yield own, site_of(dispatch, around)
        for number, body in enumerate(dispatch.bodies):
            yield from sites_of(body.plan, inside(around, dispatch, body), (*own, number))
