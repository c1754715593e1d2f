"""A run of the net with a budget of time: what `python -m tests.fuzz` does.

Input: a seed and minutes. Output: a `Report`; progress goes to the console as it happens.
Invariant: the seed is printed first, and with it the run can be repeated; every failure is counted,
the first of each kind is minimized.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tests.fuzz.bound import between
from tests.fuzz.bound.lives import trouble
from tests.fuzz.kernels.lab import run_kernels
from tests.fuzz.programs import workers
from tests.fuzz.programs.generate import FEATURES, Program, random_program
from tests.fuzz.programs.order import Disorder, disorders
from tests.fuzz.programs.verdicts import Verdict

PARTS = ("kernels", "programs", "order", "bound")
SHARES = {"kernels": 5, "programs": 5, "order": 2, "bound": 1}  # of the time of several parts
MOST_MINIMIZED = 8
MINIMIZING_SECONDS = 60.0
PROGRAMS_A_ROUND = 30  # that are compiled in several orders


@dataclass
class Failure:
    """What failed first in this way, and how many others did."""

    seed: int
    verdict: Verdict
    count: int = 1
    program: Program | None = None  # minimized

    def __str__(self) -> str:
        head = f"# {self.verdict.kind} ({self.count} times): {self.verdict.detail}"
        return f"\n{head}\n{self.program}"


@dataclass
class Report:
    """verdicts: how many programs of each kind. failures: by what they have in common."""

    seed: int
    verdicts: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Failure] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def summary(self) -> str:
        counts = ", ".join(f"{number} {kind}" for kind, number in self.verdicts.most_common())
        rate = 60 * self.verdicts.total() / max(self.seconds, 1e-9)
        return (
            f"random programs, seed {self.seed}: {self.verdicts.total()} ({counts or 'none'})"
            f" in {self.seconds:.0f} s, {rate:.0f} a minute"
        )


def run(
    seed: int,
    minutes: float,
    parts: tuple[str, ...],
    console: Console,
    *,
    jobs: int = 1,
    target: str = "native",
    count: int | None = None,
) -> bool:
    """Runs parts of the net one after the other; whether nothing was found. target: of programs;
    count: how many of them at most."""
    console.print(f"fuzz with --seed {seed}", highlight=False)
    whole = sum(SHARES[part] for part in parts)
    found: list[bool] = []
    for part in parts:
        seconds = 60 * minutes * SHARES[part] / whole
        if part == "kernels":
            kernels = run_kernels(
                seed=seed, minutes=seconds / 60, log=lambda line: _print(console, line)
            )
            found.append(not kernels.ok)
        elif part == "programs":
            report = run_programs(seed, seconds, console, jobs=jobs, target=target, count=count)
            found.append(bool(report.failures))
        elif part == "order":
            found.append(bool(run_orders(seed, seconds, console)))
        else:
            found.append(bool(run_lives(seed, seconds, console)))
    return not any(found)


def run_programs(
    seed: int,
    seconds: float,
    console: Console,
    *,
    jobs: int = 1,
    features: frozenset[str] = FEATURES,
    target: str = "native",
    count: int | None = None,
) -> Report:
    """Random programs from `seed` on, until the time is over; then failures are minimized."""
    report, start = Report(seed), time.monotonic()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(f"random programs, seed {seed}")
        for finding in workers.judged(seed, features, jobs, seconds, count, target):
            _note(report, finding, console)
            report.seconds = time.monotonic() - start
            progress.update(task, description=report.summary)
    for failure in list(report.failures.values())[:MOST_MINIMIZED]:
        program = random_program(failure.seed, features).compiled_for(target)
        failure.program = workers.smallest(program, failure.verdict, MINIMIZING_SECONDS)
        _print(console, str(failure))
    _print(console, report.summary)
    return report


def run_orders(
    seed: int, seconds: float, console: Console, *, features: frozenset[str] = FEATURES
) -> list[Disorder]:
    """Rounds of programs, each compiled in several orders, until the time is over."""
    found: list[Disorder] = []
    start, at = time.monotonic(), seed
    while time.monotonic() - start < seconds:
        seeds = range(at, at + PROGRAMS_A_ROUND)
        new = disorders(seeds, features, shuffle=at)
        for disorder in new:
            _print(console, f"order of compilation: {disorder}")
        found, at = found + new, at + PROGRAMS_A_ROUND
    _print(
        console,
        f"order of compilation, seed {seed}: {at - seed} programs in 5 settings,"
        f" {len(found)} gave other bits, in {time.monotonic() - start:.0f} s",
    )
    return found


def run_lives(seed: int, seconds: float, console: Console) -> list[str]:
    """Lives of bound functions, one after the other, until the time is over."""
    found: list[str] = []
    start, at = time.monotonic(), seed
    while time.monotonic() - start < seconds:
        new = trouble(at) + between.trouble(at)
        for line in new:
            _print(console, f"bound: {line}")
        found, at = found + new, at + 1
    taken = time.monotonic() - start
    _print(console, f"lives, seed {seed}: {at - seed}, {len(found)} troubles, in {taken:.0f} s")
    return found


def _note(report: Report, finding: workers.Finding, console: Console) -> None:
    report.verdicts[finding.verdict.kind] += 1
    if not finding.verdict.bad:
        return
    signature = workers.signature(finding)
    if signature in report.failures:
        report.failures[signature].count += 1
        return
    report.failures[signature] = Failure(finding.seed, finding.verdict)
    _print(console, f"seed {finding.seed}: {finding.verdict.kind}: {finding.verdict.detail}")


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
