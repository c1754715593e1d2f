"""Loops and branches over real memory, one iteration after the other, as the plan says.

Input: a step, the memory around it, and how to run one body. Invariant: nothing is used but the
dispatch's `bodies`: bindings, carries, trip counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stagejit.dispatch.outputs import without_reshapes
from stagejit.schedule.plans.plan import Binding, Body, exchanged
from stagejit.schedule.schedule import Step

Memory = dict[str, Any]
RunBody = Callable[[int, Memory], None]


def run_bodies(
    step: Step, memory: Memory, run: RunBody, order: random.Random | None = None
) -> None:
    """order: draws that of the iterations which threads share; None for the plan's."""
    anchor = step.region.anchor
    assert anchor is not None
    bodies = step.dispatch.bodies
    if anchor.kind == "branch":
        index = memory[step.reads[step.region.inputs.index(without_reshapes(anchor.operands[0]))]]
        value = (
            int(index[:4].view(np.int32)[0])
            if anchor.operands[0].type.dtype.bits == 32
            else (int(index[0]))
        )
        number = min(max(value, 0), len(bodies) - 1)
        run(number, _views(bodies[number], memory, 0))
        _copy_carries(bodies[number], memory)
        return
    body = bodies[0]
    if body.threads > 1:
        assert body.trip is not None
        for iteration in _in_some_order(body.trip, order):
            _count(body, _views(body, memory, iteration), iteration)
            run(0, _views(body, memory, iteration))
        _count(
            body, {counter.buffer: memory[counter.outer] for counter in body.counters}, body.trip
        )
        return
    iteration = 0
    turned = replace(body, bindings=exchanged(step.dispatch, 0))
    while True:
        odd = body.alternates and iteration % 2 == 1
        if iteration == body.trip or (body.trip is None and not _holds(step, odd, memory, run)):
            break
        run(0, _views(turned if odd else body, memory, iteration))
        iteration += 1
        if not body.alternates:
            _copy_carries(body, memory)
    if body.alternates and iteration % 2 == 1:
        _copy_carries(body, memory)


def _count(body: Body, views: Memory, iteration: int) -> None:
    for counter in body.counters:
        dtype = body.plan.buffer(counter.buffer).dtype.numpy
        value = np.array(counter.first + counter.step * iteration, dtype)
        views[counter.buffer][: value.nbytes] = np.frombuffer(value.tobytes(), np.uint8)


def _in_some_order(trip: int, order: random.Random | None) -> Sequence[int]:
    return range(trip) if order is None else order.sample(range(trip), trip)


def _holds(step: Step, odd: bool, memory: Memory, run: RunBody) -> bool:
    condition = step.dispatch.bodies[1]
    if odd:
        condition = replace(condition, bindings=exchanged(step.dispatch, 1))
    views = _views(condition, memory, 0)
    run(1, views)
    return bool(views[condition.bindings[-1].buffer][0])


def _views(body: Body, memory: Memory, iteration: int) -> Memory:
    nbytes = {buffer.name: buffer.nbytes for buffer in body.plan.buffers}
    return {
        binding.buffer: _view(binding, memory, iteration, nbytes[binding.buffer])
        for binding in body.bindings
    }


def _view(binding: Binding, memory: Memory, iteration: int, nbytes: int) -> Any:
    if not nbytes and binding.outer not in memory:
        return np.zeros(1, np.uint8)  # what has no elements has no memory
    start = binding.offset_nbytes + iteration * binding.stride_nbytes
    return memory[binding.outer][start : start + max(nbytes, 1)]


def _copy_carries(body: Body, memory: Memory) -> None:
    views = _views(body, memory, 0)
    for carry in body.carries:
        views[carry.argument][...] = views[carry.result]
