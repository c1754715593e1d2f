"""What is known of the bodies of loops and branches when they are divided into regions.

Input: a loop or a branch. Output: which inputs of a body the host knows, and whether they start on
lines of the cache. Invariant: what is said of an input holds in every iteration.
"""

from __future__ import annotations

import operator

from stagejit.base.symbolic import Int, bounds
from stagejit.dispatch.ranges.scalars import Scalars, known_input
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import bodies_of, body_operands
from stagejit.graph.ops.dispatches import inside
from stagejit.graph.ops.elementwise import function_of
from stagejit.rewrites.integers.intervals import hull, whole, within

_LINE_NBYTES = 64


def has_slices_anywhere(op: Op) -> bool:
    """Whether the body of `op` is given slices of arrays that start off the lines of the cache."""
    if not op.definition.is_loop:
        return False
    carries, xs = op.attrs["carries"], op.attrs["xs"]
    sliced = (*op.attrs["body"].inputs[carries : carries + xs], *op.attrs["body"].outputs[carries:])
    return any(value.type.nbytes % _LINE_NBYTES for value in sliced)


def known_inside(op: Op, number: int, scalars: Scalars) -> dict[Value, Int]:
    """The inputs of body `number` that the host knows when an iteration starts: constants that it
    knows outside, and what counts iterations."""
    known = {}
    graph = bodies_of(op)[number]
    carries = op.attrs["carries"] if op.definition.is_loop else 0
    xs = op.attrs["xs"] if op.definition.is_loop and number == 0 else 0
    operands = body_operands(op)[number]
    for at, (value, operand) in enumerate(zip(graph.inputs, operands, strict=True)):
        if value.shape != () or not value.type.dtype.is_integer:
            continue
        if at < carries:
            found = _counted(op, at, scalars)
        elif at < carries + xs:
            found = _elements_within(operand, scalars)
        else:
            outside = scalars[operand]
            found = None if outside is None else bounds(outside)
        if found is not None:
            known[value] = known_input(value, *found)
    return known


def counted_inside(op: Op, scalars: Scalars) -> dict[Value, tuple[int, int]]:
    """Inputs of a loop's body that count its iterations: the first value, and the step."""
    if not op.definition.is_loop or op.attrs["trip"] is None:
        return {}
    graph, carries, trip = op.attrs["body"], op.attrs["carries"], op.attrs["trip"]
    operands, found = body_operands(op)[0], {}
    for at, value in enumerate(graph.inputs[: carries + op.attrs["xs"]]):
        if value.shape != () or not value.type.dtype.is_integer:
            continue
        if at < carries:
            first, step = scalars[operands[at]], _step_of(graph, at)
            if isinstance(first, int) and step is not None:
                found[value] = first, step
        elif scalars.origin(operands[at]).op.definition.counts:
            found[value] = (trip - 1, -1) if op.attrs["reverse"] else (0, 1)
    return {
        value: (first, step)
        for value, (first, step) in found.items()
        if within(hull((first,) * 2, (first + step * trip,) * 2), whole(value.type.dtype))
    }


def _step_of(body: Graph, carry: int) -> int | None:
    """The number that each iteration adds to a carry."""
    value, output = body.inputs[carry], body.outputs[carry]
    last = inside(output).op
    if function_of(last) != "add":
        return None
    added = [_given(output.op, operand) for operand in last.operands]
    steps = [other.op for other in added if other is not value]
    if len(steps) != 1 or not steps[0].definition.is_constant:
        return None
    return int(steps[0].attrs["value"])


def _counted(op: Op, carry: int, scalars: Scalars) -> tuple[int, int] | None:
    """The bounds of a carry that each iteration adds the same number to."""
    body: Graph = op.attrs["body"]
    first, step = scalars[op.operands[carry]], _step_of(body, carry)
    if first is None or step is None:
        return None
    dtype = body.inputs[carry].type.dtype
    low, high = bounds(first)
    if op.attrs["trip"] is not None:
        end = step * (op.attrs["trip"] - 1)
        low, high = low + min(end, 0), high + max(end, 0)
        if within((low, high), whole(dtype)):
            return low, high
    return whole(dtype)  # a condition ends it, or it wraps


def _given(op: Op, value: Value) -> Value:
    """What an input of a part of the dispatch `op` stands for; other values are themselves."""
    is_given = op.definition.is_dispatch and value.op.definition.is_input
    return op.operands[value.op.attrs["index"]] if is_given else value


def _elements_within(array: Value, scalars: Scalars, depth: int = 4) -> tuple[int, int] | None:
    """The least and the greatest element of an array that counts or is a constant. depth: how many
    ops it may be made by."""
    array = scalars.origin(array)
    op, known, dtype = array.op, array.op.definition, array.type.dtype
    if not depth or not dtype.is_integer:
        return None
    if known.counts:
        found = 0, op.attrs["shape"][op.attrs["axis"]] - 1
    elif known.is_constant and array.type.size:
        found = int(op.attrs["value"].min()), int(op.attrs["value"].max())
    elif known.is_splat or known.keeps_order or known.is_conversion:
        inner = _elements_within(op.operands[0], scalars, depth - 1)
        if inner is None:
            return None
        found = inner
    elif function_of(op) in ("add", "mul"):
        parts = [_elements_within(operand, scalars, depth - 1) for operand in op.operands]
        if parts[0] is None or parts[1] is None:
            return None
        combine = operator.add if function_of(op) == "add" else operator.mul
        ends = [combine(a, b) for a in parts[0] for b in parts[1]]
        found = min(ends), max(ends)
    else:
        return None
    return found if dtype.is_native and within(found, whole(dtype)) else None
