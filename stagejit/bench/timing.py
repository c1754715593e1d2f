"""Interleaved timing of several calls in one process.

Input: functions that do one call and wait for its result. Output: `Timing` for each, in the same
order. Invariant: every round gives every contender one turn, in random order, so that a disturbance
of the machine or a change of its clock meets all of them alike.

Note [Turns]: programs are called again and again by those who use them, and then find in the caches
what their last call has left there. Contenders that alternate call by call find what another one
has left: with weights of some MB each evicts those of the others. So a turn is several calls in a
row, of which the first ones are not timed: one, and more until SETTLING_SECONDS have gone, since a
large cache that cores share takes in what is read again only over several calls (85 MB into one of
480 MiB: five to eight). What is larger than the caches comes from memory in each call, as before.

Note [Pages]: the memory of a result of some MB the C library may have given back to the system, or
have in the arena of another thread. Then its pages are new, and to have them zeroed takes longer
than many programs take. Who meets new pages is a matter of chance (a gather of 25 MB was 0.7 to 4
times as fast as another). So all memory comes from one arena that gives nothing back.
"""

from __future__ import annotations

import ctypes
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Call = Callable[[], object]
Clock = Callable[[], float]

MIN_ROUNDS, MAX_ROUNDS = 2, 400
SAMPLES_A_TURN = 3
SETTLING_SECONDS = 30e-3
_MIN_SAMPLE_SECONDS = 200e-6  # below it a sample repeats the call, to drown the clock's own cost
_WARMUP_CALLS = 2
# Of glibc's mallopt: no memory is given back, none is mapped for one array, there is one arena.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_NEVER = 2**31 - 1


@dataclass(frozen=True)
class Timing:
    """Seconds of a call. spread is (third quartile - first quartile) / median."""

    median: float
    spread: float
    best: float
    samples: int


def keep_pages() -> None:
    """For the rest of this process, see Note [Pages]; to be called before JAX starts its threads.
    Where the C library is another one, nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for what, number in ((_M_TRIM_THRESHOLD, _NEVER), (_M_MMAP_MAX, 0), (_M_ARENA_MAX, 1)):
            mallopt(what, number)


def interleave(
    calls: Sequence[Call], seconds: float, clock: Clock = time.perf_counter
) -> list[Timing]:
    """Times the calls against each other for about `seconds`, at least MIN_ROUNDS rounds."""
    repeats = [_repeats(call, clock) for call in calls]
    samples: list[list[float]] = [[] for _ in calls]
    order, rounds = list(range(len(calls))), 0
    shuffle = random.Random(0).shuffle
    deadline = clock() + seconds
    collecting = gc.isenabled()
    gc.disable()
    try:
        while rounds < MIN_ROUNDS or (clock() < deadline and rounds < MAX_ROUNDS):
            shuffle(order)
            for index in order:
                _settle(calls[index], clock)
                turn = range(SAMPLES_A_TURN)
                samples[index] += [_sample(calls[index], repeats[index], clock) for _ in turn]
            rounds += 1
    finally:
        if collecting:
            gc.enable()
    return [summarize(found) for found in samples]


def summarize(samples: Sequence[float]) -> Timing:
    """Median, relative spread and best of at least one sample."""
    median = statistics.median(samples)
    if len(samples) < 2:
        return Timing(median, 0.0, median, len(samples))
    first, _, third = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(median, (third - first) / median, min(samples), len(samples))


def geometric_mean(ratios: Sequence[float]) -> float:
    """1 where there are none."""
    return math.exp(sum(map(math.log, ratios)) / max(len(ratios), 1))


def _repeats(call: Call, clock: Clock) -> int:
    """How many calls make one sample, found after warming up."""
    for _ in range(_WARMUP_CALLS):
        call()
    fastest = min(_sample(call, 1, clock) for _ in range(3))
    return max(1, round(_MIN_SAMPLE_SECONDS / max(fastest, 1e-7)))


def _settle(call: Call, clock: Clock) -> None:
    """See Note [Turns]."""
    settled = clock() + SETTLING_SECONDS
    call()
    while clock() < settled:
        call()


def _sample(call: Call, repeats: int, clock: Clock) -> float:
    started = clock()
    for _ in range(repeats):
        call()
    return (clock() - started) / repeats
