"""`Layout`: where the elements of an array lie in its memory.

Input: a shape, an index or a box of it. Output: offsets in elements from the start of the memory.
Invariant: elements of different indices lie at different offsets, all of them below `room`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from stagejit.base.records import record
from stagejit.index.affine import Affine, Index, linearize
from stagejit.index.box import Box


@record
class Layout:
    """Tiles one after the other, in each of them its elements one after the other, both with the
    axes in one order. The default has no tiles: it is row-major.

    order: the axes from the slowest to the fastest; empty for those of the shape as they are.
    tiles: elements of a tile along each axis; empty for 1 along all of them. An axis whose extent
        is no multiple of that has its last tiles filled up.
    padding: elements of room behind the end of each axis, before it is cut; empty for none.
    ranks: of arrays that it was written for, as its parts had it, also those that are empty now.
    """

    order: tuple[int, ...] = ()
    tiles: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    ranks: frozenset[int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """A part that changes nothing is empty."""
        lengths = frozenset(map(len, (self.order, self.tiles, self.padding))) - {0}
        object.__setattr__(self, "ranks", lengths)
        if self.order == tuple(range(len(self.order))):
            object.__setattr__(self, "order", ())
        if set(self.tiles) == {1}:
            object.__setattr__(self, "tiles", ())
        if not any(self.padding):
            object.__setattr__(self, "padding", ())

    @property
    def is_row_major(self) -> bool:
        """Whether it is the layout of arguments and results, of which there is one."""
        return not (self.order or self.tiles or self.padding)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether it is a layout of arrays of this shape."""
        rank, numbers = len(shape), all(isinstance(extent, int) for extent in shape)
        lengths = {len(self.order), len(self.tiles), len(self.padding)}
        return self.is_row_major or (
            numbers
            and lengths <= {0, rank}
            and sorted(self.order) == list(range(len(self.order)))
            and all(tile >= 1 for tile in self.tiles)
            and all(more >= 0 for more in self.padding)
        )

    @property
    def has_slices(self) -> bool:
        """Whether slices of axis 0 lie together, one after the other."""
        return not (
            (self.order and self.order[0])
            or (self.tiles and self.tiles[0] > 1)
            or (self.padding and self.padding[0])
        )

    @property
    def of_slice(self) -> Layout:
        """How a slice of axis 0 lies, where the layout `has_slices`."""
        order = tuple(axis - 1 for axis in self.order[1:])
        return Layout(order, self.tiles[1:], self.padding[1:])

    def keeps_order(self, shape: Sequence[int]) -> bool:
        """Whether the memory of an array of this shape is that of a row-major one."""
        if self.room(shape) != math.prod(shape):
            return False
        axes, extents = self._axes(len(shape)), self._extents(shape)
        places = [(axis, 0) for axis, _ in axes] + [(axis, 1) for axis, tile in axes if tile > 1]
        moving = [place for place, extent in zip(places, extents, strict=True) if extent > 1]
        return moving == sorted(moving)

    def room(self, shape: Sequence[int]) -> int:
        """Elements that the memory of an array of this shape has room for."""
        if self.is_row_major:
            return math.prod(shape)
        return math.prod(self._extents(shape)) if math.prod(shape) else 0

    def offset(self, index: Index, shape: Sequence[int], *, strict: bool = False) -> Affine:
        """Where the element at `index` lies. strict: as in `Affine.divmod`."""
        if self.is_row_major:
            return linearize(index, shape)
        tiles, inside = [], []
        for axis, tile in self._axes(len(shape)):
            if tile == 1:
                tiles.append(index[axis])
            else:
                number, element = index[axis].divmod(tile, strict=strict)
                tiles.append(number)
                inside.append(element)
        return linearize((*tiles, *inside), self._extents(shape))

    def hull(self, box: Box, shape: Sequence[int]) -> tuple[int, int]:
        """Half-open range around the offsets of the elements of a box, whatever symbols are."""
        if self.is_row_major:
            return box.hull_elements(shape)
        if not box.count:
            return 0, 0
        low, high = box.ends
        ends: list[tuple[int, int]] = []
        inside: list[tuple[int, int]] = []
        for axis, tile in self._axes(len(shape)):
            first, last = max(low[axis], 0), min(high[axis], shape[axis] - 1)
            ends.append((first // tile, last // tile))
            if tile > 1:
                together = first // tile == last // tile
                inside.append((first % tile, last % tile) if together else (0, tile - 1))
        dims = zip(*ends, *inside, strict=True) if ends else ((), ())
        extents = self._extents(shape)
        start, stop = (linearize([Affine((), n) for n in dim], extents).const for dim in dims)
        return start, stop + 1

    def laid_out(
        self, array: np.ndarray[Any, Any], memory: np.ndarray[Any, Any] | None = None
    ) -> np.ndarray[Any, Any]:
        """The memory of an array that lies so: `room` elements, zeros where none of it is. memory:
        what becomes that, where there is some; new memory else, or the array's own."""
        placed = self._placed(array)
        if memory is None:
            return np.ascontiguousarray(placed).reshape(-1)
        memory.reshape(placed.shape)[...] = placed
        return memory

    def _placed(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Axes of tiles and in tiles, in their order in memory."""
        if self.is_row_major or not array.size:
            return array
        axes, extents = self._axes(array.ndim), self._extents(array.shape)
        numbers = dict(zip((axis for axis, _ in axes), extents, strict=False))
        tiles = dict(axes)
        room = [numbers[axis] * tiles[axis] for axis in range(array.ndim)]
        more = [(0, n - m) for n, m in zip(room, array.shape, strict=True)]
        padded = np.pad(array, more) if room != list(array.shape) else array
        cut = [n for axis in range(array.ndim) for n in (numbers[axis], tiles[axis])]
        order = [2 * axis for axis, _ in axes] + [2 * axis + 1 for axis, _ in axes]
        return padded.reshape(cut).transpose(order)

    def restored(self, memory: np.ndarray[Any, Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
        """The array that lies so in memory: the inverse of `laid_out`."""
        where = self.laid_out(np.arange(1, 1 + math.prod(shape)).reshape(shape))
        array = np.empty(math.prod(shape), memory.dtype)
        array[where[where > 0] - 1] = memory.reshape(-1)[where > 0]
        return array.reshape(shape)

    def _axes(self, rank: int) -> list[tuple[int, int]]:
        """The axes in order, with their tiles."""
        order, tiles = self.order or range(rank), self.tiles or (1,) * rank
        return [(axis, tiles[axis]) for axis in order]

    def _extents(self, shape: Sequence[int]) -> list[int]:
        """Of the tiles, then of the elements in one, where it has more than one along an axis."""
        padding = self.padding or (0,) * len(shape)
        axes = self._axes(len(shape))
        tiles = [-(-(shape[axis] + padding[axis]) // tile) for axis, tile in axes]
        return [*tiles, *(tile for _, tile in axes if tile > 1)]

    def __str__(self) -> str:
        """`{1,0}`, with tiles `{1,0;4,1}`, with padding `{1,0;4,1;0,8}`; empty if row-major."""
        parts = (self.order, self.tiles, self.padding)
        text = ";".join(",".join(map(str, part)) for part in parts).rstrip(";")
        return f"{{{text}}}" if text else ""

    @staticmethod
    def of_text(text: str) -> Layout:
        """The inverse of `str`. Raises ValueError for any other text."""
        parts = text.removeprefix("{").removesuffix("}").split(";") if text else []
        if len(parts) > 3:
            raise ValueError(f"{text} is no layout")
        made = Layout(*(tuple(map(int, part.split(","))) if part else () for part in parts))
        if str(made) != text:
            raise ValueError(f"{text} is no layout")
        return made


ROW_MAJOR = Layout()
