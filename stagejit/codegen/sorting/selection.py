"""The first few elements of rows, in order, by insertion into a short sorted list.

Input: rows with one key of which few elements are kept, a target. Output: code that selects from
the row at which the loops stand. Invariant: of equal keys the earlier element is kept, and comes
first: an element enters the list before those that are larger only.

Note [The list]: keys ascend in the worker's scratch, behind a vector of zeros, which no key is less
than; places lie beside them. To insert, each vector of the list is merged with itself one element
further, the last vector first, so that nothing is overwritten before it has moved.
"""

from __future__ import annotations

import math

from stagejit.codegen.ir.nodes import I32
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.tree import Node
from stagejit.codegen.sorting.keys import Keys
from stagejit.codegen.sorting.rows import Rows, row_by_row
from stagejit.codegen.target import Target

_LOOK, _ENTER, _VECTOR = 6, 60, 8  # operations of a vector looked at, of an element, of a merge


class Selection:
    """Selects from rows one by one."""

    name = "a list of the first ones"

    def __init__(self, rows: Rows, target: Target) -> None:
        self.rows, self.b = rows, rows.b
        self.key: Keys = rows.keys[0]
        self.extent, self.count = rows.extent, rows.count
        widest = max(4, *(x.type.dtype.itemsize for x in rows.op.operands))
        self.lanes: int = target.vector_nbytes // widest
        self.vectors = math.ceil(self.count / self.lanes)
        # In a row in random order ever fewer elements enter the list.
        entering = self.count * (1 + math.log(self.extent / max(self.count, 1)))
        self.operations = math.inf
        if len(rows.keys) == 1:
            looked_at = self.extent / self.lanes * _LOOK
            self.operations = entering * (_ENTER + _VECTOR * self.vectors) + looked_at

    def prepare(self) -> None:
        """Declares the list."""
        size = (1 + self.vectors) * self.lanes
        self.words = self.b.scratch("best", self.key.type, size)
        self.places = self.b.scratch("places", I32, size)
        self.seen = self.b.scratch("seen", self.key.type, self.lanes)

    def items(self, cores: int) -> tuple[Node, int]:
        return row_by_row(self.rows, self._row, cores)

    def _row(self) -> None:
        """The row at which the loops stand."""
        b, lanes, key = self.b, self.lanes, self.key
        b.store(b.const(0, key.type.with_lanes(lanes)), self.words, 0)
        b.store(b.const(0, I32.with_lanes(lanes)), self.places, 0)

        def fill(at: Register) -> None:
            self._insert(key.of(b, self.rows.read(0, at)), at, at)

        b.loop(0, self.count, 1, (), fill)
        worst = b.load(self.words, lanes + self.count - 1)
        far = self.count + (self.extent - self.count) // lanes * lanes
        (worst,) = b.loop(
            self.count, far, lanes, (worst,), lambda at, worst: (self._look(at, 0, worst),)
        )
        if far < self.extent:
            self._look(b.const(far), self.extent - far, worst)
        self._finish()

    def _look(self, at: Register, used: int, worst: Register) -> Register:
        """Inserts what is less than the worst one of a vector of elements; returns the worst."""
        b, lanes = self.b, self.lanes
        made = self.key.of(b, self.rows.read(0, at, lanes, used))
        if used:
            made = b.select(b.active(used, lanes), made, -1)
        less = b.compare("lt", made, worst, signed=False)

        def enter() -> tuple[Register]:
            b.store(made, self.seen, 0)

            def one(lane: Register, worst: Register) -> tuple[Register]:
                key = b.load(self.seen, lane)

                def insert() -> tuple[Register]:
                    self._insert(key, at + lane, None)
                    return (b.load(self.words, lanes + self.count - 1),)

                better = b.compare("lt", key, worst, signed=False)
                return (b.if_(better, insert, lambda: (worst,))[0],)

            return (b.loop(0, used or lanes, 1, (worst,), one)[0],)

        return b.if_(b.reduce("or", less), enter, lambda: (worst,))[0]

    def _insert(self, key: Register, place: Register, length: Register | None) -> None:
        """One element into the list, which is full or has `length` elements."""
        b, lanes = self.b, self.lanes
        place = b.cast("trunc", place, "i32")

        def stays(at: Register) -> Register:
            """Lanes of the list that come before the new element."""
            found = b.compare("le", b.load(self.words, at, lanes), key, signed=False)
            return found if length is None else found & b.mask_below(at - lanes, length, lanes)

        def merge(number: Register) -> None:
            at = b.const(self.vectors) * lanes - number * lanes
            kept, before = stays(at), stays(at - 1)
            for list_, new in ((self.words, key), (self.places, place)):
                here, moved = b.load(list_, at, lanes), b.load(list_, at - 1, lanes)
                b.store(b.select(kept, here, b.select(before, new, moved)), list_, at)

        b.loop(0, self.vectors, 1, (), merge)

    def _finish(self) -> None:
        rows, b, lanes = self.rows, self.b, self.lanes
        for vector in range(self.vectors):
            at = vector * lanes
            used = min(self.count - at, lanes)
            used = 0 if used == lanes else used
            mask = b.active(used, lanes) if used else None
            places = b.load(self.places, lanes + at, lanes, mask=mask)
            made = [
                places if result == rows.positions else rows.pick(result, places, used)
                for result in rows.results
            ]
            for number, register in enumerate(made):
                if self.count == 1:
                    rows.write(number, b.extract(register, 0), b.const(at))
                else:
                    rows.write(number, register, b.const(at), used)
