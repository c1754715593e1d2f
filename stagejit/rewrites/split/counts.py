"""How many parts a sum is split into: what the user asks for, or what the machine gains by.

Input: an op that sums, what the user asks for, a machine. Output: a `Cut`, or why there is none.
Invariant: any number of parts of any axis is right, so nothing here is about divisors.

Note [When splitting pays]: a sum is split where it has fewer results than workers could share, or a
product where they would stream through its operands again and again, from memory or for longer than
they multiply. A part is worth an item of its own from some microseconds on, of reading or of
arithmetic. There are several parts a core, so that a late worker finds some, as long as the partial
results are few beside what is read; of a product that streams, as many as cost least with the
results of all parts, which are written and read again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stagejit.base.machine import FORK_SECONDS, Machine
from stagejit.base.numbers import counted
from stagejit.base.records import record
from stagejit.graph.dims import ConvDims
from stagejit.graph.ir import Op
from stagejit.graph.ops.moving.splits import sums_parts, tile_of

_PARTS_PER_CORE = 16
_TILES_PER_CORE = 8  # items of a product that a core is given
# Tiles that keep a core busy. On two cores, in ms, whole and in 16 parts: 16x20000x100, of 7 tiles,
# 0.65 and 0.77; gradients of 3x3 windows, of 9 tiles 3.1 and 2.3, of 4 tiles 0.90 and 0.52.
_TILES, _WINDOWED_TILES = 2, 8
_PANELS_A_TILE = 4  # of 4 vectors of columns, where a tile has 16
_PART_SECONDS = 2 * FORK_SECONDS  # of arithmetic, in what a part is at least
_LATE = 0.02  # of a part's time, that cores wait for the last one
_MOST_PARTIAL = 0.125  # bytes of partial results, to bytes that are read
_FEW_COLUMNS = 4  # of a product that is as long as its larger operand takes to read
_ROWS_ABREAST = 128  # rows along a kept innermost dimension that one item takes


@record
class Many:
    """A sum of many elements.

    axes: pairs of axes of the operands, or axes of the only one, that are summed over; extents: how
    long. partial_nbytes: of the results of one part. nbytes: of what is read. flops: all of it.
    items: how many workers could share it as it is; enough: how many keep them busy. again_nbytes:
    of what is read then: some read the same. each: items that one part is by itself, at least.
    """

    axes: tuple[tuple[int, ...], ...]
    extents: tuple[int, ...]
    partial_nbytes: int
    nbytes: int
    flops: int
    items: int
    enough: int
    again_nbytes: int
    each: int = 1

    @staticmethod
    def of(op: Op, machine: Machine, *, in_panels: bool = False) -> Many | str | None:
        """None of what is not ours to look at; a reason for what cannot be split. in_panels: the
        matrix of a product may be packed before any call."""
        known = op.definition
        if not all(value.type.has_numbers for value in op.operands):
            return None
        if not op.result.type.size or not all(value.type.size for value in op.operands):
            return None
        if sums_parts(op) or sums_parts(op.operands[0].op):
            return None  # it is half of a split sum already, from before its loop was looked at
        if known.is_reduce:
            return _reduced(op, machine)
        if known.applies:
            return f"what each part of {op.kind} is divided by is known at last"
        if known.is_product:
            axes = _conv_axes(op) if known.is_windowed else _pairs(op)
            return _product(op, axes, machine, in_panels)
        return f"each result of {op.kind} needs those before it"


def _reduced(op: Op, machine: Machine) -> Many:
    (x,) = op.operands
    axes = op.attrs["axes"]
    rows = op.result.type.size
    items = rows if x.type.rank - 1 in axes else -(-rows // _ROWS_ABREAST)
    accumulated = x.type.dtype.accumulator.itemsize
    if "dtype" in op.attrs and op.attrs["fn"] in ("argmax", "argmin"):
        accumulated += op.attrs["dtype"].itemsize
    return Many(
        tuple((axis,) for axis in axes),
        tuple(x.shape[axis] for axis in axes),
        rows * accumulated,
        x.type.nbytes,
        x.type.size,
        items,
        machine.rows_at_once * machine.cores,
        x.type.nbytes,
        items,
    )


def _pairs(op: Op) -> list[tuple[int, ...]]:
    return sorted(zip(*op.attrs["contracting"], strict=True))


def _conv_axes(op: Op) -> list[tuple[int, ...]]:
    """The axes of a kernel that are summed over, and may be split: of a gradient of weights, the
    batch, then those of an image."""
    dims = ConvDims.of(op.attrs)
    features = [dims.rhs_spec[1]] if dims.feature_groups == 1 else []
    taps = zip(dims.rhs_spec[2:], dims.lhs_dilation, strict=True)
    return [(axis,) for axis in (*features, *(axis for axis, step in taps if step == 1))]


def _product(op: Op, axes: Sequence[tuple[int, ...]], machine: Machine, in_panels: bool) -> Many:
    lhs, rhs = op.operands
    of = (rhs if op.definition.is_windowed else lhs).shape
    wide = max(op.result.type.dtype.accumulator, lhs.type.dtype.accumulator, key=lambda d: d.bits)
    batch = math.prod(lhs.shape[axis] for axis in op.attrs.get("batch", ((),))[0])
    sides = lhs.type.nbytes, rhs.type.nbytes
    tiles = -(-op.result.type.size * wide.itemsize // machine.tile_nbytes)
    narrow = machine.dots_at_once and _narrowest(op, batch) <= _FEW_COLUMNS
    if narrow:
        tiles = -(-op.result.type.size // machine.dots_at_once)
    enough = (_WINDOWED_TILES if op.definition.is_windowed else _TILES) * machine.cores
    if in_panels and not narrow and _narrowest(op, batch) == 1:
        # Each core reads panels one after the other, which nothing is faster than.
        tiles, enough = _PANELS_A_TILE * tiles, machine.cores
    # Who share a product read the same operand: each item of them, if it stays in no cache.
    streamed = min(sides) // batch > machine.l2_nbytes
    items = min(tiles, _TILES_PER_CORE * machine.cores) if streamed else machine.cores
    sharing = -(-(min(items, tiles) if narrow else items) // batch)
    return Many(
        tuple(axes),
        tuple(of[each[0]] for each in axes),
        op.result.type.size * wide.itemsize,
        sum(sides),
        op.definition.flops(op),
        tiles,
        enough,
        sum(sides) + (sharing - 1) * min(sides),
        tiles if narrow else 1,
    )


def _narrowest(op: Op, batch: int) -> int:
    """The fewer of the rows and columns of a product's results."""
    results: int = op.result.type.size
    if op.definition.is_windowed:
        return results
    (summed, _), lhs = op.attrs["contracting"], op.operands[0]
    rows: int = lhs.type.size // batch // math.prod(lhs.shape[axis] for axis in summed)
    return min(rows, results // batch // rows)


@record
class Cut:
    """`parts` of `tile` elements of the axis of `extent` elements that is axis `axes[k]` of operand
    k; the last part may be shorter."""

    axes: tuple[int, ...]
    extent: int
    tile: int
    why: str

    @property
    def parts(self) -> int:
        return -(-self.extent // self.tile)

    def __str__(self) -> str:
        last = self.extent - (self.parts - 1) * self.tile
        uneven = f", the last of {last}" if last < self.tile else ""
        return f"{self.parts} parts of {self.tile}{uneven}: {self.why}"


def cut_of(many: Many, asked: int | None, budget: int | None, machine: Machine) -> Cut | str:
    """How to split a sum, or why not. asked: the number of parts that the user wants, if any;
    budget: bytes that partial results may take."""
    if asked is not None:
        wanted = least = asked
        why = f"{asked} asked for"
    else:
        modelled = _wanted(many, machine)
        if isinstance(modelled, str):
            return modelled
        wanted, why = modelled
        least = min(wanted, machine.rows_at_once * machine.cores)
    if wanted < 2:
        return f"{why}: one part is the whole"
    if budget is not None and wanted * many.partial_nbytes > budget:
        fewer = budget // many.partial_nbytes
        if fewer < 2:
            return f"two partial results are over the memory budget of {budget} bytes"
        wanted, why = fewer, f"{why}, no more are within the memory budget of {budget} bytes"
    if not many.axes:
        return "no axis that is summed over can be split"
    at = _axis(many.extents, min(least, wanted))
    extent = many.extents[at]
    if extent < 2:
        return "the axes that are summed over have one element"
    return Cut(many.axes[at], extent, tile_of(extent, wanted), why)


def _axis(extents: Sequence[int], least: int) -> int:
    """The outermost axis that is long enough, so that parts are contiguous; else the longest."""
    long = [at for at, extent in enumerate(extents) if extent >= least]
    return long[0] if long else max(range(len(extents)), key=lambda at: extents[at])


# ------------------------------------------------------------------- the model


def _wanted(many: Many, machine: Machine) -> tuple[int, str] | str:
    """The number of parts that the machine gains most by, with the reason; or why it gains none."""
    seconds = many.flops / machine.peak_flops  # of one core
    most = int(_MOST_PARTIAL * many.nbytes / many.partial_nbytes)
    far = many.nbytes > machine.l3s_nbytes
    shared = machine.cores * machine.cache_bandwidth  # what is read again comes from caches
    streams = far or many.again_nbytes / shared > seconds / machine.cores
    fitting = _in_rounds(min(_balanced(many, machine), most), machine) if most > 1 else 0
    shared_out = fitting * many.items >= machine.cores
    if streams and shared_out and many.again_nbytes > 2 * many.nbytes:
        why = f"as it is, {many.again_nbytes} bytes are read for {many.nbytes}"
        return fitting, why
    if many.items >= many.enough:
        return f"its {many.items} blocks of results are enough for {counted(machine.cores, 'core')}"
    reading = many.nbytes / machine.cache_bandwidth
    worth = int(max(reading / machine.item_seconds, seconds / _PART_SECONDS))
    parts = min(worth, _PARTS_PER_CORE * machine.cores) // many.each
    balanced = many.items >= machine.cores  # and only a little better in many parts
    if min(parts, most) < max(2 * machine.cores // many.each if balanced else 2, 2):
        return f"{many.nbytes} bytes are too few to share out"
    blocks = "1 block" if many.items == 1 else f"{many.items} blocks"
    return min(parts, most), f"{blocks} of results for {counted(machine.cores, 'core')}"


def _balanced(many: Many, machine: Machine) -> int:
    """Parts for all cores, of which each waits for the last one by a share of a part, while the
    results of all parts are written and read: as many as cost least together."""
    seconds = max(many.flops / machine.peak_flops, machine.cores * many.nbytes / machine.bandwidth)
    each = 2 * many.partial_nbytes / machine.bandwidth
    rounds = math.sqrt(_LATE * seconds / each) / machine.cores
    return machine.cores * min(max(math.ceil(rounds), 1), _PARTS_PER_CORE)


def _in_rounds(parts: int, machine: Machine) -> int:
    """So many parts; of fewer than there are cores, as many as give each core equal shares."""
    return parts if parts >= machine.cores else machine.cores // -(-machine.cores // parts)


def too_small(many: Many, machine: Machine) -> bool:
    """Whether nobody would expect it to be split."""
    return many.nbytes < machine.l2_nbytes // 8
