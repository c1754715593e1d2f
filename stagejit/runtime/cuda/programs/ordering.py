"""What comes before what in a CUDA program: a verifier.

Input: a program, the plan that it carries out. Output: nothing, or a VerificationError for what a
GPU might do too early. Invariant: nothing is ordered but by a stream, by an event that was recorded
before it is waited for, and by the host where it waits for a stream; the plan says what has to be
ordered, the program is not believed.

The program is run in thought: loops twice, each branch in one run or another. Every step that does
something then knows what is over when it starts. Required is that
- a step of a dispatch knows all steps of those that barriers name as its sources, in every body;
- steps of a dispatch that are no kernels, and turns of loops, come one after the other;
- the stream on which a program begins is ahead of all others, and at the end behind them, as memory
  of the pool is in its order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stagejit.errors import VerificationError
from stagejit.index.bit_sets import bits
from stagejit.runtime.cuda.programs.program import (
    Body,
    Branch,
    Call,
    CudaProgram,
    Delegate,
    Dispatched,
    Launch,
    Record,
    Step,
    Wait,
    While,
    walk,
)
from stagejit.runtime.hosting.program_steps import Loop
from stagejit.schedule.plans.plan import Dispatch, Plan

_TURNS = 2


def verify_order(program: CudaProgram, plan: Plan) -> None:
    """Raises VerificationError for the first fault."""
    branches = [len(s.branches) for s in walk(program.steps) if isinstance(s, Branch)]
    for choice in range(max(branches, default=1)):
        run = _Run(choice)
        run.do(0, "the start")
        run.level(program.steps, plan)
        run.require(1, (1 << len(run.before)) - 2, "the start of the program")
        run.require_at_end()


@dataclass
class _Run:
    """choice: which branch is taken. before: by number of what has been done, what was over when it
    started, as bit sets; names: to read."""

    choice: int
    before: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    on_streams: dict[int, int] = field(default_factory=dict)  # what is over when all of it is
    events: dict[int, int] = field(default_factory=dict)
    on_host: int = 0  # what the host has waited for

    def do(self, stream: int, name: str) -> int:
        """Something that takes place on a stream: its bit."""
        known = self.on_streams.get(stream, 0) | self.on_host
        bit = 1 << len(self.before)
        self.before.append(known)
        self.names.append(name)
        self.on_streams[stream] = known | bit
        return bit

    def level(self, steps: tuple[Step, ...], plan: Plan) -> int:
        """The dispatches of a plan, once; what they did."""
        done: dict[str, int] = {}
        dispatches = {dispatch.name: dispatch for dispatch in plan.dispatches}
        for step in steps:
            match step:
                case Record(stream, event):
                    self.events[event] = self.on_streams.get(stream, 0) | self.on_host
                case Wait(stream, event):
                    if event not in self.events:
                        raise VerificationError(f"cuda: e{event} is waited for before it is known")
                    known = self.on_streams.get(stream, 0)
                    self.on_streams[stream] = known | self.events[event]
                case Dispatched(name, _, inner):
                    if name not in dispatches:
                        raise VerificationError(f"cuda: {plan.name} has no dispatch @{name}")
                    done[name] = done.get(name, 0) | self._dispatch(inner, dispatches[name])
                case _:
                    raise VerificationError(f"cuda: {plan.name} has a step of no dispatch")
        for barrier in plan.barriers:
            self.require(done.get(barrier.src, 0), done.get(barrier.dst, 0), f"{barrier}")
        made = 0
        for bit in done.values():
            made |= bit
        return made

    def _dispatch(self, steps: tuple[Step, ...], dispatch: Dispatch) -> int:
        made, last = 0, 0
        for each in self._one_by_one(steps, dispatch):
            if not dispatch.bodies:  # the parts of a kernel wait for nobody
                last = 0
            if each:
                self.require(last, each, f"what comes before in @{dispatch.name}")
                made, last = made | each, each
        return made

    def _one_by_one(self, steps: tuple[Step, ...], dispatch: Dispatch) -> Iterator[int]:
        """What the steps of a dispatch do, each after the one before."""
        for step in steps:
            match step:
                case Body(number, inner):
                    yield self.level(inner, dispatch.bodies[number].plan)
                case Loop(trip, inner):
                    for _ in range(min(trip, _TURNS)):
                        yield from self._one_by_one(inner, dispatch)
                case While(stream, condition, _, inner):
                    for _ in range(_TURNS):
                        yield from self._one_by_one(condition, dispatch)
                        yield self._read(stream, f"the condition of @{dispatch.name}")
                        yield from self._one_by_one(inner, dispatch)
                    yield from self._one_by_one(condition, dispatch)
                    yield self._read(stream, f"the condition of @{dispatch.name}")
                case Branch(stream, _, _, branches):
                    yield self._read(stream, f"the index of @{dispatch.name}")
                    chosen = branches[min(self.choice, len(branches) - 1)]
                    yield from self._one_by_one(chosen, dispatch)
                case Call(stream) | Delegate(stream):
                    yield self._read(stream, f"@{dispatch.name}")
                case Launch(stream, kernel):
                    yield self.do(stream, f"{kernel} of @{dispatch.name}")
                case Record() | Wait() | Dispatched():
                    raise VerificationError(f"cuda: @{dispatch.name} has what levels have")
                case _:
                    yield self.do(step.stream, f"a move of @{dispatch.name}")

    def _read(self, stream: int, name: str) -> int:
        """The host does something on a stream and waits for it."""
        bit = self.do(stream, name)
        self.on_host |= self.on_streams[stream]
        return bit

    def require(self, sources: int, targets: int, why: str) -> None:
        for target in bits(targets):
            missing = sources & ~self.before[target]
            for source in bits(missing):
                raise VerificationError(
                    f"cuda: {self.names[target]} may start before {self.names[source]} is over: "
                    f"{why}"
                )

    def require_at_end(self) -> None:
        known = self.on_streams.get(0, 0) | self.on_host
        for missing in bits(((1 << len(self.before)) - 1) & ~known):
            raise VerificationError(f"cuda: the end does not wait for {self.names[missing]}")
