"""Steps of random cases: ops by attributes of any kind, most of which no usual program has.

Input: a draft. Output: it has more values, or none where nothing fits.
"""

from __future__ import annotations

import math
from typing import Any

from stagejit.graph.dims import ConvDims
from stagejit.graph.functions import neutral
from stagejit.graph.ops import build
from stagejit.graph.ops.moving.splits import split_shape
from stagejit.types import DType, bool_, dtype_named, f32, i32
from tests.fuzz.kernels.draft import Draft, Drawn, NothingFits, Shape
from tests.fuzz.kernels.steps.elementwise import scaled_of, slice_of, start_of
from tests.fuzz.kernels.steps.products import epilogue

_SHORT = (2, 1, 3, 4, 5, 8)
_MOST = 6000
_INDICES = ("i32", "u8", "i8", "i64", "u16")
_TABLES = (4, 2, 8, 15, 16, 17, 32, 33, 64, 100, 256)
_OF_BITS = {8: ("u8", "i8"), 16: ("u16", "i16"), 32: ("u32", "i32"), 64: ("u64", "i64")}


def over(d: Draft) -> None:
    """Values over a number or another value, and over each other, with holes between their elements
    or without."""
    x = d.one(lambda v: v.rank > 0 and 0 < v.size <= 2000)
    sizes: list[int] = []
    box: dict[int, tuple[int, int]] = {}
    for axis, size in enumerate(x.shape):
        if d.c.chance(3):
            sizes.append(size)
            continue
        low, high, stride = d.c.pick((1, 0, 2)), d.c.pick((0, 1, 3)), d.c.pick((1, 1, 2, 3))
        sizes.append(low + (size - 1) * stride + 1 + high)
        box[axis] = low, stride
    shape = tuple(sizes)
    _fit(shape)
    below = d.like(x, shape) if d.c.below(2) else d.splat(float(d.c.below(2)), x.dtype, shape)
    whole = d.overlay(x, below, box)
    for _ in range(d.c.below(3)):
        part = slice_of(d, x) if d.c.below(2) else d.like(x)
        if part.size:
            whole = d.overlay(part, whole, _place(d, part.shape, shape))


def _place(d: Draft, part: Shape, whole: Shape) -> dict[int, tuple[int, int]]:
    box = {}
    for axis, (size, extent) in enumerate(zip(part, whole, strict=True)):
        stride = d.c.pick((1, 2))
        if (size - 1) * stride >= extent:
            stride = 1
        box[axis] = d.c.below(extent - (size - 1) * stride), stride
    return box


def box(d: Draft) -> None:
    """A part of x, at places along some axes that arguments say, with strides; perhaps it is
    replaced there."""
    x = d.one(lambda v: v.rank > 0 and v.size > 1)
    offsets: list[int | None] = []
    sizes, strides, starts = [], [], []
    for extent in x.shape:
        stride = d.c.pick((1, 1, 2))
        size = d.c.between(1, (extent - 1) // stride + 1)
        if d.c.below(2):
            offsets.append(None)
            starts.append(start_of(d))
        else:
            offsets.append(d.c.below(extent - (size - 1) * stride))
        sizes.append(size)
        strides.append(stride)
    attrs: dict[str, Any] = {"offsets": tuple(offsets), "strides": tuple(strides)}
    part = d.view_at("extract_slice", x, starts, **attrs, sizes=tuple(sizes))
    how = d.c.below(3)
    if how:
        new = scaled_of(d, part) if how == 1 and x.dtype is not bool_ else d.like(part)
        d.add(
            "insert_slice", [new, x, *starts], exact=x.exact and new.exact,
            bound=max(x.bound, new.bound), fraction=max(x.fraction, new.fraction), **attrs,
        )  # fmt: skip


def look_up(d: Draft) -> None:
    """Elements of a table, or short rows of it, at indices of any shape."""
    c = d.c
    shape = (c.pick(_TABLES), *((c.pick((1, 2, 3, 8)),) if c.below(2) else ()))
    table = d.argument(shape, d.dtype)
    where = d.shape(1500, c.between(1, 3))
    if len(where) + len(shape) - 1 > 5 or not all(where):
        raise NothingFits
    indices = d.index((*where, 1), dtype_named(c.pick(_INDICES)))
    if c.chance(2):
        times = d.splat(c.pick((2, 5)), indices.dtype, indices.shape)
        indices = d.map("mul", indices, times)
    mode = c.pick(("clip", "fill"))
    number = True if d.dtype is bool_ else 1.0 if d.dtype.is_float else 1
    d.add(
        "gather", [table, indices], exact=table.exact, bound=table.bound, fraction=table.fraction,
        offset_axes=tuple(range(len(where), len(where) + len(shape) - 1)), collapsed_axes=(0,),
        start_axes=(0,), operand_batch_axes=(), index_batch_axes=(), mode=mode,
        sizes=(1, *shape[1:]), fill_value=number if mode == "fill" else None,
    )  # fmt: skip


def bits(d: Draft) -> None:
    """The bits of a value as an integer."""
    x = d.one(lambda v: v.dtype is not bool_ and v.exact)
    dtype = dtype_named(d.c.pick(_OF_BITS[x.dtype.bits]))
    if dtype is not x.dtype:
        d.add("bitcast", [x], exact=True, bound=2.0**dtype.bits, dtype=dtype)


def contract(d: Draft) -> None:
    """Several axes of each kind, in any order."""
    c, dtype = d.c, _number_type(d)
    counts = c.below(3), c.between(0, 3), c.below(3), c.below(3)
    batch, inner, left, right = ([c.pick(_SHORT) for _ in range(count)] for count in counts)
    inner = [c.pick((size, size, 16, 33)) for size in inner]
    _fit((*batch, *left, *right))
    if math.prod((*batch, *inner, *left, *right)) > 200000:
        raise NothingFits

    def side(free: list[int]) -> tuple[Drawn, Shape, Shape]:
        sizes = [*batch, *inner, *free]
        _fit(tuple(sizes))
        if len(sizes) > 5:
            raise NothingFits
        order = c.order(len(sizes))
        places = tuple(map(order.index, range(len(sizes))))
        value = d.calm(d.like(d.values[0], tuple(sizes[axis] for axis in order), dtype))
        return value, places[: len(batch)], places[len(batch) : len(batch) + len(inner)]

    (x, of_x, along_x), (y, of_y, along_y) = side(left), side(right)
    depth = math.prod(inner)
    made = d.add(
        "contract", [x, y], exact=x.exact and y.exact, bound=x.bound * y.bound * depth,
        fraction=x.fraction + y.fraction, contracting=(along_x, along_y), batch=(of_x, of_y),
        dtype=dtype,
    )  # fmt: skip
    epilogue(d, made)


def conv(d: Draft) -> None:
    """Of one to three spatial dimensions in any order of axes, with groups of features or of the
    batch, dilations, strides, padding that adds or removes, a border, sums in parts."""
    c, dtype = d.c, _number_type(d)
    spatial = c.pick((2, 1, 3))
    groups, depth = (c.pick(((1, 1), (2, 1), (3, 1), (1, 2), (1, 3))), c.pick((1, 2, 3, 5, 8, 16)))
    features, batches = groups
    lhs = [c.pick((1, 2, 3)) * batches, depth * features]
    lhs += [c.pick((5, 1, 2, 3, 4, 7, 8, 13)) for _ in range(spatial)]
    rhs = [c.pick((1, 2, 3, 4, 8, 17)) * features * batches, depth]
    rhs += [c.pick((1, 2, 3, 4)) for _ in range(spatial)]
    specs = [c.order(spatial + 2) for _ in range(3)]
    left, right = (_laid(sizes, spec) for sizes, spec in zip((lhs, rhs), specs, strict=False))
    attrs: dict[str, Any] = dict(zip(("lhs_spec", "rhs_spec", "out_spec"), specs, strict=True))
    attrs["lhs_dilation"] = tuple(c.pick((1, 1, 1, 2, 3)) for _ in range(spatial))
    attrs["rhs_dilation"] = tuple(c.pick((1, 1, 2, 3)) for _ in range(spatial))
    attrs["strides"] = tuple(c.pick((1, 1, 2, 3)) for _ in range(spatial))
    ends = (0, 1, 2, -1, 3)
    attrs["padding"] = tuple((c.pick(ends), c.pick(ends)) for _ in range(spatial))
    attrs |= {"feature_groups": features, "batch_groups": batches}
    if c.chance(4):
        attrs["border"] = 1.0 if dtype.is_float else 1
    summed = 1 + c.below(spatial + 1)
    whole = features == 1 if summed == 1 else attrs["lhs_dilation"][summed - 2] == 1
    if c.chance(3) and whole and rhs[summed] > 1:
        attrs["split"] = specs[1][summed], c.between(1, rhs[summed] - 1)
    _fit(left)
    _fit(right)
    _fit(ConvDims.of(attrs).result_shape(left, right))
    x, y = (d.calm(d.like(d.values[0], shape, dtype)) for shape in (left, right))
    made = d.add(
        "conv", [x, y], exact=x.exact and y.exact, dtype=dtype,
        bound=max(x.bound, 1) * y.bound * math.prod(rhs[1:]), fraction=x.fraction + y.fraction,
        **attrs,
    )  # fmt: skip
    epilogue(d, made)


def _laid(sizes: list[int], spec: Shape) -> Shape:
    """The shape in which `sizes` are those of the axes of `spec`."""
    return tuple(sizes[spec.index(axis)] for axis in range(len(sizes)))


def parts(d: Draft) -> None:
    """A sum of each part of an axis, of which the last may be shorter, of what does not follow some
    axes; other axes are summed with it. Perhaps of two such values, as a product."""
    c = d.c
    rank = c.between(1, 4)
    shape = d.shape(1500, rank)
    axis = c.below(rank)
    _fit(shape)
    if shape[axis] == 1:
        raise NothingFits
    tile = c.between(1, shape[axis] - 1)
    axes = tuple(sorted({axis, *c.some(range(rank))}))
    if c.below(3) == 0 and d.dtype is not bool_:
        _product_of_parts(d, shape, axis, tile, axes)
        return
    x = _flat(d, shape, d.dtype)
    fns = ("and", "or", "xor") if x.dtype is bool_ else ("add", "max", "min")
    fn = c.pick(fns)
    if fn == "add":
        x = d.calm(x, 30.0)
    apart = _parts_of(d, x, axis, tile, neutral(fn, x.dtype))
    summed = tuple(at + 1 for at in axes)
    bound = x.bound * math.prod(shape) if fn == "add" else x.bound
    known: dict[str, Any] = {"bound": bound, "fraction": x.fraction, "exact": x.exact}
    d.add("reduce", [apart], fn=fn, axes=summed, **known)
    if c.below(3) == 0 and len(axes) == 1 and x.exact and x.dtype is not bool_:
        best = _parts_of(d, x, axis, tile, neutral("max", x.dtype))
        d.add("reduce", [best], fn="argmax", axes=summed, dtype=i32, exact=True, bound=2000.0)


def _product_of_parts(d: Draft, shape: Shape, axis: int, tile: int, axes: Shape) -> None:
    """axes: those that are summed; others are of both operands."""
    x, y = (d.calm(_flat(d, shape, d.dtype)) for _ in range(2))
    zero = -0.0 if x.dtype.is_float else 0
    sides = [_parts_of(d, value, axis, tile, zero) for value in (x, y)]
    summed = tuple(at + 1 for at in axes)
    batch = tuple(at for at in range(len(shape) + 1) if at not in summed)
    made = d.add(
        "contract", sides, exact=x.exact and y.exact, fraction=x.fraction + y.fraction,
        bound=x.bound * y.bound * math.prod(shape), contracting=(summed, summed),
        batch=(batch, batch), dtype=x.dtype,
    )  # fmt: skip
    epilogue(d, made)


def _flat(d: Draft, shape: Shape, dtype: DType) -> Drawn:
    """A value that may be the same along some axes, or made of values of which each is."""
    x = _along(d, shape, dtype)
    for _ in range(d.c.below(3)):
        if dtype is bool_:
            x = d.map(d.c.pick(("and", "or", "xor")), x, _along(d, shape, dtype))
        else:
            x = d.map(d.c.pick(("add", "max", "sub")), d.calm(x, 20.0), _along(d, shape, dtype))
    return x


def _along(d: Draft, shape: Shape, dtype: DType) -> Drawn:
    """An argument or a value that follows some axes, perhaps seen through views."""
    if d.c.chance(4):
        return d.like(d.values[0], shape, dtype)
    axes = tuple(at for at in range(len(shape)) if d.c.below(2))
    x = d.like(d.values[0], tuple(shape[at] for at in axes), dtype)
    if len(axes) == len(shape):
        return x
    return d.view("broadcast", x, shape=shape, axes=axes)


def _parts_of(d: Draft, x: Drawn, axis: int, tile: int, fill: float | bool) -> Drawn:
    shape = split_shape(x.shape, axis, tile)
    value = build(d.graph, "split_axis", [x.value], axis=axis, shape=shape, fill=fill)
    return Drawn(value, x.exact, x.bound, x.fraction)


def _number_type(d: Draft) -> DType:
    return f32 if d.dtype is bool_ else d.dtype


def _fit(shape: Shape) -> None:
    if not 0 < math.prod(shape) <= _MOST:
        raise NothingFits
