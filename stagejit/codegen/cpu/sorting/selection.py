"""The first few elements of rows, in order, by insertion into a short sorted list.

Input: rows with one key of which few elements are kept, a target. Output: code that selects from
the row at which the loops stand. Invariant: of equal keys the earlier element is kept, and comes
first: an element enters the list before those that are larger only.

Note [The bound]: an element enters the list if its key is at most a bound. Before the first one
does, the row is dealt into groups, more of them than elements are kept, and the least key of each
is found. As many elements as groups are at most the greatest of the first ones of these: that is
the bound, and little else of the row is below it. When the list is full, its last key lowers it.

Note [The list]: keys ascend in the worker's scratch, behind a vector of zeros, which no key is less
than; places lie beside them. To insert, each vector of the list is merged with itself one element
further, the last vector first, so that nothing is overwritten before it has moved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stagejit.codegen.cpu.sorting.ways import Way
from stagejit.codegen.ir.nodes import I32
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.spans import Span
from stagejit.codegen.nest.tree import (
    Cell,
    Chunk,
    Do,
    Loop,
    Node,
    Parallel,
    serial,
    vectors,
)
from stagejit.codegen.sorting.keys import Keys
from stagejit.codegen.sorting.networks import sort_along
from stagejit.codegen.sorting.rows import Rows
from stagejit.codegen.target import Target
from stagejit.index.affine import Var

_LOOK, _ENTER, _VECTOR = 16, 80, 10  # operations of a vector looked at, of an element, of a merge
_GROUPS = 4  # vectors of groups


class Selection(Way):
    """Selects from rows one by one."""

    name = "a list of the first ones"

    def __init__(self, rows: Rows, target: Target) -> None:
        super().__init__(rows)
        self.state = Cell("state")  # the bound, and how many elements the list has
        self.key: Keys = rows.keys[0]
        widest = max(4, *(x.type.dtype.itemsize for x in rows.op.operands))
        self.lanes: int = target.vector_nbytes // widest
        self.vectors = math.ceil(self.count / self.lanes)
        groups = _GROUPS * self.lanes
        self.deals = self.count <= groups // 2 and self.extent >= 4 * groups
        # In a row in random order ever fewer elements enter the list, or hardly any but the first.
        entering = self.count * (1 + math.log(self.extent / max(self.count, 1)))
        if self.deals:
            entering = self.count * (1 + self.count / groups)
        if len(rows.keys) == 1:
            looked_at = self.extent / self.lanes * _LOOK
            self.operations = entering * (_ENTER + _VECTOR * self.vectors) + looked_at

    def items(self, cores: int) -> Parallel:
        size = (1 + self.vectors) * self.lanes
        self.words = self.b.scratch("best", self.key.type, size)
        self.places = self.b.scratch("places", I32, size)
        self.seen = self.b.scratch("seen", self.key.type, self.lanes)
        return self.row_by_row(self._row(), cores)

    def _row(self) -> Node:
        """The row at which the loops stand: where the bound is known, all of it may enter the list;
        else its first elements fill the list."""
        rows, along, first = self.rows, self.rows.shape.along, 0 if self.deals else self.count
        filled = self._bound() if self.deals else self._fill()
        look = self.set("look", self.state, lambda: self._look(*rows.here(along)))
        rest = self._part("the rest", first, self.extent, vectors(along, self.lanes, look))
        return (Do("an empty list", self._clear), filled, rest, Do("write results", self._finish))

    def _part(self, what: str, first: int, stop: int, body: Node) -> Node:
        """`body`, in which loops over the row cover a part of it."""

        def part() -> dict[Var, Span]:
            return {self.rows.shape.along: Span(self.b.const(first), stop - first)}

        return self.rows.emitter.within(what, part, body)

    def _clear(self) -> None:
        b, lanes = self.b, self.lanes
        b.store(b.const(0, self.key.type.with_lanes(lanes)), self.words, 0)
        b.store(b.const(0, I32.with_lanes(lanes)), self.places, 0)

    def _fill(self) -> Node:
        """The first elements, in order."""
        along = self.rows.shape.along

        def insert() -> None:
            at = self.rows.elements.position.env[along]
            self._insert(self._key(at), at, at)

        full = self.set("full", self.state, lambda: [self._last_key(), self.b.const(self.count)])
        first = serial([along], Do("insert", insert))
        return (self._part("the first ones", 0, self.count, first), full)

    def _key(self, at: Register, lanes: int = 0, used: int = 0) -> Register:
        """The keys from a place of the row on; behind its end the last ones there are."""
        made = self.key.of(self.b, self.rows.read(0, at, lanes, used))
        return self.b.select(self.b.active(used, lanes), made, -1) if used else made

    def _bound(self) -> Node:
        """See Note [The bound]."""
        b, lanes, along = self.b, self.lanes, self.rows.shape.along
        type, least = self.key.type.with_lanes(lanes), Cell("least")

        def deal() -> Sequence[Register]:
            at = self.rows.elements.position.env[along]
            return [
                b.binary("umin", known, self._key(at + group * lanes, lanes))
                for group, known in enumerate(self.cell(least))
            ]

        def bound() -> Sequence[Register]:
            vector, lane = divmod(self.count - 1, lanes)
            return [b.extract(sort_along(b, self.cell(least))[vector], lane), b.const(0)]

        dealt = Loop(along, (Chunk(_GROUPS * lanes, self.set("deal", least, deal)),))
        start = self.set("start", least, lambda: [b.const(-1, type)] * _GROUPS)
        return (start, dealt, self.set("bound", self.state, bound))

    def _last_key(self) -> Register:
        """The bound when the list is full: less than its last key, if there is less."""
        last = self.b.load(self.words, self.lanes + self.count - 1)
        return self.b.binary("umax", last, 1) - 1

    def _look(self, at: Register, used: int) -> tuple[Register, ...]:
        """Inserts what is at most the bound of a vector of elements; returns the new bound, and how
        many elements the list has."""
        b, lanes, (bound, length) = self.b, self.lanes, self.cell(self.state)
        made = self._key(at, lanes, used)
        low = b.compare("le", made, bound, signed=False)

        def enter() -> tuple[Register, ...]:
            b.store(made, self.seen, 0)

            def one(lane: Register, bound: Register, length: Register) -> tuple[Register, ...]:
                key = b.load(self.seen, lane)

                def insert() -> tuple[Register, ...]:
                    self._insert(key, at + lane, length)
                    longer = b.binary("smin", length + 1, self.count)
                    lower = b.binary("umin", bound, self._last_key())
                    is_full = b.compare("eq", longer, self.count)
                    return (b.select(is_full, lower, bound), longer)

                is_low = b.compare("le", key, bound, signed=False)
                return b.if_(is_low, insert, lambda: (bound, length))

            return b.loop(0, used or lanes, 1, (bound, length), one)

        return b.if_(b.reduce("or", low), enter, lambda: (bound, length))

    def _insert(self, key: Register, place: Register, length: Register) -> None:
        """One element into the list, which has `length` elements."""
        b, lanes = self.b, self.lanes
        place = b.cast("trunc", place, "i32")

        def stays(at: Register) -> Register:
            """Lanes of the list that come before the new element."""
            found = b.compare("le", b.load(self.words, at, lanes), key, signed=False)
            return found & b.mask_below(at - lanes, length, lanes)

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
            places = b.load(self.places, lanes + at, lanes, mask=rows.mask(used, lanes))
            made = [rows.result(result, places, used) for result in rows.results]
            rows.write_all(made, b.const(at), used)
