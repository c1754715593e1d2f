"""The shortest and the longest time that launches of parallel regions took, from their events.

Input: the events of a program. Output: for the place of each launch ticks of one execution.
Invariant: each execution is divided by what was worked in it, see Note [Whose time] in `rows.py`:
shares of the sums would give an execution that was not disturbed the shares of those that were.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from stagejit.runtime.cpu.encoding import places_of
from stagejit.runtime.cpu.recording import Event, ProgramTimes
from stagejit.runtime.hosting.program import HostProgram, Parallel


def extremes(times: ProgramTimes) -> Mapping[int, tuple[float, float]]:
    """Least and most of the executions whose events are kept, by the places of launches."""
    jobs = _regions_of(times.program)
    found: dict[int, tuple[float, float]] = {}
    for worked in _executions(times.events, jobs):
        busy: dict[int, int] = defaultdict(int)
        for event in worked:
            busy[event.place] += event.end - event.begin
        inside = max(event.end for event in worked) - min(event.begin for event in worked)
        work = sum(busy.values())
        for place, own in busy.items():
            took = inside * own / work if work else 0.0
            least, most = found.get(place, (took, took))
            found[place] = min(least, took), max(most, took)
    return found


def _executions(events: Sequence[Event], jobs: Mapping[int, int]) -> Iterator[list[Event]]:
    """What was worked in each region, each time. jobs: the region of each launch, by places."""
    regions: dict[tuple[int, int], list[Event]] = defaultdict(list)
    inner: dict[tuple[int, int], list[Event]] = defaultdict(list)
    places = set(jobs.values())
    for event in events:  # in the order in which they began
        if event.place in jobs:
            inner[event.run, jobs[event.place]].append(event)
        elif event.place in places:
            regions[event.run, event.place].append(event)
    for key, ran in regions.items():
        begins = [region.begin for region in ran]
        worked: dict[int, list[Event]] = defaultdict(list)
        for event in inner[key]:
            at = bisect_right(begins, event.begin) - 1
            if at >= 0 and event.end <= ran[at].end:
                worked[at].append(event)
        yield from worked.values()


def _regions_of(program: HostProgram) -> dict[int, int]:
    """For the place of each launch that stands in a region that of the region."""
    told, found = list(places_of(program).items()), dict[int, int]()
    for at, (place, step) in enumerate(told):
        if isinstance(step, Parallel):
            jobs = told[at + 1 : at + 1 + len(step.launches)]
            found |= {job: place for job, _ in jobs}
    return found
