"""One row of the table: a workload run through every contender.

Input: a workload, contenders, a time budget. Output: a frozen `Row`. Invariant: a row without an
`error` text has a right result behind each of its times, or says which contender's result is off.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import jax

from stagejit.bench.accuracy import error_against, reference_of
from stagejit.bench.compile_time import CompileTimes
from stagejit.bench.contenders import Contender, Footprint, bound_to, on_device, waiting_call
from stagejit.bench.cost import Cost, cost_of
from stagejit.bench.programs import Arguments, Workload
from stagejit.bench.reading import reader_of
from stagejit.bench.timing import Call, Timing, interleave
from stagejit.runtime.peaks import Peaks


@dataclass(frozen=True)
class Entry:
    """One contender on one workload. error: relative to float64, see `accuracy`."""

    name: str
    timing: Timing
    error: float
    footprint: Footprint


@dataclass(frozen=True)
class Row:
    """A workload's measurements; the first entry is stagejit's.

    floor: seconds below which the machine cannot go (0 where the peaks were not measured).
    reading: of reading `cost.nbytes` from memory, among the calls; None where weights are no part
        of them, or a cache holds them.
    failure: the exception that ended the row, "" where it went through.
    """

    name: str
    tolerance: float
    cost: Cost = field(default_factory=lambda: Cost(0, 0))
    floor: float = 0.0
    entries: tuple[Entry, ...] = ()
    compile_times: CompileTimes = field(default_factory=CompileTimes)
    failure: str = ""
    reading: Timing | None = None

    @property
    def right(self) -> bool:
        """True where every contender's result is within the tolerance."""
        return not self.failure and all(entry.error <= self.tolerance for entry in self.entries)

    @property
    def ours(self) -> Entry:
        return self.entries[0]

    def ratio(self, entry: Entry) -> float:
        """How many times as long `entry` takes as stagejit; above 1 we are faster."""
        return entry.timing.median / self.ours.timing.median

    @property
    def gflops(self) -> float:
        """Rate of multiply-adds of matrix products and convolutions, in 1e9 a second."""
        return self.cost.flops / self.ours.timing.median / 1e9

    @property
    def gbytes(self) -> float:
        """Rate at which arguments and results move, in 1e9 bytes a second."""
        return self.cost.nbytes / self.ours.timing.median / 1e9

    @property
    def percent_of_floor(self) -> float:
        """100 means as fast as the machine allows."""
        return 100 * self.floor / self.ours.timing.median

    @property
    def percent_of_reading(self) -> float | None:
        """100 means as fast as all cores read so many bytes from memory."""
        if self.reading is None:
            return None
        return 100 * self.reading.median / self.ours.timing.median


def measure(
    workload: Workload, contenders: Sequence[Contender], seconds: float, peaks: Peaks | None = None
) -> Row:
    """Runs the workload through all contenders for about `seconds` each.

    An exception of a contender or of the workload becomes the row's `failure`.
    """
    try:
        return _measured(workload, contenders, seconds, peaks)
    except Exception as exception:
        return Row(workload.name, workload.tolerance, failure=_headline(exception))


def _measured(
    workload: Workload, contenders: Sequence[Contender], seconds: float, peaks: Peaks | None
) -> Row:
    function, donated, raw_args = workload.function, workload.donated, workload.make_args()
    args = on_device(raw_args)
    cost = cost_of(function, args, donated, workload.read_nbytes)
    reference = reference_of(function, raw_args)
    contenders = [ours(workload, args, contenders[0]), *contenders[1:]]
    calls = [waiting_call(c.compile(function, donated), args, donated) for c in contenders]
    errors = [error_against(reference, call()) for call in calls]
    footprints = [c.footprint(function, args, donated) for c in contenders]
    read = footprints[0].weight_nbytes
    if read is not None:
        given = sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(args[0]))
        cost = replace(cost, nbytes=cost.nbytes - given + read)
    reader = None if read is None else reader_of(cost.nbytes)
    timed: list[Call] = [*calls, *([] if reader is None else [reader])]
    timings = interleave(timed, seconds * len(timed))
    reading = None if reader is None else timings.pop()
    each = zip(contenders, timings, errors, footprints, strict=True)
    entries = tuple(Entry(c.name, timing, error, held) for c, timing, error, held in each)
    floor = peaks.floor_seconds(cost.flops, cost.nbytes) if peaks else 0.0
    return Row(workload.name, workload.tolerance, cost, floor, entries, reading=reading)


def ours(workload: Workload, args: Arguments, otherwise: Contender) -> Contender:
    """Who measures a workload first: of one that has weights ours, bound to them."""
    return otherwise if workload.weights is None else bound_to(args[0], workload.weights)


def _headline(exception: Exception) -> str:
    """Type and first line of the message, with the place in our code it came from."""
    last = traceback.extract_tb(exception.__traceback__)[-1]
    message = (str(exception).splitlines() or [""])[0]
    return f"{type(exception).__name__}: {message} ({last.filename}:{last.lineno})"
