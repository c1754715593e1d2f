"""Which ops are a softmax, in the form that jax.nn.softmax leaves, or a rewrite made of that.

Input: a value. Output: `Softmax`, or a reason why it is none though it looks like one. Invariant:
for all arrays the value is the softmax of `f` along `axes`, over what is `present`: what is not
weighs 0, or whatever the reader of the value puts in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stagejit.base.records import record
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.attention import is_number
from stagejit.graph.ops.elementwise import function_of
from stagejit.graph.ops.moving.slices import pull_view
from stagejit.index.affine import Affine, Index
from stagejit.index.coordinates import coordinates

_MOST_STEPS = 16  # between a softmax and its product
_LINEAR = frozenset({"neg", "mul", "div", "select"})
_NOT_MOST = "what is subtracted is not the largest score of its row"


@record
class Softmax:
    """result: softmax of `f`. present: a bool of each element; None where all are. ops: all that
    are neither before `f` nor after the result."""

    result: Value
    f: Value
    present: Value | None
    axes: tuple[int, ...]
    ops: tuple[Op, ...]


def quotients_behind(value: Value) -> Iterator[Value]:
    """What may be a softmax, of which `value` may be a multiple: exp of something, divided."""
    pending, seen = [value], set[Value]()
    while pending and len(seen) < _MOST_STEPS:
        value = pending.pop()
        op, fn = value.op, function_of(value.op)
        if value in seen or not op.operands:
            continue
        seen.add(value)
        if fn == "div" and function_of(_unrounded(op.operands[0]).op) == "exp":
            yield value
        elif _rounds(op) or _is_plain_view(op) or fn in _LINEAR:
            pending += [x for x in op.operands if x.type.dtype.is_float]


def softmax_of(result: Value) -> Softmax | str:
    """result: see `quotients_behind`."""
    divide, here = result.op, coordinates(result.shape)
    e = _unrounded(divide.operands[0])
    total = _Rows.of(divide.operands[1], "add")
    if total is None:
        return "what it is divided by is no sum of its row"
    present, added = None, total.reduced
    if _is_masked(added, 0.0) and added.index == here:
        total.ops.append(added.value.op)
        present = added.value.op.operands[0]
        added = _Element.behind(added.value.op.operands[1], here, total.ops)
    if (added.value, added.index) != (e, here):
        return "what it is divided by sums something else"
    less = e.op.operands[0].op
    if function_of(less) != "sub":
        return "nothing is subtracted from the scores"
    f, shift = less.operands
    most = _Rows.of(shift, "max")
    if most is None or most.axes != total.axes:
        return _NOT_MOST
    found, wanted = most.reduced, _Element.behind(f, here, [])
    masked = _is_masked(found, -np.inf) and present is found.value.op.operands[0]
    if masked and found.value is not wanted.value:
        most.ops.append(found.value.op)
        found = _Element.behind(found.value.op.operands[1], found.index, most.ops)
    if (found.value, found.index) != (wanted.value, wanted.index):
        return _NOT_MOST
    ops = [divide, e.op, less, *total.ops, *most.ops]
    _Element.behind(divide.operands[0], here, ops)
    return Softmax(result, f, present, total.axes, tuple(dict.fromkeys(ops)))


def _is_masked(element: _Element, number: float) -> bool:
    """Whether it is a number where a mask is off."""
    op = element.value.op
    return function_of(op) == "select" and is_number(op.operands[2], number)


@dataclass
class _Element:
    """An element of a value, in terms of coordinates of the softmax."""

    value: Value
    index: Index

    @staticmethod
    def behind(value: Value, index: Index, ops: list[Op]) -> _Element:
        """What it is, rounded or seen another way: `ops`, which grow."""
        while _rounds(value.op) or _is_plain_view(value.op):
            if value.op.definition.is_view:
                index = pull_view(value.op, index)
            ops.append(value.op)
            (value,) = value.op.operands
        return _Element(value, index)


@dataclass
class _Rows:
    """A reduction of rows, whose results stand for all elements of a row: those along `axes` of the
    softmax. reduced: what it reduces at an element of that. ops: from there on."""

    reduced: _Element
    axes: tuple[int, ...]
    ops: list[Op]

    @staticmethod
    def of(value: Value, fn: str) -> _Rows | None:
        ops: list[Op] = []
        here = coordinates(value.shape)
        made = _Element.behind(value, here, ops)
        reduce = made.value.op
        if not reduce.definition.is_reduce or reduce.attrs["fn"] != fn:
            return None
        ops.append(reduce)
        rows = reduce.operands[0]
        used = {var for part in made.index for var in part.loop_vars()}
        axes = [axis for axis, part in enumerate(here) if part.loop_vars() and
                not used & part.loop_vars()]  # fmt: skip
        several = [axis for axis in reduce.attrs["axes"] if rows.shape[axis] != 1]
        if [rows.shape[axis] for axis in several] != [value.shape[axis] for axis in axes]:
            return None
        own = dict.fromkeys(reduce.attrs["axes"], Affine())
        own |= dict(zip(several, (here[axis] for axis in axes), strict=True))
        kept = iter(made.index)
        index = tuple(own[axis] if axis in own else next(kept) for axis in range(rows.type.rank))
        return _Rows(_Element.behind(rows, index, ops), tuple(axes), ops)


def _is_plain_view(op: Op) -> bool:
    known = op.definition
    return known.is_view and not known.splits and len(op.operands) == 1


def _rounds(op: Op) -> bool:
    """Whether it only makes one kind of floats of another."""
    floats = all(value.type.dtype.is_float for value in (*op.operands, *op.results))
    return op.definition.is_conversion and floats


def _unrounded(value: Value) -> Value:
    while _rounds(value.op):
        value = value.op.operands[0]
    return value
