"""Maps that read along one variable and write along another one: squares of elements in shared
memory.

Input: loops, of which no variable is the fastest in all memory. Output: the tree of a kernel whose
blocks take squares: what lies the other way is loaded by rows of its own into shared memory, and
read from there by columns. Invariant: as in `maps.py`.

A row of a square has one element more than it needs, so that the 32 elements of a column lie in
different banks of shared memory (CUDA C++ Best Practices Guide, "Shared Memory in Matrix
Multiplication").
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce

from stagejit.base.records import record
from stagejit.codegen.choices import cheapest
from stagejit.codegen.cuda.coalescing import cost_along, sectors
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.stores import Stores
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.nodes import Buffer, storage_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.kernel import Choice
from stagejit.codegen.nest.tree import Do, Parallel
from stagejit.codegen.places.loops import Loops
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Var

SIDE = WARP
_PITCH = SIDE + 1
_THROUGH_SHARED = 0.1  # sectors' worth, of an element that goes through shared memory
_LEAST = 8  # elements along both variables


@record
class Squares:
    """along: the variable of the threads; across: that of what lies the other way. staged: those
    reads."""

    along: Var
    across: Var
    staged: tuple[tuple[Value, Affine], ...]

    def __str__(self) -> str:
        names = f"along {self.along.name} of {self.along.extent}, across {self.across.extent}"
        return f"{len(self.staged)} reads in squares through shared memory, threads {names}"


def best_squares(loops: Loops, order: Sequence[Var]) -> tuple[Squares | None, Choice]:
    """Squares, where they move fewer sectors than threads along the last variable of an order."""
    alternatives: list[Squares | None] = [None]
    for along in order:
        for across in order:
            if across is not along and min(along.extent, across.extent) >= _LEAST:
                alternatives.append(_squares(loops, along, across))
    ranked = cheapest(
        "squares", [each for each in alternatives if each is None or each.staged],
        partial(_cost, loops, order), lambda each: str(each) if each else "none",
        "sectors an element",
    )  # fmt: skip
    return ranked.best, ranked.choice


def _squares(loops: Loops, along: Var, across: Var) -> Squares:
    staged = {
        (value, form): None
        for value, form in loops.reads
        if form.loops_only and form.coeff(across) == 1 and form.coeff(along) > 1
    }
    return Squares(along, across, tuple(staged))


def _cost(loops: Loops, order: Sequence[Var], squares: Squares | None) -> float:
    if squares is None:
        return cost_along(order[-1], loops) if order else 0.0
    along, across = squares.along, squares.across
    stored = [store.value.type.dtype.itemsize for store in loops.region.stores]
    total = sum(map(sectors, loops.offsets, [along] * len(stored), stored))
    for value, form in loops.reads:
        staged = (value, form) in squares.staged
        cost = sectors(form, across if staged else along, value.type.dtype.itemsize)
        total += cost + _THROUGH_SHARED * staged
    unused = 1.0
    for var in (along, across):
        unused *= -(-var.extent // SIDE) * SIDE / var.extent
    return total * unused


def squares_tree(
    loops: Loops, squares: Squares, order: Sequence[Var], stores: Stores, emitter: ThreadEmitter
) -> Parallel:
    """A block for each square."""
    outer = [(var, 1) for var in order if var not in (squares.along, squares.across)]
    policy = _Policy(loops, squares, stores, emitter)
    body = (Do("load squares", policy.load), Do("store", policy.store))
    each = (*outer, (squares.across, SIDE), (squares.along, SIDE))
    return Parallel(each, body)


class _Policy:
    """What the threads of a block do with its squares."""

    def __init__(
        self, loops: Loops, squares: Squares, stores: Stores, emitter: ThreadEmitter
    ) -> None:
        self.loops, self.squares, self.stores, self.emitter = loops, squares, stores, emitter
        self.b, self.elements = emitter.b, emitter.elements
        self.rows = emitter.threads // WARP  # of a square that the block has at once
        self.shared: dict[tuple[Value, Affine], Buffer] = {
            (value, form): self.b.shared("square", storage_type(value.type.dtype), SIDE * _PITCH)
            for value, form in squares.staged
        }

    def load(self) -> None:
        """Each warp loads rows, along which memory runs."""
        along, across = self.squares.along, self.squares.across
        for row in self._rows():
            self._at({along: row, across: self.b.lane()}, partial(self._load_row, row))
        self.b.barrier()

    def _load_row(self, row: Register) -> None:
        for (value, form), buffer in self.shared.items():
            raw = self.elements.raw(value, form)
            self.b.store(raw, buffer, row * _PITCH + self.b.lane())

    def store(self) -> None:
        """Each warp stores rows that lie across those, and nobody loads the next square before."""
        along, across = self.squares.along, self.squares.across
        for row in self._rows():
            at = self.b.lane() * _PITCH + row
            self._at({across: row, along: self.b.lane()}, partial(self._store_row, at))
        self.b.barrier()

    def _store_row(self, at: Register) -> None:
        with self.elements.staging({key: (buffer, at) for key, buffer in self.shared.items()}):
            self.stores.write(enumerate(self.loops.places))

    def _rows(self) -> Sequence[Register]:
        return [self.b.warp() + first for first in range(0, SIDE, self.rows)]

    def _at(self, offsets: Mapping[Var, Register], then: Callable[[], None]) -> None:
        """`then` where the square has an element so far from its first one."""
        places, inside = {}, []
        for var, offset in offsets.items():
            span = self.emitter.span(var)
            places[var] = span.start + offset
            if span.count != SIDE:
                inside.append(self.b.compare("lt", places[var], span.stop))

        def there() -> None:
            with self.elements.at(places):
                then()

        if inside:
            self.b.if_(reduce(operator.and_, inside), there)
        else:
            there()
