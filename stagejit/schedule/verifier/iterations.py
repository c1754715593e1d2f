"""Checks that threads may share the iterations of a loop.

Input: a body that several threads run. Output: nothing, or a VerificationError. Invariant: no
iteration touches an element that another one writes, in whatever order they run; each thread has
transients of its own.

Note [Two iterations]: iteration `n` and iteration `n + k` stand for any two, `k` below or above
zero. Every symbol has its value in the one and in the other: what counts goes by `n` or `n + k`,
what is the same all the time is itself in both, anything else may be anything in each. That boxes
overlap for no `n` and `k` then follows from bounds, however many iterations there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from stagejit.base.symbolic import Int, Symbol, expr
from stagejit.errors import VerificationError
from stagejit.index.box_index import BoxIndex
from stagejit.rewrites.integers.intervals import whole, within
from stagejit.schedule.conflicts.access import boxes_by_buffer
from stagejit.schedule.plans.plan import Body, Buffer, Counter, Dispatch


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
    shared: set[str] = set()
    for binding in body.bindings:
        if binding.outer == body.workspace:
            own = binding.buffer in known or body.plan.buffer(binding.buffer).kind == "result"
            _require(own, f"{name}: threads share {binding.buffer}")
        elif not binding.stride_nbytes:  # slices are checked with all bindings
            shared.add(binding.buffer)
    _check_shared(name, shared, body)


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


def _check_shared(name: str, shared: Set[str], body: Body) -> None:
    """Of buffers that are the same for all iterations. See Note [Two iterations]."""
    trip = body.trip or 0
    if trip < 2:
        return
    dispatches = body.plan.dispatches
    read = boxes_by_buffer(access for each in dispatches for access in each.reads)
    written = boxes_by_buffer(access for each in dispatches for access in each.writes)
    constants = shared - written.keys()
    number = expr(Symbol("#n", 0, trip - 1))
    one = _values(body, constants, number)
    for least, most in ((1, trip - 1), (1 - trip, -1)):
        other = _values(body, constants, number + expr(Symbol("#k", least, most)), "'")
        for buffer in sorted(shared & written.keys()):
            found: BoxIndex[None] = BoxIndex()
            for box in written[buffer]:
                found.add(box.at(one), None)
            for box in written[buffer] | read.get(buffer, {}):
                _require(
                    not found.any_overlaps(box.at(other)),
                    f"{name}: iterations may share elements of {buffer}{box}",
                )


def _values(body: Body, constants: Set[str], number: Int, suffix: str = "") -> dict[Symbol, Int]:
    """What symbols are in iteration `number`, but those that are the same in all of them. suffix:
    of the names of what may be anything in it."""
    values: dict[Symbol, Int] = {}
    for scalar in body.plan.scalars:
        symbol = scalar.symbol
        if scalar.counts is not None:
            first, step = scalar.counts
            values[symbol] = first + step * number
        elif not scalar.names <= constants:
            values[symbol] = expr(replace(symbol, name=symbol.name + suffix))
    return values
