"""Times of equations that are left to XLA between two programs of ours, and of what is outside of
all that is known.

Input: calls of programs with the number of XLA's execution that they belong to; staged functions,
whose items say what is between two programs. Output: rows, and spans for a timeline. Invariant: a
gap counts only where it lies between the calls of two programs that follow each other in one staged
function, in one execution. What XLA runs before the first and after the last of them is a part of
what is outside.

Note [Outside]: XLA tells nobody when an execution begins and ends, and a program of ours that did
nothing but look at the clock would cost every call, profiled or not. So what is left of the block
is one row: Python, JAX's way to the call and back, and these equations, which it names.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stagejit.base.loc import UNKNOWN
from stagejit.inspect.profiles.rows import OUTSIDE, XLA, DispatchTimes
from stagejit.runtime.cpu.loader import LoadedProgram
from stagejit.runtime.cpu.recording import Clock, Event, ProgramTimes
from stagejit.runtime.hosting.sites import Site
from stagejit.runtime.lowering.staged import DelegatedEquation, NativeCall, Reshape, Staged

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


def outside(
    pieces: Sequence[ProgramTimes],
    found: Sequence[Gap],
    functions: Iterable[Staged],
    clock: Clock,
    block_seconds: float,
) -> DispatchTimes:
    """What of a block of so many seconds is in no call and in no gap, see Note [Outside]."""
    calls = [event for times in pieces for event in times.events if not event.place]
    spans = [(call.begin, call.end) for call in calls]
    covered = _covered([*spans, *((gap.begin, gap.end) for gap in found)])
    if any(times.lost_events for times in pieces):  # then calls are known by their sums alone
        covered = sum(slot.total for times in pieces for slot in times.slots.get(0, ()))
        covered += sum(gap.end - gap.begin for gap in found)
    sites = _at_the_ends(functions, {times.name for times in pieces})
    return DispatchTimes(
        "",
        OUTSIDE,
        OUTSIDE,
        tuple(f"{function} {site.path}" for function, site in sites),
        sites[0][1].loc if sites else UNKNOWN,
        seconds=max(block_seconds - clock.lasting(covered), 0.0),
    )


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    """Of the clock, by at least one of them."""
    total, until = 0, 0
    for begin, end in sorted(spans):
        total += max(end - max(begin, until), 0)
        until = max(until, end)
    return total


def _at_the_ends(functions: Iterable[Staged], called: Collection[str]) -> list[tuple[str, Site]]:
    """What XLA runs before the first program of a function that was called, or after the last."""
    found: dict[tuple[str, Site], None] = {}
    for staged in functions:
        items = [item for item in staged.items if not isinstance(item, Reshape)]
        at = [n for n, item in enumerate(items) if isinstance(item, NativeCall)]
        programs = [item.program for item in items if isinstance(item, NativeCall)]
        loaded = [each for each in programs if isinstance(each, LoadedProgram)]
        if not any(each.name in called for each in loaded):
            continue
        for item in (*items[: at[0]], *items[at[-1] + 1 :]):
            if isinstance(item, DelegatedEquation) and item.site is not None:
                found[loaded[0].program.name, item.site] = None
    return list(found)


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
