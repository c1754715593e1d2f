"""Checks where the buffers of a loop's or branch's body lie.

Input: a dispatch and one of its bodies. Output: nothing, or a VerificationError. Invariant: a body
touches no element that its dispatch does not declare; what it writes overlaps nothing else that it
is bound to, in this iteration or another one; after an iteration every carry is where the next one
expects it; all branches leave their results at the same places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stagejit.errors import VerificationError
from stagejit.index.box import Box
from stagejit.schedule.conflicts.access import boxes_by_buffer, swept
from stagejit.schedule.plans.plan import Binding, Body, Buffer, Dispatch
from stagejit.schedule.verifier.iterations import verify_iterations


def verify_bodies(dispatch: Dispatch, around: Mapping[str, Buffer]) -> None:
    """Raises VerificationError for the first fault. Plans of bodies are checked apart."""
    for body in dispatch.bodies:
        verify_body(dispatch, body, around)
    if dispatch.kind == "branch":
        places = [_result_places(body) for body in dispatch.bodies]
        for body, found in zip(dispatch.bodies, places, strict=True):
            _require(
                found == places[0],
                f"{body.plan.name} of @{dispatch.name} leaves its results at other places than "
                f"{dispatch.bodies[0].plan.name}",
            )


def _result_places(body: Body) -> dict[int, tuple[str, int]]:
    """Outer buffer and offset of each result that has elements."""
    bound = {binding.buffer: binding for binding in body.bindings}
    moved = {carry.result: carry.argument for carry in body.carries}
    places = {}
    for buffer in body.plan.buffers:
        number = buffer.index if buffer.kind == "result" else buffer.result
        binding = bound.get(moved.get(buffer.name, buffer.name))
        if number is not None and buffer.nbytes and binding is not None:
            places[number] = (binding.outer, binding.offset_nbytes)
    return places


def verify_body(dispatch: Dispatch, body: Body, around: Mapping[str, Buffer]) -> None:
    """The same for one body alone."""
    name = f"{body.plan.name} of @{dispatch.name}"
    inside = {buffer.name: buffer for buffer in body.plan.buffers}
    bound = {binding.buffer: binding for binding in body.bindings}
    _require(len(bound) == len(body.bindings), f"{name} binds a buffer twice")
    read, written = _touched(body.plan.dispatches)
    declared = _touched([dispatch])
    for buffer in body.plan.buffers:
        outside = buffer.kind in ("constant", "weight")
        _require(not outside, f"{name} has the {buffer.kind} {buffer.name}")
        is_touched = buffer.name in read or buffer.name in written
        needed = buffer.kind != "transient" and buffer.nbytes and is_touched
        _require(not needed or buffer.name in bound, f"{name} does not say where {buffer.name} is")
    ranges = {each.buffer: _range(name, each, body, inside, around) for each in body.bindings}
    for binding in body.bindings:
        nbytes = inside[binding.buffer].nbytes
        if not nbytes:
            continue
        if binding.outer != body.workspace:
            outer = around[binding.outer]
            _check_declared(dispatch.name, body, binding, (read, written), declared, outer)
        if binding.buffer in written:
            _check_apart(name, binding, body, ranges, nbytes)
    verify_iterations(name, dispatch, body, around)
    _check_workspace(name, body, around, ranges)
    _check_carries(name, body, inside, bound, is_loop=dispatch.kind == "loop")


_Boxes = Mapping[str, Mapping[Box, None]]  # each once, by buffer


def _touched(dispatches: Sequence[Dispatch]) -> tuple[_Boxes, _Boxes]:
    """What dispatches read, and what they write."""
    return (
        boxes_by_buffer(access for each in dispatches for access in each.reads),
        boxes_by_buffer(access for each in dispatches for access in each.writes),
    )


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise VerificationError(f"plan: {fault}")


def _range(
    name: str,
    binding: Binding,
    body: Body,
    inside: Mapping[str, Buffer],
    around: Mapping[str, Buffer],
) -> tuple[int, int]:
    """The bytes of the outer buffer that all iterations together may touch."""
    _require(
        binding.buffer in inside and inside[binding.buffer].kind in ("argument", "result"),
        f"{name} binds {binding.buffer}, which is no argument or result",
    )
    _require(binding.outer in around, f"{name} lies in an unknown buffer {binding.outer}")
    last = binding.stride_nbytes * (max(body.trip or 1, 1) - 1)
    start = binding.offset_nbytes + min(last, 0)
    stop = binding.offset_nbytes + max(last, 0) + inside[binding.buffer].nbytes
    _require(
        start >= 0 and stop <= around[binding.outer].nbytes,
        f"{name}: {binding} leaves {binding.outer}",
    )
    return start, stop


def _check_declared(
    name: str,
    body: Body,
    binding: Binding,
    touched: tuple[_Boxes, _Boxes],
    declared: tuple[_Boxes, _Boxes],
    outer: Buffer,
) -> None:
    """The dispatch declares each element that its body touches, over all iterations. touched: what
    the body reads and writes; declared: what the dispatch does."""
    inner = body.plan.buffer(binding.buffer)
    read, written = (boxes.get(inner.name, {}) for boxes in touched)
    if any(carry.argument == inner.name for carry in body.carries):
        written = {**written, Box.whole(inner.shape): None}
    for writes, boxes in ((False, read), (True, written)):
        # What lies in a result has been written by the body before it reads it.
        known = declared[writes or inner.kind == "result"].get(outer.name, {})
        for box in boxes:
            swept_box, _ = swept(box, body.plan.scalars, body.trip or 1)
            placed = _around(swept_box, inner, binding, body.trip, outer)
            _require(
                any(box.contains(placed) for box in known),
                f"@{name} does not say that its body touches {outer.name}{placed}",
            )


def _around(box: Box, inner: Buffer, binding: Binding, trip: int | None, outer: Buffer) -> Box:
    """The box of the buffer around, over all iterations."""
    offset, stride = binding.offset_nbytes, binding.stride_nbytes
    repeats = trip or 1
    if stride and abs(stride) == inner.nbytes and inner.nbytes * repeats == outer.nbytes:
        slices = Box.of(((0, repeats, 1), *box.dims()))
        return slices.reshaped((repeats, *inner.shape), outer.shape)[0]
    if not stride and not offset and inner.nbytes == outer.nbytes:
        return box.reshaped(inner.shape, outer.shape)[0]
    return Box.whole(outer.shape)


def _check_apart(
    name: str, binding: Binding, body: Body, ranges: Mapping[str, tuple[int, int]], nbytes: int
) -> None:
    """Nothing else lies where a body writes."""
    stride, repeats = abs(binding.stride_nbytes), body.trip is None or body.trip > 1
    _require(
        not stride or not repeats or stride >= nbytes, f"{name}: iterations overlap in {binding}"
    )
    for other in body.bindings:
        if other is binding or other.outer != binding.outer:
            continue
        a, b = ranges[binding.buffer], ranges[other.buffer]
        _require(
            a[1] <= b[0] or b[1] <= a[0] or b[0] == b[1],
            f"{name}: {binding.buffer} is written where {other.buffer} lies",
        )


def _check_workspace(
    name: str, body: Body, around: Mapping[str, Buffer], ranges: Mapping[str, tuple[int, int]]
) -> None:
    """Transients stay within the workspace, before what is bound to it."""
    lent = [buffer.name for buffer in body.plan.buffers if buffer.host]
    _require(not lent, f"{name}: {lent} lie in results, which may begin at any element")
    end = body.plan.arena_nbytes
    if not end:
        return
    _require(body.workspace in around, f"{name} has transients and no workspace")
    limit = min(
        (ranges[each.buffer][0] for each in body.bindings if each.outer == body.workspace),
        default=around[body.workspace].nbytes // body.threads,
    )
    _require(end <= limit, f"{name}: transients leave their part of {body.workspace}")


def _check_carries(
    name: str,
    body: Body,
    inside: Mapping[str, Buffer],
    bound: Mapping[str, Binding],
    *,
    is_loop: bool,
) -> None:
    """A result of a loop that lies in an argument lies in its own; others are moved there."""
    for buffer in body.plan.buffers:
        if is_loop and buffer.nbytes and buffer.kind == "argument" and buffer.result is not None:
            _require(
                buffer.result == buffer.index,
                f"{name}: result {buffer.result} lies in argument {buffer.index}",
            )
    for carry in body.carries:
        known = carry.result in bound and carry.argument in bound
        _require(
            known and inside[carry.result].nbytes == inside[carry.argument].nbytes,
            f"{name}: {carry} does not fit",
        )
