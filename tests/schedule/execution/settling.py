"""Carries out a schedule where nothing has settled but what barriers name.

Input, output: as `Executor`, whose randomized orders it inherits. Invariant: a dispatch sees what
another one has written only where a barrier of that one names the place, and the barrier's other
end is the dispatch itself or comes before it by barriers; all else that has been written reads as
poison. What an unsettled reader may still read must not be written. Neither whole buffers nor the
order of the plan count, and memory is bytes: two buffers that share it share what is unsettled.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np

from stagejit.index.box import Box
from stagejit.schedule.plans.plan import Access, Dispatch
from stagejit.schedule.schedule import Delegation, Run, Schedule, Step
from tests.schedule.execution.executor import POISON, Array, Executor, box_slices

Mask = Array  # which bytes of a memory
Masks = dict[str, Mask]  # by memory: of a buffer or result, or the arena of a run


class Settling(Executor):
    """See the module's docstring."""

    def __init__(self, schedule: Schedule, order: random.Random | None = None) -> None:
        super().__init__(schedule, order)
        self.run_of = {
            step.dispatch.name: number
            for number, part in enumerate(schedule.segments)
            for step in ([part.step] if isinstance(part, Delegation) else part.steps)
        }
        self.arena_of: dict[str, str] = {}
        for number, part in enumerate(schedule.segments):
            if isinstance(part, Run):
                for name in (name for step in part.steps for name in step.buffers):
                    self.arena_of[name] = f"arena {number}"
        self.settled: dict[str, dict[tuple[str, str], Mask]] = {}  # by dispatch: source, memory
        self.written: dict[str, list[tuple[str, Mask]]] = {}  # by memory: who, which bytes
        self.read: dict[str, list[tuple[str, Mask]]] = {}

    def _step(self, step: Step, memory: dict[str, Any]) -> None:
        now = self.dispatches[step.dispatch.name]
        settled = self._settled_for(now)
        reads, writes = self._masks(now.reads), self._masks(now.writes)
        for place, mask in writes.items():
            for source, busy in self.read.get(place, ()):
                busy = busy & mask & ~settled.get((source, place), np.zeros_like(mask))
                assert not busy.any(), f"@{now.name} writes what @{source} may still read"
        unsettled: Masks = {}
        for place, events in self.written.items():
            for source, mask in events:
                mask = mask & ~settled.get((source, place), np.zeros_like(mask))
                unsettled[place] = unsettled.get(place, np.zeros_like(mask)) | mask
        names = [name for name in step.buffers if name in memory and self.buffers[name].nbytes]
        hidden = {name: self._of(name, unsettled) for name in names}
        before = {name: self._bytes(name, memory).copy() for name in names}
        for name in names:
            self._poison(name, memory, hidden[name], before[name])
        super()._step(step, memory)
        for name in names:
            mine = self._of(name, writes)
            back = hidden[name] & ~mine
            self._bytes(name, memory)[back] = before[name][back]
            # Whether it or a write that has not settled comes last, nobody knows.
            self._poison(name, memory, hidden[name] & mine, before[name])
        for events, masks in ((self.read, reads), (self.written, writes)):
            for place, mask in masks.items():
                events.setdefault(place, []).append((now.name, mask))

    def _bytes(self, name: str, memory: dict[str, Any]) -> Array:
        array: Array = memory[name][: self.buffers[name].nbytes]
        return array

    def _poison(self, name: str, memory: dict[str, Any], where: Mask, before: Array) -> None:
        array = self._bytes(name, memory)
        is_bool = self.buffers[name].dtype.kind == "bool"
        array[where] = before[where] ^ 1 if is_bool else POISON

    def _settled_for(self, dispatch: Dispatch) -> dict[tuple[str, str], Mask]:
        """What of whom has settled when the dispatch starts."""
        found: dict[tuple[str, str], Mask] = {}
        for barrier in self.plan.barriers:
            if barrier.dst != dispatch.name:
                continue
            known = [*self.settled[barrier.src].items()]
            if barrier.buffer and self.buffers[barrier.buffer].nbytes:
                place, mask = self._mask(barrier.buffer, barrier.ranges)
                known.append(((barrier.src, place), mask))
            for key, mask in known:
                found[key] = found[key] | mask if key in found else mask
        self.settled[dispatch.name] = found
        return found

    def _place(self, name: str) -> tuple[str, int, int]:
        """The memory of a buffer, where it lies in it, and the size of the memory."""
        buffer = self.buffers[name]
        if buffer.slot is None:
            return name, 0, buffer.nbytes
        if buffer.host:
            return buffer.host, buffer.slot, self.buffers[buffer.host].nbytes
        return self.arena_of[name], buffer.slot, self.plan.arena_nbytes

    def _mask(self, name: str, boxes: Iterable[Box]) -> tuple[str, Mask]:
        buffer, (place, start, size) = self.buffers[name], self._place(name)
        mask = np.zeros((*buffer.shape, buffer.dtype.itemsize), bool)
        for box in boxes:
            mask[box_slices(box)] = True
        whole = np.zeros(size, bool)
        whole[start : start + buffer.nbytes] = mask.reshape(-1)
        return place, whole

    def _masks(self, accesses: Iterable[Access]) -> Masks:
        found: Masks = {}
        for access in accesses:
            if access.nbytes:
                place, mask = self._mask(access.buffer, [access.box])
                found[place] = found[place] | mask if place in found else mask
        return found

    def _of(self, name: str, masks: Masks) -> Mask:
        """The part of a memory's mask that is a buffer's."""
        place, start, size = self._place(name)
        mask = masks.get(place, np.zeros(size, bool))
        return mask[start : start + self.buffers[name].nbytes]
