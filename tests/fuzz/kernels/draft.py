"""A random graph under construction: values, and what is known about their numbers.

Input: choices. Output: a graph of ops with inputs. Invariant: what depends on the last bit
(comparisons, rounding, argmax, conversion to integers) is applied only to values that every correct
evaluation gives exactly; floats stay of moderate size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stagejit.graph.ir import Graph, Value
from stagejit.graph.ops import build
from stagejit.types import DType, TensorType, bool_, f32, f64, i32
from tests.fuzz.kernels.choices import Choices
from tests.fuzz.kernels.running.inputs import BOUND, FRACTION

Shape = tuple[int, ...]

# Simplest first. Numbers of lanes and their neighbours, primes, multiples.
SIZES = (2, 1, 3, 4, 5, 7, 8, 6, 9, 12, 13, 15, 16, 17, 20, 24, 31, 32, 33, 40, 63, 64, 65, 100,
         127, 128, 130, 257, 300)  # fmt: skip
MOST_ELEMENTS = 6000
# Bits of the significand: integers up to 2 ** bits are exact.
_DIGITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
WIDE = (f32, f64)
_SHORT = (3, 2, 4, 5, 8)
_MOST_LAID_OUT = 4 * MOST_ELEMENTS
_CALM = 6.0  # what functions like exp take


@dataclass(frozen=True)
class Drawn:
    """exact: all correct evaluations agree on the bits. bound: most that an element's magnitude is.
    fraction: bits after the point that an exact value may have."""

    value: Value
    exact: bool
    bound: float
    fraction: int = 0

    @property
    def shape(self) -> Shape:
        return self.value.shape

    @property
    def rank(self) -> int:
        return len(self.value.shape)

    @property
    def dtype(self) -> DType:
        return self.value.type.dtype

    @property
    def size(self) -> int:
        return self.value.type.size


class NothingFits(Exception):
    """A step found no value to work on."""


class Draft:
    """See the module's docstring. Arguments hold small numbers that every type has, see
    `inputs.py`."""

    def __init__(self, choices: Choices, dtype: DType) -> None:
        self.c, self.dtype = choices, dtype
        self.graph = Graph("case")
        self.values: list[Drawn] = []
        self.required: list[Drawn] = []  # outputs

    # ------------------------------------------------------------------ arguments

    def argument(self, shape: Shape, dtype: DType) -> Drawn:
        name = f"x{len(self.graph.inputs)}"
        value = self.graph.add_input(name, TensorType(dtype, shape), donated=self.c.chance(6))
        fraction = FRACTION if dtype.is_float else 0
        return self.keep(Drawn(value, True, float(BOUND), fraction))

    def index(self, shape: Shape, dtype: DType = i32) -> Drawn:
        """An integer argument of the same small numbers, for use as an index."""
        value = self.graph.add_input(f"i{len(self.graph.inputs)}", TensorType(dtype, shape))
        return Drawn(value, True, float(BOUND))

    def shape(self, most: int = MOST_ELEMENTS, rank: int | None = None) -> Shape:
        """A random shape of at most `most` elements."""
        rank = self.c.between(1, 5) if rank is None else rank
        sizes: list[int] = []
        for at in range(rank):
            left = most // max(math.prod(sizes), 1)
            if rank - at > 1:  # leave something for the other axes
                left = max(2, int(left ** (1 / (rank - at)) * self.c.pick((1.5, 1, 3))))
            if self.c.chance(60):
                sizes.append(0)
            else:
                fitting = [size for size in SIZES if size <= left] or [1]
                sizes.append(self.c.pick(fitting))
        return tuple(sizes[i] for i in self.c.order(rank)) if rank > 1 else tuple(sizes)

    # ------------------------------------------------------------------ building

    def add(
        self,
        kind: str,
        operands: Sequence[Drawn],
        *,
        exact: bool,
        bound: float,
        fraction: int = 0,
        **attrs: Any,
    ) -> Drawn:
        """The result of an op, which is a value for later steps, too."""
        value = build(self.graph, kind, [x.value for x in operands], **attrs)
        if exact and value.type.dtype.is_float:
            bits = math.log2(max(bound, 1)) + fraction
            exact = bits <= _DIGITS[value.type.dtype.name] - 1
        return self.keep(Drawn(value, exact, bound, fraction))

    def view(self, kind: str, x: Drawn, **attrs: Any) -> Drawn:
        """An op that moves elements."""
        return self.add(kind, [x], exact=x.exact, bound=x.bound, fraction=x.fraction, **attrs)

    def view_at(self, kind: str, x: Drawn, starts: Sequence[Drawn], **attrs: Any) -> Drawn:
        """The same at places that are read."""
        operands = [x, *starts]
        return self.add(kind, operands, exact=x.exact, bound=x.bound, fraction=x.fraction, **attrs)

    def scalar(self, number: float, dtype: DType) -> Drawn:
        array = np.asarray(number).astype(dtype.numpy)
        array.setflags(write=False)
        value = build(self.graph, "const", (), value=array)
        fraction = 0 if float(number).is_integer() else 2
        return Drawn(value, True, abs(float(number)), fraction)

    def splat(self, number: float, dtype: DType, shape: Shape) -> Drawn:
        """An array of one number."""
        x = self.scalar(number, dtype)
        if not shape:
            return x
        value = build(self.graph, "fill", [x.value], shape=shape)
        return Drawn(value, True, x.bound, x.fraction)

    def map(self, fn: str, *operands: Drawn, **attrs: Any) -> Drawn:
        """A scalar function on arrays of one shape. Bounds are worked out for the common ones."""
        exact, bound, fraction = _outcome(fn, operands)
        dtype = bool_ if fn in _PREDICATES else operands[-1].dtype
        return self.add(
            "map", operands, exact=exact, bound=bound, fraction=fraction, fn=fn, dtype=dtype,
            **attrs,
        )  # fmt: skip

    def calm(self, x: Drawn, most: float = _CALM) -> Drawn:
        """`x`, of moderate size if it is a float."""
        if not x.dtype.is_float or x.bound <= most:
            return x
        if x.exact and self.c.below(2):
            low, high = (self.splat(number, x.dtype, x.shape) for number in (-2.0, 2.0))
            return self.add(
                "map", [low, x, high], exact=True, bound=2.0, fraction=x.fraction, fn="clamp",
                dtype=x.dtype,
            )  # fmt: skip
        return self.map("tanh", x)

    def convert(self, x: Drawn, dtype: DType) -> Drawn:
        if dtype is x.dtype:
            return x
        fraction = x.fraction if dtype.is_float else 0
        bound = 1.0 if dtype is bool_ else x.bound
        if dtype.kind in ("int", "uint") and x.bound > 100:
            bound = 2.0**dtype.bits
        return self.add("convert", [x], exact=x.exact, bound=bound, fraction=fraction, dtype=dtype)

    def keep(self, drawn: Drawn) -> Drawn:
        """A value for later steps."""
        self.values.append(drawn)
        return drawn

    # ------------------------------------------------------------------ choosing

    def some(self, accept: Callable[[Drawn], bool] = lambda x: True) -> Drawn | None:
        """A value, mostly the latest."""
        fitting = [x for x in reversed(self.values) if accept(x)]
        if not fitting:
            return None
        return fitting[0] if self.c.below(3) < 2 else self.c.pick(fitting)

    def one(self, accept: Callable[[Drawn], bool] = lambda x: True) -> Drawn:
        """The same; raises NothingFits, which ends the step."""
        found = self.some(accept)
        if found is None:
            raise NothingFits
        return found

    def like(self, x: Drawn, shape: Shape | None = None, dtype: DType | None = None) -> Drawn:
        """A value of the shape and type of `x` (or others): one that there is, `x` or a part of
        it at other indices, one that is broadcast, a period of one that is repeated, or a new
        argument, perhaps of another layout."""
        shape = x.shape if shape is None else shape
        dtype = dtype or x.dtype
        fitting = [v for v in reversed(self.values) if v.shape == shape and v.dtype is dtype]
        how = self.c.below(6)
        if how == 0 and fitting:
            return self.c.pick(fitting)
        if how == 4:
            return self.laid_out(shape, dtype)
        if how == 1 and shape and (narrow := self._broadcast(shape, dtype)) is not None:
            return narrow
        if how == 2 and fitting:
            return self.elsewhere(self.c.pick(fitting))
        if how == 3 and shape and all(shape):
            return self._period(shape, dtype)
        return self.argument(shape, dtype)

    def laid_out(self, shape: Shape, dtype: DType) -> Drawn:
        """A new argument seen through views, so that neighbours lie apart in memory: its axes are
        in another order, short axes stand between them, of which one element is taken, and every
        second or third element may be left out."""
        c, rank = self.c, len(shape)
        order = c.order(rank) if rank > 1 else tuple(range(rank))
        sizes: list[int] = []
        box: dict[int, tuple[int, int, int]] = {}
        room = _MOST_LAID_OUT // max(math.prod(shape), 1)

        def taken(choices: Sequence[int]) -> int:
            nonlocal room
            number = c.pick(choices)
            number = number if number <= room else 1
            room //= number
            return number

        def short() -> None:
            extent = taken(_SHORT)
            box[len(sizes)] = (c.below(extent), 1, 1)
            sizes.append(extent)

        for axis in order:
            if c.chance(3):
                short()
            stride = taken((1, 1, 1, 2, 3))
            box[len(sizes)] = (c.below(stride) if shape[axis] else 0, shape[axis], stride)
            sizes.append(shape[axis] * stride)
        if c.chance(2):
            short()
        x = self.slice(self.argument(tuple(sizes), dtype), box)
        x = self.view("reshape", x, shape=tuple(shape[axis] for axis in order))
        if order != tuple(range(rank)):
            x = self.view("transpose", x, permutation=tuple(map(order.index, range(rank))))
        return self.view("reverse", x, axes=(c.below(rank),)) if rank and c.chance(3) else x

    def _broadcast(self, shape: Shape, dtype: DType) -> Drawn | None:
        axes = tuple(self.c.some(range(len(shape))))
        sizes = tuple(shape[axis] for axis in axes)
        fitting = [v for v in reversed(self.values) if v.shape == sizes and v.dtype is dtype]
        x = self.c.pick(fitting) if fitting else self.argument(sizes, dtype)
        return self.view("broadcast", x, shape=shape, axes=axes)

    def _period(self, shape: Shape, dtype: DType) -> Drawn:
        """A slice of something repeated, mostly as long as a period, perhaps with gaps, which lie
        evenly in memory where those of the repeated array do not; perhaps reversed."""
        axis, stride, count = self.c.below(len(shape)), self.c.between(1, 2), self.c.between(2, 3)
        period = shape[axis] * stride
        before, after = shape[:axis], shape[axis + 1 :]
        sizes = (*before, period, *after)
        fitting = [v for v in reversed(self.values) if v.shape == sizes and v.dtype is dtype]
        x = self.c.pick(fitting) if fitting and self.c.below(2) else self.argument(sizes, dtype)
        axes = tuple(i for i in range(len(shape) + 1) if i != axis)
        apart = self.view("broadcast", x, shape=(*before, count, period, *after), axes=axes)
        whole = self.view("reshape", apart, shape=(*before, count * period, *after))
        start = self.c.below(count) * period + self.c.below(stride)
        if self.c.chance(3):
            start = self.c.between(0, (count - 1) * period)
        part = self.slice(whole, {axis: (start, shape[axis], stride)})
        return self.view("reverse", part, axes=(axis,)) if self.c.chance(4) else part

    def elsewhere(self, x: Drawn) -> Drawn:
        """`x` with other elements at its indices: reversed, rotated or transposed."""
        if not x.rank:
            return x
        axis = self.c.below(x.rank)
        alike = [
            order for order in (tuple(reversed(range(x.rank))), self.c.order(x.rank))
            if tuple(x.shape[i] for i in order) == x.shape and order != tuple(range(x.rank))
        ]  # fmt: skip
        if alike and self.c.below(2):
            return self.view("transpose", x, permutation=alike[0])
        if x.shape[axis] > 1 and self.c.chance(3):
            return self._rotated(x, axis)
        return self.view("reverse", x, axes=(axis,))

    def _rotated(self, x: Drawn, axis: int) -> Drawn:
        by = self.c.between(1, x.shape[axis] - 1)
        result = self.empty(x.shape, x.dtype)
        for start, stop, to in ((by, x.shape[axis], 0), (0, by, x.shape[axis] - by)):
            part = self.slice(x, {axis: (start, stop - start, 1)})
            result = self.insert(part, result, {axis: (to, 1)})
        return result

    # ------------------------------------------------------------------ boxes

    def empty(self, shape: Shape, dtype: DType) -> Drawn:
        value = build(self.graph, "empty", (), shape=shape, dtype=dtype)
        return Drawn(value, True, 0.0)

    def slice(self, x: Drawn, box: dict[int, tuple[int, int, int]]) -> Drawn:
        """box: (offset, size, stride) by axis."""
        full = [box.get(axis, (0, size, 1)) for axis, size in enumerate(x.shape)]
        offsets, sizes, strides = zip(*full, strict=True) if full else ((), (), ())
        return self.view("extract_slice", x, offsets=offsets, sizes=sizes, strides=strides)

    def insert(self, x: Drawn, into: Drawn, box: dict[int, tuple[int, int]]) -> Drawn:
        """box: (offset, stride) by axis."""
        return self._placed("insert_slice", x, into, box)

    def overlay(self, x: Drawn, into: Drawn, box: dict[int, tuple[int, int]]) -> Drawn:
        """The same as a value."""
        return self._placed("overlay", x, into, box)

    def _placed(self, kind: str, x: Drawn, into: Drawn, box: dict[int, tuple[int, int]]) -> Drawn:
        full = [box.get(axis, (0, 1)) for axis in range(x.rank)]
        offsets, strides = zip(*full, strict=True) if full else ((), ())
        return self.add(
            kind, [x, into], exact=x.exact and into.exact,
            bound=max(x.bound, into.bound), fraction=max(x.fraction, into.fraction),
            offsets=offsets, strides=strides,
        )  # fmt: skip


_PREDICATES = frozenset(["eq", "ne", "lt", "le", "gt", "ge", "is_finite"])
_SAME = frozenset(["neg", "abs", "max", "min", "floor", "ceil", "sign", "clamp"])
_BOUNDED = frozenset(["tanh", "sin", "cos", "logistic", "erf", "erfc"])


def _outcome(fn: str, operands: Sequence[Drawn]) -> tuple[bool, float, int]:
    """(exact, bound, fraction) of a function's results."""
    exact = all(x.exact for x in operands)
    bound = max(x.bound for x in operands)
    fraction = max(x.fraction for x in operands)
    if fn in _PREDICATES:
        return exact, 1.0, 0
    if not operands[-1].dtype.is_float:
        grown = fn in _SAME or fn in ("select", "rem", "div", "not")
        return True, bound + 1 if grown else bound * bound * 2 + 8, 0
    if fn in _BOUNDED:
        return False, 2.0, fraction
    if fn in ("add", "sub"):
        return exact, sum(x.bound for x in operands), fraction
    if fn in ("mul", "square"):
        other = operands[-1]
        return exact, operands[0].bound * other.bound, operands[0].fraction + other.fraction
    if fn in ("exp", "exp2", "expm1", "sinh", "cosh"):
        return False, math.exp(min(bound, 50.0)), fraction
    return exact and (fn in _SAME or fn == "select"), bound, fraction
