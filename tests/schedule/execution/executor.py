"""Carries out a schedule in NumPy, over real memory laid out by the memory plan.

Input: a schedule, inputs. Output: the results. Invariant: a region sees only what it
declares to read, everything else is poisoned, what it certainly overwrites too; it changes only
what it declares to write. Offsets
that the host knows have their values in this call: what counts is the row, not all of its rows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from stagejit.dispatch.regions import Region
from stagejit.graph.ir import Op, Value
from stagejit.graph.meaning.interpreter import evaluate_op
from stagejit.graph.ops.moving.views import behind_aliases
from stagejit.index.box import Box
from stagejit.schedule.plans.plan import Access, Buffer
from stagejit.schedule.schedule import Delegation, Run, Schedule, Step
from tests.expected.placing import slices_of
from tests.schedule.execution.bodies import run_bodies

Array = np.ndarray[Any, np.dtype[Any]]
POISON = 0xFF  # NaN in every float type


class Executor:
    """Runs one schedule. order: draws an order that the barriers allow, None for the plan's."""

    def __init__(self, schedule: Schedule, order: random.Random | None = None) -> None:
        self.graph, self.schedule, self.order = schedule.graph, schedule, order
        self.buffers = {buffer.name: buffer for buffer in schedule.plan.buffers}
        self.plan = schedule.plan

    def __call__(self, inputs: Sequence[Any]) -> list[Array]:
        memory: dict[str, Any] = {
            name: poisoned(b.nbytes) for name, b in self.buffers.items() if b.slot is None
        }
        for value, name in self.schedule.buffer_of.items():
            if value.op.kind == "const" and self.buffers[name].kind == "constant":
                memory[name][:] = _bytes(value.op.attrs["value"])
        for value, array in zip(self.graph.inputs, inputs, strict=True):
            if value in self.schedule.buffer_of:
                memory[self.schedule.buffer_of[value]] = _bytes(
                    np.asarray(array, value.type.dtype.numpy)
                )
        self._know_scalars(memory)
        for segment in self.schedule.segments:
            if isinstance(segment, Delegation):
                self._step(segment.step, memory)
            else:
                self._run(segment, memory)
        return [
            self._array(memory, name, value)
            for name, value in zip(self.schedule.outputs, self.graph.outputs, strict=True)
        ]

    def _know_scalars(self, memory: dict[str, Any]) -> None:
        """Exact ranges for the scalars that lie in memory when a call or an iteration starts."""
        names = {name for scalar in self.plan.scalars for name in scalar.names}
        self.plan = self.plan.at(
            **{
                name: int(memory[name][: (b := self.buffers[name]).nbytes].view(b.dtype.numpy)[0])
                for name in names
            }
        )
        self.dispatches = {dispatch.name: dispatch for dispatch in self.plan.dispatches}

    def _run(self, run: Run, memory: dict[str, Any]) -> None:
        arena = poisoned(run.arena_nbytes)
        known = dict(memory)
        inside = (step.dispatch for step in run.steps)
        touched = {access.buffer for d in inside for access in (*d.reads, *d.writes)}
        for name in {name for step in run.steps for name in step.buffers}:
            buffer = self.buffers[name]
            if buffer.slot is not None:
                assert buffer.slot % 64 == 0
                place = known[buffer.host] if buffer.host else arena
                known[name] = place[buffer.slot : buffer.slot + buffer.nbytes]
            elif name in touched:  # a loop may take what its body does not touch
                assert name in run.arguments or name in run.results, name
        self._steps(run.steps, known)

    def _steps(self, steps: Sequence[Step], memory: dict[str, Any]) -> None:
        for step in self._in_some_order(steps):
            self._step(step, memory)

    def _waits(self, steps: Sequence[Step]) -> dict[str, set[str]]:
        """For each of `steps` those among them that a barrier puts before it."""
        inside = {step.dispatch.name for step in steps}
        barriers = self.schedule.plan.barriers
        return {name: {b.src for b in barriers if b.dst == name} & inside for name in inside}

    def _in_some_order(self, steps: Sequence[Step]) -> Sequence[Step]:
        if self.order is None:
            return steps
        waits = self._waits(steps)
        pending, done, result = list(steps), set[str](), []
        while pending:
            ready = [s for s in pending if not waits[s.dispatch.name] - done]
            step = self.order.choice(ready)
            pending.remove(step)
            done.add(step.dispatch.name)
            result.append(step)
        return result

    def _step(self, step: Step, memory: dict[str, Any]) -> None:
        if step.bodies:
            shown = self._shown(step, memory)

            def run(number: int, buffers: dict[str, Any]) -> None:
                self._body(step, number, buffers)

            run_bodies(step, shown, run, self.order)
            self._take_over(step, memory, shown)
            return
        self._poison_overwritten(step, memory)
        reads, writes = iter(step.reads), iter(step.writes)
        parts = [
            (part, [next(reads) for _ in part.inputs], [next(writes) for _ in part.stores])
            for part in step.region.parts
        ]
        if self.order is not None:  # they run at once
            self.order.shuffle(parts)
        for part, read, written in parts:
            self._part(part, step, read, written, memory)

    def _poison_overwritten(self, step: Step, memory: dict[str, Any]) -> None:
        """What a dispatch certainly writes and does not read it may as well find poisoned. A buffer
        that is written over another one has that one's elements."""
        now = self.dispatches[step.dispatch.name]
        for name in dict.fromkeys(step.writes):
            buffer = self.buffers[name]
            if buffer.over or not buffer.nbytes:
                continue
            gone = declared(buffer, buffer.shape, [w for w in now.writes if w.must])
            gone &= ~declared(buffer, buffer.shape, now.reads)
            flat = memory[name][: buffer.nbytes].reshape(-1, buffer.dtype.itemsize)
            flat[gone.reshape(-1)] = POISON

    def _part(
        self,
        region: Region,
        step: Step,
        reads: Sequence[str],
        writes: Sequence[str],
        memory: dict[str, Any],
    ) -> None:
        now = self.dispatches[step.dispatch.name]
        values: dict[Value, Any] = {}
        for value, name in zip(region.inputs, reads, strict=True):
            values[value] = self._read(memory, name, value, now.reads)
        for op in region.ops:
            if op.kind == "insert_slice":
                continue
            if op.kind == "scatter":
                given = [values[behind_aliases(x)].reshape(x.shape) for x in op.operands[1:]]
                values[op.result] = self._scattered(memory, writes[0], op, given, now.reads)
                continue
            operands = [values[behind_aliases(x)].reshape(x.shape) for x in op.operands]
            values.update(zip(op.results, evaluate_op(op, operands), strict=True))
        for store, name in zip(region.stores, writes, strict=True):
            target = self._array(memory, name, store.into)
            before = target.copy()
            part = target
            for insert in reversed(store.inserts):
                part = part[slices_of(insert, part.shape, values)]
            part[...] = values[store.value]
            self._check_written(name, before, target, now.writes)

    def _body(self, step: Step, number: int, memory: dict[str, Any]) -> None:
        """One execution of a body; its transients are poisoned each time."""
        inner = type(self)(step.bodies[number], self.order)
        inner._know_scalars(memory)
        for segment in inner.schedule.segments:
            assert isinstance(segment, Run)
            inner._run(segment, memory)

    def _shown(self, step: Step, memory: dict[str, Any], *, after: bool = False) -> dict[str, Any]:
        """The memory of a loop or branch: all elements poisoned that it does not declare, or that
        it certainly overwrites."""
        shown = {}
        overwritten = {access for access in step.dispatch.writes if access.must}
        overwritten -= set(step.dispatch.reads)
        accesses = (*step.dispatch.reads, *step.dispatch.writes)
        touched = {access.buffer for access in accesses if access.nbytes}
        for name in step.buffers:
            if name not in memory and name not in touched:
                continue  # a body around this one takes it and does not touch it either
            shown[name] = np.full_like(memory[name], POISON)
            for access in accesses:
                if access.buffer == name and access.nbytes and (after or access not in overwritten):
                    self._elements(shown, access)[...] = self._elements(memory, access)
        return shown

    def _take_over(self, step: Step, memory: dict[str, Any], shown: dict[str, Any]) -> None:
        """What it has written to; all else must be as it was."""
        for name in shown:
            left = shown[name].copy()
            for access in step.dispatch.writes:
                if access.buffer == name and access.nbytes:
                    self._elements(memory, access)[...] = self._elements(shown, access)
            again = self._shown(step, memory, after=True)[name]
            dtype = self.buffers[name].dtype.numpy
            count = len(left) // dtype.itemsize * dtype.itemsize
            same = _same(again[:count].view(dtype), left[:count].view(dtype))
            assert same.all(), f"undeclared write to {name}"

    def _elements(self, memory: dict[str, Any], access: Access) -> Array:
        buffer = self.buffers[access.buffer]
        flat: Array = memory[access.buffer][: buffer.nbytes]
        return flat.reshape(*buffer.shape, buffer.dtype.itemsize)[box_slices(access.box)]

    def _scattered(
        self,
        memory: dict[str, Any],
        name: str,
        op: Op,
        given: Sequence[Array],
        reads: Sequence[Access],
    ) -> Array:
        """The result of a scatter, which sees other numbers than there are where it declares no
        read. It leaves them wherever it writes nothing."""
        there = self._array(memory, name, op.result).copy()
        seen = declared(self.buffers[name], there.shape, reads)
        if there.dtype == np.bool_:  # there is no third value to tell what has been written by
            seen[...] = True
        more = there.dtype.type(90.25)  # not what a program adds
        other = there if there.dtype == np.bool_ else there + more
        shown = np.where(seen, there, other)
        (result,) = evaluate_op(op, [shown, *given])
        made: Array = np.where(_same(result, shown), there, result)
        return made

    def _array(self, memory: dict[str, Any], name: str, value: Value) -> Array:
        flat: Array = memory[name]
        size = value.type.nbytes
        return flat[:size].view(value.type.dtype.numpy).reshape(value.shape)

    def _read(
        self, memory: dict[str, Any], name: str, value: Value, reads: Sequence[Access]
    ) -> Array:
        """The value with all elements poisoned that the dispatch does not declare to read."""
        if not value.type.size:
            return np.empty(value.shape, value.type.dtype.numpy)  # in a body it has no memory
        array = self._array(memory, name, value)
        shown = poisoned(value.type.nbytes)[: value.type.nbytes]
        shown = shown.view(value.type.dtype.numpy).reshape(value.shape)
        if array.dtype == np.bool_:
            shown[...] = ~array
        seen = declared(self.buffers[name], value.shape, reads)
        shown[seen] = array[seen]
        return shown

    def _check_written(
        self, name: str, before: Array, after: Array, writes: Sequence[Access]
    ) -> None:
        allowed = declared(self.buffers[name], before.shape, writes)
        same = _same(before, after)
        assert np.all(same | allowed), f"undeclared write to {name}"


def _same(a: Array, b: Array) -> Array:
    """Where elements are equal; a NaN that went through arithmetic may have other bits."""
    return (a == b) | ((a != a) & (b != b))


def _bytes(array: Any) -> Any:
    array = np.array(array, order="C")
    memory = poisoned(array.nbytes)
    memory[: array.nbytes] = array.reshape(-1).view(np.uint8)
    return memory


def poisoned(nbytes: int) -> Any:
    """Bytes, at least one, from the start of a cache line on, as in all memory of a plan."""
    memory = np.full(nbytes + 65, POISON, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + max(nbytes, 1)]


def declared(buffer: Buffer, shape: tuple[int, ...], accesses: Sequence[Access]) -> Array:
    """Which elements of `buffer`, seen in `shape`, `accesses` name; all if the shapes differ."""
    mask = np.zeros(shape, bool)
    for access in accesses:
        if access.buffer == buffer.name:
            mask[box_slices(access.box) if shape == buffer.shape else ...] = True
    return mask


def box_slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(o, o + (n - 1) * s + 1 if n else o, s) for o, n, s in box.dims())
