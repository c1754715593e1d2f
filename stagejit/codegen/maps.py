"""Kernels of `map`, `copy` and `fill` regions: one loop nest over the stored shape.

Input: a region whose stores share a shape. Output: its kernel. The vector variable is the one
along which most reads and writes are contiguous; reads contiguous along another one are
transposed in registers, a square tile at a time (KERNELS.md, "Transposes"). Invariant: each
stored element is written once, by one item.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stagejit.codegen.accesses import lanes_of, vector_cost
from stagejit.codegen.builder import Builder
from stagejit.codegen.costs import region_seconds, widest_nbytes
from stagejit.codegen.elements import Elements, Memory, Tile
from stagejit.codegen.footprint import Footprint, leaves_of
from stagejit.codegen.ir import Value as Register
from stagejit.codegen.ir import storage_type
from stagejit.codegen.items import Items, Loop
from stagejit.codegen.kernel import Kernel, KernelArg
from stagejit.codegen.space import Space, merge, refine
from stagejit.codegen.streaming import streamed_stores
from stagejit.codegen.target import Target
from stagejit.dispatch.affine import Affine, Index, Var
from stagejit.dispatch.region import Region, Store
from stagejit.graph.ir import Value

_BLOCK = 1 << 14  # elements of one item along the vector variable
_UNROLLED = 4  # vectors of a row that is short enough to be straight code
_TILE_BLOCK = 1 << 10  # elements of one item along the tile variable


@dataclass(frozen=True)
class _Nest:
    """The loops of a map: `outer` one by one, `tile` (if any) in squares, `vector` in vectors.

    between: unrolled; its elements lie between the lanes of `vector`, see `strides`. stride: how
    many elements, or stores, do.
    """

    index: Index
    outer: tuple[Var, ...]
    tile: Var | None
    between: Var | None
    vector: Var | None
    stride: int
    lanes: int
    offsets: tuple[Affine, ...]  # of each store, in its `into`
    reads: tuple[tuple[Value, Affine], ...]


def map_kernel(region: Region, target: Target) -> Kernel:
    """The kernel of a region without reductions."""
    nest = _plan(region, target)
    builder = Builder()
    memory, stores, args = bind_memory(builder, region, nest.reads, nest.offsets)
    elements = Elements(builder, memory)
    streamed = streamed_stores(region, nest.reads, nest.offsets, nest.vector, nest.lanes, target)
    writer = _Writer(region, nest, elements, stores, streamed)
    total = writer.emit()
    return Kernel(builder.finish(), args, (), total, region_seconds(region, target))


# -------------------------------------------------------------------- planning


def _plan(region: Region, target: Target) -> _Nest:
    shape = region.stores[0].value.shape
    space = Space(shape)

    def walk(strict: bool) -> tuple[Footprint, tuple[Affine, ...]]:
        footprint = Footprint(leaves_of(region), strict=strict)
        for store in region.stores:
            footprint.visit(store.value, space.index)
        return footprint, tuple(
            footprint.store_offset(store, space.index) for store in region.stores
        )

    footprint, offsets = refine([space], walk)
    variables, mapping = merge(space.vars, footprint.forms)
    reads = tuple((value, form.substitute(mapping)) for value, form in footprint.reads)
    offsets = tuple(form.substitute(mapping) for form in offsets)
    index = tuple(part.substitute(mapping) for part in space.index)
    lanes = target.vector_nbytes // widest_nbytes(region)
    forms = [form for _, form in reads]
    siblings = _siblings(region)
    vector, between = _best_vector(variables, forms, offsets, lanes, siblings)
    lanes = lanes_of(forms, offsets, vector, lanes)
    tile = None if between else _best_tile(variables, vector, forms, lanes)
    outer = tuple(var for var in variables if var not in (vector, tile, between))
    stride = between.extent if between else siblings
    return _Nest(index, outer, tile, between, vector, stride, lanes, offsets, reads)


def _best_vector(
    variables: Sequence[Var],
    reads: Sequence[Affine],
    writes: Sequence[Affine],
    lanes: int,
    siblings: int,
) -> tuple[Var | None, Var | None]:
    """The variable whose vectors cost least, and the one between its lanes; inner ones win ties."""
    pairs: list[tuple[Var, Var | None]] = [(var, None) for var in reversed(variables)]
    forms = [*reads, *writes]
    for between in variables:
        if between.extent <= lanes:
            pairs += [
                (var, between)
                for var in reversed(variables)
                if var is not between
                and any(
                    form.coeff(var) == between.extent and form.coeff(between) == 1 for form in forms
                )
            ]
    return min(
        pairs,
        default=(None, None),
        key=lambda pair: vector_cost(
            reads, writes, pair[0], lanes, pair[1].extent if pair[1] else siblings
        ),
    )


def _siblings(region: Region) -> int:
    """The most stores into one buffer: together they may fill what lies between their lanes."""
    roots = Counter(root_of(region, store) for store in region.stores)
    return max(roots.values())


def root_of(region: Region, store: Store) -> Value:
    """What stands for the buffer that a store writes: the first of the region's destinations along
    its chain of insertions. Stores along one chain write one buffer: a copy between them would have
    to run in the middle of the region. Chains that only begin with the same contents do not."""
    destinations = {other.into for other in region.stores}
    return [value for value in _chain(store) if value in destinations][-1]


def _chain(store: Store) -> list[Value]:
    """The values that may lie in the buffer that a store writes, its earlier contents last."""
    chain = [store.into]
    while store.inserts and chain[-1].op.kind == "insert_slice":
        chain.append(chain[-1].op.operands[1])
    return chain


def _best_tile(
    variables: Sequence[Var], vector: Var | None, reads: Sequence[Affine], lanes: int
) -> Var | None:
    """The variable along which most of the reads that `vector` would gather are contiguous."""
    if vector is None:
        return None
    strided = [form for form in reads if form.coeff(vector) not in (0, 1, -1)]
    counts = {
        var: sum(form.coeff(var) == 1 for form in strided)
        for var in variables
        if var is not vector and var.extent >= 4
    }
    best = max(counts, key=lambda var: counts[var], default=None)
    return best if best is not None and counts[best] else None


# -------------------------------------------------------------------- memory


def bind_memory(
    builder: Builder,
    region: Region,
    reads: Sequence[tuple[Value, Affine]],
    offsets: Sequence[Affine],
) -> tuple[dict[Value, Memory], list[Memory], tuple[KernelArg, ...]]:
    """Declares the region's buffers: inputs first, then stores. Constant offsets move to the
    arguments, so that equal work at different places is one kernel."""
    memory: dict[Value, Memory] = {}
    args: list[KernelArg] = []
    written = {value for store in region.stores for value in _chain(store)}
    for value in region.inputs:
        base = min((form.range()[0] for read, form in reads if read is value), default=0)
        elem = storage_type(value.type.dtype)
        memory[value] = Memory(builder.buffer("in", elem, readonly=value not in written), base)
        args.append(KernelArg(value, base))
    bases: dict[Value, int] = {}
    for store, form in zip(region.stores, offsets, strict=True):
        root, base = root_of(region, store), form.range()[0]
        bases[root] = min(bases.get(root, base), base)
    stores: list[Memory] = []
    buffers: dict[Value, Memory] = {}
    for store in region.stores:
        elem, root = storage_type(store.into.type.dtype), root_of(region, store)
        made = Memory(builder.buffer("out", elem), bases[root])
        stores.append(buffers.setdefault(root, made))
        args.append(KernelArg(store.into, bases[root], written=True))
    return memory, stores, tuple(args)


# -------------------------------------------------------------------- emission


class _Writer:
    """Emits the loops of one map."""

    def __init__(
        self,
        region: Region,
        nest: _Nest,
        elements: Elements,
        memory: Sequence[Memory],
        streamed: Sequence[bool],
    ) -> None:
        self.region, self.nest, self.elements, self.memory = region, nest, elements, memory
        self.streamed = streamed
        self.b = elements.b

    def emit(self) -> int:
        """Writes the kernel's body; returns the number of items."""
        outer = [Loop(var) for var in self.nest.outer]
        vector, tile = self.nest.vector, self.nest.tile
        if vector is None:
            items = Items.over(outer)
            items.emit(self.elements, self._store_all)
        elif tile is None:
            block = Loop(vector, _BLOCK if vector.extent > _BLOCK else vector.extent)
            items = Items.over([*outer, block])
            items.emit(self.elements, lambda: self._row(vector, block.step))
        else:
            along = Loop(tile, _TILE_BLOCK if tile.extent > _TILE_BLOCK else tile.extent)
            items = Items.over([*outer, Loop(vector, self.nest.lanes), along])
            items.emit(self.elements, lambda: self._tiles(vector, along))
        return items.total

    def _row(self, vector: Var, block: int) -> None:
        """One block along the vector variable: full vectors, then one masked."""
        lanes, extent = self.nest.lanes, vector.extent
        start = self.elements.position.env[vector]
        if extent % block:
            stop = self.b.binary("smin", start + block, extent)
            full = stop - self.b.urem(stop, lanes) if extent % lanes else stop
        else:
            stop = start + block
            full = start + block // lanes * lanes

        def vectors(position: Register) -> None:
            with self.elements.at({vector: position}, vector=vector, lanes=lanes):
                self._store_vector()

        def rest() -> None:
            with self.elements.at(
                {vector: full},
                vector=vector,
                lanes=lanes,
                mask=self.b.active(extent % lanes, lanes),
            ):
                self._store_vector()

        if block == extent <= _UNROLLED * lanes:
            # Positions are numbers: what depends on no other loop leaves the loop over rows.
            for number in range(extent // lanes):
                vectors(self.b.const(number * lanes))
        elif block >= lanes:
            self.b.loop(start, full, lanes, (), vectors)
        if extent % lanes:
            if block == extent:
                rest()
            else:
                self.b.if_(self.b.compare("lt", full, stop), rest)

    def _tiles(self, vector: Var, along: Loop) -> None:
        """Square tiles: `lanes` of the vector variable by `lanes` steps along the tile variable."""
        lanes, used = self.nest.lanes, vector.extent % self.nest.lanes
        position = self.elements.position.env[vector]

        def full() -> None:
            with self.elements.at(vector=vector, lanes=lanes):
                self._tile_run(along, lanes)

        def partial() -> None:
            with self.elements.at(vector=vector, lanes=lanes, mask=self.b.active(used, lanes)):
                self._tile_run(along, used)

        if not used:
            full()
        elif vector.extent < lanes:
            partial()
        else:
            inside = self.b.compare("le", position + lanes, vector.extent)
            self.b.if_(inside, full, partial)

    def _tile_run(self, along: Loop, used: int) -> None:
        lanes, extent = self.nest.lanes, along.var.extent
        start = self.elements.position.env[along.var]
        stop = (
            self.b.binary("smin", start + along.step, extent)
            if extent % along.step
            else (start + along.step)
        )
        rest = extent % lanes
        full = stop - self.b.urem(stop, lanes) if rest else stop

        def square(position: Register) -> None:
            self._square(along.var, position, lanes, used)

        if extent >= lanes:
            self.b.loop(start, full, lanes, (), square)
        if rest and along.step == extent:
            self._square(along.var, full, rest, used)
        elif rest:
            self.b.if_(
                self.b.compare("lt", full, stop), lambda: self._square(along.var, full, rest, used)
            )

    def _square(self, var: Var, position: Register, count: int, used: int) -> None:
        with self.elements.at({var: position}, tile=Tile(var, count, used)):
            for step in range(count):
                with self.elements.tile_step(step):
                    self._store_all()

    def _store_vector(self) -> None:
        """One vector, and the elements between its lanes."""
        between = self.nest.between
        if self.nest.stride == 1:
            self._store_all()
            return
        with self.elements.interleaving(self.nest.stride):
            for number in range(between.extent if between else 1):
                with self.elements.at({between: self.b.const(number)} if between else {}):
                    self._store_all()

    def _store_all(self) -> None:
        nest = self.nest
        registers = [self.elements.value(store.value, nest.index) for store in self.region.stores]
        whole = self.elements.position.mask is None
        for store, register, memory, offset, streamed in zip(
            self.region.stores, registers, self.memory, nest.offsets, self.streamed, strict=True
        ):
            offset = self.elements.with_starts(store, nest.index, offset)
            self.elements.store(
                register, store.value.type.dtype, memory, offset, nontemporal=streamed and whole
            )
