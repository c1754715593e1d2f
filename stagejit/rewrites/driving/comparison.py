"""Whether code of a user's left a graph that computes something else.

Input: a graph, before and after. Output: nothing, or an `ExtensionError` with the difference.
Invariant: both are evaluated by the NumPy interpreter at the same random elements. What is equal in
ideal arithmetic is no difference, nor is what is equal but for rounding; what cannot be evaluated
here (code of XLA's or of libraries, loops, which random numbers may keep running; sizes that only a
call knows) and what is larger than `MOST` is not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from stagejit.base.extension import Extension
from stagejit.base.symbolic import Undecided
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.meaning.evaluator import Array, Evaluator, Precision
from stagejit.types import TensorType

MOST = 1 << 19  # elements that are evaluated, or operations that take as long
_ROUNDINGS = 64
_IDEAL = 1e-6  # of results that are not rounded, relative to them or to 1
_EXAMPLES = 1 << 16


class Meaning:
    """What values of a graph are, at random inputs."""

    def __init__(self, graph: Graph, values: Sequence[Value]) -> None:
        self.ops = _needed(graph, values)
        self.types = [value.type for value in values]
        read = {value for op in self.ops for value in op.operands} | set(values)
        self.inputs = {value: at for at, value in enumerate(graph.inputs) if value in read}
        self.values = list(values)
        made = [value.type for op in self.ops for value in op.results]
        types = [*made, *(value.type for value in self.inputs)]
        physical = all(type.dtype.kind != "opaque" for type in types)
        evaluated = physical and all(map(_is_evaluated, self.ops))
        self.is_known = evaluated and _work(self.ops, types) <= MOST
        self.results = [self._at(each) for each in ("declared", "f64")] if self.is_known else []

    def _at(self, precision: Precision) -> list[Any]:
        evaluator, known = Evaluator(precision), dict[Value, Any]()
        with np.errstate(all="ignore"):
            for value, number in self.inputs.items():
                made = random_elements(value.type, number)
                known[value] = evaluator.stored(made, value.type.dtype)
            for op in self.ops:
                results = evaluator.op(op, [known[value] for value in op.operands])
                known |= zip(op.results, results, strict=True)
        return [known[value] for value in self.values]


def require_the_same(before: Meaning, after: Meaning, own: Extension, where: str = "") -> None:
    """Raises ExtensionError where a value differs by more than rounding. where: of what it was
    made."""
    if not (before.is_known and after.is_known):
        return
    for number, type in enumerate(before.types):
        (one, ideal), (other, other_ideal) = (
            [results[number] for results in each.results] for each in (before, after)
        )
        if type.dtype.is_float:
            near = is_near(one, other, _ROUNDINGS * rounding(type.dtype.numpy))
            near |= is_near(ideal, other_ideal, _IDEAL)
        else:
            near = np.asarray(one == other)
        if near.all():
            continue
        at = first_apart(near)
        raise own.fault(
            f"changed what the graph computes{where}: at random inputs {element_text(at)} of a "
            f"{type} was {one[at]}, and is {other[at]}"
        )


def _needed(graph: Graph, values: Iterable[Value]) -> list[Op]:
    """The ops that values are made by, in topological order."""
    found, waiting = set[Op](), [value.op for value in values]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [value.op for value in op.operands]
    return [op for op in graph.ops() if op in found]


def _is_evaluated(op: Op) -> bool:
    known = op.definition
    inside = all(_is_evaluated(one) for body in known.bodies(op) for one in body.ops())
    return inside and not (known.is_foreign or known.is_loop)


def _work(ops: Iterable[Op], types: Iterable[TensorType]) -> int:
    """Elements, and operations that take as long; more than `MOST` where nobody knows yet."""
    try:
        flops = sum(int(op.definition.flops(op)) for op in ops)
        return flops // 8 + sum(int(type.size) for type in types)
    except (Undecided, TypeError, ValueError):
        return MOST + 1


def random_elements(type: TensorType, number: int) -> Array:
    random, dtype = np.random.default_rng(number), type.dtype
    count = min(type.size, _EXAMPLES)
    made: Array
    if dtype.kind == "bool":
        made = random.random(count) < 0.5
    elif dtype.is_float:
        made = random.standard_normal(count) * 4
    else:
        made = random.integers(0, 9, count)
    return np.resize(made.astype(dtype.numpy), type.shape)


def rounding(dtype: np.dtype[Any]) -> float:
    """Of floats, relative to a number."""
    return 2.0**-7 if dtype.kind == "V" else float(np.finfo(dtype).eps)


def is_near(one: Array, other: Array, room: float = 0.0, *, absolute: Array | None = None) -> Array:
    """Which elements are as good as equal, NaN to NaN too. room: relative to them or to 1;
    absolute: where it is given, for each element, in its place."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(all="ignore"):
        if absolute is None:
            absolute = room * np.maximum(np.maximum(np.abs(one), np.abs(other)), 1.0)
        near = np.abs(one - other) <= absolute
    return np.asarray(near | (one == other) | (np.isnan(one) & np.isnan(other)))


def first_apart(near: Array) -> tuple[int, ...]:
    """The place of the first element that is not."""
    return tuple(int(at) for at in np.unravel_index(np.argmin(near), near.shape))


def element_text(at: tuple[int, ...]) -> str:
    """An element by its place."""
    return f"element [{', '.join(map(str, at))}]" if at else "the element"
