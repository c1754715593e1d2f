"""Rows abreast: what tells where short rows are read is computed by vectors, for some rows at once.

Input: where the loops stand, at the first of so many neighbouring rows. Output: of a number that
each row has, the lanes of a vector. Invariant: a lane is what the row would have computed alone.

Note [Rows abreast]: where a gather reads rows that one or two vectors hold, most of a row's work is
its index: a negative one counts from the end, and it is kept inside the array. That takes ten
operations a row, and an eighth of them where eight indices lie in a vector; to pick a lane takes
two. Nanoseconds a row of a Cascade Lake, from a table in the first cache, rows of 2, 3 and 4
floats: 1.2, 1.9 and 1.4 one by one; 0.5, 0.7 and 0.6 abreast; 1.5 by vectors of pairs that the
processor gathers.

So it is with updates of single elements: where they go, and what is computed of them, are lanes of
vectors. 60,000 updates by what a gather finds, divided: 310 us one by one, 194 abreast; by what
lies in memory 130 and 73.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field

from stagejit.base.records import record
from stagejit.codegen.choices import Ranked, cheapest
from stagejit.codegen.costs import operations
from stagejit.codegen.elements.positions import Positions
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.target import Target
from stagejit.graph.ir import Op, Value
from stagejit.index.affine import Affine, Index, Var

_MOST_ABREAST = 8  # rows; the code of each is there
FEWEST_ROWS = 128  # that are worth the code of some
CLAMPED, PICKED = 4.0, 2.0  # operations that keep an index inside, and that pick a lane of a vector


@record
class Abreast:
    """values: whose elements are lanes. steps: the number of the row, by the id of the register at
    which the loop stands there. made: vectors that are there for all rows."""

    var: Var
    first: Register
    values: frozenset[Value]
    steps: Mapping[int, int]
    made: dict[tuple[Value, Index], Register] = field(default_factory=dict)

    @staticmethod
    def of(var: Var, first: Register, rows: int, values: Iterable[Value]) -> Abreast:
        """So many rows along `var`, from where it stands."""
        steps = {(first + row).id: row for row in range(rows)}
        return Abreast(var, first, frozenset(values), steps)

    def row_of(self, value: Value, index: Iterable[Affine], at: Register | None) -> int | None:
        """The row whose element it is where the loop stands at `at`; None of what is no lane: of a
        value that is not one of these, the same in all rows, or at a place that is found out."""
        index = tuple(index)
        if value not in self.values or at is None or not all(part.loops_only for part in index):
            return None
        return self.steps.get(at.id) if any(part.coeff(self.var) for part in index) else None


class Rows(Positions):
    """Where loops stand, perhaps with rows abreast."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self._abreast: Abreast | None = None

    @property
    def are_abreast(self) -> bool:
        return self._abreast is not None

    @contextmanager
    def abreast(self, var: Var, rows: int, values: Iterable[Value]) -> Iterator[None]:
        """Inside, `values` are evaluated for so many rows along `var` at once, from the one where
        it stands; see Note [Rows abreast]."""
        self._abreast = Abreast.of(var, self.position.env[var], rows, values)
        try:
            yield
        finally:
            self._abreast = None

    def make_abreast(self, value: Value, index: Index) -> None:
        """Evaluates an element of each row here, and not where the rows ask for it: each behind a
        branch, so that it would be evaluated again."""
        rows = self._abreast
        if rows and rows.row_of(value, index, rows.first) is not None:
            rows.made[value, index] = self._vector(rows, value, index)

    def lane(self, value: Value, index: Index) -> Register | None:
        """What the row where the loops stand has of a vector of all rows, if there is one."""
        if (rows := self._abreast) is None:
            return None
        row = rows.row_of(value, index, self.position.env.get(rows.var))
        if row is None or any(self.varies(part) for part in index):
            return None
        made = rows.made.get((value, index))
        if made is None:
            made = self._vector(rows, value, index)
        return self.b.extract(made, row) if made.type.lanes else made

    def _vector(self, rows: Abreast, value: Value, index: Index) -> Register:
        self._abreast = None  # evaluated as it is
        with self.first_of({rows.var: rows.first}, rows.var, len(rows.steps)):
            made = self.value(value, index)
        self._abreast = rows
        return made


def most_abreast(target: Target) -> int:
    """Rows whose indices lie in a vector."""
    return min(target.vector_nbytes // 4, _MOST_ABREAST)


def best_abreast(target: Target, shared: float, picks: int = 1) -> Ranked[int]:
    """How many rows are best found together, 1 for one by one. shared: operations that one row
    takes alone; picks: lanes that each picks then."""
    return cheapest(
        "abreast",
        (1, most_abreast(target)),
        lambda rows: shared if rows == 1 else shared / rows + PICKED * picks,
        lambda rows: f"{rows} rows at once" if rows > 1 else "one by one",
        "operations a row to find where it is read",
    )


def lane_of(register: Register) -> tuple[Register, int | None]:
    """The vector that a number was picked of, and its lane; of any other, itself."""
    if register.op is None or register.op.opcode != "extract":
        return register, None
    return register.op.operands[0], register.op.attrs["lane"]


def picked(b: Builder, register: Register, lane: int | None) -> Register:
    """The number of a lane as an i64."""
    return register if lane is None else b.cast("sext", b.extract(register, lane), "i64")


def index_operations(ops: Iterable[Op], values: Iterable[Value]) -> float:
    """Of the elementwise ops among `ops` that one element of each of the values is made of."""
    inside, waiting, seen = set(ops), list(values), dict[Op, None]()
    while waiting:
        op = waiting.pop().op
        if op in inside and op not in seen:
            seen[op] = None
            waiting += op.operands
    return sum(operations(op) for op in seen)
