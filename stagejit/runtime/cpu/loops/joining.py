"""Loops of small steps become one function: which, and why.

Input: host programs, their kernels. Output: the programs, in which such a loop is a `LoopKernel`,
the texts of these functions, and decisions. Invariant: the steps and what they touch are the same.

Note [Loops of small steps]: the interpreter takes some nanoseconds to call a kernel, and what a
kernel leaves for the next one, or for itself in the next turn, goes through memory. For a filter
whose state is a few numbers that is most of its time: of 10000 turns of `c = 0.9 * c + x` 0.127 ms
on a Zen 4, where one function takes 0.017 ms and XLA 0.068 ms. LLVM puts the kernels into the loop,
where all sizes are known, and keeps in registers what nobody sees outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from stagejit.base.decisions import Decision
from stagejit.base.numbers import seconds_text
from stagejit.base.records import record
from stagejit.codegen.generate import Generated
from stagejit.graph import python_functions
from stagejit.runtime.cpu.loops.function import function_of
from stagejit.runtime.hosting.program import (
    HostProgram,
    Iterations,
    Launch,
    LoopKernel,
    Step,
    walk,
)
from stagejit.runtime.hosting.program_steps import Branch, Call, Copy, Loop, Store, While

NAME = "compile-loops"

_CALL_SECONDS = 6e-9  # of a step in the interpreter, with the memory that is between two of them
_LEAST_SHARE = 0.1  # of a turn that calls take
_LEAST_SECONDS = 2e-7  # that all turns save
_MOST_LINES = 4000  # of LLVM IR
_LINE_SECONDS = 9e-5  # that one takes longer to compile there than as a part of a kernel
_FEW_LINES = 100  # for which there is one module instead of several
_CALLS = 5000  # in which that is paid back
_TURNS = 100  # of a loop that ends when it ends


@record
class Joined:
    """texts: of the functions, by symbol."""

    program: HostProgram
    texts: dict[str, str]
    decisions: tuple[Decision, ...]


def join_loops(program: HostProgram, kernels: Iterable[Generated]) -> Joined:
    """The program with loops that are one function each, where that pays."""
    joining = _Joining(program, {generated.symbol: generated for generated in kernels})
    steps = joining.steps(program.steps, 0, 1)
    if not joining.texts:
        return Joined(program, {}, tuple(joining.decisions))
    return Joined(replace(program, steps=steps), joining.texts, tuple(joining.decisions))


@record
class _Turn:
    """One turn of a loop, or one run of other steps. calls: of the interpreter's."""

    seconds: float = 0.0
    calls: float = 0.0

    def times(self, count: int) -> _Turn:
        return _Turn(self.seconds * count, self.calls * count)

    def __add__(self, other: _Turn) -> _Turn:
        return _Turn(self.seconds + other.seconds, self.calls + other.calls)


class _Joining:
    def __init__(self, program: HostProgram, kernels: Mapping[str, Generated]) -> None:
        self.program, self.kernels = program, kernels
        self.kernel_texts = {symbol: generated.text for symbol, generated in kernels.items()}
        self.texts: dict[str, str] = {}
        self.decisions: list[Decision] = []

    def steps(self, steps: Iterable[Step], loops: int, times: int) -> tuple[Step, ...]:
        """loops: how many counted loops are around them. times: how often they run in a call."""
        return tuple(self._step(step, loops, times) for step in steps)

    def _step(self, step: Step, loops: int, times: int) -> Step:
        if isinstance(step, Loop | While):
            why_not = self._refusal(step, times)
            if not why_not:
                return self._joined(step, loops)
            if why_not != _NOTHING:
                self._decide(step, False, why_not)
        match step:
            case Loop(trip, body):
                return replace(step, body=self.steps(body, loops + 1, times * trip))
            case Iterations(trip, body=body):
                return replace(step, body=self.steps(body, loops + 2, times * trip))
            case While(condition=condition, body=body):
                times *= _TURNS
                inner = self.steps(condition, loops, times), self.steps(body, loops, times)
                return replace(step, condition=inner[0], body=inner[1])
            case Branch(branches=branches):
                sides = tuple(self.steps(side, loops, times) for side in branches)
                return replace(step, branches=sides)
            case _:
                return step

    def _joined(self, loop: Loop[Step] | While[Step], loops: int) -> Step:
        function = function_of(loop, self.kernel_texts, loops)
        self.texts[function.symbol] = function.text
        self._decide(loop, True, _gain(self._turn(loop.body)))
        return LoopKernel(function.symbol, function.buffers, loop, loop.site)

    def _decide(self, loop: Loop[Step] | While[Step], applied: bool, reason: str) -> None:
        site = self.program.sites[loop.site]
        self.decisions.append(Decision(NAME, f"@{site.path}", applied, reason, site.loc))

    # -- whether ----------------------------------------------------------------------------------

    def _refusal(self, loop: Loop[Step] | While[Step], times: int) -> str:
        """Why a loop stays as it is; "" if it does not. times: how often a call runs it."""
        launched = [step for step in walk((loop,)) if isinstance(step, Launch) and step.total]
        if not launched:
            return _NOTHING
        if other := next(_others(loop), ""):
            return other
        lines = sum(self.kernel_texts[step.kernel].count("\n") for step in launched)
        if lines > _MOST_LINES:
            return f"{lines} lines of LLVM IR, more than {_MOST_LINES}"
        turn = self._turn(loop.body)
        saved, gain = turn.calls * _CALL_SECONDS, _gain(turn)
        if saved < _LEAST_SHARE * (turn.seconds + saved):
            return f"{gain}: little"
        turns = times * (loop.trip if isinstance(loop, Loop) else _TURNS)
        if saved * turns < _LEAST_SECONDS:
            return f"{gain}, {turns} times: little"
        if _LINE_SECONDS * (lines - _FEW_LINES) > _CALLS * turns * saved:
            return f"{gain}, {turns} times; to compile {lines} lines takes longer"
        return ""

    def _turn(self, steps: Iterable[Step]) -> _Turn:
        found = _Turn()
        for step in steps:
            match step:
                case Launch(kernel):
                    generated = self.kernels[kernel].kernel
                    found += _Turn(generated.seconds / len(generated.passes), 1)
                case Loop(trip, body):
                    found += self._turn(body).times(trip) + _Turn(0.0, 1)
                case While(condition=condition, body=body):
                    found += self._turn((*condition, *body)).times(_TURNS)
                case Branch(branches=branches):
                    sides = [self._turn(side) for side in branches]
                    found += max(sides, key=lambda turn: turn.seconds) + _Turn(0.0, 1)
                case _:
                    found += _Turn(0.0, 1)
        return found


_NOTHING = "it launches nothing"


def _gain(turn: _Turn) -> str:
    seconds, saved = map(seconds_text, (turn.seconds, turn.calls * _CALL_SECONDS))
    return f"by the model a turn takes {seconds}, and to call its steps {saved}"


def _others(loop: Loop[Step] | While[Step]) -> Iterator[str]:
    """Why steps of a loop cannot be in a function."""
    for step in walk((loop,)):
        match step:
            case Launch() if step.forks:
                yield "several threads share a kernel"
            case Call(target=python_functions.TARGET):
                yield "it calls Python"
            case Call(target=target):
                yield f"it calls {target}"
            case Launch() | Loop() | While() | Branch() | Copy():
                pass
            case Store(step=by) if not by:
                pass
            case Store() if isinstance(loop, Loop):
                pass
            case _:
                yield f"a {type(step).__name__.lower()} is in it"
