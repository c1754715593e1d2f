"""Which integers a value may be: for each, an interval.

Input: a graph; of a body, what its inputs may be (`assume`). Output: `range_of(graph, value)`.
Invariant: an interval holds every element that is ever read, whatever the arguments are; integers
wrap, so what might leave its type may be anything. Intervals stay right while values are replaced
by equal ones, as a rewrite does.

Note [Facts]: `i < 0` says something about `i` to both sides of a choice. So a choice is around what
its sides are where they are chosen: `select(i < 0, i + n, i)` is in [0, n) for an i in [-n, n).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stagejit.base.symbolic import bounds
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.memo import OverOperands
from stagejit.graph.ops.control import bodies_of, body_operands
from stagejit.graph.ops.elementwise import function_of
from stagejit.rewrites.integers.intervals import (
    BOOL,
    Interval,
    fitting,
    hull,
    meet,
    of_function,
    whole,
    within,
)
from stagejit.types import bool_

Facts = Mapping[Value, Interval]


class Ranges(OverOperands[Interval]):
    """The intervals of one graph."""

    @classmethod
    def of(cls, graph: Graph) -> Ranges:
        found: Ranges = graph.analyses.setdefault(cls, cls())
        return found

    def behind(self, value: Value) -> Sequence[Value]:
        return [x for x in value.op.operands if is_counted(x)] if _looks_behind(value.op) else ()

    def found(self, value: Value) -> Interval:
        return _range(self, value)


MAX_CONSTANT = 1 << 16  # elements of a constant that are looked at
MAX_CONDITIONS = 4  # one inside the other


def is_counted(value: Value) -> bool:
    """Whether it has a range: an integer or bool."""
    dtype = value.type.dtype
    return dtype.is_integer or dtype is bool_


def range_of(graph: Graph, value: Value) -> Interval:
    """The interval of a value with `is_counted`. Work is done once for each value."""
    return Ranges.of(graph)[value]


def _looks_behind(op: Op) -> bool:
    known = op.definition
    return known.is_pointwise or known.is_insert or known.is_scatter or _is_of_rows(op)


def _is_of_rows(op: Op) -> bool:
    return op.definition.accumulates and not op.definition.is_product


def _range(known: Ranges, value: Value) -> Interval:
    """Of a value; those of its operands are known."""
    op, dtype = value.op, value.type.dtype
    operands = [known.get(x) for x in op.operands]
    first = operands[0] if operands else None
    definition = op.definition
    found: Interval | None = None
    if definition.is_constant:
        found = _of_constant(op)
    elif definition.counts:
        found = 0, max(0, bounds(value.shape[op.attrs["axis"]])[1] - 1)
    elif function_of(op):
        return _of_map(known, op)
    elif definition.is_conversion:
        if dtype is bool_ and first is not None:
            found = of_function("ne", bool_, [first, (0, 0)])
        else:
            found = first
    elif definition.is_view or definition.is_splat:
        found = first
    elif definition.is_gather and first is not None:
        fill = op.attrs["fill_value"]
        found = first if fill is None else hull(first, (int(fill), int(fill)))
    elif (definition.is_insert or definition.overlays) and first is not None:
        found = _around(first, op.operands[1], operands[1])
    elif definition.is_scatter and op.attrs["fn"] == "set" and operands[2] is not None:
        found = _around(operands[2], op.operands[0], first)
    elif _is_of_rows(op):
        found = _of_rows(op, first)
    return fitting(found, dtype)


def _around(source: Interval, destination: Value, before: Interval | None) -> Interval:
    """Of an update. What nobody has written is never read."""
    if destination.op.definition.is_empty or before is None:
        return source
    return hull(source, before)


def _of_constant(op: Op) -> Interval | None:
    array = op.attrs["value"]
    if not isinstance(array, np.ndarray) or not 0 < array.size <= MAX_CONSTANT:
        return None
    return int(array.min()), int(array.max())


def _of_rows(op: Op, row: Interval | None) -> Interval | None:
    """Of a reduction, or a running one, of rows of such elements."""
    fn, shape = op.attrs["fn"], op.operands[0].shape
    axes = op.attrs["axes"] if op.definition.is_reduce else (op.attrs["axis"],)
    length = 1
    for axis in axes:
        length *= bounds(shape[axis])[1]
    if fn in ("argmax", "argmin"):
        return 0, max(0, length - 1)
    if row is None or any(bounds(shape[axis])[0] < 1 for axis in axes):
        return None
    if fn in ("max", "min") or (row == BOOL and fn in ("and", "or")):
        return row
    if fn == "add":
        return min(row[0], length * row[0]), max(row[1], length * row[1])
    return None


def _of_map(known: Ranges, op: Op) -> Interval:
    fn, dtype = op.attrs["fn"], op.result.type.dtype
    if not all(map(is_counted, op.operands)):
        return whole(dtype)
    if fn == "select":
        return _of_choice(known, *op.operands)
    return of_function(fn, dtype, [known[x] for x in op.operands])


# ------------------------------------------------------------------------------------- choices


def _of_choice(known: Ranges, predicate: Value, on_true: Value, on_false: Value) -> Interval:
    sides = []
    for truth, value in ((True, on_true), (False, on_false)):
        facts = _facts(known, predicate, truth)
        if within((int(truth),) * 2, known[predicate]) and facts is not None:
            sides.append(_where(known, value, facts))
    return hull(*sides) if sides else hull(known[on_true], known[on_false])


def range_where(graph: Graph, value: Value, predicate: Value) -> Interval:
    """The interval of `value` for those elements where `predicate` is true."""
    known = Ranges.of(graph)
    facts = _facts(known, predicate, True)
    return _where(known, value, facts) if facts is not None else known[value]


def _where(known: Ranges, value: Value, facts: Facts) -> Interval:
    """Of `value`, or of a function of what the facts are about."""
    op, found = value.op, known[value]
    if function_of(op) not in ("", "select") and all(map(is_counted, op.operands)):
        operands = [meet(known[x], facts.get(x, known[x])) for x in op.operands]
        if any(x in facts for x in op.operands):
            found = meet(found, of_function(op.attrs["fn"], value.type.dtype, operands))
    found = meet(found, facts.get(value, found))
    return found if found[0] <= found[1] else known[value]  # where nothing is, nothing is asked


def _facts(known: Ranges, predicate: Value, truth: bool, depth: int = 0) -> Facts | None:
    """What is known of other values where `predicate` has this truth; None where that never is."""
    op = predicate.op
    operands = op.operands
    found: Facts | None = {}
    match function_of(op):
        case "lt" | "le" | "gt" | "ge" | "eq" | "ne" as fn if operands[0].type.dtype.is_integer:
            found = _compared(known, fn, truth, operands[0], operands[1])
        case "and" | "or" as fn if depth < MAX_CONDITIONS and predicate.type.dtype is bool_:
            parts = [_facts(known, x, truth, depth + 1) for x in operands]
            found = _both(known, parts) if (fn == "and") == truth else _either(parts)
        case "not" if depth < MAX_CONDITIONS and predicate.type.dtype is bool_:
            found = _facts(known, operands[0], not truth, depth + 1)
        case "ne" | "eq" as fn if depth < MAX_CONDITIONS and operands[0].type.dtype is bool_:
            for x, other in (operands, operands[::-1]):
                if known[other][0] == known[other][1]:
                    same = (fn == "eq") == bool(known[other][0])
                    return _facts(known, x, truth == same, depth + 1)
    return found


_NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def _compared(known: Ranges, fn: str, truth: bool, x: Value, y: Value) -> Facts | None:
    fn = fn if truth else _NEGATED[fn]
    if fn in ("gt", "ge"):
        fn, x, y = {"gt": "lt", "ge": "le"}[fn], y, x
    a, b = known[x], known[y]
    if fn == "ne":
        facts = {x: _without(a, b), y: _without(b, a)}
    elif fn == "eq":
        facts = {x: meet(a, b), y: meet(a, b)}
    else:
        apart = int(fn == "lt")
        facts = {x: meet(a, (a[0], b[1] - apart)), y: meet(b, (a[0] + apart, b[1]))}
    return facts if all(low <= high for low, high in facts.values()) else None


def _without(a: Interval, number: Interval) -> Interval:
    """`a` without a number at one of its ends."""
    if number[0] != number[1]:
        return a
    return a[0] + (a[0] == number[0]), a[1] - (a[1] == number[0])


def _both(known: Ranges, parts: Sequence[Facts | None]) -> Facts | None:
    together: dict[Value, Interval] = {}
    for facts in parts:
        if facts is None:
            return None
        for value, interval in facts.items():
            together[value] = meet(together.get(value, known[value]), interval)
    return together if all(low <= high for low, high in together.values()) else None


def _either(parts: Sequence[Facts | None]) -> Facts | None:
    possible = [facts for facts in parts if facts is not None]
    if not possible:
        return None
    shared = set.intersection(*({*facts} for facts in possible))
    return {value: hull(*(facts[value] for facts in possible)) for value in shared}


# --------------------------------------------------------------------------------------- bodies


def assume(graph: Graph, op: Op) -> None:
    """Tells the bodies of a loop or branch of `graph` what their inputs may be."""
    pairs = [*zip(bodies_of(op), body_operands(op), strict=True)]
    for body, operands in reversed(pairs):  # the condition of a loop says something of its body
        given = {
            value: range_of(graph, operand)
            for value, operand in zip(body.inputs, operands, strict=True)
            if is_counted(value)
        }
        if op.definition.is_loop:
            carried = body.inputs[: op.attrs["carries"]]
            inits = {value: given.pop(value) for value in carried if is_counted(value)}
            if body is op.attrs["body"]:
                given = _carried(op, given, inits)
        body.analyses[Ranges] = Ranges(given)


def _carried(op: Op, given: Facts, inits: Facts) -> Ranges:
    """`given`, and what is carried: in any iteration, the first of which starts with `inits`."""
    body: Graph = op.attrs["body"]
    chosen = _where_it_goes_on(op)
    body.analyses[Ranges] = Ranges(given)
    found = Ranges(given)
    others = []
    for at, start in enumerate(body.inputs[: op.attrs["carries"]]):
        if start not in inits:
            continue
        step = _step(body, start, body.outputs[at])
        of_type = whole(start.type.dtype)
        on, counted = chosen.get(at, of_type), None
        if step is not None:
            counted = _counted(inits[start], step, op.attrs["trip"], on, of_type)
        found[start] = counted or on
        if counted is None:
            others.append((start, body.outputs[at]))
    body.analyses[Ranges] = Ranges(found)
    ends = {start: range_of(body, end) for start, end in others}
    for start, end in ends.items():
        around = meet(found[start], hull(inits[start], end))
        if around[0] <= around[1]:
            found[start] = around
    return found


def _where_it_goes_on(op: Op) -> dict[int, Interval]:
    """What a condition says of the carries, by number, where it lets the loop go on."""
    condition: Graph | None = op.attrs["condition"]
    if condition is None:
        return {}
    known = Ranges.of(condition)
    facts = _facts(known, condition.outputs[0], True) or {}
    carried = condition.inputs[: op.attrs["carries"]]
    return {at: facts[value] for at, value in enumerate(carried) if value in facts}


def _step(body: Graph, start: Value, end: Value) -> int | None:
    """What each iteration adds to a carry; None where that is not one number."""
    if end is start:
        return 0
    fn, operands = function_of(end.op), end.op.operands
    if fn not in ("add", "sub") or start not in operands or end.type.dtype is bool_:
        return None
    if fn == "sub" and operands[0] is not start:
        return None
    other = operands[1] if operands[0] is start else operands[0]
    if other is start:
        return None
    low, high = range_of(body, other)
    return None if low != high else low if fn == "add" else -low


def _counted(
    first: Interval, step: int, trip: int | None, on: Interval, of_type: Interval
) -> Interval | None:
    """Where each iteration adds `step`: in `trip` of them, or as long as it is in `on`; None where
    it may wrap before it ends."""
    if isinstance(trip, int):
        way = step * max(trip - 1, 0)
        found = hull(first, (first[0] + way, first[1] + way))
        return found if within(found, of_type) else None
    if not within((on[0] + min(step, 0), on[1] + max(step, 0)), of_type):
        return None
    return (first[0], on[1]) if step > 0 else (on[0], first[1]) if step < 0 else first
