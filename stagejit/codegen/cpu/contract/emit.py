"""Emits the kernel of a contraction nest: items, blocks of the reduction, packing, tiles, epilogue.

Input: a `ContractPlan`. Output: a `Kernel`. Invariant: each item owns one block of the result; its
sums live in the result itself or in a scratch panel, and what is stored is evaluated from them once
the last block of the reduction is in.

Note [Order]: for each block of the reduction an item packs what it must, then runs its tiles with
rows outside and columns inside: the rows of the broadcast operand stay in L1, the block of the
vector operand in L2 (KERNELS.md, "Products").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stagejit.codegen.costs import region_seconds
from stagejit.codegen.cpu.contract.epilogue import Epilogue, Range
from stagejit.codegen.cpu.contract.microkernel import MicroKernel, View
from stagejit.codegen.cpu.contract.pack_fill import Fill
from stagejit.codegen.cpu.contract.packing import Packing
from stagejit.codegen.cpu.contract.plan import ContractPlan
from stagejit.codegen.cpu.contract.tiling import Split
from stagejit.codegen.elements.elements import Elements, Memory
from stagejit.codegen.elements.stores import bind_memory, lowest_offsets
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.nest.items import shared
from stagejit.codegen.nest.spans import own_items
from stagejit.codegen.target import Target
from stagejit.index.affine import Affine, Var
from stagejit.types import DType


def emit_contraction(plans: Sequence[ContractPlan], target: Target) -> Kernel:
    """The kernel that runs `plans`, nests of one region that cover its result; their items follow
    each other."""
    region = plans[0].region
    builder = Builder(calls=region.calls)
    reads = [read for plan in plans for read in plan.reads]
    memory, stores, args = bind_memory(builder, region, reads, lowest_offsets(plans))
    elements = Elements(builder, memory)
    total = 0
    for plan in plans:
        _Emitter(plan, elements, stores, target).run(total, last=plan is plans[-1])
        total += plan.tiling.items
    elements.bound.clear()  # a cycle: they read through the emitter
    cycles = sum(plan.tiling.cycles for plan in plans)
    seconds = cycles / target.cycles_per_second + region_seconds(region, target)
    choices = [plan.choice for plan in plans]
    return Kernel(builder.finish(), args, (), total, seconds, (*choices, shared(total, seconds)))


@dataclass(frozen=True)
class _Tiles:
    """What all tiles of one block of the reduction share."""

    kernel: MicroKernel
    lengths: Mapping[Var, Register]
    first: Register | None


class _Emitter:
    def __init__(
        self, plan: ContractPlan, elements: Elements, stores: Sequence[Memory], target: Target
    ) -> None:
        self.plan, self.elements, self.stores, self.target = plan, elements, stores, target
        self.b = elements.b
        self.nest, self.tiling = plan.nest, plan.tiling
        extents = self.tiling.extents
        self.packings = [
            Packing(self.b, source, self.tiling, extents, self.nest.dtype, name) if packs else None
            for source, packs, name in zip(
                plan.sources, self.tiling.pack, ("left", "right"), strict=True
            )
        ]
        self.axes = frozenset(self.nest.axes)
        self.own_panel = self._scratch_panel() if plan.panel is None else None

    def _scratch_panel(self) -> View:
        size, strides = 1, {}
        for split in reversed(self.tiling.splits):
            strides[split.var] = size
            size *= split.span
        buffer = self.b.scratch("panel", element_type(self.nest.dtype), size)
        return View(buffer, self.nest.dtype, strides, self.b.const(0), self.axes, padded=True)

    # ---------------------------------------------------------------- items and blocks

    def run(self, before: int, *, last: bool) -> None:
        """The items of this nest within the chunk; `before` items belong to earlier nests."""
        among = (before, self.tiling.items) if before or not last else None
        low, high, first = own_items(self.b, among, last=last)
        runs = True if among is None else None
        self.b.loop(low, high, 1, (), lambda number: self._item(number - first), runs=runs)

    def _item(self, number: Register) -> None:
        ranges = self._ranges(number)
        self._blocks(ranges, [*self.tiling.serial, self.tiling.blocked], {})
        if self.plan.panel is None or len(self.plan.region.stores) > 1:  # else they lie there
            panel = self._panel({var: r.start for var, r in ranges.items()})
            Epilogue(self.plan, self.elements, self.stores, panel, ranges).emit()

    def _blocks(
        self,
        ranges: Mapping[Var, Range],
        axes: Sequence[Var | None],
        starts: Mapping[Var, Register],
    ) -> None:
        """The loops over blocks of the reduction."""
        axis = axes[0] if axes else None
        if axis is None:
            self._block(ranges, starts)
            return
        step = self.tiling.k_block if axis is self.tiling.blocked else 1
        self.b.loop(
            0, axis.extent, step, (), lambda k: self._blocks(ranges, axes[1:], {**starts, axis: k})
        )

    def _ranges(self, number: Register) -> dict[Var, Range]:
        """The item's block along each axis. Items that share columns are neighbours."""
        b, ranges = self.b, {}
        order = sorted(self.tiling.splits, key=self._locality)
        for split in order:
            if split.parts == 1:
                low, high = b.const(0), b.const(split.groups)
            else:
                at = b.urem(number, split.parts) if split is not order[-1] else number
                number = b.udiv(number, split.parts)
                low = self._part_start(split, at)
                high = self._part_start(split, at + 1)
            start = self._group_start(split, low)
            stop = self._group_start(split, high)
            if split.unit * (split.small * split.groups + split.big) > split.var.extent:
                stop = b.binary("smin", stop, split.var.extent)
            ranges[split.var] = Range(split, low, high, start, stop - start)
        return ranges

    def _locality(self, split: Split) -> int:
        """Rows vary fastest from item to item, so that neighbours share the vector operand's
        block."""
        owners = [split.var in source.depends for source in self.plan.sources]
        vector = any(
            split.var in s.depends and self.tiling.lane in s.depends for s in self.plan.sources
        )
        return 2 if all(owners) else 1 if vector else 0

    def _part_start(self, split: Split, part: Register) -> Register:
        """The first group of a part."""
        if split.groups % split.parts == 0:
            return part * (split.groups // split.parts)
        return self.b.udiv(part * split.groups, split.parts)

    def _group_start(self, split: Split, group: Register) -> Register:
        """The first element of a group."""
        extra = self.b.binary("smin", group, split.big) if split.big else 0
        return (group * split.small + extra) * split.unit

    def _block(self, ranges: Mapping[Var, Range], cut: Mapping[Var, Register]) -> None:
        """One block of the reduction for the whole item; `cut`: where it starts."""
        b, tiling = self.b, self.tiling
        starts = {var: r.start for var, r in ranges.items()}
        lengths = {var: r.length for var, r in ranges.items()}
        for var in self.nest.reduce:
            starts[var] = cut.get(var, b.const(0))
            lengths[var] = b.const(tiling.extents.get(var, var.extent))
        axis, first = tiling.blocked, None
        if axis is not None and axis.extent % tiling.k_block:
            lengths[axis] = b.binary("smin", b.const(axis.extent) - cut[axis], tiling.k_block)
        for start in cut.values():
            begins = b.compare("eq", start, 0)
            first = begins if first is None else first & begins
        for packing in self.packings:
            if packing is not None:
                Fill(packing, self.elements, starts, lengths).emit()
        views = (self._view(0, starts), self._view(1, starts))
        panel = self._panel(starts)
        kernel = MicroKernel(b, self.tiling, views, panel, self.nest.dtype, self.nest.zero)
        self._tiles(_Tiles(kernel, lengths, first), list(ranges.values()), {}, {}, {}, None)

    def _view(self, number: int, starts: Mapping[Var, Register]) -> View:
        packing, source = self.packings[number], self.plan.sources[number]
        if packing is not None:
            return packing.view()
        assert source.offset is not None
        leaf, memory = self.elements.behind(source.operand.value)
        return self._in_memory(memory, leaf.type.dtype, source.offset, starts, source.depends)

    def _panel(self, starts: Mapping[Var, Register]) -> View:
        number, dtype = self.plan.panel, self.nest.dtype
        if number is None:
            assert self.own_panel is not None
            return self.own_panel
        offset = self.plan.offsets[number]
        return self._in_memory(self.stores[number], dtype, offset, starts, self.axes)

    def _in_memory(
        self,
        memory: Memory,
        dtype: DType,
        form: Affine,
        starts: Mapping[Var, Register],
        depends: frozenset[Var],
    ) -> View:
        base = self._offset(form - memory.base, starts)
        return View(memory.buffer, dtype, dict(form.terms), base, depends)

    def _offset(self, form: Affine, starts: Mapping[Var, Register]) -> Register:
        total = self.b.const(form.const)
        for var, coeff in form.terms:
            total = total + starts[var] * coeff
        return total

    # ---------------------------------------------------------------- tiles

    def _tiles(
        self,
        tiles: _Tiles,
        rest: Sequence[Range],
        sizes: Mapping[Var, int],
        at: Mapping[Var, Register],
        groups: Mapping[Var, Register],
        mask: Register | None,
    ) -> None:
        """The loops over groups of the axes in `rest`, and the tile inside."""
        if not rest:
            if self.tiling.ahead:
                self._prefetch(tiles, sizes, at, groups)
            tiles.kernel.tile(sizes, at, tiles.lengths, tiles.first, mask)
            return
        current = rest[0]
        split = current.split
        for size, low, high, ragged in self._runs(current):

            def group(number: Register, size: int = size, ragged: bool = ragged) -> None:
                start = self._group_start(split, number)
                lanes_on = mask
                if ragged:
                    last = start + (size - 1) * split.unit
                    lanes_on = self.b.mask_below(last, split.var.extent, split.unit)
                self._tiles(
                    tiles,
                    rest[1:],
                    {**sizes, split.var: size},
                    {**at, split.var: start - current.start},
                    {**groups, split.var: number - current.low},
                    lanes_on,
                )

            self.b.loop(low, high, 1, (), group)

    def _prefetch(
        self,
        tiles: _Tiles,
        sizes: Mapping[Var, int],
        at: Mapping[Var, Register],
        groups: Mapping[Var, Register],
    ) -> None:
        """Each tile fetches its share of both operands for a later block of the reduction: whole
        rows of the vector operand, and what the other holds of this tile's rows."""
        lane, axis = self.tiling.lane, self.tiling.blocked
        assert lane is not None
        assert axis is not None
        line = 64 // self.nest.dtype.itemsize
        for view in tiles.kernel.operands:
            vector = lane in view.depends
            if not vector and view.strides.get(axis) != 1:
                continue
            share, first = self._share(view, axis, groups)
            first = (
                view.base
                + first
                + view.constant({axis: self.tiling.k_block * (self.tiling.ahead if vector else 1)})
            )
            for var, position in at.items():
                first = first + view.moved(var, position)
            along = lane if vector else next(iter(v for v in sizes if v in view.depends), lane)
            for step in range(0, share, 1 if vector else line):
                for unit in range(sizes[along]):
                    moved = unit * (self.tiling.lanes if vector else 1)
                    offset = view.constant({axis: step, along: moved})
                    self.b.prefetch(view.buffer, first + offset, locality=2)

    def _share(self, view: View, axis: Var, groups: Mapping[Var, Register]) -> tuple[int, Register]:
        """Steps of the reduction that one tile fetches of an operand, and the offset of the first:
        the tiles that read the same rows divide them."""
        others = [split for split in self.tiling.splits if split.var not in view.depends]
        longest = max(others, key=lambda split: split.block, default=None)
        if longest is None:
            return self.tiling.k_block, self.b.const(0)
        share = -(-self.tiling.k_block // longest.block)
        return share, groups[longest.var] * (share * view.constant({axis: 1}))

    def _runs(self, current: Range) -> list[tuple[int, Register, Register, bool]]:
        """(units, first group, one past the last, whether the last vector is partial) for each
        body.

        With AVX-512 a mask costs nothing, so all groups of a partial axis have one; otherwise the
        last group gets a body of its own.
        """
        b, split = self.b, current.split
        partial = split.unit > 1 and split.var.extent % split.unit > 0
        bounds = [(split.small + 1, 0, split.big), (split.small, split.big, split.groups)]
        if partial and not self.target.has_avx512:
            bounds = [(size, lo, min(hi, split.groups - 1)) for size, lo, hi in bounds]
            bounds.append((split.small, split.groups - 1, split.groups))
        runs = []
        for position, (size, lo, hi) in enumerate(bounds):
            if lo >= hi:
                continue
            low = current.low if lo == 0 else b.binary("smax", current.low, lo)
            high = current.high if hi == split.groups else b.binary("smin", current.high, hi)
            ragged = partial and (self.target.has_avx512 or position == 2)
            runs.append((size, low, high, ragged))
        return runs
