"""Rows abreast: what tells where short rows are read is computed by vectors, for some rows at once.

Input: where the loops stand, at the first of so many neighbouring rows. Output: of a number that
each row has, the lanes of a vector. Invariant: a lane is what the row would have computed alone.

Note [Rows abreast]: where a gather reads rows that one or two vectors hold, most of a row's work is
its index: a negative one counts from the end, and it is kept inside the array. That takes ten
operations a row, and an eighth of them where eight indices lie in a vector; to pick a lane takes
two. Nanoseconds a row of a Cascade Lake, from a table in the first cache, rows of 2, 3 and 4
floats: 1.2, 1.9 and 1.4 one by one; 0.5, 0.7 and 0.6 abreast; 1.5 by vectors of pairs that the
processor gathers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stagejit.codegen.costs import operations
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.graph.ir import Op, Value
from stagejit.index.affine import Affine, Var

MOST_ABREAST = 8  # rows; the code of each is there
CLAMPED, PICKED = 4.0, 2.0  # operations that keep an index inside, and that pick a lane of a vector


@dataclass(frozen=True)
class Abreast:
    """values: whose elements are lanes. steps: the number of the row, by the id of the register at
    which the loop stands there."""

    var: Var
    first: Register
    values: frozenset[Value]
    steps: Mapping[int, int]

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
