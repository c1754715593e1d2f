"""Small integers known while tracing: what `x.at[2:5]` and `x[-1]` compute their indices from.

Input: ops as they are emitted. Output: `value_of(value)`, a NumPy array, or None where the
value depends on an argument, is not an integer or bool, or is large; what has no elements is known.
Invariant: knowing a value never changes the program; it only lets a translation choose a static
form.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stagejit.graph.interpreter import evaluate_op
from stagejit.graph.ir import Op, Value

Array = np.ndarray[Any, np.dtype[Any]]

Index = tuple[int, ...]

MAX_ELEMENTS = 4096

# Index vectors such as `concatenate([i[None], 3])` are assembled by these.
_MOVERS = frozenset({"fill", "reshape", "broadcast", "insert_slice"})

# What is evaluated: what index arithmetic is made of. Where a result is exact and its operands are
# known, these are, too.
_EVALUATED = _MOVERS | {
    "const", "iota", "empty", "convert", "map", "transpose", "reverse", "extract_slice",
}  # fmt: skip


class Knowledge:
    """Those values that constants alone determine.

    Evaluated as ops are defined, not on demand, so a long chain of them needs no deep stack.
    """

    def __init__(self) -> None:
        self._values: dict[Value, Array] = {}
        self._movers: dict[Value, Op] = {}

    def value_of(self, value: Value) -> Array | None:
        if value.type.size == 0 and _is_exact(value):
            return np.zeros(value.type.shape, value.type.dtype.numpy)
        return self._values.get(value)

    def source_of_element(self, value: Value, index: Index) -> tuple[Value, Index] | None:
        """The operand, and the index into it, that this element of `value` is a copy of."""
        op = self._movers.get(value)
        return None if op is None else _element_source(op, index)

    def define(self, op: Op) -> None:
        """An op with one result that was just made."""
        value = op.result
        if op.kind in _MOVERS:
            self._movers[value] = op
        if op.kind not in _EVALUATED or not _is_exact(value) or value.type.size > MAX_ELEMENTS:
            return
        if op.definition.is_constant:
            self._values[value] = op.attrs["value"]
            return
        operands = [self._values.get(operand) for operand in op.operands]
        present = [array for array in operands if array is not None]
        if len(present) < len(operands):
            return
        (self._values[value],) = evaluate_op(op, present)


def _is_exact(value: Value) -> bool:
    return value.type.dtype.is_integer or value.type.dtype.kind == "bool"


def _element_source(op: Op, index: Index) -> tuple[Value, Index] | None:
    first = op.operands[0]
    match op.kind:
        case "fill":
            return first, ()
        case "reshape" if first.type.size:
            flat = np.ravel_multi_index(index, op.results[0].type.shape)
            return first, tuple(map(int, np.unravel_index(flat, first.type.shape)))
        case "broadcast":
            return first, tuple(index[axis] for axis in op.attrs["axes"])
        case "insert_slice" if None not in op.attrs["offsets"]:
            offsets, strides = op.attrs["offsets"], op.attrs["strides"]
            place = [divmod(i - o, s) for i, o, s in zip(index, offsets, strides, strict=True)]
            inside = all(
                rest == 0 and 0 <= at < size
                for (at, rest), size in zip(place, first.type.shape, strict=True)
            )
            return (first, tuple(at for at, _ in place)) if inside else (op.operands[1], index)
    return None
