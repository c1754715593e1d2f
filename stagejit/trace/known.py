"""Integers known while tracing: what `x.at[2:5]` and `x[-1]` compute their indices from.

Input: a value. Output: `Knowledge()[value]`, a NumPy array, or None where the value depends on an
argument, is not an integer or bool, or is large; what has no elements is known. Invariant: knowing
a value never changes the program; it only lets a translation choose a static form.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stagejit.graph.interpreter import evaluate_op
from stagejit.graph.ir import Value
from stagejit.graph.ops.slices import pull_view
from stagejit.index.affine import Affine
from stagejit.symbolic import at_most

Array = np.ndarray[Any, np.dtype[Any]]

Index = tuple[int, ...]

MAX_ELEMENTS = 1 << 20


class Knowledge(dict[Value, Array | None]):
    """Those values that constants alone determine, evaluated when they are first asked for."""

    def __missing__(self, value: Value) -> Array | None:
        pending = [value]  # no recursion: chains of index arithmetic may be long
        while pending:
            at = pending[-1]
            behind = [x for x in at.op.operands if x not in self] if _is_evaluated(at) else []
            if not behind:
                self[pending.pop()] = self._value_of(at)
            pending += behind
        return self[value]

    def _value_of(self, value: Value) -> Array | None:
        """Those of its operands are known, or known to be unknown."""
        if not value.type.size and _is_exact(value):
            return np.zeros(value.type.shape, value.type.dtype.numpy)
        if not _is_evaluated(value):
            return None
        op = value.op
        if op.definition.is_constant:
            array: Array = op.attrs["value"]
            return array
        operands = [self[operand] for operand in op.operands]
        present = [array for array in operands if array is not None]
        return evaluate_op(op, present)[0] if len(present) == len(operands) else None


def _is_evaluated(value: Value) -> bool:
    """Whether it is what index arithmetic is made of. Where a result is exact and its operands are
    known, these are, too."""
    kind = value.op.definition
    evaluated = kind.is_pointwise or kind.is_insert or kind.is_empty
    return evaluated and _is_exact(value) and at_most(value.type.size, MAX_ELEMENTS)


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
