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
from stagejit.types import DType, TensorType

MOST = 1 << 19  # elements that are evaluated, or operations that take as long
_ROUNDINGS = 64
_IDEAL = 1e-6  # of results that are not rounded, relative to them or to 1
_EXAMPLES = 1 << 16
_PRECISIONS: tuple[Precision, ...] = ("declared", "f64")
_DRAWN = 64  # times that arguments of one element are drawn


class Meaning:
    """What values of a graph are, at random inputs. results: for each draw of these as elements
    are declared, and as f64 has them."""

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
        draws = _draws(graph.inputs) if self.is_known else range(0)
        self.results = [[self._at(each, draw) for each in _PRECISIONS] for draw in draws]

    def _at(self, precision: Precision, draw: int) -> list[Any]:
        evaluator, known = Evaluator(precision), dict[Value, Any]()
        with np.errstate(all="ignore"):
            for value, number in self.inputs.items():
                made = random_elements(value.type, number, draw)
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
    for one, other in zip(before.results, after.results, strict=True):
        for number, type in enumerate(before.types):
            values, others = ([made[number] for made in each] for each in (one, other))
            _require_near(type, values, others, own, where)


def _require_near(
    type: TensorType, one: Sequence[Array], other: Sequence[Array], own: Extension, where: str
) -> None:
    """one, other: as elements are declared, and as f64 has them."""
    if type.dtype.is_float:
        near = is_near(one[0], other[0], _ROUNDINGS * rounding(type.dtype.numpy))
        near |= is_near(one[1], other[1], _IDEAL)
    else:
        near = np.asarray(one[0] == other[0])
    if not near.all():
        at = first_apart(near)
        raise own.fault(
            f"changed what the graph computes{where}: at random inputs {element_text(at)} of a "
            f"{type} was {one[0][at]}, and is {other[0][at]}"
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


def _draws(inputs: Sequence[Value]) -> range:
    """The same for what is compared: by the arguments of its graph. Few integers are drawn more
    often, so that extremes meet each other; of floats one draw has all kinds."""
    if not any(value.type.dtype.is_integer for value in inputs):
        return range(1)
    return range(max(4, _DRAWN // max(value.type.size for value in inputs)))


def random_elements(type: TensorType, number: int, draw: int = 0) -> Array:
    """number: of the argument. draw: which one; the first has small integers, which find elements
    of what lies here, others have integers of all sizes, extremes among them."""
    random, dtype = np.random.default_rng((number, draw)), type.dtype
    count = min(type.size, _EXAMPLES)
    made: Array
    if dtype.kind == "bool":
        made = random.random(count) < 0.5
    elif dtype.is_float:
        made = random.standard_normal(count) * 4
    elif draw == 0:
        made = random.integers(0, 9, count)
    else:
        made = any_integers(random, dtype, count)
    return np.resize(made.astype(dtype.numpy), type.shape)


def any_integers(random: np.random.Generator, dtype: DType, count: int) -> Array:
    """Half are of all sizes, half are the least, the largest, 0, 1 or -1 (2 without signs)."""
    ends = np.iinfo(dtype.numpy)
    made: Array = random.integers(ends.min, ends.max, count, dtype.numpy, endpoint=True)
    made >>= random.integers(0, dtype.bits, count).astype(dtype.numpy)
    extremes = np.array([ends.min, ends.max, 0, 1, -1 if ends.min else 2], dtype.numpy)
    return np.where(random.random(count) < 0.5, random.choice(extremes, count), made)


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
