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
from stagejit.graph.ops.slices import pull_view
from stagejit.index.affine import Affine

Array = np.ndarray[Any, np.dtype[Any]]

Index = tuple[int, ...]

MAX_ELEMENTS = 4096


class Knowledge:
    """Those values that constants alone determine.

    Evaluated as ops are defined, not on demand, so a long chain of them needs no deep stack.
    """

    def __init__(self) -> None:
        self._values: dict[Value, Array] = {}

    def value_of(self, value: Value) -> Array | None:
        if value.type.size == 0 and _is_exact(value):
            return np.zeros(value.type.shape, value.type.dtype.numpy)
        return self._values.get(value)

    def define(self, op: Op) -> None:
        """An op with one result that was just made. What is evaluated: what index arithmetic is
        made of. Where a result is exact and its operands are known, these are, too."""
        value, known = op.result, op.definition
        if value.type.dtype.is_float:  # as most are
            return
        evaluated = known.is_pointwise or known.is_insert or known.is_empty
        if not evaluated or not _is_exact(value) or value.type.size > MAX_ELEMENTS:
            return
        if known.is_constant:
            self._values[value] = op.attrs["value"]
            return
        operands = [self._values.get(operand) for operand in op.operands]
        present = [array for array in operands if array is not None]
        if len(present) < len(operands):
            return
        (self._values[value],) = evaluate_op(op, present)


def _is_exact(value: Value) -> bool:
    return value.type.dtype.is_integer or value.type.dtype.kind == "bool"


def source_of_element(value: Value, index: Index) -> tuple[Value, Index] | None:
    """The operand, and the index into it, that this element of `value` is a copy of: index vectors
    such as `concatenate([i[None], 3])` are assembled."""
    op, known, attrs = value.op, value.op.definition, value.op.attrs
    if None in attrs.get("offsets", ()):
        return None
    if known.is_splat:
        return op.operands[0], ()
    if known.is_view and op.operands[0].type.size:
        pulled = pull_view(op, tuple(Affine((), at) for at in index))
        return op.operands[0], tuple(part.const for part in pulled)
    if known.is_insert:
        source, destination = op.operands
        place = [
            divmod(i - o, s)
            for i, o, s in zip(index, attrs["offsets"], attrs["strides"], strict=True)
        ]
        inside = all(
            rest == 0 and 0 <= at < size
            for (at, rest), size in zip(place, source.type.shape, strict=True)
        )
        return (source, tuple(at for at, _ in place)) if inside else (destination, index)
    return None
