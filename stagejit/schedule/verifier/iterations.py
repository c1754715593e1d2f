"""Checks that threads may share the iterations of a loop.

Input: a body that several threads run. Output: nothing, or a VerificationError. Invariant: no
iteration touches an element that another one writes, in whatever order they run; each thread has
transients of its own.

Iteration by iteration: what each one writes is put into an index, in which each one looks for what
others write of what it touches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stagejit.errors import VerificationError
from stagejit.index.box import Box
from stagejit.index.box_index import BoxIndex
from stagejit.rewrites.intervals import whole, within
from stagejit.schedule.plan import Access, Body, Buffer, Counter, Dispatch
from stagejit.symbolic import Int, Symbol


def verify_iterations(
    name: str, dispatch: Dispatch, body: Body, around: Mapping[str, Buffer]
) -> None:
    """name: what an error calls the body. Raises VerificationError for the first fault."""
    _require(body.threads >= 1, f"{name} runs on {body.threads} threads")
    if body.threads == 1:
        return
    _require(body.trip is not None, f"{name}: threads share a loop that a condition ends")
    _require(not body.carries, f"{name}: threads share a loop with carries that move")
    if body.workspace in around:
        nbytes = around[body.workspace].nbytes
        _require(nbytes % body.threads == 0, f"{name}: threads have unequal parts of {nbytes}")
    for counter in body.counters:
        _check_counter(name, counter, dispatch, body)
    known = {counter.buffer for counter in body.counters}
    for binding in body.bindings:
        if binding.outer == body.workspace:
            own = binding.buffer in known or body.plan.buffer(binding.buffer).kind == "result"
            _require(own, f"{name}: threads share {binding.buffer}")
        elif not binding.stride_nbytes:  # slices are checked with all bindings
            _check_shared(name, binding.buffer, body)


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise VerificationError(f"plan: {fault}")


def _check_counter(name: str, counter: Counter, dispatch: Dispatch, body: Body) -> None:
    """It is a scalar argument in the memory of its thread, and what comes next is declared."""
    bound = {binding.buffer: binding for binding in body.bindings}
    _require(
        counter.buffer in bound and bound[counter.buffer].outer == body.workspace,
        f"{name}: threads have no {counter.buffer} of their own",
    )
    buffer = body.plan.buffer(counter.buffer)
    counts = buffer.kind == "argument" and buffer.shape == () and buffer.dtype.is_integer
    _require(counts, f"{name}: {counter.buffer} counts nothing")
    ends = [counter.first, counter.first + counter.step * (body.trip or 0)]
    _require(within((min(ends), max(ends)), whole(buffer.dtype)), f"{name}: {counter} wraps")
    _require(
        any(access.buffer == counter.outer and access.must for access in dispatch.writes),
        f"@{dispatch.name} does not say that it writes {counter.outer}",
    )
    offsets = [s.counts for s in body.plan.scalars if s.formula == counter.buffer]
    _require(
        all(known in (None, (counter.first, counter.step)) for known in offsets),
        f"{name}: {counter} is not what offsets count by",
    )


def _check_shared(name: str, buffer: str, body: Body) -> None:
    """Of a buffer that is the same for all iterations."""
    touched = [
        (writes, access)
        for dispatch in body.plan.dispatches
        for writes, accesses in ((False, dispatch.reads), (True, dispatch.writes))
        for access in accesses
        if access.buffer == buffer and access.nbytes
    ]
    if not any(writes for writes, _ in touched):
        return
    written: BoxIndex[int] = BoxIndex()
    for number, writes, box in _over_iterations(touched, body):
        if writes:
            written.add(box, number)
    for number, _, box in _over_iterations(touched, body):
        others = [other for other in written.overlapping(box) if other != number]
        _require(
            not others,
            f"{name}: iterations {others[:1]} and {number} share elements of {buffer}{box}",
        )


def _over_iterations(
    touched: list[tuple[bool, Access]], body: Body
) -> Iterator[tuple[int, bool, Box]]:
    """Boxes of numbers, with the iteration that touches them."""
    for number in range(body.trip or 0):
        values: dict[Symbol, Int] = {
            scalar.symbol: scalar.counts[0] + number * scalar.counts[1]
            for scalar in body.plan.scalars
            if scalar.counts is not None
        }
        for writes, access in touched:
            yield number, writes, access.box.at(values).widened()
