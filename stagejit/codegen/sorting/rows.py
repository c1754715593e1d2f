"""`Rows`: what the rows of a sort read and write, element by element.

Input: a region whose anchor is a `sort`. Output: the loops over rows, and elements of the operands
and the results at a place of a row. Invariant: an operand is evaluated from memory that no store of
the region writes, so it may be read again after a row is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from stagejit.base.records import record
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.elements.elements import Elements, Memory
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.places.footprint import Footprint
from stagejit.codegen.sorting.keys import Keys
from stagejit.dispatch.regions import Store
from stagejit.graph.ir import Op, Value
from stagejit.index.affine import Affine, Index, Var


@record
class Shape:
    """kept: loops over rows. along: the place in a row of an operand, into: in one of a result.
    index, place: of an element of an operand, of a result. reads, offsets: see `nest.kernels`."""

    kept: tuple[Var, ...]
    along: Var
    into: Var
    index: Index
    place: Index
    reads: tuple[tuple[Value, Affine], ...]
    offsets: tuple[Affine, ...]


def shape_of(region: ClosedRegion) -> Shape:
    """The loops of a sort's region, and the memory that it reaches."""
    op = region.anchor_op
    axis, shape = op.attrs["axis"], op.operands[0].shape
    along, into = Var(shape[axis], "q"), Var(op.attrs["count"], "q")
    loops = [Var(size, "r") for size in shape]
    index = [Affine() if var.extent == 1 else Affine.of(var) for var in loops]
    index[axis] = Affine.of(along)
    place = [*index[:axis], Affine.of(into), *index[axis + 1 :]]
    footprint = Footprint(region, set(op.results))
    for operand in op.operands:
        footprint.value(operand, tuple(index))
    footprint.require_elements()
    offsets = [footprint.write(store, tuple(place)) for store in region.stores]
    kept = tuple(var for at, var in enumerate(loops) if at != axis and var.extent != 1)
    reads = tuple(footprint.reads)
    return Shape(kept, along, into, tuple(index), tuple(place), reads, tuple(offsets))


class Rows:
    """The elements of the row at which the loops stand."""

    emitter: Emitter

    def __init__(self, region: ClosedRegion) -> None:
        self.op: Op = region.anchor_op
        self.region, self.shape = region, shape_of(region)
        self._stores: dict[Value, list[tuple[Store, Memory, Affine]]]
        self._stores = {result: [] for result in self.op.results}
        self.extent = self.shape.along.extent
        self.count: int = self.op.attrs["count"]
        number: int = self.op.attrs["keys"]
        self.keys = [
            Keys(x.type.dtype, self.op.attrs["descending"]) for x in self.op.operands[:number]
        ]
        self.results: Sequence[int] = self.op.attrs["results"]
        self.positions = len(self.op.operands)  # the number of the result that has them

    def bind(self, emitter: Emitter, memory: Sequence[Memory]) -> None:
        """To the memory that stores go to."""
        self.emitter = emitter
        for made in zip(self.region.stores, memory, self.shape.offsets, strict=True):
            self._stores[made[0].value].append(made)

    @property
    def elements(self) -> Elements:
        return self.emitter.elements

    @property
    def b(self) -> Builder:
        return self.emitter.b

    def here(self, var: Var) -> tuple[Register, int]:
        """Where vectors along a variable stand, and how many lanes are used (0: all)."""
        position, used = self.elements.position, self.elements.used_lanes()
        assert used is not None
        return position.env[var], 0 if used == position.lanes else used

    @property
    def is_of_keys_alone(self) -> bool:
        """Whether the key of an element tells all that the results need, but for `Keys.lost`."""
        return len(self.op.operands) == 1 and tuple(self.results) == (0,)

    @property
    def loses(self) -> bool:
        """Whether something may be lost in a key, see `Keys.lost`, that the results need."""
        return self.is_of_keys_alone and self.keys[0].dtype.is_float

    def read(self, operand: int, at: Register, lanes: int = 0, used: int = 0) -> Register:
        """The element of an operand at a place of the row; lanes: from there on, the first `used`
        of them (0: all)."""
        vector = self.shape.along if lanes else None
        mask = self.mask(used, lanes)
        with self.elements.at({self.shape.along: at}, vector=vector, lanes=lanes, mask=mask):
            found = self.elements.value(self.op.operands[operand], self.shape.index)
        return self.b.splat(found, lanes) if lanes else found

    def pick(self, operand: int, places: Register, used: int = 0) -> Register:
        """The elements of an operand at places of the row, one or a vector of them."""
        lanes = places.type.lanes
        with self.elements.at(lanes=lanes, mask=self.mask(used, lanes)):
            found = self.elements.dynamic(places, self.extent)
            axis = self.op.attrs["axis"]
            index = (*self.shape.index[:axis], found, *self.shape.index[axis + 1 :])
            element = self.elements.value(self.op.operands[operand], index)
        return self.b.splat(element, lanes) if lanes else element

    def result(self, number: int, places: Register, used: int = 0) -> Register:
        """The same of a result, one of which is the places."""
        return places if number == self.positions else self.pick(number, places, used)

    def mask(self, used: int, lanes: int) -> Register | None:
        """The first `used` lanes; 0: all."""
        return self.b.active(used, lanes) if used else None

    @contextmanager
    def one_by_one(self, env: Mapping[Var, Register]) -> Iterator[None]:
        """Inside, the loops stand at one of the rows that lie in the lanes."""
        before = self.elements.position
        self.elements.position = replace(before, vector=None, lanes=0, mask=None, stride=0)
        try:
            with self.elements.at(env):
                yield
        finally:
            self.elements.position = before

    def write(
        self, number: int, element: Register, at: Register, used: int = 0, *, across: bool = False
    ) -> None:
        """An element of a result, or a vector of them, wherever it is stored: along the row, or
        `across` rows, along the vector variable where the loops stand."""
        elements, lanes = self.elements, 0 if across else element.type.lanes
        mask = self.mask(used, lanes)
        vector = self.shape.into if lanes else None
        with elements.at({self.shape.into: at}, vector=vector, lanes=lanes, mask=mask):
            for store, memory, offset in self._stores[self.op.results[number]]:
                place = elements.with_starts(store, self.shape.place, offset)
                elements.store(element, store.value.type.dtype, memory, place)

    def write_all(self, elements: Iterable[Register], at: Register, used: int) -> None:
        """A vector of each result, along the row, which may have but one element."""
        for number, element in enumerate(elements):
            if self.count == 1:
                self.write(number, self.b.extract(element, 0), at)
            else:
                self.write(number, element, at, used)
