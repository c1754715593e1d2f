"""What dispatches that share a fork take at least: each execution is divided by its own work."""

from __future__ import annotations

import pytest

from stagejit.inspect.profiles.rows import FORK_JOIN, HOST, rows_of
from stagejit.runtime.cpu.encoding import places_of
from stagejit.runtime.cpu.recording import Clock, Event, ProgramTimes, Slot
from stagejit.runtime.hosting.program import HostProgram, Launch, Parallel
from stagejit.runtime.hosting.sites import Site

CLOCK = Clock(0, 0.0, 1.0)
LAUNCHES = tuple(Launch(f"k{n}", (), total=4, parallel=True, site=n) for n in (0, 1))
SITES = tuple(Site(f"contract.{n}", "contract") for n in (0, 1))
PROGRAM = HostProgram("f", (Parallel(LAUNCHES),), (), (), sites=SITES)
REGION, FIRST, SECOND = places_of(PROGRAM)


def times(events: list[Event], outside: int) -> ProgramTimes:
    """Of the region's executions, each an event of it and those of its two launches after it."""
    regions = [event for event in events if event.place == REGION]
    took = [event.end - event.begin for event in regions]
    slots = {
        0: [Slot(len(took), sum(took), min(took), max(took), 0, 0, 0)],
        REGION: [Slot(len(took), sum(took), min(took), max(took), outside, sum(took) // 2, 0)],
    }
    for place in (FIRST, SECOND):
        own = [event.end - event.begin for event in events if event.place == place]
        slots[place] = [Slot(len(own), 0, 0, 0, 0, 0, sum(own))]
    return ProgramTimes("f_1", PROGRAM, slots, sorted(events, key=lambda e: e.begin), 0, 2)


def execution(at: int, run: int, before: int, first: int, second: int) -> list[Event]:
    """Both launches on threads of their own, after a fork that takes `before`."""
    begin = at + before
    return [
        Event(at, begin + max(first, second), 1, REGION, run),
        Event(begin, begin + first, 1, FIRST, run),
        Event(begin, begin + second, 2, SECOND, run),
    ]


def test_a_fork_that_was_disturbed_makes_no_other_execution_shorter() -> None:
    """Sums have 20,000 ticks before the work and 10,000 of one launch, of the disturbed one."""
    calm = [event for n in range(9) for event in execution(1000 * n, n, 10, 60, 40)]
    found = times([*calm, *execution(50_000, 9, 20_000, 10_000, 40)], 9 * 10 + 20_000)
    rows = {row.dispatch: row for row in rows_of(found, CLOCK)}
    assert rows["contract.0"].seconds_min == pytest.approx(60 * 60 / 100)
    assert rows["contract.1"].seconds_min == pytest.approx(60 * 40 / 100)
    assert rows["contract.0"].seconds_max == pytest.approx(10_000 * 10_000 / 10_040)
    assert sum(row.seconds for row in rows.values()) == pytest.approx(9 * 70 + 30_000)
    assert [name for name, row in rows.items() if not row.is_dispatch] == [FORK_JOIN, HOST]


def test_executions_of_other_calls_are_told_apart() -> None:
    """Two calls at once, whose events are between each other's."""
    found = times([*execution(0, 1, 0, 100, 100), *execution(50, 2, 0, 30, 10)], 0)
    rows = {row.dispatch: row for row in rows_of(found, CLOCK)}
    assert rows["contract.0"].seconds_min == pytest.approx(30 * 30 / 40)
    assert rows["contract.1"].seconds_min == pytest.approx(30 * 10 / 40)


def test_of_executions_without_events_nobody_knows_the_shortest() -> None:
    found = times(execution(0, 1, 0, 100, 100), 0)
    found.events.clear()
    assert {row.seconds_min for row in rows_of(found, CLOCK) if row.is_dispatch} == {0.0}
