"""Formulas of real numbers, written as such.

Input: values, and numbers. Output: `Real`s, whose operators emit ops of `map`. Invariant: numbers
take the element type of what they meet, and nothing is rearranged: what is written is computed.
"""

from __future__ import annotations

import numpy as np

from stagejit.base.records import record
from stagejit.graph.ir import Value
from stagejit.trace.emitter import Emitter
from stagejit.types import DType, dtype_named


@record(eq=False)
class Real:
    """An array of numbers or, where it is a condition, of bools."""

    emit: Emitter
    value: Value

    @property
    def dtype(self) -> DType:
        return self.value.type.dtype

    def __call__(self, fn: str, *operands: Real | float) -> Real:
        """`fn` of this and of others, such as `x("exp")` and `y("atan2", x)`."""
        own = self.dtype
        others = [self.emit.const(x, own) if not isinstance(x, Real) else x.value for x in operands]
        return Real(self.emit, self.emit.map(fn, self.value, *others))

    def like(self, number: float) -> Real:
        """A scalar of the same type."""
        return Real(self.emit, self.emit.const(number, self.dtype))

    def to(self, dtype: DType) -> Real:
        return Real(self.emit, self.emit.convert(self.value, dtype))

    def __neg__(self) -> Real:
        return self("neg")

    def __abs__(self) -> Real:
        return self("abs")

    def __add__(self, other: Real | float) -> Real:
        return self("add", other)

    def __sub__(self, other: Real | float) -> Real:
        return self("sub", other)

    def __rsub__(self, other: float) -> Real:
        return self.like(other) - self

    def __mul__(self, other: Real | float) -> Real:
        return self("mul", other)

    def __truediv__(self, other: Real | float) -> Real:
        return self("div", other)

    def __rtruediv__(self, other: float) -> Real:
        return self.like(other) / self

    def __lt__(self, other: Real | float) -> Real:
        return self("lt", other)

    def __le__(self, other: Real | float) -> Real:
        return self("le", other)

    def __gt__(self, other: Real | float) -> Real:
        return self("gt", other)

    def __ge__(self, other: Real | float) -> Real:
        return self("ge", other)

    def equals(self, other: Real | float) -> Real:
        return self("eq", other)

    @property
    def is_nan(self) -> Real:
        return self("ne", self)

    @property
    def is_infinite(self) -> Real:
        return abs(self).equals(np.inf)

    @property
    def is_finite(self) -> Real:
        return self("is_finite")

    def __and__(self, other: Real) -> Real:
        return self("and", other)

    def __or__(self, other: Real) -> Real:
        return self("or", other)

    def __invert__(self) -> Real:
        return self("not")

    def where(self, condition: Real, other: Real | float) -> Real:
        """This where a condition holds, and `other` elsewhere."""
        value = other.value if isinstance(other, Real) else self.emit.const(other, self.dtype)
        return Real(self.emit, self.emit.map("select", condition.value, self.value, value))

    def with_sign_of(self, other: Real) -> Real:
        """C's copysign."""
        bits = dtype_named(f"u{self.dtype.bits}")
        top = 1 << (self.dtype.bits - 1)
        size, sign = (Real(self.emit, self.emit.bitcast(x.value, bits)) for x in (self, other))
        both = size("and", top - 1) | sign("and", top)
        return Real(self.emit, self.emit.bitcast(both.value, self.dtype))


def larger(x: Real, y: Real) -> Real:
    return x("max", y)


def smaller(x: Real, y: Real) -> Real:
    return x("min", y)
