"""The verdict on choices: what is wrong with the kernels of the cases that they lead to.

Input: lists of choices, one for each case, that are compiled one after the other with the same
kernel cache; targets. Output: the first `Fault`. Invariant: nothing is left behind, and with
`in_child` not even a crash.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from stagejit.errors import VerificationError
from tests.fuzz.kernels.case import Case, draw_case
from tests.fuzz.kernels.check import Caches, CaseFault, Job, jobs_of
from tests.fuzz.kernels.choices import Choices
from tests.fuzz.kernels.running.interpreted import difference, interpreted, is_small
from tests.fuzz.kernels.running.machine import Native, compile_object, run
from tests.fuzz.kernels.running.scene import Array
from tests.fuzz.kernels.running.targets import Targets

Numbers = tuple[int, ...]
Trial = tuple[Numbers, ...]

_CHILD_SECONDS = 60


@dataclass(frozen=True)
class Fault:
    """kind: "value", "stray" (a write where nothing belongs), "bits" (machine code does something
    else than the interpreter of the loop-nest IR, or what that refuses), "key" (the kernel of
    another region), "raises" or "crash"."""

    kind: str
    target: str
    what: str

    @property
    def group(self) -> str:
        """Faults of one group are likely to have one cause."""
        return f"{self.kind} {re.split('[ :]', self.what)[0]}"


def verdict(trial: Trial, targets: Targets) -> Fault | None:
    """The first fault of the cases of `trial`."""
    return fault_of([draw_case(Choices.replayed(numbers)) for numbers in trial], targets)


def fault_of(cases: Iterable[Case], targets: Targets) -> Fault | None:
    """The first fault of `cases`, which are used up."""
    caches, runner = Caches(targets.cpus), Runner(targets)
    for case in cases:
        try:
            jobs = list(jobs_of(case, caches, targets.names))
        except CaseFault as fault:
            return fault_before(fault)
        for _, found in runner.run(jobs):
            return found
    return None


def fault_before(fault: CaseFault) -> Fault:
    """The fault of a case that did not come to its kernels."""
    kind = "key" if fault.first is not None else "raises"
    return Fault(kind, fault.target, str(fault))


class Runner:
    """Compiles and runs jobs, natively or in the emulator; small ones by the interpreter of the
    loop-nest IR, too, which has to give the same bits; those of `Targets.interpreted` by that
    alone.

    interpreted: how many were, by target.
    """

    def __init__(self, targets: Targets) -> None:
        self._targets, self._native = targets, Native()
        self.interpreted: Counter[str] = Counter()

    def run(self, jobs: Sequence[Job]) -> list[tuple[Job, Fault]]:
        """The jobs with a fault."""
        found = []
        for emulated in ("", *self._targets.emulators):
            batch = [job for job in jobs if self._emulated(job) == emulated]
            objects: dict[tuple[str, str], bytes] = {}
            left = []
            for job in batch:
                key = (job.target, job.symbol)
                try:
                    if key not in objects:
                        cpu = self._targets.cpus[job.target]
                        objects[key] = compile_object(job.llvm, cpu, job.level)
                except RuntimeError as error:
                    found.append((job, Fault("raises", job.target, f"LLVM: {error}")))
                else:
                    left.append(job)
            if left:
                images = {symbol: image for (_, symbol), image in objects.items()}
                found += self._execute(left, images, emulated)
        return found

    def _emulated(self, job: Job) -> str:
        return job.target if job.target in self._targets.emulators else ""

    def _execute(
        self, jobs: Sequence[Job], objects: Mapping[str, bytes], emulated: str
    ) -> list[tuple[Job, Fault]]:
        if emulated:
            tasks = [(job.symbol, job.frame) for job in jobs]
            images = self._targets.emulators[emulated].run(objects, tasks)
            return self._faults(zip(jobs, images, strict=True))
        alone = [job for job in jobs if job.target in self._targets.interpreted]
        here = [job for job in jobs if job.target not in self._targets.interpreted]
        entries, _kept = self._native.load({job.symbol: objects[job.symbol] for job in here})
        found = self._faults((job, run(entries[job.symbol], job.frame)) for job in here)
        return found + [(job, fault) for job in alone if (fault := self._meaning(job))]

    def _meaning(self, job: Job) -> Fault | None:
        """What is wrong with a kernel that is not run, if it is small."""
        if not is_small(job):
            return None
        self.interpreted[job.target] += 1
        try:
            image = interpreted(job, self._targets.cpus[job.target], ~job.frame.poison & 0xFF)
        except VerificationError as error:
            return Fault("bits", job.target, f"{job.region}: {error}")
        what = job.fault(image)
        return Fault("value", job.target, f"{job.region}: {what}") if what else None

    def _faults(self, images: Iterable[tuple[Job, Array]]) -> list[tuple[Job, Fault]]:
        found = []
        for job, after in images:
            what = job.fault(after)
            kind = "stray" if "was written" in what or "left the buffer" in what else "value"
            if not what and is_small(job):
                kind, what = "bits", self._against_interpreter(job, after)
            if what:
                found.append((job, Fault(kind, job.target, f"{job.region}: {what}")))
        return found

    def _against_interpreter(self, job: Job, after: Array) -> str:
        """Its scratch is full of something else at first: nothing that is stored depends on it."""
        self.interpreted[job.target] += 1
        try:
            image = interpreted(job, self._targets.cpus[job.target], ~job.frame.poison & 0xFF)
        except VerificationError as error:
            return str(error)
        return difference(job, image, after)


def in_child(make: Callable[[], Fault | None]) -> Fault | None:
    """What `make` returns in a process of its own, or that it crashed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover  (the child)
        try:
            signal.alarm(_CHILD_SECONDS)
            found = make()
            text = "" if found is None else json.dumps(asdict(found))
            os.write(writing, text.encode()[:60000])
            os._exit(0)
        except BaseException as error:
            os.write(writing, json.dumps(
                asdict(Fault("raises", "", f"{type(error).__name__}: {error}"))
            ).encode())  # fmt: skip
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return Fault("crash", "", f"the process died of signal {os.WTERMSIG(status)}")
    return Fault(**json.loads(text)) if text else None
