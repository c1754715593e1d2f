"""How the time of each step grows with the length of a program.

Input: a program of any length, lengths, how often. Output: a frozen `Growth`, a table with one row
a program and step. Invariant: every compile is of a new variant, so that nothing was compiled
before; the first one does not count; lengths take turns, in an order that is drawn anew each time.

Times are CPU seconds of all threads, since LLVM uses several.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

import stagejit
from stagejit.base.threads.collector import collector_paused
from stagejit.bench.compiling.large import LargeProgram
from stagejit.bench.report import program_table
from stagejit.pipeline import STEPS, Compilation

TOTAL = "total"
# A step that takes less at the greatest length is no step that one waits for, and its ratio noise.
_LEAST_SECONDS = 0.02
_WARMING = 100  # equations


@dataclass(frozen=True)
class Growth:
    """seconds[equations][step]: median CPU time; the steps' sum is a step of its own."""

    name: str
    seconds: dict[int, dict[str, float]]

    def of(self, step: str) -> float:
        """How many times as long the greatest length takes as the one before."""
        shorter, longer = sorted(self.seconds)[-2:]
        return self.seconds[longer][step] / max(self.seconds[shorter][step], 1e-9)

    @property
    def steps(self) -> list[str]:
        """Those that take any time worth mentioning, and their sum."""
        longest = self.seconds[max(self.seconds)]
        return [step for step, seconds in longest.items() if seconds >= _LEAST_SECONDS]

    @property
    def worst(self) -> float:
        """Of all steps that take any time."""
        return max(map(self.of, self.steps), default=0.0)


def measure(program: LargeProgram, lengths: Sequence[int], repeats: int) -> Growth:
    """Compiles `repeats` variants of each length, after one that does not count."""
    if len(lengths) < 2:
        raise ValueError("growth takes two lengths")
    variants = iter(range(1, 1 << 20))
    _seconds_of(program, _WARMING, next(variants))
    found: dict[int, list[dict[str, float]]] = {length: [] for length in sorted(lengths)}
    for length in _turns(lengths, repeats):
        found[length].append(_seconds_of(program, length, next(variants)))
    medians = {
        length: {step: statistics.median(run[step] for run in runs) for step in runs[0]}
        for length, runs in found.items()
    }
    return Growth(program.name, medians)


def _turns(lengths: Sequence[int], repeats: int) -> Iterator[int]:
    order = random.Random(repeats)
    for _ in range(repeats):
        yield from order.sample(lengths, len(lengths))


def _seconds_of(program: LargeProgram, length: int, variant: int) -> dict[str, float]:
    function, args = program.make(length, variant)
    options = stagejit.Options(cache_dir="")
    compilation = Compilation(
        stagejit.jit(function, options=options).trace(*args).compilation.request
    )
    seconds = {}
    gc.collect()
    with collector_paused():
        for step in STEPS:
            start = time.process_time()
            compilation.run_until(step.name)
            seconds[step.name] = time.process_time() - start
    compilation.graph.dissolve()
    return seconds | {TOTAL: sum(seconds.values())}


def table_of(growths: Sequence[Growth]) -> Table:
    """Milliseconds of each step at each length, and the growth at the last two."""
    lengths = sorted(growths[0].seconds) if growths else [0, 0]
    columns = ["step", *(f"{length:,}" for length in lengths)]
    growth = f"{lengths[-2]:,} to {lengths[-1]:,}"
    table = program_table("CPU ms of each step, by equations (medians)", [*columns, growth])
    for each in growths:
        for at, step in enumerate(each.steps):
            times = (f"{each.seconds[length][step] * 1e3:.0f}" for length in lengths)
            table.add_row("" if at else each.name, step, *times, f"{each.of(step):.2f}")
        table.add_section()
    if growths:
        worst = max(growths, key=lambda each: each.worst)
        table.caption = f"most {worst.worst:.2f} ({worst.name})"
    return table
