"""From a schedule and its loaded programs to a `Staged` function, which the embedding lowers.

Input: the schedule, a loaded program for each run. Output: `Staged`.
Invariant: each write of a buffer by a segment defines a new value for XLA, and every segment
reads the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax.extend import core as jex_core

from stagejit.graph.ir import Op, Value
from stagejit.options import Options
from stagejit.runtime.cpu.loader import LoadedProgram, load_program
from stagejit.runtime.cpu.nans.passing_on import passing_on
from stagejit.runtime.hosting.sites import site_of
from stagejit.runtime.left_bodies import BODIES
from stagejit.runtime.lowering.marks import enclose
from stagejit.runtime.lowering.seams import subjaxprs
from stagejit.runtime.lowering.snapshots import (
    AVAL,
    asks_for_one,
    giving_back,
    giving_back_inside,
    is_callback,
    is_loop_or_branch,
    reads_weights,
    taking_one_more,
    with_operand,
)
from stagejit.runtime.lowering.staged import DelegatedEquation, NativeCall, Reshape, Staged
from stagejit.schedule.plans.plan import Buffer
from stagejit.schedule.schedule import Delegation, Run, Schedule
from stagejit.trace.calls.primitives import jax_name
from stagejit.types import TensorType

BEGUN = -1  # the snapshot that a program takes itself


def stage_schedule(
    schedule: Schedule,
    programs: Mapping[Run, LoadedProgram],
    options: Options,
    left: Sequence[Any] = (),
    copies: Mapping[str, LoadedProgram] | None = None,
    snapshot: int | None = None,
) -> Staged:
    """The function as custom calls and delegated equations.

    snapshot: see `snapshot_of`.
    copies: by the buffer of each weight that a delegated equation reads, what gives it to XLA.
    left: delegated loops and branches whose bodies are XLA's, too, see `left_bodies.py`: equations.
    """
    return _Staging(schedule, programs, options, left, copies or {}, snapshot).staged()


class _Staging:
    def __init__(
        self,
        schedule: Schedule,
        programs: Mapping[Run, LoadedProgram],
        options: Options,
        left: Sequence[Any],
        copies: Mapping[str, LoadedProgram],
        snapshot: int | None,
    ) -> None:
        self.left, self.copies, self.checks = left, copies, passing_on(schedule, options)
        self.schedule, self.graph = schedule, schedule.graph
        self.programs, self.options = programs, options
        self.buffers: dict[str, Buffer] = {b.name: b for b in schedule.plan.buffers}
        self.output_types = dict(
            zip(schedule.outputs, (v.type for v in self.graph.outputs), strict=True)
        )
        self.items: list[NativeCall | DelegatedEquation | Reshape] = []
        self.latest: dict[str, tuple[int, TensorType]] = {}
        self.count = 0
        self.snapshot = snapshot

    def staged(self) -> Staged:
        for value in self.graph.inputs:
            if not self.graph.is_bound(value):
                self._define(self.schedule.buffer_of[value], value.type)
        constants = self._constants()
        if self.snapshot == BEGUN:
            self.snapshot, self.count = self.count, self.count + 1
        for segment in self.schedule.segments:
            if isinstance(segment, Run):
                self._run(segment)
            else:
                self._delegation(segment)
                self._look(segment)
        outputs = [
            self._as_type(name, value.type)
            for name, value in zip(self.schedule.outputs, self.graph.outputs, strict=True)
        ]
        return Staged(tuple(self.items), tuple(outputs), constants, self.snapshot)

    def _define(self, name: str, type: TensorType) -> int:
        number = self.count
        self.count += 1
        self.latest[name] = (number, type)
        return number

    def _constants(self) -> tuple[Any, ...]:
        arrays: dict[str, tuple[Any, TensorType]] = {}
        for value, name in self.schedule.buffer_of.items():
            if self.buffers[name].kind == "constant" and value.op.definition.is_constant:
                arrays[name] = _stored(value)
        for name, (_, type) in arrays.items():
            self._define(name, type)
        return tuple(array for array, _ in arrays.values())

    def _type_of(self, name: str) -> TensorType:
        """The type under which a run's result is known to XLA, whose arrays are row-major."""
        buffer = self.buffers[name]
        if buffer.kind == "result":
            return self.output_types[name]
        if buffer.layout.is_row_major:
            return TensorType(buffer.dtype, buffer.shape)
        return TensorType(buffer.dtype, (buffer.layout.room(buffer.shape),))

    def _as_type(self, name: str, type: TensorType) -> int:
        """The latest value of a buffer, under a shape of the same elements."""
        if name in self.copies and name not in self.latest:
            buffer = self.buffers[name]
            kind = TensorType(buffer.dtype, buffer.shape)
            number = self._define(name, kind)
            program = self.copies[name]
            self.items.append(NativeCall(program, self._of_moment(program), (number,), (kind,)))
        number, known = self.latest[name]
        if known == type:
            return number
        self.items.append(Reshape(number, self.count, type))
        self.count += 1
        return self.count - 1

    def _run(self, run: Run) -> None:
        types = tuple(self._type_of(name) for name in run.results)
        aliased = {run.arguments[argument]: types[result] for result, argument in run.aliases}
        operands = tuple(
            self._as_type(name, aliased.get(name, self.latest[name][1])) for name in run.arguments
        )
        results = tuple(
            self._define(name, type) for name, type in zip(run.results, types, strict=True)
        )
        program = self.programs[run]
        operands += self._of_moment(program)
        self.items.append(NativeCall(program, operands, results, types))

    def _of_moment(self, program: LoadedProgram) -> tuple[int, ...]:
        """The operand that says of which moment its weights are."""
        has_one = program.program.has_snapshot
        return (self.snapshot,) if has_one and self.snapshot is not None else ()

    def _look(self, part: Delegation) -> None:
        """At values that pass by our programs: they go through one that gives them on."""
        if part in self.checks:
            names, program = self.checks[part]
            operands, types = zip(*(self.latest[name] for name in names), strict=True)
            results = tuple(map(self._define, names, types))
            program = replace(program, has_snapshot=self.snapshot is not None)
            loaded = load_program(program, {})
            operands += self._of_moment(loaded)
            self.items.append(NativeCall(loaded, operands, results, types))

    def _delegation(self, delegation: Delegation) -> None:
        op = delegation.step.region.anchor
        assert op is not None
        equation = op.attrs["equation"]
        operands = [
            None if isinstance(atom, jex_core.Literal) else self._as_type(name, value.type)
            for atom, value, name in zip(
                equation.invars, op.operands, delegation.operands, strict=False
            )
        ]  # a token, the last operand, only orders
        is_left = any(equation is known for known in self.left)
        if (one := self._of_moment_for(equation, is_left)) is not None:
            given = dict(zip(map(id, equation.invars), operands, strict=True))
            equation = one
            operands = [given.get(id(atom), self.snapshot) for atom in equation.invars]
        elif not is_left:
            equation = staged_bodies(equation, self.options)
        results = tuple(
            self._define(name, value.type)
            for _, value, name in zip(
                equation.outvars, op.results, delegation.results, strict=False
            )
        )
        site = site_of(delegation.step.dispatch)
        self.items.append(DelegatedEquation(equation, tuple(operands), results, site))

    def _of_moment_for(self, equation: Any, is_left: bool) -> Any:
        """The equation with the snapshot as operands more; None where it asks for none."""
        snapshot = jex_core.Var(AVAL)
        if self.snapshot is None:
            return None
        if is_callback(equation):
            return giving_back(equation, snapshot)
        if not (is_loop_or_branch(equation) and any(map(asks_for_one, subjaxprs(equation)))):
            return None
        return with_operand(
            equation, snapshot, giving_back_inside if is_left else self._body_of_moment
        )

    def _body_of_moment(self, body: Any, at: int) -> Any:
        return enclose(taking_one_more(body, at), self.options, snapshot=at)


def snapshot_of(schedule: Schedule, left: Iterable[Op], given: int | None) -> int | None:
    """Which argument of a program is a snapshot of weights: the `given` one, or `BEGUN`; None where
    it does without, as what reads weights once reads those of one moment. left: see
    `stage_schedule`, the ops."""
    if given is not None:
        return given
    weights = {buffer.name for buffer in schedule.plan.buffers if buffer.kind == "weight"}
    kept, times = [op.attrs["equation"] for op in left], 0
    for part in schedule.segments:
        if isinstance(part, Run):
            times += any(name in weights for step in part.steps for name in step.buffers)
        else:
            op = part.step.region.anchor
            assert op is not None
            equation = op.attrs["equation"]
            times += len(weights.intersection(part.operands))
            if not any(equation is known for known in kept):
                times += 2 * any(map(reads_weights, subjaxprs(equation)))
    return BEGUN if times > 1 else None


def _stored(constant: Value) -> tuple[Any, TensorType]:
    """A constant as XLA gets it, whose arrays are row-major."""
    array, type = constant.op.attrs["value"], constant.type
    if type.layout.is_row_major:
        return array, type
    return type.layout.laid_out(array), TensorType(type.dtype, (type.room,))


def staged_bodies(equation: Any, options: Options) -> Any:
    """The equation with the jaxprs of its loop or branches marked, so that our rule lowers them."""
    names = BODIES.get(jax_name(equation.primitive) or "", ())
    params = dict(equation.params)
    for name in names:
        body = params[name]
        params[name] = (
            tuple(enclose(b, options) for b in body)
            if isinstance(body, Sequence)
            else enclose(body, options)
        )
    return equation.replace(params=params) if names else equation
