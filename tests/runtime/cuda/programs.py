"""CUDA programs for tests: of functions, and with something taken away.

Input: a function and arguments, or a program. Output: its compilation for the emulation; programs
that lack one event. Invariant: nothing else differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import stagejit
from stagejit.options import Options
from stagejit.pipeline import Compilation
from stagejit.runtime.cuda.programs.program import (
    Body,
    Branch,
    CudaProgram,
    Dispatched,
    Record,
    Step,
    Wait,
    While,
    walk,
)
from stagejit.runtime.hosting.program_steps import Loop

EMULATED = Options(target="cuda-emulated", verify=True)


def compiled(
    function: Callable[..., Any], *args: Any, options: Options = EMULATED, step: str = "host"
) -> Compilation:
    made: Compilation = stagejit.jit(function, options=options).trace(*args).compilation
    return made.run_until(step)


def crossings(program: CudaProgram) -> int:
    """How often a stream waits for another one."""
    return sum(isinstance(step, Wait) for step in walk(program.steps))


def mutants(program: CudaProgram) -> Iterator[tuple[str, CudaProgram]]:
    """The program with one wait less, with one event that is never recorded, and with one that is
    recorded before what it stands for."""
    for number, step in enumerate(walk(program.steps)):
        if isinstance(step, Wait):
            yield f"without {step}", replace(program, steps=_without(program.steps, [number]))


def _without(steps: tuple[Step, ...], countdown: list[int]) -> tuple[Step, ...]:
    """The tree without the step of a number, as `walk` counts."""
    made: list[Step] = []
    for step in steps:
        countdown[0] -= 1
        if countdown[0] == -1:
            continue
        match step:
            case Loop(body=body):
                step = replace(step, body=_without(body, countdown))
            case Dispatched(steps=inner) | Body(steps=inner):
                step = replace(step, steps=_without(inner, countdown))
            case While(condition=condition, body=body):
                first = _without(condition, countdown)
                step = replace(step, condition=first, body=_without(body, countdown))
            case Branch(branches=branches):
                step = replace(step, branches=tuple(_without(b, countdown) for b in branches))
            case _:
                pass
        made.append(step)
    return tuple(made)


def records_first(program: CudaProgram) -> Iterator[CudaProgram]:
    """The program with one event that is recorded right before the dispatch that it stands for."""
    for at, step in enumerate(program.steps):
        before = program.steps[at - 1] if at else None
        if isinstance(step, Record) and isinstance(before, Dispatched):
            turned = (*program.steps[: at - 1], step, before, *program.steps[at + 1 :])
            yield replace(program, steps=turned)
