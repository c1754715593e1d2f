"""Steps of random cases: scalar functions, constants and views.

Input: a draft. Output: it has one more value, or none where nothing fits.
"""

from __future__ import annotations

import math

from stagejit.types import DType, bool_, dtype_named, i32
from tests.fuzz.kernels.draft import WIDE, Draft, Drawn

# Vector math has tests of its own; here it is what costs too much to be evaluated twice.
_CALM_FUNCTIONS = ("exp", "exp", "exp", "exp", "tanh", "logistic", "sin", "erf")
_INTEGER_BINARY = ("add", "sub", "mul", "max", "min", "and", "or", "xor", "div", "rem")
_LARGE = ((40000,), (3, 17001), (17001, 3), (1030, 33), (33, 1030), (2, 9000, 2), (1, 20000),
          (5, 1100, 7), (130, 257))  # fmt: skip
_CONVERSIONS = ("f32", "f64", "i32", "bf16", "f16", "i8", "u8", "i16", "u16", "i64", "u64", "u32",
                "bool")  # fmt: skip


def unary(d: Draft) -> None:
    unary_of(d, d.one())


def unary_of(d: Draft, x: Drawn) -> Drawn:
    """A function of one argument; several are of the kind that is kept instead of made again."""
    c = d.c
    if x.dtype is bool_:
        return d.map("not", x)
    if not x.dtype.is_float:
        return d.map(c.pick(("neg", "abs", "not", "square", "sign")), x)
    how = c.below(5)
    if how == 0:
        return d.map("neg", x)
    if how == 1:
        return d.map(c.pick(_CALM_FUNCTIONS), d.calm(x))
    if how == 2:
        one = d.splat(1.0, x.dtype, x.shape)
        inside = d.map("add", d.map("abs", x), one)
        return d.map(c.pick(("sqrt", "rsqrt", "sqrt", "log")), inside)
    if how == 3 and x.exact:
        return d.map(c.pick(("floor", "ceil", "abs", "sign")), x)
    return d.map("square", d.calm(x))


def scaled(d: Draft) -> None:
    """x * 3, x + 1, max(x, 0) ..."""
    scaled_of(d, d.one(lambda v: v.dtype is not bool_))


def scaled_of(d: Draft, x: Drawn) -> Drawn:
    number = float(d.c.pick((2, 3, 1, 5, 7)))
    fn = d.c.pick(("mul", "add", "sub", "max", "min"))
    return d.map(fn, x, d.splat(number, x.dtype, x.shape))


def binary(d: Draft) -> None:
    x = d.one()
    binary_of(d, x, d.like(x))


def binary_of(d: Draft, x: Drawn, y: Drawn) -> Drawn:
    c = d.c
    if c.below(2):
        x, y = y, x
    if x.dtype is bool_:
        return d.map(c.pick(("and", "or", "xor", "eq")), x, y)
    if not x.dtype.is_float:
        return d.map(c.pick(_INTEGER_BINARY), x, y)
    fn = c.pick(("add", "sub", "mul", "max", "min", "div"))
    if fn == "mul":
        x, y = d.calm(x, 30.0), d.calm(y, 30.0)
    if fn == "div":
        return d.map("div", x, d.map("add", d.map("abs", y), d.splat(1.0, y.dtype, y.shape)))
    return d.map(fn, x, y)


def layouts(d: Draft) -> None:
    """A value meets arguments whose elements lie in memory in other orders."""
    x = d.one()
    for _ in range(d.c.between(1, 3)):
        x = binary_of(d, x, d.laid_out(x.shape, x.dtype))
        if x.dtype is bool_:
            return


def compare(d: Draft) -> None:
    x = d.one(lambda v: v.exact)
    y = d.like(x)
    if y.exact:
        d.map(d.c.pick(("lt", "le", "gt", "ge", "eq", "ne")), x, y)


def select(d: Draft) -> None:
    predicate = d.some(lambda v: v.dtype is bool_)
    x = d.some(lambda v: predicate is not None and v.shape == predicate.shape)
    if predicate is None or x is None:
        x = d.one(lambda v: v.exact and v.dtype is not bool_)
        predicate = d.map("lt", x, d.splat(1.0, x.dtype, x.shape))
    d.map("select", predicate, x, d.like(x))


def convert(d: Draft) -> None:
    x = d.one()
    dtypes = [dtype_named(name) for name in _CONVERSIONS]
    if not x.exact:
        dtypes = [dtype for dtype in dtypes if dtype.is_float]
    _converted(d, x, d.c.pick(dtypes))


def _converted(d: Draft, x: Drawn, dtype: DType) -> Drawn:
    return d.convert(d.calm(x, 1000.0) if dtype.is_float else x, dtype)


def large(d: Draft) -> None:
    """An argument with more elements than one item of a loop takes, along one axis or two."""
    d.argument(d.c.pick(_LARGE), d.dtype)


def iota(d: Draft) -> None:
    """The position along an axis joins a value."""
    x = d.one(lambda v: v.rank > 0 and v.dtype is not bool_)
    axis = d.c.below(x.rank)
    bound = float(max(x.shape[axis], 1))
    line = d.add("iota", (), exact=True, bound=bound, shape=x.shape, axis=axis, dtype=i32)
    if x.dtype in WIDE or x.dtype is i32:
        d.map(d.c.pick(("add", "sub", "max")), x, d.convert(line, x.dtype))
    else:
        d.map("select", d.map("lt", line, d.splat(2.0, i32, x.shape)), x, d.elsewhere(x))


# ------------------------------------------------------------------ views


def elsewhere(d: Draft) -> None:
    d.elsewhere(d.one(lambda v: v.rank > 0))


def transpose(d: Draft) -> None:
    x = d.one(lambda v: v.rank > 1)
    order = d.c.order(x.rank)
    simplest = tuple(reversed(range(x.rank)))
    d.view("transpose", x, permutation=order if order != tuple(range(x.rank)) else simplest)


def reverse(d: Draft) -> None:
    x = d.one(lambda v: v.rank > 0)
    axes = tuple(d.c.some(range(x.rank))) or (x.rank - 1,)
    d.view("reverse", x, axes=axes)


def slices(d: Draft) -> None:
    slice_of(d, d.one(lambda v: v.rank > 0 and v.size > 1))


def slice_of(d: Draft, x: Drawn) -> Drawn:
    """A part of x, with strides."""
    box = {}
    for axis, extent in enumerate(x.shape):
        if extent > 1 and d.c.below(2):
            stride = d.c.pick((1, 2, 3))
            offset = d.c.between(0, extent - 1)
            most = (extent - 1 - offset) // stride + 1
            box[axis] = (offset, most - d.c.below(min(most, 3)), stride)
    return d.slice(x, box)


def start_of(d: Draft) -> Drawn:
    """A place for a part: an argument, or an element of an array that others read, too."""
    x = d.some(lambda v: v.dtype is i32 and v.rank > 0 and v.size > 0) if d.c.chance(3) else None
    if x is None:
        return d.index(())
    first = d.slice(x, dict.fromkeys(range(x.rank), (0, 1, 1)))
    return d.view("reshape", first, shape=())


def dynamic_slice(d: Draft) -> None:
    """A part of x at a place that an argument says, or an array."""
    x = d.one(lambda v: v.rank > 0 and v.size > 1)
    axis = d.c.below(x.rank)
    extent = x.shape[axis]
    start = start_of(d)
    size = d.c.between(1, extent) if extent else 0
    offsets = tuple(None if i == axis else 0 for i in range(x.rank))
    sizes = tuple(size if i == axis else n for i, n in enumerate(x.shape))
    d.add(
        "extract_slice", [x, start], exact=x.exact, bound=x.bound, fraction=x.fraction,
        offsets=offsets, sizes=sizes, strides=(1,) * x.rank,
    )  # fmt: skip


def reshape(d: Draft) -> None:
    x = d.one(lambda v: v.size > 1)
    c, shape = d.c, list(x.shape)
    how = c.below(3)
    if how == 0 and len(shape) > 1:  # merge neighbours
        at = c.below(len(shape) - 1)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    elif how == 1 and shape:  # split an axis
        at = c.below(len(shape))
        factors = [n for n in range(1, shape[at] + 1) if shape[at] % n == 0]
        factor = c.pick(factors) if factors else 1
        shape[at : at + 1] = [factor, shape[at] // max(factor, 1)]
    else:
        shape.insert(c.below(len(shape) + 1), 1)
    if len(shape) <= 5 and math.prod(shape) == x.size:
        d.view("reshape", x, shape=tuple(shape))


def rearranged(d: Draft) -> None:
    """x split into other axes and transposed, many times in a row, perhaps with a sum now and then:
    few of the axes fit those before."""
    x = d.one(lambda v: 1 < v.size <= 1000)
    size = x.size
    factors = [n for n in range(2, size) if size % n == 0]
    shapes = [(n, size // n) for n in factors] or [(1, size)]
    adds = d.c.chance(3) and x.dtype is not bool_
    for _ in range(d.c.pick((4, 2, 8, 14, 24))):
        x = d.view("reshape", x, shape=d.c.pick(shapes))
        x = d.view("transpose", x, permutation=(1, 0))
        if adds and d.c.chance(4):
            x = d.map("max", x, d.splat(1.0, x.dtype, x.shape))


def butterflies(d: Draft) -> None:
    """Stages in a row, each of which takes every element together with another one."""
    x = d.one(lambda v: 1 < v.size <= 1000 and v.dtype is not bool_)
    size = x.size
    x = d.view("reshape", x, shape=(size,))
    factors = [n for n in range(2, size + 1) if size % n == 0]
    for _ in range(d.c.pick((3, 2, 6, 10, 16))):
        middle = d.c.pick(factors)
        inner = d.c.pick([n for n in (1, *factors) if size // middle % n == 0])
        apart = d.view("reshape", x, shape=(size // middle // inner, middle, inner))
        other = d.view("reshape", d.view("reverse", apart, axes=(1,)), shape=(size,))
        x = d.map(d.c.pick(("max", "min")), x, other)


def broadcast(d: Draft) -> None:
    """x along a new axis, which may be merged with the one after or before it: a tile, a repeat."""
    x = d.one(lambda v: v.rank < 5 and v.size <= 2000)
    at, times = d.c.below(x.rank + 1), d.c.pick((2, 3, 1, 5, 16))
    shape = (*x.shape[:at], times, *x.shape[at:])
    axes = tuple(i + (i >= at) for i in range(x.rank))
    wide = d.view("broadcast", x, shape=shape, axes=axes)
    how = d.c.below(3)
    merge = at if how == 1 else at - 1
    if how and 0 <= merge < x.rank:
        merged = (*shape[:merge], shape[merge] * shape[merge + 1], *shape[merge + 2 :])
        d.view("reshape", wide, shape=merged)
