"""Programs in processes of their own: what crashes or hangs is a finding, not the end of the run.

Input: seeds, in the order in which workers take them. Output: a `Finding` for each program, as it
comes. Invariant: every seed that was begun is reported once, whatever becomes of its process.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from stagejit.fuzz.programs.generate import Program, random_program
from stagejit.fuzz.programs.minimize import minimized
from stagejit.fuzz.programs.verdicts import Verdict, judge

PATIENCE_SECONDS = 300.0  # for one program
PROGRAMS_A_PROCESS = 250  # compiled code stays in memory for as long as a process lives
_DIED = "crash"

# Workers are forked from a process that has imported everything and started no thread.
FORK: Any = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["stagejit.fuzz.programs.verdicts"])


@dataclass(frozen=True)
class Finding:
    """A program's seed and what became of it."""

    seed: int
    verdict: Verdict


@dataclass
class _Worker:
    process: Any
    connection: Connection
    seed: int | None = None
    since: float = 0.0
    done: int = 0


def judged(
    first: int, features: frozenset[str], jobs: int, seconds: float, count: int | None = None
) -> Iterator[Finding]:
    """Judges programs `first`, `first + 1`, ... until the time is over or `count` are done."""
    seeds = itertools.count(first) if count is None else iter(range(first, first + count))
    deadline = time.monotonic() + seconds
    workers: list[_Worker] = []
    try:
        for _ in range(jobs):
            workers.append(_started(features))
            _next(workers[-1], seeds, deadline)
        while busy := [worker for worker in workers if worker.seed is not None]:
            ready = wait([worker.connection for worker in busy], timeout=1.0)
            for at, worker in enumerate(workers):
                if worker.seed is None:
                    continue
                if worker.connection in ready:
                    verdict = _received(worker)
                elif time.monotonic() - worker.since > PATIENCE_SECONDS:
                    verdict = Verdict(_DIED, f"no result after {PATIENCE_SECONDS:.0f} s")
                    worker.done = PROGRAMS_A_PROCESS
                else:
                    continue
                yield Finding(worker.seed, verdict)
                worker.done += 1
                if worker.done >= PROGRAMS_A_PROCESS or not worker.process.is_alive():
                    _stop(worker)
                    worker = workers[at] = _started(features)
                _next(worker, seeds, deadline)
    finally:
        for worker in workers:
            _stop(worker)


def _started(features: frozenset[str]) -> _Worker:
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_serve, args=(theirs, features), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _next(worker: _Worker, seeds: Iterator[int], deadline: float) -> None:
    worker.seed = None if time.monotonic() > deadline else next(seeds, None)
    worker.since = time.monotonic()
    if worker.seed is not None:
        worker.connection.send(worker.seed)


def _received(worker: _Worker) -> Verdict:
    try:
        verdict: Verdict = worker.connection.recv()
    except (EOFError, ConnectionError):
        worker.process.join(5)
        return Verdict(_DIED, f"the process ended with status {worker.process.exitcode}")
    return verdict


def _stop(worker: _Worker) -> None:
    worker.connection.close()
    if worker.process.is_alive():
        worker.process.terminate()
    worker.process.join()


def _serve(connection: Connection, features: frozenset[str]) -> None:
    """What a worker does: judges the seeds that come in."""
    become_worker()
    while True:
        try:
            seed = connection.recv()
        except EOFError:
            return
        connection.send(_safely(lambda seed=seed: judge(random_program(seed, features))))


def become_worker() -> None:
    """What holds for a process that does nothing else."""
    os.environ["STAGEJIT_STRICT"] = "1"  # else XLA would cover our faults
    warnings.simplefilter("ignore")  # of JAX, about donated arguments that no result fits


def _safely(evaluate: Any) -> Verdict:
    try:
        verdict: Verdict = evaluate()
    except Exception as error:
        return Verdict("crash", f"of the fuzzer: {type(error).__name__}: {error}")
    return verdict


# ---------------------------------------------------------------------- reproducing and minimizing


def judged_alone(program: Program, seconds: float = PATIENCE_SECONDS) -> Verdict:
    """The verdict on one program, in a new process."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_judge_one, args=(theirs, program), daemon=True)
    process.start()
    theirs.close()
    worker = _Worker(process, ours, program.seed, time.monotonic())
    try:
        if not ours.poll(seconds):
            return Verdict(_DIED, f"no result after {seconds:.0f} s")
        return _received(worker)
    finally:
        _stop(worker)


def _judge_one(connection: Connection, program: Program) -> None:
    become_worker()
    connection.send(_safely(lambda: judge(program)))


def smallest(program: Program, verdict: Verdict, seconds: float) -> Program:
    """The program, minimized with the same kind of failure."""
    said = signature(verdict)

    def fails(candidate: Program) -> bool:
        found = judged_alone(candidate, seconds=60.0)
        return found.kind == verdict.kind and (found.kind != _DIED or signature(found) == said)

    return minimized(program, fails, seconds)


def signature(verdict: Verdict) -> str:
    """What failures of one cause have in common: the message without numbers."""
    text = verdict.detail.split("\n")[0] if verdict.kind == _DIED else ""
    words = ("".join(c for c in word if not c.isdigit()) for word in text.split())
    return " ".join((verdict.kind, *words))


__all__: Sequence[str] = ["Finding", "judged", "judged_alone", "signature", "smallest"]
