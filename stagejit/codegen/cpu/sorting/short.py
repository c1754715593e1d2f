"""Short rows in registers, by sorting networks: a row in each lane, or a row along the lanes.

Input: rows, a target. Output: code that sorts them. Invariant: rows that are sorted by their
elements alone, and have zeros or NaN that keys do not tell apart, are completed by `specials.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext

from stagejit.codegen.cpu.sorting.records import Records
from stagejit.codegen.cpu.sorting.specials import write_specials
from stagejit.codegen.cpu.sorting.ways import Way
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.strides import is_dealt
from stagejit.codegen.nest.items import in_items
from stagejit.codegen.nest.tree import Do, Parallel, vectors
from stagejit.codegen.places.accesses import vector_cost
from stagejit.codegen.sorting.networks import exchanges, sort_along, sort_lanes, step_operations
from stagejit.codegen.sorting.rows import Rows
from stagejit.codegen.target import Target
from stagejit.index.affine import Affine, Var

_KEY = 8  # operations to make a record and a result of it
_BLOCK = 4  # vectors of rows that an item has


class _Lost:
    """Whether something in a row, or in rows, was lost in its key; see `Keys.lost`."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.seen: Register | None = None

    def look(self, element: Register) -> None:
        if self.rows.loses:
            b, key = self.rows.b, self.rows.keys[0]
            lost = key.lost(b, element, key.of(b, element))
            self.seen = lost if self.seen is None else self.seen | lost

    @property
    def some(self) -> Register | None:
        if self.seen is None:
            return None
        return self.rows.b.compare("ne", self.rows.b.reduce("or", self.seen), 0)


class RowsInLanes(Way):
    """Sorts as many rows at once as a vector has lanes."""

    name = "a row in each lane"

    def __init__(self, rows: Rows, target: Target) -> None:
        super().__init__(rows)
        self.records = Records(rows, target)
        self.lanes = self.records.lanes
        reads = [form for _, form in rows.shape.reads]
        cost = {
            var: vector_cost(reads, rows.shape.offsets, var, self.lanes, self._stride(var))
            for var in reversed(rows.shape.kept)
        }
        self.vector: Var | None = min(cost, key=cost.__getitem__, default=None)
        fits = self.records.bits and rows.extent <= target.vector_registers
        if self.vector is None or not fits:
            return
        exchanging = len(exchanges(rows.extent)) * 2 * self.records.exchange
        groups = math.ceil(self.vector.extent / self.lanes) / self.vector.extent
        self.operations = groups * (exchanging + rows.extent * _KEY) + (
            rows.extent * cost[self.vector]
        )

    def _stride(self, var: Var) -> int:
        """How far apart lanes are, if all elements between them are wanted."""
        forms: Sequence[Affine] = [form for _, form in self.rows.shape.reads]
        stride = forms[0].coeff(var) if forms else 0
        return stride if stride == self.rows.extent and is_dealt(
            stride, self.lanes, shared=True) else 0  # fmt: skip

    def items(self, cores: int) -> Parallel:
        assert self.vector is not None
        size = self.lanes * min(_BLOCK, -(-self.vector.extent // self.lanes))
        others = [(var, 1) for var in self.rows.shape.kept if var is not self.vector]
        rows = vectors(self.vector, self.lanes, Do("sort rows in lanes", self._group))
        return in_items([*others, (self.vector, size)], rows, cores)

    def _group(self) -> None:
        """The rows of one vector."""
        rows, vector = self.rows, self.vector
        assert vector is not None
        stride, lost = self._stride(vector), _Lost(rows)
        with rows.elements.interleaving(stride) if stride else nullcontext():
            words = [self._record(at, lost) for at in range(rows.extent)]
            for at, word in enumerate(sort_lanes(self.b, words)[: rows.count]):
                for number, result in enumerate(rows.results):
                    made = self.records.result(result, word)
                    rows.write(number, made, self.b.const(at), across=True)
        if lost.some is not None:
            self.b.if_(lost.some, self._complete)

    def _record(self, at: int, lost: _Lost) -> Register:
        place = self.b.const(at)
        elements = [
            self.b.splat(self.rows.read(operand, place), self.lanes)
            for operand in range(len(self.rows.keys))
        ]
        lost.look(elements[0])
        return self.records.of(elements, at)

    def _complete(self) -> None:
        """The rows of this vector, one by one."""
        rows, b, vector = self.rows, self.b, self.vector
        assert vector is not None
        first = rows.elements.position.env[vector]
        stop = b.binary("smin", first + self.lanes, vector.extent)

        def one(row: Register) -> None:
            with rows.one_by_one({vector: row}):
                write_specials(rows)

        b.loop(first, stop, 1, (), one)


class RowInRegisters(Way):
    """Sorts a row that fits into registers."""

    name = "a row in registers"

    def __init__(self, rows: Rows, target: Target) -> None:
        super().__init__(rows)
        self.records = Records(rows, target)
        self.lanes = self.records.lanes
        self.vectors = 1 << (math.ceil(rows.extent / self.lanes) - 1).bit_length()
        if self.records.bits and self.vectors <= target.vector_registers:
            sorting = step_operations(self.vectors, self.lanes) * self.records.exchange
            self.operations = sorting + self.vectors * _KEY

    def items(self, cores: int) -> Parallel:
        return self.row_by_row(Do("sort a row", self._row), cores)

    def _row(self) -> None:
        rows, b, lanes = self.rows, self.b, self.lanes
        lost = _Lost(rows)
        words = [self._records(at, lost) for at in range(0, self.vectors * lanes, lanes)]
        words = sort_along(b, words)
        for at, word in zip(range(0, rows.count, lanes), words, strict=False):
            used = (rows.count - at) % lanes if rows.count - at < lanes else 0
            made = (self.records.result(result, word, used) for result in rows.results)
            rows.write_all(made, b.const(at), used)
        if lost.some is not None:
            b.if_(lost.some, lambda: write_specials(rows))

    def _records(self, at: int, lost: _Lost) -> Register:
        """A vector of the row; behind its end come records that are the last ones."""
        rows, b, lanes = self.rows, self.b, self.lanes
        type = self.records.type.with_lanes(lanes)
        if at >= rows.extent:
            return b.const(-1, type)
        used = max(rows.extent - at, 0) if rows.extent - at < lanes else 0
        place = b.const(at)
        elements = [rows.read(number, place, lanes, used) for number in range(len(rows.keys))]
        lost.look(elements[0])
        word = self.records.of(elements, b.lane_ids(lanes, self.records.type) + at)
        return self.records.last(word, used) if used else word
