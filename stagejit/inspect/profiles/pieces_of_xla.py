"""Times of equations that are left to XLA between two programs of ours.

Input: calls of programs with the number of XLA's execution that they belong to; staged functions,
whose items say what is between two programs. Output: rows, and spans for a timeline. Invariant: a
gap counts only where it lies between the calls of two programs that follow each other in one staged
function, in one execution; what is before the first and after the last of them is not known.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stagejit.inspect.profiles.rows import XLA, DispatchTimes
from stagejit.runtime.cpu.loader import LoadedProgram
from stagejit.runtime.cpu.recording import Clock, Event, ProgramTimes
from stagejit.runtime.sites import Site
from stagejit.runtime.staged import DelegatedEquation, NativeCall, Staged

_Pair = tuple[str, str]  # names of programs


@dataclass(frozen=True)
class Gap:
    """Between two calls; of which equations, and of which thread it was that waited."""

    function: str
    sites: tuple[Site, ...]
    begin: int
    end: int
    thread: int


def gaps(pieces: Iterable[ProgramTimes], functions: Iterable[Staged]) -> list[Gap]:
    """Between all calls that are known."""
    between = _between(functions)
    if not between:
        return []
    calls: dict[int, list[tuple[Event, ProgramTimes]]] = defaultdict(list)
    for times in pieces:
        for event in times.events:
            if not event.place and event.run:
                calls[event.run].append((event, times))
    found = []
    for run in calls.values():
        run.sort(key=lambda call: call[0].begin)
        for (first, times), (second, later) in itertools.pairwise(run):
            sites = between.get((times.name, later.name), ())
            if sites and second.begin > first.end:
                name = later.program.name
                found.append(Gap(name, sites, first.end, second.begin, second.thread))
    return found


def _between(functions: Iterable[Staged]) -> Mapping[_Pair, tuple[Site, ...]]:
    """For programs that follow each other what is left to XLA between them."""
    found: dict[_Pair, tuple[Site, ...]] = {}
    for staged in functions:
        last, sites = "", list[Site]()
        for item in staged.items:
            if isinstance(item, DelegatedEquation) and item.site is not None:
                sites.append(item.site)
            elif isinstance(item, NativeCall) and isinstance(item.program, LoadedProgram):
                if last and sites:
                    found[last, item.program.name] = tuple(sites)
                last, sites = item.program.name, []
    return found


def rows_of_gaps(found: Sequence[Gap], clock: Clock) -> list[DispatchTimes]:
    """A row for the equations of each gap."""
    made = []
    for gap in found:
        seconds = clock.lasting(gap.end - gap.begin)
        made.append(
            DispatchTimes(
                gap.function,
                ", ".join(site.path for site in gap.sites),
                XLA,
                tuple(op for site in gap.sites for op in site.ops),
                gap.sites[0].loc,
                count=1,
                seconds=seconds,
                seconds_min=seconds,
                seconds_max=seconds,
                nbytes=sum(site.nbytes for site in gap.sites),
            )
        )
    return made
