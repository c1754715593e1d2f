"""Kernels of `contract` and `conv` regions: products of any batch, free and contracting dimensions,
convolutions of any layout, stride, padding, dilation and grouping.

Input: a region whose anchor is a `contract` or a `conv`, with elementwise prologues and epilogues.
Output: its kernel: trees of items, blocks of the reduction, packing, tiles, epilogue. Invariant:
each item owns one block of the result; its sums live in the result itself or in a scratch panel, in
the accumulator type, and what is stored is evaluated from them, and rounded once, when the last
block of the reduction is in; a window reads its operand's border wherever it is outside.

Note [Small products]: of a product of 2x2 matrices, vectors of 16 lanes would be read and written
under masks. What follows reads it in another way, and waits until what was written is in the cache;
vectors that are full, of one lane if need be, are read as they were written, and stay in registers
where a loop is one function. A filter with such products took 2.4 times as long on a Zen 4.

Note [Few columns]: where an operand has 8 columns, half of each vector of 16 lanes is masked. Full
ones of 8 lanes take as many instructions, of which a core whose one port for long vectors is made
of two halves finishes two a cycle: on a Zen 4, `A @ W` of rows of 256 and 8 columns took 2.1 ms
instead of 3.3, as long as reading A does.

Note [Order]: for each block of the reduction an item packs what it must, then runs its tiles with
rows outside and columns inside: the rows of the broadcast operand stay in L1, the block of the
vector operand in L2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from stagejit.base.records import replace
from stagejit.codegen.choices import cheapest
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.contraction.nest import Nest
from stagejit.codegen.contraction.parts import in_part
from stagejit.codegen.contraction.quads import FLIPPED
from stagejit.codegen.contraction.sources import NOWHERE, evaluated_by_tiles
from stagejit.codegen.contraction.walk import nests_of
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.cpu.contract.epilogue import Epilogue
from stagejit.codegen.cpu.contract.left_out.masks import where_kept
from stagejit.codegen.cpu.contract.left_out.zeros import Zeros
from stagejit.codegen.cpu.contract.microkernel import Around, MicroKernel
from stagejit.codegen.cpu.contract.pack_fill import Fill
from stagejit.codegen.cpu.contract.packing import View
from stagejit.codegen.cpu.contract.plan import ContractPlan, make_plan
from stagejit.codegen.cpu.contract.quads.fill import WordFill, in_words
from stagejit.codegen.cpu.contract.quads.matrices import MatrixKernel
from stagejit.codegen.cpu.contract.quads.tiles import ByteKernel, Flips
from stagejit.codegen.cpu.contract.tiles.search import TileSize
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.groups import Split
from stagejit.codegen.nest.kernels import kernel_of
from stagejit.codegen.nest.tree import Groups, Node, Parallel, Run, blocks, serial
from stagejit.codegen.target import Target
from stagejit.index.affine import Affine, Var
from stagejit.types import DType

_FEW = 64  # vectors that are multiplied
_SHORTEST_NBYTES = 16  # of a register
_FEW_MASKED = 4  # groups that have a mask where one needs it, so that there is one body for all
# What short vectors take, of what is modelled: steps are so short that lines of rows are waited
# for. Seen on Zen 4, in caches: 1.3 to 1.6, with long ones 0.8 to 1.1.
_WAITS = 4 / 3


def product_kernel(region: ClosedRegion, target: Target, only: TileSize | None = None) -> Kernel:
    """The kernel of a region around a product: of the nests that cover its result, whose items
    follow each other. only: in tiles of this size. Raises NoTileError where there is none."""
    nests, machine = nests_of(region), target
    widths = [
        _Width(target, [make_plan(region, nest, target, only) for nest in nests], number > 0)
        for number, target in enumerate(_fitting(nests, machine)[: None if only is None else 1])
    ]
    ranked = cheapest("width", widths, _Width.seconds, _Width.in_words, "s on one core")
    target, plans, _ = ranked.best
    seconds = ranked.cost + region_seconds(region, target)

    def tree(plan: ContractPlan, emitter: Emitter, memory: Sequence[Memory]) -> Parallel:
        products = Products(plan, emitter, memory, target, machine.lanes(plan.nest.total))
        return Parallel(products.shared, products.item)

    choices = [choice for plan in plans for choice in plan.choices]
    choices += [ranked.choice] if len(widths) > 1 else []
    return kernel_of(region, plans, tree, seconds, choices)


class _Width(NamedTuple):
    """Plans with vectors of one width."""

    target: Target
    plans: Sequence[ContractPlan]
    narrows: bool

    def seconds(self) -> float:
        """With what is not modelled."""
        cycles = sum(plan.tiling.cycles for plan in self.plans)
        return cycles / self.target.cycles_per_second * (_WAITS if self.narrows else 1.0)

    def in_words(self) -> str:
        return f"vectors of {self.target.vector_nbytes} bytes"


def _fitting(nests: Sequence[Nest], target: Target) -> list[Target]:
    """With vectors that products fill, see Notes [Small products] and [Few columns]."""
    nest, *others = nests
    if others or not nest.dtype.is_float:
        return [target]
    full, nbytes = target.lanes(nest.dtype), nest.dtype.itemsize
    extents = [var.extent for var in (*nest.axes, *nest.reduce)]
    whole = math.gcd(full, *extents)
    is_small = whole < full and math.prod(extents) <= _FEW * whole
    if is_small and {*_dtypes(nest), nest.total} == {nest.dtype}:
        return [target.with_vectors(whole * nbytes)]
    short = nbytes << (_few_columns(nest, full // 2) - 1).bit_length()
    return [target, target.with_vectors(short)] if short >= _SHORTEST_NBYTES else [target]


def _dtypes(nest: Nest) -> list[DType]:
    return [side.value.type.dtype for side in (nest.left, nest.right)]


def _few_columns(nest: Nest, most: int) -> int:
    """Along the longest axis of an operand that has so many columns at most; 1 where none has."""
    for side, other in ((nest.left, nest.right), (nest.right, nest.left)):
        own = [var.extent for var in nest.axes if var in side.depends - other.depends]
        if 1 < math.prod(own) <= most:
            return max(own)
    return 1


class Products:
    """The trees of one nest. They run where the loops of `emitter` stand, for what these handed
    down of each axis."""

    def __init__(
        self,
        plan: ContractPlan,
        emitter: Emitter,
        stores: Sequence[Memory],
        target: Target,
        most_joined: int,
    ) -> None:
        """most_joined: how many sums a vector has, of tiles whose sums are single elements."""
        self.plan, self.emitter, self.stores, self.target = plan, emitter, stores, target
        self.most_joined = most_joined
        self.elements, self.b = emitter.elements, emitter.b
        self.nest, self.tiling = plan.nest, plan.tiling
        self.flipped = None if self.tiling.depth else self.nest.flipped(self.tiling.lane)
        self.fills = [self._fill(0), self._fill(1)]
        self.axes = frozenset(self.nest.axes)
        self.panel = self._scratch_panel() if plan.panel is None else self._stored(plan.panel)

    @property
    def shared(self) -> tuple[Split, ...]:
        """The axes that items share, outermost first. Rows vary fastest from item to item, so that
        neighbours share the vector operand's block."""
        inside_out, (left, right) = self.tiling.splits[::-1], self.plan.sources
        both = left.depends & right.depends
        return tuple(sorted(inside_out, key=lambda split: split.var not in both))

    # ---------------------------------------------------------------- items and blocks

    @property
    def item(self) -> Node:
        """All blocks of the reduction, then what is stored of their sums."""
        (block, zeros), axis = self._block(), self.tiling.blocked
        if axis is not None:
            block = serial(self.tiling.serial, blocks(axis, self.tiling.k_block, block))
        if zeros is not None:
            block = zeros.again(block)
        block = in_part(self.nest, self.emitter, block)
        if self.plan.panel is not None and len(self.plan.region.stores) == 1:
            return block  # the sums lie there
        most = self.most_joined
        return (block, Epilogue(self.plan, self.emitter, self.stores, self.panel, most).tree())

    def _block(self) -> tuple[Node, Zeros | None]:
        """One block of the reduction for the whole item, and what leaves out steps of it."""
        filled = [fill.tree() for fill in self.fills if fill is not None]
        views = (self._view(0), self._view(1))
        made = evaluated_by_tiles(self.plan.sources, self.tiling.pack)
        looks, around, zeros, most = list[Node](), list[Around](), None, self.most_joined
        kernel: MicroKernel
        if self.tiling.depth:
            kernel = MatrixKernel(self.emitter, self.tiling, views, self.panel, self.nest, most)
        elif self.nest.quads is None:
            kernel = MicroKernel(
                self.emitter, self.tiling, views, self.panel, self.nest, most, made
            )
        else:
            flips = self._flips(views)
            sums = None if flips is None else flips.sums
            looks += [] if flips is None else [self._groups(flips.splits, flips.tile)]
            kernel = ByteKernel(
                self.emitter, self.tiling, views, self.panel, self.nest, most, flips=sums
            )
        if self.plan.zeros is not None:
            zeros = Zeros(kernel, *self.plan.zeros)
            around.append(zeros.around)
            looks.append(zeros.tree(partial(self._groups, zeros.block.splits)))
        if self.plan.masks:
            around.append(partial(where_kept, self.plan.masks))
        tiles = self._groups(self.tiling.splits, lambda sizes: kernel.tile(sizes).node(around))
        return (*filled, *looks, tiles), zeros

    def _flips(self, views: tuple[View, View]) -> Flips | None:
        """What bytes whose first bits are flipped add to the sums, if some are."""
        side = self.flipped
        if side is None:
            return None
        return Flips(self.emitter, self.tiling, views[1 - side], self.nest, side)

    def _fill(self, side: int) -> Fill | None:
        """What packs an operand, if anything does."""
        source, tiling = self.plan.sources[side], self.tiling
        if not tiling.pack[side]:
            return None
        if source.quads is not None:
            return WordFill(self.emitter, source, tiling, side, flips=side == self.flipped)
        return Fill(self.emitter, source, tiling, self.nest.dtype, side)

    def _view(self, number: int) -> View:
        fill, source = self.fills[number], self.plan.sources[number]
        if fill is not None:
            return fill.view()
        assert source.offset is not None
        assert source.leaf is not None
        leaf, memory = self.elements.behind(source.leaf)
        dtype, starts = leaf.type.dtype, source.starts
        if source.words:
            memory, dtype = in_words(self.elements, memory), source.dtype
        view = self._in_memory(memory, dtype, source.offset, source.depends, starts)
        return replace(view, flips=FLIPPED) if number == self.flipped else view

    # ---------------------------------------------------------------- where sums lie

    def _scratch_panel(self) -> View:
        size, strides = 1, {}
        for split in reversed(self.tiling.splits):
            strides[split.var] = size
            size *= split.span
        b = self.b  # a view that held all of this would be a cycle
        buffer = b.scratch("panel", element_type(self.nest.total), size)
        return View(buffer, self.nest.total, strides, lambda: b.const(0), self.axes, padded=True)

    def _stored(self, number: int) -> View:
        offset = self.plan.offsets[number]
        return self._in_memory(self.stores[number], self.nest.total, offset, self.axes)

    def _in_memory(
        self,
        memory: Memory,
        dtype: DType,
        form: Affine,
        depends: frozenset[Var],
        starts: Affine = NOWHERE,
    ) -> View:
        from_base, emitter, elements = form - memory.base, self.emitter, self.elements

        def base() -> Register:
            total = emitter.b.const(from_base.const)
            for var, coeff in from_base.terms:
                total = total + emitter.span(var).start * coeff
            return total + elements.scalar_index(elements.started(starts))

        return View(memory.buffer, dtype, dict(form.terms), base, depends)

    # ---------------------------------------------------------------- tiles

    def _groups(self, splits: Sequence[Split], inside: Callable[[Mapping[Var, int]], Node]) -> Node:
        """The loops over groups of some axes, with what is inside for their sizes."""
        if not splits:
            return inside({})
        split, *rest = splits

        def body(size: int) -> Node:
            return self._groups(rest, lambda sizes: inside({split.var: size, **sizes}))

        runs = (Run(size, lo, hi, body(size), last) for size, lo, hi, last in self._runs(split))
        return Groups(split, tuple(runs))

    def _runs(self, split: Split) -> list[tuple[int, int, int, bool]]:
        """(units, first group, one past the last, whether the last vector is partial) for each
        body.

        Where the last group alone has a mask, it gets a body of its own. With AVX-512 those of its
        size have that one, too, if they are few: masked loads of rows that begin within a line
        take longer. On two cores of a Zen 4, 79 rows of 354 by 354x19995 take 8.4 ms where all
        groups have masks, 8.0 where one has, 100x100 by 100x10001 1.05 and 1.02.
        """
        partial = split.unit > 1 and split.var.extent % split.unit > 0
        runs = [(split.small + 1, 0, split.big, False)]
        at, end = split.big, split.groups
        if not partial:
            runs.append((split.small, at, end, False))
        elif self.target.has_avx512 and not self.tiling.depth and end - at <= _FEW_MASKED:
            runs.append((split.small, at, end, True))
        else:
            runs.append((split.small, at, end - 1, False))
            runs.append((split.small, end - 1, end, True))
        return [run for run in runs if run[1] < run[2]]
