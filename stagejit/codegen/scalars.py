"""Scalar functions in terms of graph dtypes, as the kernel generators call them.

Input: a function of `graph/functions.py`, dtypes, and registers. Output: the register that holds
the result. Invariant: meanings are those of `functions.py`; the arithmetic is in `vmath`.
"""

from __future__ import annotations

from stagejit.codegen import vmath
from stagejit.codegen.builder import Builder
from stagejit.codegen.ir import Value
from stagejit.codegen.vmath import convert, emit
from stagejit.codegen.vmath_cost import cost
from stagejit.types import DType, i32, i64


def bitcast(b: Builder, value: Value, source: DType, target: DType) -> Value:
    """The bits of a `source` element read as a `target` element of the same size."""
    return vmath.bitcast(b, value, target)


def dtype_of_index(narrow: bool) -> DType:
    """The dtype of computed indices: i32 where they fit, else i64."""
    return i32 if narrow else i64


__all__ = ["bitcast", "convert", "cost", "dtype_of_index", "emit"]
