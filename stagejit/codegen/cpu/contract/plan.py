"""From a region around a contraction nest to everything its kernel needs to know.

Input: a region and its `Nest`. Output: a `ContractPlan`: the nest over as few axes as its memory
accesses allow, how each operand and store is addressed, and the `Tiling`. Invariant: nothing is
emitted here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.cpu.contract.left_out.masks import Mask, masks_of
from stagejit.codegen.cpu.contract.left_out.zeros import mostly_zero
from stagejit.codegen.cpu.contract.nest import Nest, Operand
from stagejit.codegen.cpu.contract.tile_blocks import choose, is_direct
from stagejit.codegen.cpu.contract.tiling import Source, Tiling
from stagejit.codegen.elements.footprint import Footprint
from stagejit.codegen.elements.space import merge, refine
from stagejit.codegen.elements.walk import behind_views
from stagejit.codegen.kernel import Choice
from stagejit.codegen.target import Target
from stagejit.errors import InternalError
from stagejit.graph.ir import Op, Value
from stagejit.index.affine import Affine, Index, Var


@dataclass(frozen=True)
class ContractPlan:
    """`indices[i]` and `offsets[i]` belong to `region.stores[i]`: the index of the stored value,
    and its place in memory. panel: the store whose memory also holds the running sums, None for
    scratch. masks: what tells which sums are stored; none where all are. zeros: see
    `mostly_zero`."""

    region: ClosedRegion
    nest: Nest
    sources: tuple[Source, Source]
    indices: tuple[Index, ...]
    offsets: tuple[Affine, ...]
    reads: tuple[tuple[Value, Affine], ...]
    tiling: Tiling
    panel: int | None
    masks: tuple[Mask, ...]
    zeros: tuple[Var, int] | None
    choices: tuple[Choice, ...]


def settled(region: ClosedRegion, nest: Nest) -> Nest:
    """Its axes split until no memory access divides one that could be split instead, and adjacent
    ones joined that every access runs through as one."""

    def split(var: Var, inner: int) -> bool:
        nonlocal nest
        finer = nest.split(var, inner)
        nest = finer or nest
        return finer is not None

    footprint = refine(split, lambda strict: _Walk(region, nest, strict=strict)).footprint
    forms = [form for _, form in footprint.reads] + footprint.numbers
    for operand in (nest.left, nest.right):
        forms += [window.at for window in operand.windows.values()]
    axes, mapping = merge(nest.axes, forms, footprint.divided)
    reduce, more = merge(nest.reduce, forms, footprint.divided)
    return nest.substitute(axes, reduce, {**mapping, **more})


def make_plan(region: ClosedRegion, nest: Nest, target: Target) -> ContractPlan:
    """Chooses a tiling for a nest whose axes are `settled`."""
    walk = _Walk(region, nest, strict=False)
    sources = _source(region, nest.left), _source(region, nest.right)
    plain = next((n for n in range(len(walk.offsets)) if _is_plain(walk, n)), None)
    stored = walk.offsets[plain or 0]
    steps = math.prod(var.extent for var in nest.reduce)
    masks, told = masks_of(region, steps, walk.index.__getitem__)
    asks = bool(masks) or "zeros" in region.anchor_op.attrs
    ranked = choose(nest, sources, stored, target, plain=plain is not None, asks=asks)
    panel = plain if is_direct(nest, ranked.best.lane, stored) else None
    zeros, looked = mostly_zero(region.anchor_op, ranked.best, sources)
    return ContractPlan(
        region,
        nest,
        sources,
        walk.indices,
        walk.offsets,
        tuple(walk.footprint.reads),
        ranked.best,
        panel,
        masks,
        zeros,
        (ranked.choice, *told, *looked),
    )


class _Walk:
    """A dry run of one nest: what it reads and writes, as affine forms."""

    def __init__(self, region: ClosedRegion, nest: Nest, *, strict: bool) -> None:
        self.region, self.nest = region, nest
        self.footprint = Footprint(region, bound={region.anchor_op.result}, strict=strict)
        for operand in (nest.left, nest.right):
            self.footprint.value(operand.value, operand.exact_index or operand.index)
        # Where the nest stands in each value that is made of the anchor's result.
        self.index: dict[Value, Index] = {region.anchor_op.result: nest.result}
        for op in region.ops:  # operands first, what places stored values last
            made_of = next((value for value in op.operands if value in self.index), None)
            if made_of is not None and not op.definition.is_insert:
                self.index[op.result] = self._push(op, self.index[made_of])
        self.indices = tuple(self.index[store.value] for store in region.stores)
        self.offsets = tuple(map(self.footprint.write, region.stores, self.indices))

    def _push(self, op: Op, index: Index) -> Index:
        """The index in the op's result at which operand element `index` arrives."""
        definition, operand, result = op.definition, op.operands[0], op.result
        if definition.is_elementwise:
            return index
        if operand.type.size == result.type.size:
            if definition.keeps_order:
                return self.footprint.reshaped(index, operand.shape, result.shape)
            if definition.push is not None:
                return definition.push(op, index)
            if definition.is_splat:
                return (Affine(),) * result.type.rank
        raise InternalError(
            f"{op} does not keep the elements of a contraction apart", step="codegen", loc=op.loc
        )


def _source(region: ClosedRegion, operand: Operand) -> Source:
    value, exact = operand.value, operand.exact_index
    offset = None if exact is None else _memory_form(region, value, exact)
    memory = _memory_form(region, value, operand.index)
    return Source(value, operand.index, operand.windows, operand.border, offset, memory)


def _memory_form(region: ClosedRegion, value: Value, index: Index) -> Affine | None:
    """The offset in memory of an element that is only read through views."""
    if behind_views(value, region.inputs) is None:
        return None
    footprint = Footprint(region)
    footprint.value(value, index)
    (_, form), *starts = footprint.reads
    return form if not starts and form.loops_only else None


def _is_plain(walk: _Walk, number: int) -> bool:
    """What a store writes is the anchor's result, perhaps viewed, in the type of the running sums;
    its place is a form of axes."""
    stored, result = walk.region.stores[number].value, walk.region.anchor_op.result
    viewed = behind_views(stored, (result,)) is not None
    return viewed and result.type.dtype is walk.nest.dtype and walk.offsets[number].loops_only
