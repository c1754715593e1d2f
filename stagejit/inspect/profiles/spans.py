"""What each thread did when, as timelines and trace files show it.

Input: events in ticks. Output: `Span`s in seconds from the begin of a profile. Invariant: spans of
one thread are nested or apart: a call, in it its steps, in a parallel region the work of jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stagejit.base.loc import UNKNOWN, Loc
from stagejit.inspect.profiles.rows import steps_at
from stagejit.runtime.cpu.encoding import places_of
from stagejit.runtime.cpu.recording import Clock, ProgramTimes
from stagejit.runtime.hosting.program import Parallel


@dataclass(frozen=True)
class Span:
    """name: of a function for a call, else of a dispatch, or "parallel"; kind: "call", "region",
    "dispatch" or "xla"; start_seconds: from the begin of the profile."""

    name: str
    kind: str
    function: str
    loc: Loc
    start_seconds: float
    seconds: float
    thread: str

    @property
    def stop_seconds(self) -> float:
        return self.start_seconds + self.seconds


def spans_of(
    times: ProgramTimes, clock: Clock, begin: float, threads: Mapping[int | None, str]
) -> list[Span]:
    """Those of one program. begin: of the profile; threads: names of those that Python knows."""
    names = {place: (name, "dispatch", loc) for place, name, loc in steps_at(times.program)}
    names[0] = times.program.name, "call", UNKNOWN
    regions = (p for p, step in places_of(times.program).items() if isinstance(step, Parallel))
    names |= dict.fromkeys(regions, ("parallel", "region", UNKNOWN))
    made = []
    for event in times.events:
        name, kind, loc = names.get(event.place, ("host", "region", UNKNOWN))
        made.append(
            Span(
                name,
                kind,
                times.program.name,
                loc,
                clock.at(event.begin) - begin,
                clock.lasting(event.end - event.begin),
                threads.get(event.thread) or f"XLA thread {event.thread:x}",
            )
        )
    return made
