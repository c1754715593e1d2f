"""From dispatches to steps, whatever steps are on a target: loops, branches and their carries.

Input: a schedule; a target's own steps, by a subclass. Output: the steps of a run. Invariant: a
step gets exactly the buffers that its dispatch's accesses name; what a body leaves is where the
next iteration, or what comes after it, expects it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from stagejit.errors import InternalError
from stagejit.graph.ir import Value
from stagejit.graph.ops.foreign import handler_types
from stagejit.graph.ops.moving.views import behind_aliases
from stagejit.runtime.hosting import program_steps, sites
from stagejit.runtime.hosting.program_steps import BufferRef, ForeignArray
from stagejit.runtime.hosting.scopes import Pass, Scope, bound, inside, moved
from stagejit.schedule.plans.plan import exchanged
from stagejit.schedule.schedule import Run, Step
from stagejit.types import TensorType

S = TypeVar("S")
ONCE = Pass(every=0)


class Hosting(ABC, Generic[S]):
    """Makes steps of type S."""

    @abstractmethod
    def steps(self, run: Run, scope: Scope) -> tuple[S, ...]:
        """All dispatches of a run."""

    @abstractmethod
    def site(self, step: Step, scope: Scope) -> int:
        """The number of a dispatch among the program's sites."""

    @abstractmethod
    def copy(self, scope: Scope, to: BufferRef, source: BufferRef, nbytes: int, site: int) -> S: ...

    @abstractmethod
    def store(self, scope: Scope, place: BufferRef, nbytes: int, first: int, step: int = 0) -> S:
        """See `program_steps.Store`."""

    @abstractmethod
    def call(self, scope: Scope, made: program_steps.Call) -> S: ...

    @abstractmethod
    def loop(self, step: Step, scope: Scope, trip: int, body: Sequence[S]) -> S: ...

    @abstractmethod
    def iterations(self, step: Step, scope: Scope, trip: int, body: Sequence[S]) -> S:
        """Those of a loop that threads share: a loop of the threads, then one of the iterations."""

    @abstractmethod
    def repeat(
        self,
        step: Step,
        scope: Scope,
        condition: Sequence[S],
        predicate: BufferRef,
        body: Sequence[S],
    ) -> S:
        """A `program_steps.While`."""

    @abstractmethod
    def branch(
        self, scope: Scope, index: BufferRef, nbytes: int, branches: Sequence[Sequence[S]]
    ) -> Sequence[S]:
        """A `program_steps.Branch`."""

    # ---------------------------------------------------------------- loops and branches

    def without_kernel(self, step: Step, scope: Scope) -> list[S]:
        """The steps of a loop, a branch or a call."""
        known = step.region.definition
        if known.is_loop:
            return self._loop(step, scope)
        if known.is_branch:
            return self._branch(step, scope)
        return [self.call(scope, _call(step, scope, self.site(step, scope)))]

    def _loop(self, step: Step, scope: Scope) -> list[S]:
        body = step.dispatch.bodies[0]
        if body.trip is None:
            return [self._while(step, scope)]
        if body.threads > 1:
            return self._iterations(step, body.trip, scope)
        back = self._copies(step, 0, scope)
        if body.trip == 1:
            return [*self.body(step, 0, scope, ONCE), *back]
        inner = replace(scope, loops=scope.loops + 1)
        if not body.alternates:
            turn = (*self.body(step, 0, inner, Pass()), *back)
            return [self.loop(step, scope, body.trip, turn)]
        pairs, rest = divmod(body.trip, 2)
        twice = (
            *self.body(step, 0, inner, Pass(0, 2)),
            *self.body(step, 0, inner, Pass(1, 2, exchanged=True)),
        )
        last = [*self.body(step, 0, scope, Pass(body.trip - 1, 0)), *back] if rest else []
        return [self.loop(step, scope, pairs, twice), *last]

    def _iterations(self, step: Step, trip: int, scope: Scope) -> list[S]:
        """Those of a loop that threads share, and what its counters come to."""
        body = step.dispatch.bodies[0]
        inner = replace(
            scope, loops=scope.loops + 2, alone=True, threads=body.threads, thread=scope.loops
        )
        places = bound(body, body.bindings, inner, Pass())
        begin, end = list[S](), list[S]()
        for counter in body.counters:
            nbytes, first, by = body.plan.buffer(counter.buffer).nbytes, counter.first, counter.step
            begin.append(self.store(inner, places[counter.buffer], nbytes, first, by))
            end.append(self.store(scope, scope.place(counter.outer), nbytes, first + trip * by))
        steps = (*begin, *self.body(step, 0, inner, Pass()))
        return [self.iterations(step, scope, trip, steps), *end]

    def _while(self, step: Step, scope: Scope) -> S:
        condition = self.body(step, 1, scope, ONCE)
        verdict = step.dispatch.bodies[1].bindings[-1]
        predicate = moved(scope.place(verdict.outer), verdict.offset_nbytes)
        body, back = self.body(step, 0, scope, ONCE), self._copies(step, 0, scope)
        if not step.dispatch.bodies[0].alternates:
            return self.repeat(step, scope, condition, predicate, (*body, *back))
        # The buffers are exchanged now; they are exchanged again, or copied back before the end.
        turned = Pass(every=0, exchanged=True)
        again = self.body(step, 1, scope, turned)
        both = (tuple(back), self.body(step, 0, scope, turned))
        twice = self.branch(scope, predicate, 1, both)
        return self.repeat(step, scope, condition, predicate, (*body, *again, *twice))

    def _branch(self, step: Step, scope: Scope) -> list[S]:
        anchor = step.region.anchor
        if anchor is None:
            raise InternalError(f"{step.dispatch.name} has no anchor", step="host program")
        index = behind_aliases(anchor.operands[0])
        branches = tuple(
            (*self.body(step, number, scope, ONCE), *self._copies(step, number, scope))
            for number in range(len(step.bodies))
        )
        place = scope.place(scope.schedule.buffer_of[index])
        return [*self.branch(scope, place, index.type.dtype.itemsize, branches)]

    def _copies(self, step: Step, number: int, scope: Scope) -> list[S]:
        """Moves the carries of a body that are not updated in place to where they are expected."""
        body = step.dispatch.bodies[number]
        bindings, site = {b.buffer: b for b in body.bindings}, self.site(step, scope)
        nbytes = {buffer.name: buffer.nbytes for buffer in body.plan.buffers}

        def place(name: str) -> BufferRef:
            return moved(scope.place(bindings[name].outer), bindings[name].offset_nbytes)

        return [
            self.copy(scope, place(carry.argument), place(carry.result), nbytes[carry.result], site)
            for carry in body.carries
        ]

    def body(self, step: Step, number: int, scope: Scope, these: Pass) -> tuple[S, ...]:
        """The steps of one body. The innermost loop of `scope` is that of the body, unless
        `these` is one iteration only."""
        body, schedule = step.dispatch.bodies[number], step.bodies[number]
        bindings = exchanged(step.dispatch, number) if these.exchanged else body.bindings
        inner = inside(body, schedule, bindings, scope, these)
        inner = replace(inner, path=sites.inside(scope.path, step.dispatch, body))
        return tuple(made for run in schedule.runs for made in self.steps(run, inner))


def _call(step: Step, scope: Scope, site: int) -> program_steps.Call:
    op = step.region.anchor
    if op is None:
        raise InternalError(f"{step.dispatch.name} has no anchor", step="host program")

    def arrays(values: Sequence[Value], types: Sequence[TensorType]) -> tuple[ForeignArray, ...]:
        return tuple(
            ForeignArray(
                scope.place(scope.schedule.buffer_of[behind_aliases(value)]),
                type.dtype.name,
                type.shape,
                type.nbytes,
            )
            for value, type in zip(values, types, strict=True)
        )

    operands, results = handler_types(op)
    return program_steps.Call(
        op.attrs["target"],
        arrays(op.operands, operands),
        arrays(op.results, results),
        op.attrs["attributes"],
        site,
    )
