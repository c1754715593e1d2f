"""Integers known while tracing: what `x.at[2:5]` and `x[-1]` compute their indices from.

Input: a value. Output: `Knowledge()[value]`, a NumPy array, or None where the value depends on an
argument, is not an integer or bool, or is large; what has no elements is known. Invariant: knowing
a value never changes the program; it only lets a translation choose a static form.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stagejit.base.symbolic import at_most
from stagejit.graph.ir import Value
from stagejit.graph.meaning.interpreter import evaluate_op

Array = np.ndarray[Any, np.dtype[Any]]

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
