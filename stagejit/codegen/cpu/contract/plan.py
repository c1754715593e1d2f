"""From a region around a contraction nest to everything its kernel needs to know.

Input: a region and its `Nest`. Output: a `ContractPlan`: the nest over as few axes as its memory
accesses allow, how each operand and store is addressed, and the `Tiling`. Invariant: nothing is
emitted here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stagejit.base.records import record, replace
from stagejit.codegen.choices import BY_ROWS
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.contraction.nest import Blocks, Nest
from stagejit.codegen.contraction.quads import in_quads
from stagejit.codegen.contraction.sources import Source, evaluated_by_tiles, quads_of, source_of
from stagejit.codegen.contraction.walk import NestWalk
from stagejit.codegen.cpu.contract.left_out.masks import Mask, masks_of
from stagejit.codegen.cpu.contract.left_out.zeros import mostly_zero
from stagejit.codegen.cpu.contract.tiles.blocks import choose
from stagejit.codegen.cpu.contract.tiles.search import Problem, TileSize
from stagejit.codegen.cpu.contract.tiling import Tiling, is_direct
from stagejit.codegen.cpu.instructions import byte_signs
from stagejit.codegen.kernel import Choice
from stagejit.codegen.places.walk import behind_views
from stagejit.codegen.target import Target
from stagejit.errors import InternalError
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Index, Var
from stagejit.types import DType, f32, i32

_EXACT = 1 << 24  # no integer up to here is rounded when it becomes an f32


@record
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


def make_plan(
    region: ClosedRegion, nest: Nest, target: Target, only: TileSize | None = None
) -> ContractPlan:
    """Chooses a tiling for a nest whose axes are `settled`. only: with tiles of this size. Raises
    NoTileError where there is none."""
    quads = in_quads(region, nest, byte_signs(target))
    nest, exact = _in_floats(nest)
    walk = NestWalk(region, nest, strict=False)
    plain = next((n for n in range(len(walk.offsets)) if _is_plain(walk, n)), None)
    stored = walk.offsets[plain or 0]
    steps = math.prod(var.extent for var in nest.reduce)
    masks, told = masks_of(region, steps, walk.index.__getitem__)
    asks = bool(masks) or "zeros" in region.anchor_op.attrs
    sources = source_of(region, nest.left), source_of(region, nest.right)
    problem = Problem(nest, sources, target, stored, plain is not None, asks, only)
    ranked = choose(problem)
    if quads is not None and "zeros" not in region.anchor_op.attrs:
        words = quads_of(region, quads, 0), quads_of(region, quads, 1)
        by_four = choose(replace(problem, nest=quads, sources=words))
        if by_four.cost < ranked.cost:
            reason = f"of four products of bytes at once; as f32: {ranked.cost:.3g} cycles"
            exact = (Choice("sums", reason),)
            nest, sources, ranked = quads, words, by_four
    panel = plain if is_direct(nest, ranked.best.lane, stored) else None
    zeros, looked = mostly_zero(region.anchor_op, ranked.best, sources)
    # Who looks for zeros goes along whole rows.
    tiling = replace(ranked.best, panels=zeros is None)
    if nest.blocks is not None and tiling.most_terms > nest.blocks.steps:
        raise InternalError(f"sums of {tiling.most_terms} products are rounded", step="codegen")
    fetched = (Choice("fetch", tiling.fetches),) if tiling.fetches else ()
    ordered = (Choice("order", BY_ROWS),) if tiling.goes_by_rows else ()
    evaluated = _evaluated(sources, tiling)
    return ContractPlan(
        region,
        nest,
        sources,
        walk.indices,
        walk.offsets,
        (*walk.footprint.reads, *_in_words(sources)),
        tiling,
        panel,
        masks,
        zeros,
        (ranked.choice, *ordered, *exact, *evaluated, *fetched, *told, *looked),
    )


def _in_words(sources: Sequence[Source]) -> list[tuple[Value, Affine]]:
    """Words count from where an argument begins."""
    leaves = [source.leaf for source in sources if source.words]
    return [(leaf, Affine()) for leaf in leaves if leaf is not None]


def _in_floats(nest: Nest) -> tuple[Nest, tuple[Choice, ...]]:
    """Products of small integers, summed as floats in blocks of so few steps that each sum is one,
    exactly; blocks are added as integers. CPUs multiply and add floats at once, and integers of 32
    bits in several operations."""
    kinds = [side.value.type.dtype for side in (nest.left, nest.right)]
    if nest.dtype is not i32 or not all(kind.is_integer for kind in kinds):
        return nest, ()
    most = _EXACT // math.prod(_largest(kind) for kind in kinds)
    if not most:
        return nest, ()
    left = replace(nest.left, border=float(nest.left.border))
    told = Choice("sums", f"as f32, exact for {most} products of {kinds[0]}, then as {nest.dtype}")
    return replace(nest, left=left, dtype=f32, blocks=Blocks(most, nest.dtype)), (told,)


def _largest(dtype: DType) -> int:
    """Of an integer of this type, whatever its sign."""
    info = np.iinfo(dtype.numpy)
    return max(-int(info.min), int(info.max))


def _evaluated(sources: tuple[Source, Source], tiling: Tiling) -> tuple[Choice, ...]:
    """What is told of operands that tiles evaluate."""
    found = []
    evaluated = evaluated_by_tiles(sources, tiling.pack)
    for source, side in zip(evaluated, ("left", "right"), strict=True):
        if source is not None:
            how = f"of {source.dtype}, by a conversion and {source.operations} operations"
            found.append(Choice("pack", f"not the {side} operand: each tile makes it {how}"))
    return tuple(found)


def _is_plain(walk: NestWalk, number: int) -> bool:
    """What a store writes is the anchor's result, perhaps viewed, in the type of the running sums;
    its place is a form of axes."""
    stored, result = walk.region.stores[number].value, walk.region.anchor_op.result
    viewed = behind_views(stored, (result,)) is not None
    return viewed and result.type.dtype is walk.nest.total and walk.offsets[number].loops_only
