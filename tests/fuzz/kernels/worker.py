"""The process that runs cases for the lab: `python -m tests.fuzz.kernels.worker`.

Input: seed, first and last case, targets, seconds for one minimization, what was found before.
Output: lines of JSON on stdout, as `lab.py` reads them. Invariant: a line says which cases are
about to run before any of their kernels does.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Sequence

from tests.fuzz.kernels.case import draw_case
from tests.fuzz.kernels.check import Caches, CaseFault, Job, jobs_of
from tests.fuzz.kernels.choices import Choices
from tests.fuzz.kernels.minimize import Numbers, Trial, minimize
from tests.fuzz.kernels.running.targets import Targets, find_targets
from tests.fuzz.kernels.verdict import Fault, Runner, fault_before, in_child, verdict

BATCH = 24  # cases whose kernels are linked at once
MOST_OF_A_GROUP = 3  # failures that are minimized


def main(arguments: Sequence[str]) -> None:
    seed, first, last, names, seconds, known = arguments
    groups = Counter(json.loads(known))
    worker = _Worker(
        int(seed), find_targets(names.split(","), interpreted=True), float(seconds), groups
    )
    for start in range(int(first), int(last), BATCH):
        worker.batch(start, min(start + BATCH, int(last)))


def numbers_of(seed: int, case: int) -> Numbers:
    """The choices of a case. Every third is the one before it with a few choices changed, those
    around its regions if there are any: regions that are almost equal are where a kernel may be
    given out for another."""
    if case % 3 < 2:
        choices = Choices.drawn(seed, case)
        draw_case(choices)
        return tuple(choices.made)
    choices = Choices.replayed(numbers_of(seed, case - 1))
    draw_case(choices)
    numbers, rng = list(choices.made), random.Random(f"{seed}/{case}/changed")
    around = bool(choices.hot) and rng.random() < 0.9
    for _ in range(rng.randrange(1, 4)):
        at = rng.choice(choices.hot) if around else rng.randrange(len(numbers))
        numbers[at] = rng.choice((0, numbers[at] + 1, rng.randrange(8)))
    return tuple(numbers)


def targets_of(seed: int, case: int, names: Sequence[str]) -> Sequence[str]:
    """Two targets for a case: more cases find more than more targets."""
    if len(names) < 3:
        return names
    return random.Random(f"{seed}/{case}/targets").sample(names, 2)


def _say(**message: object) -> None:
    print(json.dumps(message), flush=True)


class _Worker:
    def __init__(self, seed: int, targets: Targets, seconds: float, known: Counter[str]) -> None:
        self.seed, self.targets, self.seconds = seed, targets, seconds
        self.groups = known
        self.caches, self.runner = Caches(targets.cpus), Runner(targets)

    def batch(self, first: int, last: int) -> None:
        _say(running=(first, last))
        jobs: list[Job] = []
        origin: dict[int, int] = {}
        for case in range(first, last):
            numbers = numbers_of(self.seed, case)
            self.caches.origin = numbers
            names = targets_of(self.seed, case, self.targets.names)
            try:
                drawn = draw_case(Choices.replayed(numbers))
                made = list(jobs_of(drawn, self.caches, names))
            except CaseFault as error:
                before = () if error.first is None else (error.first,)
                self._failed(case, (*before, numbers), fault_before(error))
                continue
            origin.update({id(job): case for job in made})
            jobs += made
        failed = set()
        for job, fault in self.runner.run(jobs):
            case = origin[id(job)]
            if case not in failed:
                failed.add(case)
                self._failed(case, (numbers_of(self.seed, case),), fault)
        kernels = Counter(job.target for job in jobs)
        _say(done=last, cases=last - first, kernels=kernels, interpreted=self.runner.interpreted)
        self.runner.interpreted.clear()

    def _failed(self, case: int, trial: Trial, fault: Fault) -> None:
        """Says what failed, made as small as the time allows."""
        group = fault.group
        self.groups[group] += 1
        if self.groups[group] > MOST_OF_A_GROUP:
            _say(repeated=group)
            return
        targets = self.targets.only(fault.target)
        last = fault

        def fails(tried: Trial) -> bool:
            nonlocal last
            found = in_child(lambda: verdict(tried, targets))
            if found is None or found.group != fault.group:
                return False
            last = found
            return True

        if fails(trial):
            trial = minimize(trial, fails, self.seconds)
            fails(trial)
        text = "\n".join(draw_case(Choices.replayed(numbers)).text for numbers in trial)
        _say(failure={
            "case": case, "target": fault.target, "kind": last.kind, "group": group,
            "what": last.what, "program": text,
        })  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
