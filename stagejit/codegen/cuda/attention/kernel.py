"""Kernels of `attend` regions for a GPU: a block for a tile of queries goes through all keys.

Input: a region around an `attend`. Output: its kernel. Scores of a tile of keys are made, weighed
and used up in registers (Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention
with IO-Awareness", 2022); sums of values are rescaled where a larger score appears. Invariant:
memory has no score; each stored element is evaluated once, from a finished sum.

Note [Barriers]: what is staged is read by other threads than those that stored it, so a barrier
stands between the two, and another one before the next tile comes to the same place. Between the
keys of one tile and those of the next there is that of the values, and the other way round, so only
the second chunk of a tile needs one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import and_

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.cuda.attention.left_out import mask_of
from stagejit.codegen.cuda.attention.multiply_adds import MultiplyAdds
from stagejit.codegen.cuda.attention.nest import Attention, Group, attention_of
from stagejit.codegen.cuda.attention.passes import Passes
from stagejit.codegen.cuda.attention.products import Fragment, Products
from stagejit.codegen.cuda.attention.rows import Rows
from stagejit.codegen.cuda.attention.shapes import AT_ONCE, Shape, best_shape
from stagejit.codegen.cuda.attention.staging import Staged, staged
from stagejit.codegen.cuda.attention.tensor_cores import TensorCores
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.kernels import grid_kernel
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.elements.stores import Stores
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.nest.tree import Chunk, Do, Loop, Node, Parallel
from stagejit.types import DType, f32, f64


def attention_kernel(region: ClosedRegion, device: Device) -> Kernel:
    """The kernel of a region around an attention."""
    attention = attention_of(region, device)
    dtype = _of_sums(attention)
    ranked = best_shape(attention, dtype, device)
    shape, flops = ranked.best, attention.op.definition.flops(attention.op)
    of_tiles = device.tensor_flops / device.cores if shape.tile else device.peak_flops
    seconds = flops / of_tiles + region_seconds(region, device)

    def tree(nest: Attention, emitter: ThreadEmitter, memory: Sequence[Memory]) -> Parallel:
        return _Policy(region, nest, shape, dtype, emitter, memory).tree()

    return grid_kernel(
        region, device, [attention], tree, seconds, threads=shape.threads, resident=AT_ONCE,
        choices=[ranked.choice],
    )  # fmt: skip


def _of_sums(attention: Attention) -> DType:
    """The type of products, weights and sums: f64 where one of the operands is."""
    op = attention.op
    kinds = {value.type.dtype for value in (*op.operands[:3], op.attrs["scores"].outputs[0])}
    return f64 if f64 in kinds or op.attrs["dtype"] is f64 else f32


class _Policy:
    """What the threads of a block do for a tile of queries."""

    def __init__(
        self, region: ClosedRegion, attention: Attention, shape: Shape, dtype: DType,
        emitter: ThreadEmitter, memory: Sequence[Memory],
    ) -> None:  # fmt: skip
        self.attention, self.shape, self.emitter = attention, shape, emitter
        self.b, self.elements, self.op = emitter.b, emitter.elements, attention.op
        made = MultiplyAdds if shape.tile is None else TensorCores
        self.products: Products = made(attention, shape, dtype, emitter)
        self.rows = Rows(attention, self.products, emitter)
        self.stores = Stores(region, self.elements, memory, attention.offsets)
        self.tiles: dict[str, Staged] = {}
        operands = (attention.at.q, attention.at.k, attention.at.v)
        for (name, (buffer, sides)), value, index in zip(
            self.products.tiles().items(), self.op.operands, operands, strict=False
        ):
            self.tiles[name] = staged(region, value, index, shape.dtype, buffer, sides, shape.lanes)
        mask = mask_of(attention) if attention.keys.extent > shape.keys else None
        self.passes = (
            Passes(attention, shape, mask, self.rows, self.tiles["v"], emitter, self._first)
            if mask is not None else None
        )  # fmt: skip
        self.stay = attention.depth.extent <= shape.depth  # queries, in shared memory

    # ---------------------------------------------------------------- loops

    def tree(self) -> Parallel:
        """Neighbouring blocks read the same keys and values."""
        a, shape, p, rows = self.attention, self.shape, self.products, self.rows
        each = (*((var, 1) for var in a.batch), (a.features.var, shape.features),
                (a.rows.var, shape.rows))  # fmt: skip
        state = (p.sums, rows.most, rows.total)
        tile: Node = (
            Do("no scores", self._clear, (p.scores,)),
            self._scores(),
            Do("weigh, rescale", self._weigh, state),
            self._values(),
        )
        queries: Node = Do("queries", self._load("q")) if self.stay else ()
        body: Node = (
            Do("no sums", self._start, state),
            queries,
            self._all_tiles(tile),
            Do("divide, store", self._store),
        )
        return Parallel(each, body)

    def _all_tiles(self, tile: Node) -> Node:
        if self.passes is None:
            return Loop(self.attention.keys.var, (Chunk(self.shape.keys, tile, tail="shorter"),))
        self.emitter.chose("passes", "a mask of positions leaves nothing of some tiles of keys")
        return self.passes.around(tile)

    def _scores(self) -> Node:
        names = "k" if self.stay else "qk"
        loads = [Do("keys" if name == "k" else "queries", self._load(name)) for name in names]
        multiply = Do("multiply", self._multiply, (self.products.scores,))
        if self.stay:
            return (*loads, Do("barrier", self.b.barrier), multiply)
        again = Do("barrier", self.b.barrier)
        chunk = (again, *loads, Do("barrier", self.b.barrier), multiply)
        return Loop(self.attention.depth.var, (Chunk(self.shape.depth, chunk, tail="shorter"),))

    def _values(self) -> Node:
        """Those of a tile, in chunks of its keys."""
        shape = self.shape
        add = Do("add", self._add, (self.products.sums,))
        steps = (Do("values", self._load("v")), Do("barrier", self.b.barrier), add)
        if shape.sums == shape.keys:
            return steps
        chunk = (Do("barrier", self.b.barrier), *steps)
        return Loop(self.attention.keys.var, (Chunk(shape.sums, chunk, tail="shorter"),))

    # ---------------------------------------------------------------- statements

    def _start(self) -> None:
        a, emitter = self.attention, self.emitter
        self.rows.bind()
        self.rows.first()
        emitter.cells[self.products.sums] = self.products.no_sums()
        first = emitter.span(a.rows.var).start
        self.where = [first + row for row in self.products.rows]

    def _clear(self) -> None:
        self.key = self._first(self.attention.keys)
        self.emitter.cells[self.products.scores] = self.products.no_scores()

    def _first(self, group: Group) -> Register:
        """The first element that the innermost loop over a group stands at."""
        return self.elements.position.env.get(group.var, self.b.const(0))

    def _load(self, name: str) -> Callable[[], None]:
        def load() -> None:
            tile = self.tiles[name]
            groups = (tile.quick.group, tile.slow.group)
            tile.fill(self.emitter, {group: self._first(group) for group in groups})

        return load

    def _multiply(self) -> None:
        cells, p = self.emitter.cells, self.products
        cells[p.scores] = p.multiply(cells[p.scores])

    def _weigh(self) -> None:
        cells, p = self.emitter.cells, self.products
        factors = self.rows.weigh(self.where, self.key)
        cells[p.sums] = p.scaled(cells[p.sums], factors)

    def _add(self) -> None:
        cells, p = self.emitter.cells, self.products
        cells[p.sums] = p.add(cells[p.sums], self._first(self.attention.keys) - self.key)

    # ---------------------------------------------------------------- results

    def _store(self) -> None:
        cells, p, result = self.emitter.cells, self.products, self.op.result
        sums = self.rows.divided(cells[p.sums])
        for fragment, total in p.results(sums):
            made = vmath.convert(self.b, total, p.dtype, result.type.dtype)
            self._store_fragment(fragment, made)
        for value in (result, *self.op.attrs["scores"].inputs, *self.op.attrs["weights"].inputs):
            self.elements.bound.pop(value, None)  # cycles: they read through the policy

    def _store_fragment(self, fragment: Fragment, made: Register) -> None:
        a, b, shape, result = self.attention, self.b, self.shape, self.op.result
        row = self.where[fragment.row]
        feature = self._first(a.features) + fragment.first
        inside = []
        if a.rows.extent % shape.rows:
            inside.append(b.compare("lt", row, a.rows.extent))
        places, lanes, extent = a.rows.places(row), fragment.lanes, a.features.extent
        whole = extent % lanes == 0
        if extent % shape.features:
            inside.append(b.compare("lt", feature, extent))

        def vector() -> None:
            mask = None if whole else b.mask_below(feature, extent, lanes)
            env = {**places, **a.features.places(feature)}
            self.elements.bound[result] = lambda _: made
            with self.elements.at(
                env, vector=a.features.only, lanes=lanes, mask=mask, within=bool(inside)
            ):
                self._write()

        def one_by_one() -> None:
            for lane in range(lanes):
                at = feature + lane
                inside = [] if whole else [b.compare("lt", at, extent)]
                self._where(inside, partial(one, lane, at))

        def one(lane: int, at: Register) -> None:
            element = b.extract(made, lane)
            self.elements.bound[result] = lambda _: element
            with self.elements.at({**places, **a.features.places(at)}, within=True):
                self._write()

        self._where(inside, vector if a.features.only is not None else one_by_one)

    def _where(self, inside: Sequence[Register], then: Callable[[], None]) -> None:
        if inside:
            self.b.if_(reduce(and_, inside), then)
        else:
            then()

    def _write(self) -> None:
        self.stores.write(enumerate(self.attention.loops.places))
