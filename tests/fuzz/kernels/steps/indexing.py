"""Steps of random cases: gathers and scatters by dimension numbers of any kind, of windows that may
be long, overlap, and lie anywhere.

Input: a draft. Output: it has more values, or none where nothing fits. Invariant: what is promised
(unique, sorted) holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stagejit.types import bool_, dtype_named, i32
from tests.fuzz.kernels.draft import Draft, Drawn, NothingFits
from tests.fuzz.kernels.steps.elementwise import scaled_of

_DTYPES = ("i32", "i32", "i64", "u8", "i8", "u32", "i16", "u64")
_COUNTS = (2, 3, 1, 5, 17)
_MOST = 30000
# Windows in these are long enough to be shared out, along one axis or several.
_WIDE = ((600,), (300, 7), (7, 300), (40, 60), (2, 40, 40), (3, 5, 130), (20, 130), (1500,),
         (17, 9, 16))  # fmt: skip


@dataclass(frozen=True)
class _Windows:
    """Index vectors, and the windows of an array that they address; see `graph/dims.py`. sizes: of
    a window; positions: of its axes in what is gathered or scattered. once: every vector is
    another, and the windows have no element in common."""

    indices: Drawn
    start_axes: tuple[int, ...]
    batch_axes: tuple[int, ...]
    sizes: tuple[int, ...]
    collapsed: tuple[int, ...]
    positions: tuple[int, ...]
    once: bool

    @property
    def pairs(self) -> tuple[int, ...]:
        """The axes of the indices that are walked together with `batch_axes`: the first ones."""
        return tuple(range(len(self.batch_axes)))

    @property
    def shape(self) -> tuple[int, ...]:
        """What is gathered or scattered."""
        dropped = {*self.collapsed, *self.batch_axes}
        window = iter([size for axis, size in enumerate(self.sizes) if axis not in dropped])
        others = iter(self.indices.shape[:-1])
        rank = len(self.positions) + self.indices.rank - 1
        return tuple(next(window if at in self.positions else others) for at in range(rank))


def gather(d: Draft) -> None:
    x = _array(d)
    at = _windows(d, x)
    mode = d.c.pick(("clip", "fill"))
    number = True if x.dtype is bool_ else 1.0 if x.dtype.is_float else 1
    d.add(
        "gather", [x, at.indices], exact=x.exact, bound=max(x.bound, 1), fraction=x.fraction,
        offset_axes=at.positions, collapsed_axes=at.collapsed, start_axes=at.start_axes,
        operand_batch_axes=at.batch_axes, index_batch_axes=at.pairs, mode=mode, sizes=at.sizes,
        fill_value=number if mode == "fill" else None,
    )  # fmt: skip


def scatter(d: Draft) -> None:
    x = _array(d)
    at = _windows(d, x)
    updates = d.like(x, at.shape)
    if d.c.chance(3) and x.dtype is not bool_:
        updates = scaled_of(d, updates)
    x, updates = d.calm(x, 50.0), d.calm(updates, 50.0)
    fns = ("set", "max", "min") if x.dtype is bool_ else ("set", "set", "add", "max", "min")
    if not x.dtype.is_float and x.dtype is not bool_:
        fns = (*fns, "mul")
    fn = d.c.pick(fns)
    count = math.prod(at.indices.shape[:-1])
    d.add(
        "scatter", [x, at.indices, updates], exact=x.exact and updates.exact,
        bound=x.bound + updates.bound * (count if fn == "add" else 1),
        fraction=max(x.fraction, updates.fraction), fn=fn, window_axes=at.positions,
        inserted_axes=at.collapsed, start_axes=at.start_axes, operand_batch_axes=at.batch_axes,
        index_batch_axes=at.pairs, mode="fill" if at.once else d.c.pick(("clip", "fill")),
        unique=at.once and not d.c.chance(3), sorted=at.once and not d.c.chance(3),
    )  # fmt: skip


def _array(d: Draft) -> Drawn:
    """A value, or one that is large enough for long windows."""
    if d.c.below(3):
        return d.argument(d.c.pick(_WIDE), d.dtype)
    return d.one(lambda v: 0 < v.rank < 5 and v.size > 0)


def _windows(d: Draft, x: Drawn) -> _Windows:
    c = d.c
    axes = c.order(x.rank)
    components = c.between(1, min(2, x.rank))
    start_axes, rest = axes[:components], axes[components:]
    batch_axes = tuple(rest[:1]) if rest and c.chance(4) else ()
    sizes = tuple(
        1 if axis in batch_axes else _size(d, x.shape[axis], moves=axis in start_axes)
        for axis in range(x.rank)
    )
    unit = [axis for axis in range(x.rank) if sizes[axis] == 1 and axis not in batch_axes]
    collapsed = tuple(axis for axis in unit if c.below(2))
    counts = (*(x.shape[axis] for axis in batch_axes), c.pick(_COUNTS))
    if c.chance(5):
        counts = (*counts, 2)
    if math.prod(sizes) * math.prod(counts) > _MOST:
        raise NothingFits
    once = components == 1 and len(counts) == 1 and c.chance(3)
    shape = (*counts, components)
    if once:
        indices = _apart(d, shape, x.shape[start_axes[0]], sizes[start_axes[0]])
    else:
        indices = d.index(shape, dtype_named(c.pick(_DTYPES)))
    kept = x.rank - len(collapsed) - len(batch_axes)
    if kept + len(counts) > 5:
        raise NothingFits
    positions = tuple(sorted(c.order(kept + len(counts))[:kept]))
    return _Windows(indices, start_axes, batch_axes, sizes, collapsed, positions, once)


def _size(d: Draft, extent: int, *, moves: bool) -> int:
    """Of a window along an axis; long where it moves but a little."""
    how = d.c.below(4)
    if how == 0 and moves:
        return max(1, extent - d.c.between(0, 12))
    if how == 1:
        return 1
    return extent if how < 3 and not moves else d.c.between(1, extent)


def _apart(d: Draft, shape: tuple[int, ...], extent: int, size: int) -> Drawn:
    """Places in ascending order at which windows do not overlap; some lie outside, where clipping
    would break that."""
    line = d.add("iota", (), exact=True, bound=20.0, shape=shape, axis=0, dtype=i32)
    step = d.splat(float(size + d.c.below(3)), i32, shape)
    first = d.splat(float(d.c.between(0, max(extent - size, 0))), i32, shape)
    return d.map("add", d.map("mul", line, step), first)
