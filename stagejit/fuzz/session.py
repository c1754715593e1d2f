"""A run of the net with a budget of time: what `python -m stagejit fuzz` does.

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

from stagejit.fuzz.programs import workers
from stagejit.fuzz.programs.generate import FEATURES, Program, random_program
from stagejit.fuzz.programs.verdicts import Verdict

MOST_MINIMIZED = 8
MINIMIZING_SECONDS = 60.0


@dataclass
class Failure:
    """What failed first in this way, and how many others did."""

    seed: int
    verdict: Verdict
    count: int = 1
    program: Program | None = None  # minimized


@dataclass
class Report:
    """verdicts: how many programs of each kind."""

    seed: int
    verdicts: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Failure] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        return not self.failures

    @property
    def summary(self) -> str:
        counts = ", ".join(f"{number} {kind}" for kind, number in self.verdicts.most_common())
        rate = 60 * self.verdicts.total() / max(self.seconds, 1e-9)
        return (
            f"seed {self.seed}: {self.verdicts.total()} programs ({counts or 'none'})"
            f" in {self.seconds:.0f} s, {rate:.0f} a minute"
        )


def run_programs(
    seed: int,
    seconds: float,
    console: Console,
    *,
    jobs: int = 1,
    count: int | None = None,
    features: frozenset[str] = FEATURES,
    minimize: bool = True,
) -> Report:
    """Random programs from `seed` on, until the time or `count` is over."""
    report, start = Report(seed), time.monotonic()
    console.print(f"random programs from seed {seed}", highlight=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("programs")
        for finding in workers.judged(seed, features, jobs, seconds, count):
            _note(report, finding, console)
            report.seconds = time.monotonic() - start
            progress.update(task, description=report.summary)
    if minimize:
        for failure in list(report.failures.values())[:MOST_MINIMIZED]:
            program = random_program(failure.seed, features)
            failure.program = workers.smallest(program, failure.verdict, MINIMIZING_SECONDS)
            console.print(_told(failure), markup=False, highlight=False, soft_wrap=True)
    console.print(report.summary, highlight=False)
    return report


def _note(report: Report, finding: workers.Finding, console: Console) -> None:
    report.verdicts[finding.verdict.kind] += 1
    if not finding.verdict.bad:
        return
    signature = workers.signature(finding.verdict)
    if signature in report.failures:
        report.failures[signature].count += 1
        return
    report.failures[signature] = Failure(finding.seed, finding.verdict)
    console.print(
        f"seed {finding.seed}: {finding.verdict.kind}: {finding.verdict.detail}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _told(failure: Failure) -> str:
    return (
        f"\n# {failure.verdict.kind} ({failure.count} times): {failure.verdict.detail}"
        f"\n{failure.program}"
    )
