"""Programs in processes of their own: what crashes or hangs is a finding, not the end of the run.

Input: seeds, in the order in which workers take them. Output: a `Finding` for each program, as it
comes. Invariant: every seed that was begun is reported once, whatever becomes of its process.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from stagejit.options import EMULATED
from stagejit.runtime.cuda.drivers import using
from stagejit.runtime.cuda.emulation.driver import EmulatedDriver
from stagejit.runtime.cuda.emulation.launching import ORDERS
from stagejit.runtime.objects.object_cache import cache_in
from tests.fuzz.programs.generate import Program, random_program
from tests.fuzz.programs.minimize import minimized
from tests.fuzz.programs.verdicts import Verdict, judge

PATIENCE_SECONDS = 300.0  # for one program
PROGRAMS_A_PROCESS = 250  # compiled code stays in memory for as long as a process lives
_DIED = "crash"

# Workers are forked from a process that has imported everything and started no thread.
FORK: Any = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["tests.fuzz.programs.verdicts"])


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
    ours_began: bool = False  # whether jax.jit's result is there

    def overdue(self, seconds: float) -> Verdict:
        """The verdict on a program without result."""
        return self.failed(f"no result after {seconds:.0f} s")

    def failed(self, detail: str) -> Verdict:
        """The verdict on a program that ends its process, or never ends.

        Where jax.jit does that, too, it is not ours."""
        if self.ours_began:
            return Verdict(_DIED, detail)
        return Verdict("refused", f"with jax.jit: {detail}")


def judged(
    first: int,
    features: frozenset[str],
    jobs: int,
    seconds: float,
    count: int | None = None,
    target: str = "native",
) -> Iterator[Finding]:
    """Judges programs `first`, `first + 1`, ... until the time is over or `count` are done. target:
    what they are compiled for."""
    seeds = itertools.count(first) if count is None else iter(range(first, first + count))
    deadline = time.monotonic() + seconds
    workers: list[_Worker] = []
    try:
        for _ in range(jobs):
            workers.append(_started(features, target))
            _next(workers[-1], seeds, deadline)
        while busy := [worker for worker in workers if worker.seed is not None]:
            ready = wait([worker.connection for worker in busy], timeout=1.0)
            for at, worker in enumerate(workers):
                if worker.seed is None:
                    continue
                if worker.connection in ready:
                    received = _received(worker)
                    if received is None:
                        continue
                    verdict = received
                elif time.monotonic() - worker.since > PATIENCE_SECONDS:
                    verdict = worker.overdue(PATIENCE_SECONDS)
                    worker.done = PROGRAMS_A_PROCESS
                else:
                    continue
                yield Finding(worker.seed, verdict)
                worker.done += 1
                if worker.done >= PROGRAMS_A_PROCESS or not worker.process.is_alive():
                    _stop(worker)
                    worker = workers[at] = _started(features, target)
                _next(worker, seeds, deadline)
    finally:
        for worker in workers:
            _stop(worker)


def _started(features: frozenset[str], target: str) -> _Worker:
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_serve, args=(theirs, features, target), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _next(worker: _Worker, seeds: Iterator[int], deadline: float) -> None:
    worker.seed = None if time.monotonic() > deadline else next(seeds, None)
    worker.since, worker.ours_began = time.monotonic(), False
    if worker.seed is not None:
        worker.connection.send(worker.seed)


def _received(worker: _Worker) -> Verdict | None:
    """None if the worker says that it begins with ours."""
    try:
        verdict: Verdict | None = worker.connection.recv()
    except (EOFError, ConnectionError):
        worker.process.join(5)
        return worker.failed(f"the process ended with status {worker.process.exitcode}")
    worker.ours_began = worker.ours_began or verdict is None
    return verdict


def _stop(worker: _Worker) -> None:
    worker.connection.close()
    if worker.process.is_alive():
        worker.process.terminate()
    worker.process.join()


def _serve(connection: Connection, features: frozenset[str], target: str) -> None:
    """What a worker does: judges the seeds that come in."""
    become_worker()
    while True:
        try:
            seed = connection.recv()
        except EOFError:
            return
        make = functools.partial(_program, seed, features, target)
        with _on_device(seed, target):
            connection.send(_safely(connection, make))


def _on_device(seed: int, target: str) -> AbstractContextManager[None]:
    """What streams and threads leave open is decided by the seed of the program."""
    if not target.startswith(EMULATED):
        return contextlib.nullcontext()
    threads = ORDERS[seed % len(ORDERS)]
    return using(EmulatedDriver(seed=seed, threads=threads, cache=cache_in(None)))


def _program(seed: int, features: frozenset[str], target: str) -> Program:
    return random_program(seed, features).compiled_for(target)


def become_worker() -> None:
    """What holds for a process that does nothing else."""
    os.environ["STAGEJIT_STRICT"] = "1"  # else XLA would cover our faults
    warnings.simplefilter("ignore")  # of JAX, about donated arguments that no result fits


def _safely(connection: Connection, make: Callable[[], Program]) -> Verdict:
    try:
        return judge(make(), begin_ours=lambda: connection.send(None))
    except Exception as error:
        return Verdict("crash", f"of the fuzzer: {type(error).__name__}: {error}")


# ---------------------------------------------------------------------- reproducing and minimizing


def judged_alone(
    program: Program, seconds: float = PATIENCE_SECONDS, *, with_jax: float | None = None
) -> Verdict:
    """The verdict on one program, in a new process. seconds: for each of the two compilers, or with
    `with_jax` for ours."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_judge_one, args=(theirs, program), daemon=True)
    process.start()
    theirs.close()
    worker = _Worker(process, ours, program.seed, time.monotonic())
    try:
        patience = seconds if with_jax is None else with_jax
        while ours.poll(max(worker.since + patience - time.monotonic(), 0)):
            if (verdict := _received(worker)) is not None:
                return verdict
            worker.since, patience = time.monotonic(), seconds
        return worker.overdue(patience)
    finally:
        _stop(worker)


def _judge_one(connection: Connection, program: Program) -> None:
    become_worker()
    with _on_device(program.seed, program.options.target):
        connection.send(_safely(connection, lambda: program))


def smallest(program: Program, verdict: Verdict, seconds: float) -> Program:
    """The program, minimized with the same kind of failure."""
    said = signature(Finding(program.seed, verdict))

    def fails(candidate: Program) -> bool:
        found = judged_alone(candidate, seconds=60.0)
        return signature(Finding(program.seed, found)) == said

    return minimized(program, fails, seconds)


def signature(finding: Finding) -> str:
    """What failures of one cause have in common: the message of a crash, without its numbers.

    Two wrong values may have two causes, whatever they look like."""
    kind, text = finding.verdict.kind, finding.verdict.detail.split("\n")[0]
    if kind != _DIED:
        return f"{kind} {finding.seed}"
    words = ("".join(c for c in word if not c.isdigit()) for word in text.split())
    return " ".join((kind, *words))


__all__: Sequence[str] = ["Finding", "judged", "judged_alone", "signature", "smallest"]
