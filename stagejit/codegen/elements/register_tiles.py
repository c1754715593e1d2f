"""Squares of registers, for reads that lie along another variable than the vectors.

Input: which loops a map has, and its reads. Output: the variable of a square's rows; the rows, one
after the other. Invariant: a row is what loading lane by lane would give.

Note [Rows of a square]: rows of little work are straight code, so that what is transposed stays in
registers. Where that would be much code they are a loop: what is transposed is put on the stack
before it, a small part of the time of long rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from stagejit.base.records import record
from stagejit.codegen.choices import Ranked, cheapest
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import element_code
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Block, Buffer, Type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.places.accesses import SHORTEST_SQUARE
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Var

_ROWS_APART = 256  # operations of a square's rows; fewer are straight code
_MOST_NBYTES = 8 << 10  # of a square's reads on the stack

Key = tuple[Value, Affine]


@record
class Tile:
    """A register tile: rows along `var` are evaluated one by one, `step` after `env[var]`.

    Loads contiguous along `var`, in either direction, fetch all `count` rows at once and transpose
    them; `blocks` keeps the transposed vectors. `lanes_used`: lanes of the vector variable that
    exist.

    before: of rows that a loop goes through, the block that this loop is in. There the vectors are
    loaded, and put in `stored`, where the row `step` finds them.
    """

    var: Var
    count: int
    lanes_used: int
    step: int | Register = 0
    before: Block | None = None
    blocks: dict[Key, list[Register]] = field(default_factory=dict)
    stored: dict[Key, Buffer] = field(default_factory=dict)

    def row(
        self, b: Builder, key: Key, type: Type, transposed: Callable[[], list[Register]]
    ) -> Register:
        """The row at `step`, of vectors of `type`. transposed: loads all rows of `key`."""
        if isinstance(self.step, int):
            if key not in self.blocks or not b.sees(self.blocks[key][0].block):
                self.blocks[key] = transposed()
            return self.blocks[key][self.step]
        assert self.before is not None
        nbytes = type.lanes * type.bits // 8
        if key not in self.stored:
            memory = b.stack("square", type.scalar, type.lanes * self.count)
            with b.inside(self.before):
                for number, row in enumerate(transposed()[: self.count]):
                    b.store(row, memory, number * type.lanes, alignment=min(nbytes, 64))
            self.stored[key] = memory
        at = self.step * type.lanes
        return b.load(self.stored[key], at, type.lanes, alignment=min(nbytes, 64))


def best_tile(
    variables: Sequence[Var], vector: Var, reads: Sequence[Affine]
) -> Ranked[Var | None] | None:
    """The variable along which most of the reads that `vector` would gather are contiguous; None
    where it would gather none."""
    strided = [form for form in reads if form.coeff(vector) not in (0, 1, -1)]
    long = [var for var in variables if var is not vector and var.extent >= SHORTEST_SQUARE]

    def gathered(var: Var | None) -> float:
        return sum(var is None or form.coeff(var) not in (1, -1) for form in strided)

    def in_words(var: Var | None) -> str:
        return f"squares along {var.name} of {var.extent}" if var else "no squares"

    ways = [None, *long]
    return cheapest("square", ways, gathered, in_words, "reads are gathered") if strided else None


def rows_are_a_loop(
    region: ClosedRegion, reads: Sequence[Key], offsets: Sequence[Affine], tile: Var, lanes: int
) -> bool:
    """See Note [Rows of a square]. What is transposed stands before the loop, so it must not depend
    on anything that a row reads."""
    transposed = [value for value, form in reads if form.coeff(tile) in (1, -1)]
    rows = min(lanes, tile.extent)
    nbytes = sum(rows * lanes * value.type.dtype.itemsize for value in transposed)
    forms = (*offsets, *(form for _, form in reads))
    return (
        lanes * element_code(region) >= _ROWS_APART
        and nbytes <= _MOST_NBYTES
        and all(var.kind != "dynamic" for form in forms for var in form.vars())
    )
