"""Kernels of `map`, `copy` and `fill` regions: one loop nest over the stored shape.

Input: a region whose stores share a shape. Output: its kernel. The vector variable is the one
along which most reads and writes are contiguous; reads contiguous along another one are
transposed in registers, a square tile at a time (KERNELS.md, "Transposes"). Invariant: each
stored element is written once, by one item.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import element_code, region_seconds
from stagejit.codegen.elements.accesses import vector_cost
from stagejit.codegen.elements.elements import Elements, Memory
from stagejit.codegen.elements.footprint import Footprint
from stagejit.codegen.elements.loops import Loops, Walked, loops_of
from stagejit.codegen.elements.register_tiles import Tile, best_tile, rows_are_a_loop
from stagejit.codegen.elements.space import Space
from stagejit.codegen.elements.stores import Stores
from stagejit.codegen.ir.strides import is_dealt
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.items import block_of, cores_worth_having, in_items
from stagejit.codegen.nest.kernels import kernel_of
from stagejit.codegen.nest.tree import (
    Chunk,
    Do,
    Loop,
    Node,
    Parallel,
    Tail,
    Within,
    everywhere,
    vectors,
)
from stagejit.codegen.target import Target
from stagejit.index.affine import Var

_BLOCK = 1 << 14  # elements of one item along the vector variable
_SMALLEST_BLOCK = 1 << 12  # where cores would stay without work
_UNROLLED = 4  # vectors of a row that is short enough to be straight code
_STRAIGHT = 160  # operations of such a row; more of them overlap as well from one round to the next
_LONG = 64  # operations beside which masking all vectors of a loop costs nothing
_SQUARES = 8  # next to each other along the vector variable, where steps of the other cross pages
_PAGE_NBYTES = 4096
_TILE_BLOCK = 1 << 10  # elements of one item along the tile variable
_SMALLEST_TILE_BLOCK = 1 << 7


@dataclass(frozen=True, kw_only=True)
class _Nest(Loops):
    """The loops of a map: `outer` one by one, `tile` (if any) in squares, `vector` in vectors.

    straight: whether a row of few vectors is straight code. masked: whether the last vector, which
    is not full, is one of the loop as all others are, so that the body is there once. looped:
    whether the rows of a square are a loop, which finds what was transposed on the stack.
    stride: how many elements lie between lanes of `vector`, unrolled, or how many stores.
    """

    outer: tuple[Var, ...]
    tile: Var | None
    stride: int
    straight: bool
    masked: bool
    looped: bool


def map_kernel(region: ClosedRegion, target: Target) -> Kernel:
    """The kernel of a region without reductions."""
    nest, seconds = _plan(region, target), region_seconds(region, target)

    def tree(nest: _Nest, emitter: Emitter, memory: Sequence[Memory]) -> Parallel:
        stores = Stores(region, emitter.elements, memory, nest.offsets, nest.streamed)
        cores = cores_worth_having(seconds, target.cores)
        return _Policy(nest, emitter.elements, stores).tree(cores)

    return kernel_of(region, [nest], tree, seconds, nest.choices)


# -------------------------------------------------------------------- planning


def _plan(region: ClosedRegion, target: Target) -> _Nest:
    shape = region.stores[0].value.shape
    space = Space(shape)

    def walk(strict: bool) -> Walked:
        footprint, index = Footprint(region, strict=strict), space.index
        offsets = [footprint.write(store, index) for store in region.stores]
        return footprint, index, [index] * len(offsets), offsets

    loops = loops_of(region, target, space, [range(len(shape))], walk)
    # Stores into one buffer may together fill what lies between their lanes.
    siblings = max(Counter(region.buffers).values())
    loops = _with_vectors(loops, siblings).in_streams()
    (variables,), forms, lanes = loops.groups, loops.forms, loops.lanes
    vector, between = loops.vector, loops.between
    tile = None if between else best_tile(variables, vector, forms)
    stride, vectors = between.extent if between else siblings, 0
    if vector is not None:
        vectors = -(-vector.extent // lanes)
    code = element_code(region)
    return _Nest(
        **vars(loops),
        outer=tuple(var for var in variables if var not in (vector, tile, between)),
        tile=tile,
        stride=stride,
        straight=0 < vectors <= _UNROLLED and vectors * code <= _STRAIGHT,
        masked=vector is not None
        and target.has_avx512
        and vector.extent > lanes
        and vector.extent % lanes != 0
        and stride == 1
        and all(form.coeff(vector) in (0, 1) for form in (*forms, *loops.offsets))
        and code >= _LONG
        and not any(loops.streamed),
        looped=tile is not None
        and rows_are_a_loop(region, loops.reads, loops.offsets, tile, lanes),
    )


def _with_vectors(loops: Loops, siblings: int) -> Loops:
    """Along the variable whose vectors cost least, perhaps with another one between its lanes;
    inner ones win ties."""
    (variables,), forms, lanes = loops.groups, loops.forms, loops.lanes
    inner_first = variables[::-1]
    apart = [
        (var, between)
        for between in variables
        if is_dealt(between.extent, lanes, shared=True)
        for var in inner_first
        if var is not between
        and any(
            form.coeff(var) == between.extent and form.coeff(between) == 1
            for form in (*forms, *loops.offsets)
        )
    ]

    def cost(var: Var, between: Var | None) -> float:
        gap = between.extent if between else siblings
        return vector_cost(forms, loops.offsets, var, lanes, gap)

    return loops.in_vectors(inner_first, cost, apart)


# -------------------------------------------------------------------- the loops


class _Policy:
    """The tree of one map."""

    def __init__(self, nest: _Nest, elements: Elements, stores: Stores) -> None:
        self.nest, self.elements, self.stores = nest, elements, stores

    @property
    def store(self) -> Node:
        return Do("store", self._store)

    def tree(self, cores: int) -> Parallel:
        outer = [(var, 1) for var in self.nest.outer]
        vector, tile = self.nest.vector, self.nest.tile
        if vector is None:
            return in_items(outer, self.store, cores)
        others = math.prod(var.extent for var in self.nest.outer)
        if tile is None:
            block = block_of(vector.extent, others, _BLOCK, _SMALLEST_BLOCK, cores)
            return in_items([*outer, (vector, block)], self._row(vector, block), cores)
        whole = -(-vector.extent // self.nest.lanes) * self.nest.lanes
        abreast = min(whole, self._squares_abreast(tile, vector) * self.nest.lanes)
        columns = others * -(-vector.extent // abreast)
        along = block_of(tile.extent, columns, _TILE_BLOCK, _SMALLEST_TILE_BLOCK, cores)
        loops = [*outer, (vector, abreast), (tile, along)]
        return in_items(loops, self._tiles(vector, tile), cores)

    def _row(self, vector: Var, block: int) -> Node:
        """Vectors, and the elements between the lanes of each."""
        body: Node = self.store
        between, stride = self.nest.between, self.nest.stride
        if between:
            body = everywhere([between], body)
        if stride > 1:
            body = Within("interleaved", partial(self.elements.interleaving, stride), body)
        straight = self.nest.straight and block == vector.extent
        tail: Tail = "all masked" if self.nest.masked else "masked"
        return vectors(vector, self.nest.lanes, body, tail=tail, straight=straight)

    def _tiles(self, vector: Var, tile: Var) -> Node:
        """Square tiles of `lanes` by `lanes`, some next to each other along the vector variable,
        then the next ones along the tile variable."""
        lanes, rest = self.nest.lanes, tile.extent % self.nest.lanes
        chunks = [Chunk(lanes, vectors(vector, lanes, self._square(vector, tile, lanes)))]
        if rest:
            body = vectors(vector, lanes, self._square(vector, tile, rest))
            chunks.append(Chunk(rest, body, straight=True))
        return Loop(tile, tuple(chunks))

    def _squares_abreast(self, tile: Var, vector: Var) -> int:
        """Squares next to each other before the next ones along the tile variable."""
        accesses = [(form, value.type.dtype.itemsize) for value, form in self.nest.reads]
        accesses += [
            (form, store.value.type.dtype.itemsize)
            for form, store in zip(self.nest.offsets, self.nest.region.stores, strict=True)
        ]
        crosses = any(
            form.coeff(vector) == 1 and form.coeff(tile) * size >= _PAGE_NBYTES
            for form, size in accesses
        )
        return _SQUARES if crosses else 1

    def _square(self, vector: Var, tile: Var, count: int) -> Node:
        """One square; `count` steps along the tile variable exist."""
        row, looped = Var(count, "row"), self.nest.looped and count > 1

        def square() -> AbstractContextManager[None]:
            elements, lanes = self.elements, self.nest.lanes
            used = lanes if elements.position.mask is None else vector.extent % lanes
            before = elements.b.block if looped else None
            return elements.at(tile=Tile(tile, count, used, before=before))

        def step() -> None:
            at = self.elements.position.env[row]
            with self.elements.tile_step(at if at.const is None else int(at.const)):
                self._store()

        body = Loop(row, (Chunk(1, Do("store", step), straight=not looped),))
        return Within("square", square, body)

    def _store(self) -> None:
        self.stores.write(list(enumerate(self.nest.places)))
