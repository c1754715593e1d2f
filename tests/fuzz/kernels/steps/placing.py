"""Steps of random cases: several values in one buffer, updates of a part, gathers and scatters.

Input: a draft. Output: it has more values, or none where nothing fits.
"""

from __future__ import annotations

from stagejit.types import bool_
from tests.fuzz.kernels.draft import Draft, Drawn
from tests.fuzz.kernels.running.inputs import BOUND, FRACTION
from tests.fuzz.kernels.steps.elementwise import scaled_of, slice_of, start_of, unary_of
from tests.fuzz.kernels.steps.products import product_of
from tests.fuzz.kernels.steps.rows import reduce

_MOST = 12000


def stack(d: Draft) -> None:
    """Parts of one shape along a new axis."""
    x = d.one(lambda v: v.rank < 5 and 0 < v.size <= 2000)
    parts = _parts(d, x)
    axis = d.c.pick((x.rank, *range(x.rank)))
    shape = (*x.shape[:axis], len(parts), *x.shape[axis:])
    result = d.empty(shape, x.dtype)
    for at, part in enumerate(parts):
        row = d.view("reshape", part, shape=(*x.shape[:axis], 1, *x.shape[axis:]))
        result = d.insert(row, result, {axis: (at, 1)})


def concatenate(d: Draft) -> None:
    """Parts one after the other, or interleaved, along an axis; the order of writing is random."""
    x = d.one(lambda v: v.rank > 0 and 0 < v.size <= 2000)
    parts = _parts(d, x)
    axis, extent = d.c.pick((x.rank - 1, *range(x.rank))), 0
    extent = x.shape[axis]
    interleaved = d.c.chance(4)
    shape = (*x.shape[:axis], extent * len(parts), *x.shape[axis + 1 :])
    result = d.empty(shape, x.dtype)
    for number in d.c.order(len(parts)):
        place = (number, len(parts)) if interleaved else (number * extent, 1)
        result = d.insert(parts[number], result, {axis: place})


def destinations(d: Draft) -> None:
    """Functions of x, and what other dispatches make, side by side in one or several buffers of one
    type: the dispatch that stores the functions is the same wherever they go."""
    x = d.one(lambda v: v.rank > 0 and 0 < v.size <= 1000 and v.dtype is not bool_)
    axis, extent = d.c.pick((x.rank - 1, *range(x.rank))), 0
    extent, count = x.shape[axis], d.c.pick((3, 2, 4, 5))
    shape = (*x.shape[:axis], extent * count, *x.shape[axis + 1 :])
    buffers = [d.splat(0.0, x.dtype, shape), d.empty(shape, x.dtype), d.empty(shape, x.dtype)]
    for slot in range(count):
        if slot % 2 == 0:
            part = d.map("add", x, d.splat(float(slot + 1), x.dtype, x.shape))
        else:
            part = _foreign(d, x)
        number = d.c.pick((1, 2, 0), hot=True)
        buffers[number] = d.insert(part, buffers[number], {axis: (slot * extent, 1)})
    d.required += [buffer for buffer in buffers if buffer.value.op.definition.is_insert]


def _foreign(d: Draft, x: Drawn) -> Drawn:
    """What is not made where x is read."""
    how = d.c.below(3)
    if how == 0 and (made := product_of(d, x)) is not None:
        return made
    if how == 1 and x.rank < 5 and (narrow := _reduced(d, x)) is not None:
        return narrow
    return d.add(
        "cumulative", [d.argument(x.shape, x.dtype)], exact=True, bound=BOUND, fraction=FRACTION,
        fn="max", axis=0, reverse=False,
    )  # fmt: skip


def _parts(d: Draft, x: Drawn) -> list[Drawn]:
    """Values of one type, most of them functions of x; some of them another dispatch makes."""
    count = d.c.pick((2, 3, 4, 1, 5, 8, 12))
    count = max(1, min(count, _MOST // x.size))
    alike = d.c.below(2)
    return [_part(d, x, number, alike=bool(alike)) for number in range(count)]


def _part(d: Draft, x: Drawn, number: int, *, alike: bool) -> Drawn:
    if alike and x.dtype is not bool_:
        return d.map("mul", d.calm(x, 1000.0), d.splat(float(number + 1), x.dtype, x.shape))
    how = d.c.below(8)
    if how == 0:
        return x
    if how in (1, 2) and x.dtype is not bool_:
        return scaled_of(d, x)
    if how == 3:
        return unary_of(d, x)
    if how == 4:
        return d.elsewhere(x)
    if how == 5 and (made := product_of(d, x)) is not None:
        return made
    if how == 6 and x.rank < 5 and (narrow := _reduced(d, x)) is not None:
        return narrow
    return d.like(x)


def _reduced(d: Draft, x: Drawn) -> Drawn | None:
    """A reduction with the type of x, of an array with one axis more."""
    deep = d.argument((*x.shape, d.c.pick((2, 3, 5, 8, 17))), x.dtype)
    result = reduce(d, deep, (x.rank,))
    return result if result.dtype is x.dtype else None


def overlay(d: Draft) -> None:
    """Values over a number, and over each other, in rows that are mostly short."""
    x = d.one(lambda v: v.rank > 0 and 0 < v.size <= 2000)
    sizes = [size + d.c.pick((2, 1, 0, 3)) for size in x.shape]
    whole = d.splat(float(d.c.pick((0, 1))), x.dtype, tuple(sizes))
    for _ in range(d.c.pick((1, 2, 3))):
        box = {
            axis: (d.c.below(whole - size + 1), 1)
            for axis, (size, whole) in enumerate(zip(x.shape, sizes, strict=True))
        }
        whole = d.overlay(d.like(x) if d.c.below(2) else x, whole, box)


def pad(d: Draft) -> None:
    """x in a larger array of one number, with holes between its elements or without."""
    x = d.one(lambda v: v.rank > 0 and 0 < v.size <= 1000)
    sizes, box = [], {}
    for axis, size in enumerate(x.shape):
        low, high = d.c.pick((0, 1, 2)), d.c.pick((0, 1, 3))
        stride = d.c.pick((1, 1, 2)) if x.rank < 3 else 1
        sizes.append(low + (size - 1) * stride + 1 + high)
        box[axis] = (low, stride)
    d.insert(x, d.splat(float(d.c.pick((0, 1))), x.dtype, tuple(sizes)), box)


def update(d: Draft) -> None:
    """A part of an array is replaced by a function of what was there, or something else."""
    x = d.one(lambda v: v.rank > 0 and v.size > 1)
    part = slice_of(d, x)
    box = dict(enumerate(zip(*_place(part), strict=True)))
    how = d.c.below(3)
    if how == 0:
        new = scaled_of(d, part) if x.dtype is not bool_ else unary_of(d, part)
    elif how == 1:
        new = d.like(part)
    else:
        new = d.elsewhere(part)
    d.insert(new, x, box)


def _place(part: Drawn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    attrs = part.value.op.attrs
    return attrs["offsets"], attrs["strides"]


def dynamic_update(d: Draft) -> None:
    """Rows at a place that an argument says, or an array."""
    x = d.one(lambda v: v.rank > 0 and v.size > 1)
    axis = d.c.below(x.rank)
    extent = x.shape[axis]
    sizes = tuple(d.c.between(1, extent) if i == axis else n for i, n in enumerate(x.shape))
    new, start = d.like(x, sizes), start_of(d)
    d.add(
        "insert_slice", [new, x, start], exact=x.exact and new.exact,
        bound=max(x.bound, new.bound), fraction=max(x.fraction, new.fraction),
        offsets=tuple(None if i == axis else 0 for i in range(x.rank)), strides=(1,) * x.rank,
    )  # fmt: skip


def gather(d: Draft) -> None:
    """Rows of x along an axis, at indices that are clipped, or a number where out of bounds."""
    x = d.one(lambda v: v.rank > 0 and v.size > 0)
    axis, count = d.c.below(x.rank), d.c.pick((2, 3, 1, 5, 17))
    if x.size // x.shape[axis] * count > _MOST:
        return
    indices = d.index((count, 1))
    mode = d.c.pick(("clip", "fill"))
    d.add(
        "gather", [x, indices], exact=x.exact, bound=max(x.bound, 1), fraction=x.fraction,
        offset_axes=tuple(i for i in range(x.rank) if i != axis), collapsed_axes=(axis,),
        start_axes=(axis,), operand_batch_axes=(), index_batch_axes=(), mode=mode,
        sizes=tuple(1 if i == axis else n for i, n in enumerate(x.shape)),
        fill_value=_number(x) if mode == "fill" else None,
    )  # fmt: skip


def scatter(d: Draft) -> None:
    """Rows along an axis, or windows of several that may overlap, are set, added ..."""
    x = d.one(lambda v: v.rank > 0 and v.size > 0)
    axis, count = d.c.below(x.rank), d.c.pick((2, 3, 1, 5, 17))
    several = x.rank < 5 and d.c.chance(3)
    length = d.c.between(1, x.shape[axis]) if several else 1
    if x.size // x.shape[axis] * length * count > _MOST:
        return
    window = [length if i == axis else n for i, n in enumerate(x.shape) if several or i != axis]
    where = d.c.below(len(window) + 1)
    updates = d.like(x, (*window[:where], count, *window[where:]))
    fn = "set" if x.dtype is bool_ else d.c.pick(("set", "add", "max"))
    x, updates = d.calm(x, 50.0), d.calm(updates, 50.0)
    d.add(
        "scatter", [x, d.index((count, 1)), updates], exact=x.exact and updates.exact,
        bound=x.bound + updates.bound * (count if fn == "add" else 1),
        fraction=max(x.fraction, updates.fraction), fn=fn,
        window_axes=tuple(i for i in range(len(window) + 1) if i != where),
        inserted_axes=() if several else (axis,),
        start_axes=(axis,), operand_batch_axes=(), index_batch_axes=(),
        mode=d.c.pick(("clip", "fill")), unique=False, sorted=False,
    )  # fmt: skip


def _number(x: Drawn) -> bool | int | float:
    return True if x.dtype is bool_ else 1.0 if x.dtype.is_float else 1
