"""What a contraction nest reads and writes, and the fewest variables that say so.

Input: a region around a product or a convolution. Output: its nests, and for each a `NestWalk`.
Invariant: together the nests cover what the region stores once.
"""

from __future__ import annotations

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.contraction.conv_nest import conv_nests
from stagejit.codegen.contraction.nest import (
    Nest,
    apart_at,
    apart_nests,
    contract_nest,
    cut_nest,
)
from stagejit.codegen.places.footprint import Footprint
from stagejit.codegen.places.space import merge, refine
from stagejit.errors import InternalError
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.moving.slices import pull_view
from stagejit.index.affine import Affine, Index, Var


def nests_of(region: ClosedRegion) -> list[Nest]:
    """Whose axes are `settled`; a sum that is cut into parts stays one where its variables do."""
    op = region.anchor_op
    if op.definition.is_windowed:
        nests = [part for nest in conv_nests(op) for part in at_tiles(region, nest)]
        return [settled(region, nest) for nest in nests]
    found = []
    for nest in at_tiles(region, cut_nest(contract_nest(op))):
        joint = settled(region, nest)
        if joint.keeps_cut:
            found.append(joint)
        else:
            found += [settled(region, each) for each in apart_nests(nest)]
    return found


def at_tiles(region: ClosedRegion, nest: Nest) -> list[Nest]:
    """A nest as one over whole tiles of an operand that lies in tiles, and one over the last of
    them, which is shorter: in neither a place is divided."""
    for var in nest.axes:
        tile = _tile_along(region, nest, var)
        if tile and tile < var.extent and var.extent % tile:
            whole = var.extent // tile * tile
            parts = apart_at(nest, var, whole)
            return [each for part in parts for each in at_tiles(region, part)]
    return [nest]


def _tile_along(region: ClosedRegion, nest: Nest, var: Var) -> int:
    """How long the tiles along an axis are that an operand lies in; 0 if it does not."""
    for operand in (nest.left, nest.right):
        value, index = operand.value, operand.index
        while value.op.definition.is_view and value not in region.inputs:
            if value.op.definition.boxed is not None or value.op.definition.splits:
                break
            value, index = value.op.operands[0], pull_view(value.op, index)
        tiles = value.type.layout.tiles
        for tile, part in zip(tiles, index, strict=False):
            if tile > 1 and part.coeff(var) == 1:
                return tile
    return 0


def settled(region: ClosedRegion, nest: Nest) -> Nest:
    """Its axes split until no memory access divides one that could be split instead, and adjacent
    ones joined that every access runs through as one."""

    def split(var: Var, inner: int) -> bool:
        nonlocal nest
        finer = nest.split(var, inner)
        nest = finer or nest
        return finer is not None

    footprint = refine(split, lambda strict: NestWalk(region, nest, strict=strict)).footprint
    footprint.require_elements()
    forms = [form for _, form in footprint.reads] + footprint.numbers + footprint.compared
    for operand in (nest.left, nest.right):
        forms += [window.at for window in operand.windows.values()]
    axes, mapping = merge(nest.axes, forms, footprint.divided)
    reduce, more = merge(nest.reduce, forms, footprint.divided)
    return nest.substitute(axes, reduce, {**mapping, **more})


class NestWalk:
    """A dry run of one nest: what it reads and writes, as affine forms."""

    def __init__(self, region: ClosedRegion, nest: Nest, *, strict: bool) -> None:
        self.region, self.nest = region, nest
        self.footprint = Footprint(region, bound={region.anchor_op.result}, strict=strict)
        for operand in (nest.left, nest.right):
            self.footprint.value(operand.value, operand.exact_index or operand.index)
        self.index = made_of_anchor(region, self.footprint, nest.result)
        self.indices = tuple(self.index[store.value] for store in region.stores)
        self.offsets = tuple(map(self.footprint.write, region.stores, self.indices))


def made_of_anchor(region: ClosedRegion, footprint: Footprint, result: Index) -> dict[Value, Index]:
    """Where loops that have the element `result` of the anchor's result stand in each value that is
    made of it."""
    index: dict[Value, Index] = {region.anchor_op.result: result}
    for op in region.ops:  # operands first, what places stored values last
        made_of = next((value for value in op.operands if value in index), None)
        if made_of is not None and not op.definition.is_insert:
            index[op.result] = _pushed(footprint, op, index[made_of])
    return index


def _pushed(footprint: Footprint, op: Op, index: Index) -> Index:
    """The index in the op's result at which operand element `index` arrives."""
    definition, operand, result = op.definition, op.operands[0], op.result
    if definition.is_elementwise:
        return index
    if operand.type.size == result.type.size:
        if definition.keeps_order:
            return footprint.reshaped(index, operand.shape, result.shape)
        if definition.push is not None:
            return definition.push(op, index)
        if definition.is_splat:
            return (Affine(),) * result.type.rank
    what = f"{op} does not keep the elements of a product apart"
    raise InternalError(what, step="codegen", loc=op.loc)
