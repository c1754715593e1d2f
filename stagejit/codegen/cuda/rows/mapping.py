"""Which threads have which elements of the rows of a `reduce` region.

Input: a `RowNest`, a `Device`. Output: a `Mapping` for it, the cheapest by a model, and why.
Invariant: depends on shapes, forms, types and the device only.

Note [Neighbours]: the threads of a warp either follow each other along a row, some of them, all of
them, or all of a block to each row: they meet by exchanges. Or they are rows next to each other,
and those that share a row are in different warps: they meet in shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stagejit.codegen.choices import Ranked, cheapest
from stagejit.codegen.costs import element_code, widest_nbytes
from stagejit.codegen.cuda.coalescing import SECTOR_NBYTES, sectors
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.rows.nest import RowNest, reducer_of
from stagejit.index.affine import Affine, Var

SETS = 4  # vectors of a row that a thread accumulates apart
_THREADS = 256  # of a block, where rows do not say
_FEWEST = 64  # where rows are few
_HELD_NBYTES = 128  # of a row, in a thread's registers
_MOST_CODE = 2048  # operations of code without loops
_REUSED_NBYTES = 128  # of a row that a thread walks through: the next element is in the same line
_LATENCY = 0.7e-6  # seconds from a load to its value, where memory is busy
_EXCHANGE, _BARRIER = 30e-9, 60e-9  # seconds until a value is there


@dataclass(frozen=True)
class Mapping:
    """fast: the variable along which neighbouring threads follow each other, kept or reduced; None
    where there is one element. along: the reduced one that the members of a row share. members:
    threads of a row. lanes: neighbours along `fast` that a thread has at once. threads: of a block.
    held: vectors of a row that each thread has in registers, all of them; 0: rows are loops."""

    fast: Var | None
    along: Var | None
    members: int
    lanes: int
    threads: int
    rows_are_neighbours: bool
    held: int = 0

    @property
    def together(self) -> int:
        """Items of a block."""
        return self.threads // self.members

    @property
    def step(self) -> int:
        """Elements along `along` that all members have at once."""
        return self.members * (1 if self.rows_are_neighbours else self.lanes)

    def __str__(self) -> str:
        along = f"along {self.fast.name} of {self.fast.extent}" if self.fast else "for one element"
        who = {1: "a thread a row", self.threads: "a block a row"}.get(self.members)
        who = who or f"{self.members} threads a row"
        vectors = f" in vectors of {self.lanes}" if self.lanes > 1 else ""
        held = f", {self.held} of them in registers" if self.held else ", in loops"
        return f"{who}, neighbours {along}{vectors}{held}, blocks of {self.threads}"


def best_mapping(nest: RowNest, device: Device, threads: int = 0, room: int = 0) -> Ranked[Mapping]:
    """The cheapest one. threads: that a block has, if that is known. room: bytes of shared memory
    that a block may take."""
    found = [m for m in _mappings(nest, device, threads) if merge_nbytes(nest, m) <= room]
    return cheapest("rows", found, lambda m: 1e6 * seconds(nest, m, device), str, "us")


def merge_nbytes(nest: RowNest, mapping: Mapping) -> int:
    """Shared memory that members need to meet."""
    if mapping.members == 1 or (mapping.members <= WARP and not mapping.rows_are_neighbours):
        return 0
    ops = [op for stage in nest.stages for op in stage]
    sizes = [reducer_of(op).accumulator_dtype.itemsize + 8 * reducer_of(op).is_arg for op in ops]
    each = mapping.threads * mapping.lanes if mapping.rows_are_neighbours else WARP
    return sum(sizes) * each


# -------------------------------------------------------------------- what there is to choose


def _mappings(nest: RowNest, device: Device, threads: int) -> Iterator[Mapping]:
    lanes = 16 // widest_nbytes(nest.region)
    longest = max(nest.reduced, key=lambda var: var.extent, default=None)
    if longest is None and not nest.kept:
        yield _held(nest, Mapping(None, None, 1, 1, threads or WARP, False))
    for fast in reversed(nest.reduced):
        for width in _widths(nest, fast, lanes):
            for members in _powers(device.threads_a_block):
                if members > 1 and members * width >= 2 * fast.extent:
                    break
                if members > WARP and threads not in (0, members):
                    continue
                block = members if members > WARP else threads or _block(nest, members, 1, device)
                if block % members == 0:
                    yield _held(nest, Mapping(fast, fast, members, width, block, False))
    for fast in reversed(nest.kept):
        for width in _widths(nest, fast, lanes):
            for members in _powers(WARP):
                if members > (longest.extent if longest else 1):
                    break
                block = members * WARP if members > 1 else _block(nest, 1, width, device)
                block = threads or block
                if block % members == 0:
                    yield _held(nest, Mapping(fast, longest, members, width, block, True))


def _powers(most: int) -> Iterator[int]:
    power = 1
    while power <= most:
        yield power
        power *= 2


def _widths(nest: RowNest, var: Var, lanes: int) -> list[int]:
    """How many neighbours along a variable a thread may take at once: whole accesses, or one."""
    forms = [*nest.forms, *nest.offsets]
    whole = var.extent % lanes == 0 and all(
        form.coeff(var) in (0, 1)
        and not any(var in v.operand.loop_vars() for v in form.vars() if v.operand is not None)
        for form in forms
    )
    return [lanes, 1] if whole and lanes > 1 else [1]


def _block(nest: RowNest, members: int, lanes: int, device: Device) -> int:
    """Threads of a block whose rows have nothing to tell each other: fewer where there would not
    be blocks for all multiprocessors."""
    threads, items = _THREADS, math.prod(var.extent for var in nest.kept) // lanes
    while threads > max(_FEWEST, members) and items * members < threads * 2 * device.cores:
        threads //= 2
    return threads


def _held(nest: RowNest, mapping: Mapping) -> Mapping:
    """The same with rows in registers, if they fit."""
    vectors = math.prod(var.extent for var in nest.reduced if var is not mapping.along)
    if mapping.along is not None:
        vectors *= -(-mapping.along.extent // mapping.step)
    nbytes = vectors * mapping.lanes * widest_nbytes(nest.region)
    most = min(_HELD_NBYTES, 65536 // mapping.threads)
    code = vectors * mapping.lanes * (element_code(nest.region) + 1)
    return replace(mapping, held=vectors if nbytes <= most and code <= _MOST_CODE else 0)


# -------------------------------------------------------------------- what it costs


def seconds(nest: RowNest, mapping: Mapping, device: Device) -> float:
    """Of all rows: of memory, the nearest cache or instructions what takes longest, and what the
    members of one row wait for each other."""
    rows = math.prod(var.extent for var in nest.kept)
    items = rows // mapping.lanes if mapping.rows_are_neighbours else rows
    busy = min(-(-items // mapping.together), device.cores) / device.cores
    vectors, passes = _vectors(nest, mapping), len(nest.stages) + bool(nest.row_stores)
    nbytes = widest_nbytes(nest.region) * mapping.lanes
    there = min(items * mapping.members, device.threads) * nbytes
    there *= mapping.held or min(SETS, vectors)
    bandwidth = device.bandwidth * min(1.0, there / (device.bandwidth * _LATENCY))
    bandwidth = min(bandwidth, busy * device.cores * device.core_bandwidth)
    far, near = _traffic(nest, mapping, 1 if mapping.held else passes)
    rate = busy * device.f32_flops / 2
    code = (element_code(nest.region) + 2) * (1 if mapping.held else passes)
    issued = items * mapping.members * (vectors * mapping.lanes * code + _merge_code(nest, mapping))
    work = max(far / bandwidth, near / (busy * device.cores * device.l2_bandwidth), issued / rate)
    walked = 1 if mapping.held else passes * -(-vectors // SETS)
    meets = len(nest.stages) * _merge_seconds(mapping)
    return work + walked * _LATENCY + meets


def _vectors(nest: RowNest, mapping: Mapping) -> int:
    """Of a row, in a thread."""
    along = mapping.along
    vectors = math.prod(var.extent for var in nest.reduced if var is not along)
    return vectors * (-(-along.extent // mapping.step) if along else 1)


def _traffic(nest: RowNest, mapping: Mapping, passes: int) -> tuple[float, float]:
    """Bytes that cross memory, and that the nearest cache gives."""
    far = near = 0.0
    stored = [store.value.type.dtype.itemsize for store in nest.region.stores]
    reads = {(form, value.type.dtype.itemsize) for value, form in nest.reads}
    for (form, nbytes), times in [
        *((read, passes) for read in sorted(reads, key=str)),
        *((at, 1) for at in zip(nest.offsets, stored, strict=True)),
    ]:
        inside = form.loop_vars()
        variables = [*nest.kept, *nest.reduced]
        elements = math.prod(var.extent for var in variables if var in inside)
        moved = _sectors(form, mapping, nbytes) * SECTOR_NBYTES
        near += times * moved * elements
        apart = mapping.members == 1 and not mapping.rows_are_neighbours
        length = mapping.along.extent if mapping.along else 1
        if apart and length * nbytes <= _REUSED_NBYTES:
            moved = min(moved, nbytes)
        again = 1 + (times - 1) / 2 if set(nest.reduced) & inside else 1
        far += again * moved * elements
    return far, near


def _sectors(form: Affine, mapping: Mapping, nbytes: int) -> float:
    """An element."""
    if mapping.fast is None:
        return 1.0
    threads = min(mapping.together, WARP) if mapping.rows_are_neighbours else mapping.members
    return sectors(form, mapping.fast, nbytes, min(threads, WARP) * mapping.lanes)


def _merge_code(nest: RowNest, mapping: Mapping) -> float:
    """Instructions of a thread in which members meet."""
    reduces = sum(map(len, nest.stages))
    if mapping.rows_are_neighbours:
        return reduces * (mapping.members * mapping.lanes * 2.0 if mapping.members > 1 else 0.0)
    return reduces * 4 * (math.log2(mapping.members) + (20 if mapping.members > WARP else 0))


def _merge_seconds(mapping: Mapping) -> float:
    if mapping.rows_are_neighbours:
        return _BARRIER + mapping.members * 2e-9 if mapping.members > 1 else 0.0
    barrier = _BARRIER if mapping.members > WARP else 0.0
    return barrier + math.log2(mapping.members) * _EXCHANGE / 2
