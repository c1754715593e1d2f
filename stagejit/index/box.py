"""`Box`: an N-d strided subrange of a buffer, and the arithmetic of such boxes.

Input: offsets, sizes and strides in elements of a shape. Output: overlap, union and difference,
exact where offsets are numbers. Invariant: sizes are positive or the box is empty; strides are
positive, 1 where the size is 1.

Note [Symbolic offsets]: an offset may be an `Expr` over scalars that the host knows when a call
starts, and offsets and sizes may have symbolic dimensions of arguments in them, of which nothing is
known but that they are at least 1. Where two offsets differ by a number, all is as exact as with
numbers. Otherwise `overlaps` says False and `contains` says True only where the bounds of the
symbols prove it; `intersection` and `hull` may have more elements than they need to, never fewer.

Note [What objects remember]: what is worked out once of an object that does not change stands
beside its fields, where the class has None. Not by way of `__dict__`: Python makes that dictionary
when it is first asked for, and reads all fields of such an object in four times the time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from operator import le
from typing import ClassVar, cast

from stagejit.base.records import record
from stagejit.base.symbolic import (
    Int,
    Symbol,
    at_most,
    bounds,
    extremes,
    substitute,
    symbols_in,
)
from stagejit.index import progressions
from stagejit.index.progressions import Dim

Point = tuple[int, ...]
_MOST_PHASES = 16  # of what is left between the elements of a strided box


@record
class Box:
    """Elements `offsets[d] + strides[d] * i`, `0 <= i < sizes[d]`, of each dimension d."""

    offsets: tuple[Int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    _count: ClassVar[int | None] = None
    _solid: ClassVar[bool | None] = None
    _ends: ClassVar[tuple[Point, Point] | None] = None

    def __post_init__(self) -> None:
        if self.strides.count(1) == len(self.strides):
            return
        strides = tuple(
            1 if at_most(n, 1) else s for s, n in zip(self.strides, self.sizes, strict=True)
        )
        object.__setattr__(self, "strides", strides)

    @staticmethod
    def whole(shape: Sequence[int]) -> Box:
        """All elements; one box for all that have the shape, so that it is measured once."""
        return _whole(tuple(shape))

    @staticmethod
    def of(dims: Sequence[Dim]) -> Box:
        """From (offset, size, stride) of each dimension."""
        return Box(tuple(d[0] for d in dims), tuple(d[1] for d in dims), tuple(d[2] for d in dims))

    @property
    def count(self) -> int:
        """Number of elements."""
        known = self._count
        if known is None:
            known = math.prod(self.sizes)
            object.__setattr__(self, "_count", known)
        return known

    @property
    def last(self) -> tuple[Int, ...]:
        """The largest index along each dimension."""
        return tuple(o + (n - 1) * s for o, n, s in self.dims())

    @property
    def is_solid(self) -> bool:
        """Whether it has every element between its ends, which are numbers."""
        known = self._solid
        if known is None:
            known = self.strides.count(1) == len(self.strides) and _are_numbers(
                (*self.offsets, *self.sizes)
            )
            object.__setattr__(self, "_solid", known)
        return known

    @property
    def ends(self) -> tuple[Point, Point]:
        """The smallest and the largest index along each dimension, whatever symbols are."""
        known = self._ends
        if known is None:
            if self.is_solid:
                low = cast(Point, self.offsets)
                known = low, tuple([o + n - 1 for o, n in zip(low, self.sizes, strict=True)])
            else:
                low = tuple(bounds(offset)[0] for offset in self.offsets)
                known = low, tuple(bounds(last)[1] for last in self.last)
            object.__setattr__(self, "_ends", known)  # each box is compared with many
        return known

    @property
    def static_offsets(self) -> tuple[int, ...] | None:
        """The offsets, None where one of them is a number at run time only."""
        return cast(Point, self.offsets) if _are_numbers(self.offsets) else None

    def at(self, values: Mapping[Symbol, Int]) -> Box:
        """The box with `values` in place of symbols."""
        offsets = tuple(substitute(offset, values) for offset in self.offsets)
        sizes = tuple(cast(int, substitute(size, values)) for size in self.sizes)
        return Box(offsets, sizes, self.strides)

    def widened(self) -> Box:
        """A box of numbers around it, whatever symbols are."""
        dims: list[Dim] = []
        for (first, size, stride), last in zip(self.dims(), self.last, strict=True):
            low, high = bounds(first)[0], bounds(last)[1]
            known = isinstance(first, int) or not size
            dims.append((low, size, stride) if known else (low, high - low + 1, 1))
        return Box.of(dims)

    def symbols(self) -> Iterable[Symbol]:
        """The symbols in its offsets that stand for scalars."""
        if self.static_offsets is not None:
            return ()
        found = (symbol for offset in self.offsets for symbol in symbols_in(offset))
        return dict.fromkeys(symbol for symbol in found if not symbol.is_size)

    def dims(self) -> Iterable[Dim]:
        """(offset, size, stride) of each dimension."""
        return zip(self.offsets, self.sizes, self.strides, strict=True)

    def overlaps(self, other: Box) -> bool:
        """Whether some element is, or may be, in both."""
        if not self.count or not other.count:
            return False
        if self.is_solid and other.is_solid:
            return ends_meet(*self.ends, *other.ends)
        return self == other or not any(
            progressions.apart(*a, *b) for a, b in zip(self.dims(), other.dims(), strict=True)
        )

    def contains(self, other: Box) -> bool:
        """Whether every element of `other` is, for certain, in this box."""
        if not other.count:
            return True
        if self.is_solid and other.is_solid:
            (low, high), (other_low, other_high) = self.ends, other.ends
            return all(map(le, low, other_low)) and all(map(le, other_high, high))
        return self == other or all(
            progressions.within(*b, *a) for a, b in zip(self.dims(), other.dims(), strict=True)
        )

    def inside(self, outer: Box) -> Box:
        """Where it lies among the elements of a box that contains it."""
        pairs = zip(self.dims(), outer.dims(), strict=True)
        return Box.of([((a - b) // t, n, s // t or 1) for (a, n, s), (b, _, t) in pairs])

    def intersection(self, other: Box) -> Box:
        """The elements in both, or more of this box where only a run knows which these are; empty
        boxes have a zero size."""
        if self == other:
            return self
        if self.is_solid and other.is_solid:
            low = tuple(map(max, self.ends[0], other.ends[0]))
            high = map(min, self.ends[1], other.ends[1])
            sizes = tuple(max(b - a + 1, 0) for a, b in zip(low, high, strict=True))
            return Box(low, sizes, self.strides)
        return Box.of(
            [progressions.common(*a, *b) for a, b in zip(self.dims(), other.dims(), strict=True)]
        )

    def hull(self, other: Box) -> tuple[Box, bool]:
        """The smallest box around both, and whether it has no element besides theirs."""
        if self.contains(other):
            return self, True
        if other.contains(self):
            return other, True
        dims, exact, differing = [], True, 0
        for a, b in zip(self.dims(), other.dims(), strict=True):
            dims.append(a if a == b else progressions.union(*a, *b))
            if a != b:
                differing += 1
                exact = progressions.is_union(dims[-1], a, b)
        return Box.of(dims), exact and differing == 1

    def hull_elements(self, shape: Sequence[int]) -> tuple[int, int]:
        """Half-open range of row-major element offsets in a buffer of `shape`, whatever offsets
        are; in terms of symbolic sizes."""
        if not self.count:
            return 0, 0
        start: Int = 0
        stop: Int = 0
        for first, size, stride, extent in zip(
            self.offsets, self.sizes, self.strides, shape, strict=True
        ):
            start, stop = start * extent + first, stop * extent + first + (size - 1) * stride
        if type(start) is int and type(stop) is int:
            return start, stop + 1
        return cast(int, extremes(start)[0]), cast(int, extremes(stop)[1] + 1)

    def run(self, shape: Sequence[int]) -> int:
        """How many of its elements lie side by side in an array of this shape, everywhere."""
        run = 1
        for extent, size, stride in zip(
            reversed(shape), reversed(self.sizes), reversed(self.strides), strict=True
        ):
            run *= size if stride == 1 else 1
            if size != extent:
                break
        return run

    def reshaped(self, old: Sequence[int], new: Sequence[int]) -> tuple[Box, bool]:
        """The smallest box of the array's row-major reshape from `old` to `new` around the same
        elements, and whether it has no element besides."""
        start, stop = self.hull_elements(old)
        if start == stop:
            return Box((0,) * len(new), (0,) * len(new), (1,) * len(new)), True
        if [extent for extent in old if extent != 1] == [extent for extent in new if extent != 1]:
            kept = (dim for dim, extent in zip(self.dims(), old, strict=True) if extent != 1)
            return Box.of([(0, 1, 1) if extent == 1 else next(kept) for extent in new]), True
        made, same = [], True
        for low, high, extent in zip(
            _position(start, new), _position(stop - 1, new), new, strict=True
        ):
            made.append((low, high - low + 1, 1) if same else (0, extent, 1))
            same = same and low == high
        box = Box.of(made)
        return box, box.count == self.count

    def without(self, inner: Box) -> list[Box]:
        """Disjoint boxes that cover this box but `inner`, which lies within it."""
        pieces: list[Box] = []
        dims = list(self.dims())
        for axis, kept in enumerate(inner.dims()):
            for other in progressions.beside(*dims[axis], *kept):
                pieces.append(Box.of((*dims[:axis], other, *dims[axis + 1 :])))
            dims[axis] = kept
        return pieces

    def minus(self, other: Box) -> list[Box]:
        """Disjoint boxes of all elements of this box that are not, for certain, in `other`; this
        box itself where too many boxes would be left."""
        if other.contains(self):
            return []
        if not self.overlaps(other):
            return [self]
        if self.is_solid and other.is_solid:
            common = self.intersection(other)
        else:
            pairs = zip(self.dims(), other.dims(), strict=True)
            common = Box.of([progressions.certainly_common(*a, *b) for a, b in pairs])
            if not common.count:
                return [self]
        steps = zip(common.strides, self.strides, strict=True)
        return [self] if any(t > _MOST_PHASES * s for t, s in steps) else self.without(common)

    def __str__(self) -> str:
        parts: list[str] = []
        for (first, _, stride), last in zip(self.dims(), self.last, strict=True):
            parts.append(f"{first}:{last + 1}" + (f":{stride}" if stride != 1 else ""))
        return f"[{', '.join(parts)}]"


@functools.lru_cache(maxsize=4096)
def _whole(shape: tuple[int, ...]) -> Box:
    return Box((0,) * len(shape), shape, (1,) * len(shape))


_NUMBERS = {int}


def _are_numbers(sizes: Iterable[Int]) -> bool:
    """Whether none of them is symbolic. What is asked of each new box is asked of C."""
    return set(map(type, sizes)) <= _NUMBERS


def hull_of(boxes: Iterable[Box]) -> Box:
    """The smallest box around all of them, of which there is at least one."""
    first, *others = boxes
    for box in others:
        first, _ = first.hull(box)
    return first


def ends_meet(a_low: Point, a_high: Point, low: Point, high: Point) -> bool:
    """Whether two bounding boxes overlap; both ends included."""
    # A loop, which takes half the time of a generator: this is what is asked most.
    for a, b, c, d in zip(a_low, a_high, low, high, strict=True):  # noqa: SIM110
        if a > d or c > b:
            return False
    return True


def _position(offset: int, shape: Sequence[int]) -> list[int]:
    """The index of the row-major element `offset`."""
    index = []
    for extent in reversed(shape):
        offset, at = divmod(offset, extent)
        index.append(at)
    return index[::-1]
