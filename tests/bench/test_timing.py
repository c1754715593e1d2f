"""Interleaving and statistics, on a clock that the test advances itself."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from stagejit.bench import timing


class FakeClock:
    """Time passes only inside the calls made by `costing`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def costing(self, name: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.log.append(name)
            self.now += seconds

        return call


def test_medians_are_those_of_the_calls() -> None:
    clock = FakeClock()
    fast, slow = timing.interleave(
        [clock.costing("a", 0.01), clock.costing("b", 0.03)], seconds=1.0, clock=clock
    )
    assert fast.median == pytest.approx(0.01)
    assert slow.median == pytest.approx(0.03)
    assert fast.spread == pytest.approx(0.0, abs=1e-9)
    assert fast.samples == slow.samples == 18


def test_a_turn_is_several_calls_in_a_row_in_each_round() -> None:
    clock, calls = FakeClock(), []
    for name in "abc":
        calls.append(clock.costing(name, 1.0))
    timing.interleave(calls, seconds=200.0, clock=clock)
    each = 1 + timing.SAMPLES_A_TURN
    timed = "".join(clock.log[len("abc") * (2 + 3) :])  # after those that warm up
    rounds = [timed[at : at + 3 * each] for at in range(0, len(timed), 3 * each)]
    orders = [found[::each] for found in rounds]
    assert rounds == ["".join(x * each for x in order) for order in orders]
    assert {"".join(sorted(order)) for order in orders} == {"abc"}
    assert len(set(orders)) > 3


@pytest.mark.parametrize(("seconds", "misses"), [(1.0, 1), (4e-3, 3), (1e-4, 100)])
def test_calls_that_fill_the_caches_are_not_timed(seconds: float, misses: int) -> None:
    """What another one has evicted comes back in the first calls of a turn."""
    clock, last, missed = FakeClock(), "", 0

    def cached(name: str) -> Callable[[], None]:
        def call() -> None:
            nonlocal last, missed
            missed = missed + 1 if last == name else 1
            clock.now += 2 * seconds if missed <= misses else seconds
            last = name

        return call

    timings = timing.interleave([cached("a"), cached("b")], seconds=50 * seconds, clock=clock)
    for found in timings:
        assert (found.median, found.spread) == (pytest.approx(seconds), pytest.approx(0, abs=1e-6))


def test_at_least_the_minimum_of_rounds_is_run() -> None:
    clock = FakeClock()
    (only,) = timing.interleave([clock.costing("a", 10.0)], seconds=0.5, clock=clock)
    assert only.samples == timing.MIN_ROUNDS * timing.SAMPLES_A_TURN


def test_never_more_than_the_maximum_of_rounds() -> None:
    clock = FakeClock()
    (only,) = timing.interleave([clock.costing("a", 1e-3)], seconds=1e9, clock=clock)
    assert only.samples == timing.MAX_ROUNDS * timing.SAMPLES_A_TURN


def test_short_calls_are_repeated_within_a_sample() -> None:
    clock = FakeClock()
    (only,) = timing.interleave([clock.costing("a", 10e-6)], seconds=0.0, clock=clock)
    assert only.median == pytest.approx(10e-6)
    assert len(clock.log) >= 20 * timing.MIN_ROUNDS * timing.SAMPLES_A_TURN


def test_spread_is_the_interquartile_range_over_the_median() -> None:
    found = timing.summarize([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found == timing.Timing(median=3.0, spread=pytest.approx(2 / 3), best=1.0, samples=5)


def test_one_sample_has_no_spread() -> None:
    assert timing.summarize([2.0]) == timing.Timing(2.0, 0.0, 2.0, 1)


def test_garbage_collection_is_back_on_after_a_failing_call() -> None:
    import gc

    calls = 0

    def failing() -> None:
        nonlocal calls
        calls += 1
        if calls > 8:
            raise RuntimeError("later")

    with pytest.raises(RuntimeError):
        timing.interleave([failing], seconds=100.0, clock=FakeClock())
    assert gc.isenabled()


def test_geometric_mean() -> None:
    assert timing.geometric_mean([1.0, 4.0]) == pytest.approx(2)
    assert timing.geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert timing.geometric_mean([]) == 1


_ROUNDS = """
import resource, sys, threading
import numpy as np
from stagejit.bench import timing
if sys.argv[1] == "kept":
    timing.keep_pages()

def faults(nbytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(nbytes, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def rounds():
    print([faults(nbytes) for _ in range(3) for nbytes in (2**25, 100 * 2**20)][2:])

rounds()
thread = threading.Thread(target=rounds)
thread.start()
thread.join()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="no glibc")
@pytest.mark.parametrize("kept", [True, False])
def test_pages_of_results_are_not_new(kept: bool) -> None:
    """Of arrays that are made again and again, in two threads; without it they are."""
    environment = {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0"}
    command = [sys.executable, "-c", _ROUNDS, "kept" if kept else "not"]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = [number for line in made.stdout.splitlines() for number in json.loads(line)]
    assert len(found) == 8
    assert (max(found) < 1000) == kept
