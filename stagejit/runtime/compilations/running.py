"""Runs the steps of a compilation: each once, in its turn, timed, and verified where that is asked.

Input: steps, and what earlier ones made. Output: what they add to it. Invariant: what fails says in
which step, and whose fault it is (`blaming.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from stagejit.base.blaming import blame
from stagejit.base.records import record
from stagejit.base.symbolic import Undecided
from stagejit.base.threads.locks import new_rlock
from stagejit.errors import InternalError, UnsupportedOpError
from stagejit.graph.definition import OwnOp, declaring
from stagejit.options import Options
from stagejit.runtime.compilations.artifacts import Artifacts
from stagejit.runtime.compilations.progress import Began
from stagejit.runtime.gate import Gate, hold_across_forks

# Steps in Python take turns, since Python's own lock makes them do so anyway; what takes long
# outside of it, LLVM in the step "load", goes on beside them. So does what calls JAX and functions
# of other people: see Note [Order of locks]. A fork waits for all of them: what they use has locks,
# too (JAX's caches).
one_at_a_time = new_rlock()
hold_across_forks(one_at_a_time)  # after LLVM's gate: see Note [Order of hooks]
tracing = Gate()

C = TypeVar("C", bound=Artifacts)


@record
class Step(Generic[C]):
    """A named step, the verifier of what it made, and what a thread takes while it runs."""

    name: str
    run: Callable[[C], None]
    verify: Callable[[C], None] = lambda made: None
    turn: Callable[[], AbstractContextManager[object]] = lambda: one_at_a_time


def run_steps(
    steps: Sequence[Step[C]],
    until: str,
    made: C,
    again: Callable[[str, Options], None],
    began: Began,
) -> None:
    """Run the steps up to one that have not run yet. again: does the same up to a step, from the
    beginning, with other options. began: called with the name of each before it runs."""
    known = [step.name for step in steps]
    if until not in known:
        what = f"there is no step {until!r}, but {', '.join(known)}"
        raise InternalError(what, step="pipeline")
    own = made.request.options.parts_of(OwnOp)
    for step in steps[: known.index(until) + 1]:
        if step.name not in made.seconds:
            began(step.name)
            try:
                _run(step, made, own)
            except Exception as error:
                blame(error, step.name, made.request.options, again)


def _run(step: Step[C], made: C, own: Sequence[OwnOp]) -> None:
    """Symbolic sizes have graphs and plans, kernels do not. own: kinds that are known, too."""
    start, doing = time.perf_counter(), step.name
    try:
        with step.turn():
            if own:
                with declaring(own):
                    step.run(made)
            else:
                step.run(made)
        made.seconds[step.name] = time.perf_counter() - start
        if made.request.options.verify:
            doing = "verify"
            with declaring(own):
                step.verify(made)
    except Undecided as undecided:
        raise UnsupportedOpError(
            f"cannot {doing} {made.request.name} for all sizes at once: {undecided}",
            next_step="give arguments with numbers for sizes, as a call does",
        ) from None
