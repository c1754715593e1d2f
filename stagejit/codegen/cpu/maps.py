"""Kernels of `map`, `copy` and `fill` regions: one loop nest over the stored shape.

Input: a region whose stores share a shape. Output: its kernel. The vector variable is the one
along which most reads and writes are contiguous; reads contiguous along another one are
transposed in registers, a square tile at a time. Invariant: each stored element is written once, by
one item.

Note [Small maps]: three numbers are two and one. What has a mask is not passed on to who reads it
next: that waits until it is in the cache, or LLVM leaves it in memory where a loop is one function.

Note [Fresh pages]: who touches a huge page first zeroes it, and two cores that do so at the same
time both zero it. Where results come on such pages, an item is some rows of squares along all
columns of what is stored, so that the next core is pages away; elsewhere it is some columns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from stagejit.base.machine import FRESH_FROM_NBYTES
from stagejit.codegen.choices import cheapest
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import element_code, region_seconds
from stagejit.codegen.cpu.interiors import InteriorStores
from stagejit.codegen.cpu.repeats import repeats_of, steps_of
from stagejit.codegen.elements.abreast import (
    CLAMPED,
    FEWEST_ROWS,
    best_abreast,
    index_operations,
    most_abreast,
)
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.elements.register_tiles import best_tile, rows_are_a_loop
from stagejit.codegen.elements.stores import Stores
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.items import block_of, cores_worth_having, in_items
from stagejit.codegen.nest.kernels import is_small, kernel_of
from stagejit.codegen.nest.tree import (
    At,
    Chunk,
    Do,
    Loop,
    Node,
    Parallel,
    Tail,
    Within,
    narrowing,
    pieces_of,
    vectors,
)
from stagejit.codegen.places.accesses import between_lanes
from stagejit.codegen.places.interior import interior_of
from stagejit.codegen.places.loops import Loops, loops_of_stores
from stagejit.codegen.places.whole_vectors import ways_in_whole_vectors
from stagejit.codegen.target import Target
from stagejit.index.affine import Affine, Var

_BLOCK = 1 << 14  # elements of one item along the vector variable
_SMALLEST_BLOCK = 1 << 12  # where cores would stay without work
_UNROLLED = 4  # vectors of a row that is short enough to be straight code
_STRAIGHT = 160  # operations of such a row; more of them overlap as well from one round to the next
_MOST_ABREAST_VECTORS = 2  # of a row; of longer ones less is the work of finding them
_LONG = 64  # operations beside which masking all vectors of a loop costs nothing
_SQUARES = 8  # next to each other along the vector variable, where steps of the other cross pages
_TILE_BLOCK = 1 << 10  # elements of one item along the tile variable
_SMALLEST_TILE_BLOCK = 1 << 7
_MOST_OPEN_LINES = 4  # that a core fills side by side before they leave; they have 4 to 12 buffers


def map_kernel(region: ClosedRegion, target: Target) -> Kernel:
    """The kernel of a region without reductions."""
    loops = _plan(region, target)
    apart = 0.0 if loops.written_out else loops.apart_seconds(_stride(loops))
    seconds = max(region_seconds(region, target), apart)
    cores = cores_worth_having(seconds, target.cores)

    def tree(loops: Loops, emitter: Emitter, memory: Sequence[Memory]) -> Parallel:
        return _Policy(loops, target, emitter, memory).tree(cores)

    return kernel_of(region, [loops], tree, seconds, loops.choices, target)


def _plan(region: ClosedRegion, target: Target) -> Loops:
    """Vectors along the variable where they cost least, perhaps with another one between their
    lanes; inner ones win ties."""
    loops = loops_of_stores(region, target)
    (variables,), lanes, forms = loops.groups, loops.lanes, (*loops.forms, *loops.offsets)
    inner_first = variables[::-1]
    gaps = {
        var: [between_lanes(variables, form, var, lanes) for form in forms] for var in variables
    }
    apart = [(var, each) for each in variables for var in inner_first if [each] in gaps[var]]
    neighbours = {var: _stores_between(loops, var) for var in inner_first}
    found = loops.in_vectors(inner_first, between=apart, neighbours=neighbours, across=variables)
    ways = ways_in_whole_vectors(found) if found.compared or _goes_on(found) else [found]
    if len(ways) > 1:
        ranked = cheapest(
            "whole vectors", ways, lambda way: way.cost, _in_words, "operations an element"
        )
        found = replace(ranked.best, choices=(*found.choices, ranked.choice))
    return found.in_streams(goes_on=_goes_on)


def _in_words(way: Loops) -> str:
    assert way.vector is not None
    if not way.written_out:
        return f"a loop over rows of {way.vector.extent}"
    return f"whole vectors of {way.vector.extent} elements, written out"


def _goes_on(loops: Loops) -> bool:
    """Whether one vector after the other is stored, of a few results: not rows of a square, nor
    several rows of what is evaluated once."""
    (variables,), vector = loops.groups, loops.vector
    if (
        vector is None
        or loops.between
        or loops.written_out
        or len(loops.region.stores) > _MOST_OPEN_LINES
    ):
        return False
    outer = [var for var in variables if var is not vector]
    ranked = best_tile(variables, vector, loops.forms)
    return (ranked is None or ranked.best is None) and not repeats_of(loops, outer, None)


def _stores_between(loops: Loops, vector: Var) -> int:
    """Stores into one buffer that together fill what lies between their lanes: how many, of most
    stores; 0 where none do."""
    found = dict[tuple[int, int, Affine], set[int]]()
    for buffer, offset in zip(loops.region.buffers, loops.offsets, strict=True):
        if (stride := offset.coeff(vector)) > 1:
            phase = offset.const % stride
            found.setdefault((buffer, stride, offset - phase), set()).add(phase)
    filled = Counter[int]()
    for (_, stride, _), phases in found.items():
        filled[stride] += stride if len(phases) == stride else 0
    return max(filled, key=filled.__getitem__, default=0) if any(filled.values()) else 0


def _stride(loops: Loops) -> int:
    """How many elements lie between lanes, unrolled, or how many stores."""
    if loops.between:
        return loops.between.extent
    return max(_stores_between(loops, loops.vector), 1) if loops.vector else 1


class _Policy:
    """The tree of one map: some loops one by one, `tile` (if any) in squares, one in vectors."""

    def __init__(
        self, loops: Loops, target: Target, emitter: Emitter, memory: Sequence[Memory]
    ) -> None:
        self.loops, self.target, self.emitter, self.lanes = loops, target, emitter, loops.lanes
        self.elements = emitter.elements
        stores = Stores(loops.region, self.elements, memory, loops.offsets, loops.streamed)
        self.stores = stores
        self.store = Do("store", lambda: stores.write(enumerate(loops.places)))
        (variables,), vector, between = loops.groups, loops.vector, loops.between
        squares = not (between or loops.written_out)
        ranked = best_tile(variables, vector, loops.forms) if vector and squares else None
        self.tile = ranked.best if ranked else None
        if ranked:
            emitter.chose(ranked.choice.name, ranked.choice.reason)
        ahead, tile = loops.ahead, self.tile
        self.elements.ahead = ahead.along(tile, self.lanes) if ahead and tile else ahead
        outer = [var for var in variables if var not in (vector, self.tile, between)]
        alone = self.tile is not None or vector is None or loops.written_out
        self.repeats = () if alone else repeats_of(loops, outer, between)
        self.outer = [var for var in outer if var not in self.repeats]
        self.stride = _stride(loops)
        self.code = element_code(loops.region)
        gathers = [op for op in loops.region.ops if op.definition.is_gather]
        self.places = [op.operands[1] for op in gathers]

    def tree(self, cores: int) -> Parallel:
        outer = [(var, 1) for var in self.outer]
        vector, tile = self.loops.vector, self.tile
        if vector is None:
            return in_items(outer, self.store, cores)
        if self.loops.written_out:
            return in_items(outer, self._whole_vectors(vector), cores)
        others = math.prod(var.extent for var in self.outer)
        if rows := self._rows_abreast(vector):
            return self._abreast(rows, vector, cores)
        if tile is None:
            block = block_of(vector.extent, others, _BLOCK, _SMALLEST_BLOCK, cores)
            return in_items([*outer, (vector, block)], self._row(vector, block), cores)
        whole = -(-vector.extent // self.lanes) * self.lanes
        abreast = min(whole, self._squares_abreast(tile, vector) * self.lanes)
        columns = others * -(-vector.extent // abreast)
        if self._is_fresh():
            along = block_of(tile.extent, others, _TILE_BLOCK, _SMALLEST_TILE_BLOCK, 2 * cores)
            inner = [(tile, along), (vector, abreast)]
        else:
            along = block_of(tile.extent, columns, _TILE_BLOCK, _SMALLEST_TILE_BLOCK, cores)
            inner = [(vector, abreast), (tile, along)]
        return in_items([*outer, *inner], self._tiles(vector, tile), cores)

    def _is_fresh(self) -> bool:
        """See Note [Fresh pages]."""
        return any(
            store.into.type.nbytes >= FRESH_FROM_NBYTES
            for store, offset in zip(self.loops.region.stores, self.loops.offsets, strict=True)
            if self.tile and offset.coeff(self.tile) > 1
        )

    # ---------------------------------------------------------------- vectors

    def _row(self, vector: Var, block: int) -> Node:
        """Vectors, and the elements between the lanes of each. A row of few of them is straight
        code."""
        between = self.loops.between
        inner = [*self.repeats, *([between] if between else [])]
        body: Node = self._steps(inner) if inner else self._one_vector()
        if inner and self.stride > 1:
            body = self.emitter.interleaved(self.stride, body)
        count, code = -(-vector.extent // self.lanes), self.code * (1 + bool(self.loops.cuts))
        straight = block == vector.extent and count <= _UNROLLED and count * code <= _STRAIGHT
        pieces = pieces_of(vector.extent, self.lanes, 2)
        if straight and not inner and pieces * self.code <= _STRAIGHT and self._is_small(vector):
            self.emitter.chose("row", f"{pieces} pieces, of which none is masked")
            return narrowing(vector, self.lanes, 2, body, straight=True)
        tail: Tail = "all masked" if self._masked(vector) else "masked"
        how = "straight code" if straight else "a loop"
        self.emitter.chose("row", f"{how}, {tail}: {count} vectors of {self.code:.3g} operations")
        return vectors(vector, self.lanes, body, tail=tail, straight=straight)

    def _is_small(self, vector: Var) -> bool:
        """See Note [Small maps]."""
        plain = self.stride == 1 and vector.extent % self.lanes != 0
        # An interior is one of vectors.
        return plain and is_small(self.loops.region) and interior_of(self.loops) is None

    def _one_vector(self) -> Do:
        """See Note [Interiors]."""
        otherwise = self.store if self.stride == 1 else Do("store interleaved", self._interleaved)
        interior = interior_of(self.loops)
        if interior is None:
            return otherwise
        stores = replace(self.stores, offsets=interior.loops.offsets)
        self.emitter.chose("interior", f"{interior.part:.0%} of the vectors ask for no part")
        return Do("store", InteriorStores(interior, stores, self.stride, otherwise.run).write)

    def _steps(self, variables: Sequence[Var]) -> Do:
        """All steps of loops without code of their own; see Note [Repeated elements]."""
        steps, places, stores = steps_of(variables), self.loops.places, self.stores
        if self.repeats:
            reason = f"{len(steps)} stores of what is evaluated once, or mostly"
            self.emitter.chose("repeat", reason)
        return Do(f"store {len(steps)} times", lambda: stores.write_steps(steps, enumerate(places)))

    def _masked(self, vector: Var) -> bool:
        """Whether the last vector, which is not full, is one of the loop as all others are, so that
        the body is there once."""
        loops = self.loops
        return (
            self.target.has_avx512
            and vector.extent > self.lanes
            and vector.extent % self.lanes != 0
            and self.stride == 1
            and all(form.coeff(vector) in (0, 1) for form in (*loops.forms, *loops.offsets))
            and self.code >= _LONG
            and not loops.streamed
        )

    def _whole_vectors(self, vector: Var) -> Node:
        """See Note [Whole vectors of rows]."""
        if self.target.masks_lanes:
            return vectors(vector, self.lanes, self.store, straight=True)
        return narrowing(vector, self.lanes, 2, self.store, straight=True)

    # ---------------------------------------------------------------- rows abreast

    def _rows_abreast(self, vector: Var) -> int:
        """How many rows along the innermost other loop find together where they are read; 0 where
        none is read at a place that each row finds for itself, or rows are long or few. See Note
        [Rows abreast]."""
        loops, region = self.loops, self.loops.region
        lanes = most_abreast(self.target)
        count = -(-vector.extent // self.lanes)
        if self.tile or self.stride > 1 or self.repeats or not self.outer:
            return 0
        if self.outer[-1].extent < FEWEST_ROWS:
            return 0
        shared = index_operations(region.ops, self.places)
        if count > _MOST_ABREAST_VECTORS or count * (self.code - shared) * lanes > _STRAIGHT:
            return 0
        found = {var for form in loops.forms for var in form.vars() if var.follows}
        if not any(self.outer[-1] in var.follows and vector not in var.follows for var in found):
            return 0
        ranked = best_abreast(self.target, CLAMPED + shared)
        self.emitter.chose(ranked.choice.name, ranked.choice.reason)
        return ranked.best if ranked.best > 1 else 0

    def _abreast(self, rows: int, vector: Var, cores: int) -> Parallel:
        """So many rows at once, then one by one; an item is about as many elements as elsewhere."""
        *outer, along = self.outer
        others = math.prod(var.extent for var in outer)
        each = vector.extent * rows
        most, least = (-(-size // each) * rows for size in (_BLOCK, _SMALLEST_BLOCK))
        block = block_of(along.extent, others, most, least, cores)
        row = self._row(vector, vector.extent)
        together = Within(
            f"{rows} rows abreast",
            lambda: self.elements.abreast(along, rows, self.places),
            tuple(At(((along, number),), row) for number in range(rows)),
        )
        body = Loop(along, (Chunk(rows, together), Chunk(1, row)))
        return in_items([*((var, 1) for var in outer), (along, block)], body, cores)

    # ---------------------------------------------------------------- squares

    def _tiles(self, vector: Var, tile: Var) -> Node:
        """Square tiles of `lanes` by `lanes`, some next to each other along the vector variable,
        then the next ones along the tile variable."""
        whole, rest = divmod(tile.extent, self.lanes)
        counts = ([self.lanes] if whole else []) + ([rest] if rest else [])
        return Loop(tile, tuple(self._squares(vector, tile, count) for count in counts))

    def _squares_abreast(self, tile: Var, vector: Var) -> int:
        """Squares next to each other before the next ones along the tile variable."""
        stored = [store.value for store in self.loops.region.stores]
        accesses = [*self.loops.reads, *zip(stored, self.loops.offsets, strict=True)]
        crosses = any(
            form.coeff(vector) == 1
            and form.coeff(tile) * value.type.dtype.itemsize >= self.target.page_nbytes
            for value, form in accesses
        )
        return _SQUARES if crosses else 1

    def _squares(self, vector: Var, tile: Var, count: int) -> Chunk:
        """Those next to each other, of `count` steps along the tile variable."""
        loops = self.loops
        looped = count > 1 and rows_are_a_loop(
            loops.region, loops.reads, loops.offsets, tile, self.lanes
        )
        store = self.store if self.stride == 1 else Do("store interleaved", self._interleaved)
        square = self.emitter.square(tile, count, store, looped=looped)
        return Chunk(count, vectors(vector, self.lanes, square), straight=count < self.lanes)

    def _interleaved(self) -> None:
        with self.elements.interleaving(self.stride):
            self.store.run()
