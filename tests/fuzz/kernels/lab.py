"""The kernel lab: random regions, compiled for several targets, run over poisoned memory and
compared with the interpreter.

Input: a budget, a seed, names of targets. Output: a `KernelReport`. Invariant: the same seed gives
the same cases in the same order, whatever the budget; the work is done in other processes, so a
kernel that crashes is a failure like any other.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.kernels.running.targets import ALL, find_targets

# Cases that one process runs before a fresh one takes over: caches and freed code leave traces.
CASES_A_PROCESS = 400
_REPOSITORY = Path(__file__).resolve().parents[3]
_SILENCE_SECONDS = 240.0  # a process that says nothing for so long hangs in a kernel


@dataclass(frozen=True)
class KernelFailure:
    """One fault, minimized. case: its number in the run of `seed`; program: the text of its graph
    after a line that says how it was compiled; several for a kernel that depends on earlier
    ones. group: faults of one are likely to have one cause. after_seconds: when it was seen."""

    seed: int
    case: int
    target: str
    kind: str
    group: str
    what: str
    program: str
    after_seconds: float = 0.0

    def __str__(self) -> str:
        head = f"{self.kind} on {self.target or 'any target'} (seed {self.seed}, case {self.case})"
        head += f" after {self.after_seconds:.0f} s"
        return f"{head}: {self.what}\n{self.program}"


@dataclass
class KernelReport:
    """kernels: how many ran, by target; interpreted: how many of them the interpreter of the
    loop-nest IR ran, too. skipped: targets that this machine cannot run, and why; alone: those that
    nothing but the interpreter runs here.
    repeated: faults that were found again, by kind; only the first few of a kind are minimized."""

    seed: int
    cases: int = 0
    kernels: Counter[str] = field(default_factory=Counter)
    interpreted: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    failures: list[KernelFailure] = field(default_factory=list)
    repeated: Counter[str] = field(default_factory=Counter)
    skipped: Mapping[str, str] = field(default_factory=dict)
    alone: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.failures and not self.repeated

    def as_text(self) -> str:
        lines = [
            f"kernel lab, seed {self.seed}: {self.cases} cases, "
            f"{_counted(self.kernels)} kernels, {_counted(self.interpreted)} of them against the "
            f"interpreter of the loop-nest IR, in {self.seconds:.0f} s: "
            f"{len(self.failures) + sum(self.repeated.values())} failures"
        ]
        lines += [f"  without {name}: {reason}" for name, reason in self.skipped.items()]
        lines += [f"  {name} in the interpreter alone: {why}" for name, why in self.alone.items()]
        lines += [f"  {count} more of kind {kind}" for kind, count in self.repeated.items()]
        return "\n".join([*lines, *map(str, self.failures)])


def _counted(numbers: Counter[str]) -> str:
    each = ", ".join(f"{name} {count}" for name, count in sorted(numbers.items()))
    return f"{numbers.total()} ({each})"


def run_kernels(
    *,
    seed: int,
    minutes: float | None = None,
    count: int | None = None,
    targets: Sequence[str] = ALL,
    first: int = 0,
    most_failures: int = 20,
    minimize_seconds: float = 30.0,
    log: Callable[[str], None] = lambda line: None,
) -> KernelReport:
    """Run cases until `minutes` are over, `count` cases are done, or `most_failures` are found.

    first: number of the first case. targets: names of `targets.ALL`; those that this machine cannot
    run are skipped, and the report says why. minimize_seconds: for one failure. log: gets a line
    when there is something to say.
    """
    if minutes is None and count is None:
        raise ValueError("give minutes or count")
    found = find_targets(targets, interpreted=True)
    report = KernelReport(seed, skipped=found.skipped, alone=found.interpreted)
    start = time.monotonic()
    end = float("inf") if minutes is None else start + 60 * minutes
    stop = None if count is None else first + count
    at = first
    log(f"kernel lab: seed {seed}, targets {', '.join(found.names) or 'none'}")
    while found.names and time.monotonic() < end and (stop is None or at < stop):
        last = at + CASES_A_PROCESS if stop is None else min(at + CASES_A_PROCESS, stop)
        at = _one_process(report, at, last, found.names, (start, end), minimize_seconds, log)
        log(f"  {report.cases} cases, {report.kernels.total()} kernels")
        if len(report.failures) >= most_failures:
            break
    report.seconds = time.monotonic() - start
    log(report.as_text())
    return report


def _one_process(
    report: KernelReport,
    first: int,
    last: int,
    targets: Sequence[str],
    times: tuple[float, float],
    minimize_seconds: float,
    log: Callable[[str], None],
) -> int:
    """Runs cases in a process of their own; returns the number of the first that has not run.
    times: when the run began and when it has to end."""
    start, end = times
    known = json.dumps([failure.group for failure in report.failures])
    command = [
        sys.executable, "-m", "tests.fuzz.kernels.worker", str(report.seed), str(first),
        str(last), ",".join(targets), str(minimize_seconds), known,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_REPOSITORY)
    running: tuple[int, int] | None = None
    at = first
    try:
        for line in _lines(process):
            message = json.loads(line)
            if "running" in message:
                running = message["running"]
            elif "failure" in message:
                after = time.monotonic() - start
                failure = KernelFailure(seed=report.seed, after_seconds=after, **message["failure"])
                report.failures.append(failure)
                log(str(failure))
            elif "repeated" in message:
                report.repeated[message["repeated"]] += 1
            else:
                at, running = message["done"], None
                report.cases += message["cases"]
                report.kernels.update(message["kernels"])
                report.interpreted.update(message["interpreted"])
            if time.monotonic() > end:
                return at
        process.wait(_SILENCE_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    if running is None:
        if process.returncode:
            raise RuntimeError(f"the kernel lab's process ended with {process.returncode}")
        return at
    what = f"the process died with {process.returncode} in cases {running[0]} to {running[1] - 1}"
    after = time.monotonic() - start
    failure = KernelFailure(report.seed, running[0], "", "crash", "crash", what, "", after)
    report.failures.append(failure)
    log(str(failure))
    return running[1]


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """What the process says; ends with it, or when it says nothing any more."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(_SILENCE_SECONDS):
            line = process.stdout.readline()
            if not line:
                return
            yield line
