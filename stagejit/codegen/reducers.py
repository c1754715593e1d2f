"""The monoids of `reduce` and `cumulative`: identity, accumulation, and merging of partial results.

Input: registers (scalar or vector). Output: accumulators as tuples of registers. Invariant:
merging is associative and commutative up to float rounding; maxima and minima propagate NaN, as
NumPy does, and argmax/argmin return the first of equal elements, the first NaN before all else.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.base.records import record
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import I8, I32, I64, Buffer, Value, element_type
from stagejit.codegen.math import functions as vmath
from stagejit.graph.functions import neutral
from stagejit.types import DType, i32, i64

Accumulator = tuple[Value, ...]


def identity_of(fn: str, dtype: DType) -> int | float:
    """The neutral element of a monoid in `dtype`."""
    if dtype.kind == "bool" and fn in ("argmax", "argmin"):
        return int(fn == "argmin")
    number = neutral(fn.removeprefix("arg"), dtype)
    return float(number) if dtype.is_float else int(number)


@record
class Reducer:
    """One reduction: `fn` over elements of `dtype`; argmax and argmin give `index_dtype`."""

    fn: str
    dtype: DType
    index_dtype: DType | None = None

    @property
    def is_arg(self) -> bool:
        return self.fn in ("argmax", "argmin")

    @property
    def accumulator_dtype(self) -> DType:
        """16-bit floats are kept in f32: sums round once, and CPUs compare f32."""
        return self.dtype.accumulator

    def initial(self, b: Builder, lanes: int) -> Accumulator:
        elem = element_type(self.accumulator_dtype).with_lanes(lanes)
        first = b.const(identity_of(self.fn, self.dtype), elem)
        if not self.is_arg:
            return (first,)
        index = (I32 if self.narrow_index else I64).with_lanes(lanes)
        return first, b.const(2 ** (index.bits - 1) - 1, index)

    @property
    def narrow_index(self) -> bool:
        """Whether positions are i32."""
        return self.index_dtype is not None and self.index_dtype.bits <= 32

    def lift(
        self, b: Builder, element: Value, position: Value | None, lanes: int, mask: Value | None
    ) -> Accumulator:
        """One element a lane as an accumulator, neutral in lanes that are masked off; `position`
        is for argmax and argmin."""
        element = vmath.convert(b, element, self.dtype, self.accumulator_dtype)
        parts: Accumulator = (element,) if position is None else (element, position)
        if not lanes:
            return parts
        parts = tuple(b.splat(part, lanes) for part in parts)
        if mask is None:
            return parts
        return chosen(b, mask, parts, self.initial(b, lanes))

    def merge(self, b: Builder, first: Accumulator, second: Accumulator) -> Accumulator:
        if self.fn == "logaddexp":
            return (_log_add_exp(b, self.accumulator_dtype, first[0], second[0]),)
        if not self.is_arg:
            return (vmath.emit(b, self.fn, self.accumulator_dtype, [first[0], second[0]]),)
        return chosen(b, self._better(b, second, first), second, first)

    def across_lanes(self, b: Builder, accumulator: Accumulator) -> Accumulator:
        """The merge of all lanes, by halving."""
        lanes = accumulator[0].type.lanes
        while lanes > 1:
            half = lanes // 2
            low = tuple(b.shuffle(part, None, range(half)) for part in accumulator)
            high = tuple(b.shuffle(part, None, range(half, lanes)) for part in accumulator)
            accumulator = self.merge(b, low, high)
            lanes = half
        return tuple(b.extract(part, 0) for part in accumulator) if lanes else accumulator

    def result(self, b: Builder, accumulator: Accumulator) -> Value:
        """The reduce's result in its own dtype."""
        if not self.is_arg:
            return vmath.convert(b, accumulator[0], self.accumulator_dtype, self.dtype)
        assert self.index_dtype is not None
        held = i32 if self.narrow_index else i64
        return vmath.convert(b, accumulator[1], held, self.index_dtype)

    def _better(self, b: Builder, new: Accumulator, old: Accumulator) -> Value:
        (x, i), (y, j) = new, old
        dtype = self.dtype
        wins = "gt" if self.fn == "argmax" else "lt"
        ahead = b.compare(wins, x, y, signed=dtype.is_signed)
        tie = b.compare("eq", x, y)
        if dtype.is_float:
            new_nan, old_nan = b.compare("uno", x, x), b.compare("uno", y, y)
            ahead = ahead | (new_nan & ~old_nan)
            tie = tie | (new_nan & old_nan)
        return ahead | (tie & b.compare("lt", i, j))


def chosen(b: Builder, where: Value, first: Accumulator, second: Accumulator) -> Accumulator:
    """The first where a condition holds, else the second."""
    return tuple(b.select(where, x, y) for x, y in zip(first, second, strict=True))


def merge_all(b: Builder, reducer: Reducer, parts: Sequence[Accumulator]) -> Accumulator:
    """Pairwise, so that rounding errors grow with the logarithm of the number of parts."""
    current = list(parts)
    while len(current) > 1:
        pairs = zip(current[::2], current[1::2], strict=False)
        paired = [reducer.merge(b, *pair) for pair in pairs]
        current = paired + current[len(paired) * 2 :]
    return current[0]


def _log_add_exp(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    """log(exp(x) + exp(y)) as JAX writes it: max + log1p(exp(-|x - y|)), infinities apart."""

    def emit(fn: str, *args: Value) -> Value:
        return vmath.emit(b, fn, dtype, list(args))

    delta = emit("sub", x, y)
    decay = emit("exp", emit("neg", emit("abs", delta)))
    total = emit("add", emit("max", x, y), emit("log1p", decay))
    return b.select(b.compare("uno", delta, delta), emit("add", x, y), total)


@record
class Panel:
    """Accumulators in scratch, one for each of some rows that advance together. aligned: whether
    those of several lanes start at whole vectors."""

    b: Builder
    reducer: Reducer
    buffers: tuple[Buffer, ...]
    aligned: bool = False

    @staticmethod
    def of(b: Builder, reducer: Reducer, name: str, width: int) -> Panel:
        types = [part.type for part in reducer.initial(b, 0)]
        stored = [I8 if type.elem == "i1" else type for type in types]
        return Panel(b, reducer, tuple(b.scratch(name, type, width) for type in stored))

    def load(self, at: Value, lanes: int) -> Accumulator:
        """Those of the rows from `at` on."""
        raw = [
            self.b.load(buffer, at, lanes, alignment=self._alignment(buffer, lanes))
            for buffer in self.buffers
        ]
        wanted = [part.type for part in self.reducer.initial(self.b, 0)]
        return tuple(
            self.b.compare("ne", value, 0) if type.elem == "i1" else value
            for value, type in zip(raw, wanted, strict=True)
        )

    def store(self, accumulator: Accumulator, at: Value) -> None:
        for buffer, part in zip(self.buffers, accumulator, strict=True):
            stored = self.b.cast("zext", part, "i8") if part.type.elem == "i1" else part
            aligned = self._alignment(buffer, stored.type.lanes)
            self.b.store(stored, buffer, at, alignment=aligned)

    def _alignment(self, buffer: Buffer, lanes: int) -> int:
        return lanes * buffer.elem.bits // 8 if self.aligned else 0
