"""`Box`: an N-d strided subrange of a buffer, and the arithmetic of such boxes.

Input: offsets, sizes and strides in elements of a shape. Output: exact overlap, union and
difference. Invariant: sizes are positive or the box is empty; strides are positive, 1 where the
size is 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """Elements `offsets[d] + strides[d] * i`, `0 <= i < sizes[d]`, of each dimension d."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        strides = tuple(1 if n <= 1 else s for s, n in zip(self.strides, self.sizes, strict=True))
        object.__setattr__(self, "strides", strides)

    @staticmethod
    def whole(shape: Sequence[int]) -> Box:
        return Box((0,) * len(shape), tuple(shape), (1,) * len(shape))

    @staticmethod
    def of(dims: Sequence[tuple[int, int, int]]) -> Box:
        """From (offset, size, stride) of each dimension."""
        return Box(tuple(d[0] for d in dims), tuple(d[1] for d in dims), tuple(d[2] for d in dims))

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @property
    def last(self) -> tuple[int, ...]:
        """The largest index along each dimension."""
        return tuple(o + (n - 1) * s for o, n, s in self.dims())

    def dims(self) -> Iterable[tuple[int, int, int]]:
        """(offset, size, stride) of each dimension."""
        return zip(self.offsets, self.sizes, self.strides, strict=True)

    def overlaps(self, other: Box) -> bool:
        """Exact: whether some element is in both."""
        if not self.count or not other.count:
            return False
        return all(
            _progressions_meet(*a, *b) for a, b in zip(self.dims(), other.dims(), strict=True)
        )

    def contains(self, other: Box) -> bool:
        """Exact: whether every element of `other` is in this box."""
        return not other.count or all(
            _progression_within(*b, *a) for a, b in zip(self.dims(), other.dims(), strict=True)
        )

    def intersection(self, other: Box) -> Box:
        """The elements in both; empty boxes have a zero size."""
        dims = [_common(*a, *b) for a, b in zip(self.dims(), other.dims(), strict=True)]
        return Box(tuple(d[0] for d in dims), tuple(d[1] for d in dims), tuple(d[2] for d in dims))

    def hull(self, other: Box) -> tuple[Box, bool]:
        """The smallest box around both, and whether it has no element besides theirs."""
        if self.contains(other):
            return self, True
        if other.contains(self):
            return other, True
        dims, exact, differing = [], True, 0
        for a, b in zip(self.dims(), other.dims(), strict=True):
            dims.append(_union(*a, *b))
            if a != b:
                differing += 1
                exact = _is_union(dims[-1], a, b)
        box = Box(tuple(d[0] for d in dims), tuple(d[1] for d in dims), tuple(d[2] for d in dims))
        return box, exact and differing == 1

    def hull_elements(self, shape: Sequence[int]) -> tuple[int, int]:
        """Half-open range of row-major element offsets in a buffer of `shape`."""
        if not self.count:
            return 0, 0
        start = stop = 0
        for (first, _, _), last, extent in zip(self.dims(), self.last, shape, strict=True):
            start, stop = start * extent + first, stop * extent + last
        return start, stop + 1

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
            for other in _progressions_beside(*dims[axis], *kept):
                pieces.append(Box.of((*dims[:axis], other, *dims[axis + 1 :])))
            dims[axis] = kept
        return pieces

    def __str__(self) -> str:
        parts = []
        for (first, _, stride), last in zip(self.dims(), self.last, strict=True):
            parts.append(f"{first}:{last + 1}" + (f":{stride}" if stride != 1 else ""))
        return f"[{', '.join(parts)}]"


def _position(offset: int, shape: Sequence[int]) -> list[int]:
    """The index of the row-major element `offset`."""
    index = []
    for extent in reversed(shape):
        offset, at = divmod(offset, extent)
        index.append(at)
    return index[::-1]


def _progressions_meet(a: int, n: int, s: int, b: int, m: int, t: int) -> bool:
    return _common(a, n, s, b, m, t)[1] > 0


def _common(a: int, n: int, s: int, b: int, m: int, t: int) -> tuple[int, int, int]:
    """Offset, size and stride of the elements common to two arithmetic progressions."""
    step = math.gcd(s, t)
    lo, hi = max(a, b), min(a + (n - 1) * s, b + (m - 1) * t)
    if (b - a) % step or hi < lo or n <= 0 or m <= 0:
        return max(a, b), 0, 1
    period = s // step * t
    # First element of the first progression that the second one hits too.
    i = (b - a) // step * pow(s // step, -1, t // step) % (t // step) if t != step else 0
    first = a + i * s
    first += -((first - lo) // period) * period
    return (first, (hi - first) // period + 1, period) if first <= hi else (lo, 0, 1)


def _progression_within(a: int, n: int, s: int, b: int, m: int, t: int) -> bool:
    """Whether `a + s*i` (n items) lies within `b + t*j` (m items)."""
    if (a - b) % t or (n > 1 and s % t):
        return False
    return b <= a and a + (n - 1) * s <= b + (m - 1) * t


def _progressions_beside(
    a: int,
    n: int,
    s: int,
    b: int,
    m: int,
    t: int,
) -> list[tuple[int, int, int]]:
    """`a + s*i` (n items) without `b + t*j` (m items, all of them among the former): those before,
    those after, and those between, a phase at a time."""
    before, last = (b - a) // s, b + (m - 1) * t
    after = n - 1 - (last - a) // s
    phases = [(b + phase, m - 1, t) for phase in range(s, t, s)] if m > 1 else []
    found = [(a, before, s), (last + s, after, s), *phases]
    return [dim for dim in found if dim[1] > 0]


def _union(a: int, n: int, s: int, b: int, m: int, t: int) -> tuple[int, int, int]:
    first, last = min(a, b), max(a + (n - 1) * s, b + (m - 1) * t)
    step = math.gcd(abs(a - b), s if n > 1 else 0, t if m > 1 else 0) or 1
    return first, (last - first) // step + 1, step


def _is_union(
    union: tuple[int, int, int], a: tuple[int, int, int], b: tuple[int, int, int]
) -> bool:
    common = _common(*a, *b)[1]
    return union[1] == a[1] + b[1] - common
