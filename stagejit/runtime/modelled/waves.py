"""When the kernels of one wave run, on which threads.

Input: what each takes on the threads that it is for, how long the others have slept. Output:
`Laid`. Invariant: what decides whether a wave shares a fork, and all that is said of its time,
comes from here; nothing was measured.

Note [Forks]: to wake threads costs what a kernel gains that is just worth it: on two cores, half of
what forking pays from. Behind a join they look for more for a while before they sleep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stagejit.base.machine import FORK_SECONDS, HOT_FORK_SECONDS
from stagejit.base.records import record

WAKING_SECONDS = FORK_SECONDS / 2
AWAKE_SECONDS = FORK_SECONDS


@record
class Job:
    """A kernel. seconds: on the thread that has most to do, if no other job is there. threads: how
    many take part, of a kernel that has so many chunks."""

    seconds: float
    threads: int = 1

    @property
    def shared(self) -> bool:
        return self.threads > 1


@record
class Bar:
    """On `lanes` threads from `lane` on; its times begin with the wave."""

    job: int
    lane: int
    lanes: int
    start: float
    seconds: float


@record
class Laid:
    """seconds: of the wave. since: from its last join to its end."""

    bars: tuple[Bar, ...]
    seconds: float
    since: float


def forking(since: float) -> float:
    """What a fork costs so long after the last join; see Note [Forks]."""
    return HOT_FORK_SECONDS if since <= AWAKE_SECONDS else WAKING_SECONDS


def in_turn(jobs: Iterable[Job], lanes: int, since: float) -> Laid:
    """One after the other, each with a fork of its own if threads share it, which is a part of its
    time."""
    bars, now = list[Bar](), 0.0
    for number, job in enumerate(jobs):
        forks = job.shared and lanes > 1
        seconds = job.seconds + (forking(since) if forks else 0.0)
        bars.append(Bar(number, 0, min(job.threads, lanes), now, seconds))
        now += seconds
        since = 0.0 if forks else since + seconds
    return Laid(tuple(bars), now, since)


def together(jobs: Sequence[Job], lanes: int, since: float) -> Laid:
    """Under one fork: the longest that stay on one thread come first, and those that threads share
    fill up what is left, as `cpu/hosting.py` has it."""
    order = sorted(
        range(len(jobs)),
        key=lambda at: (jobs[at].shared, 0 if jobs[at].shared else -jobs[at].seconds),
    )
    ready, bars = [forking(since)] * lanes, list[Bar]()

    def put(number: int, lane: int, seconds: float) -> None:
        if seconds > 0:
            bars.append(Bar(number, lane, 1, ready[lane], seconds))
            ready[lane] += seconds

    for number in order:
        job = jobs[number]
        if job.threads >= lanes > 1:
            level = _level(ready, job.seconds * lanes)
            for lane in range(lanes):
                put(number, lane, level - ready[lane])
        else:
            for _ in range(min(job.threads, lanes)):
                put(number, min(range(lanes), key=ready.__getitem__), job.seconds)
    return Laid(tuple(bars), max(ready), 0.0)


def _level(ready: Iterable[float], work: float) -> float:
    """When threads that are ready at these times have done so much together."""
    times, total = sorted(ready), 0.0
    for count, at in enumerate(times, 1):
        total += at
        level = (work + total) / count
        if count == len(times) or level <= times[count]:
            break
    return level
