"""Which threads have which elements of the rows of a `reduce` region.

Input: a `RowNest`, a `Device`. Output: a `Mapping` for it, the cheapest by a model, and why.
Invariant: depends on shapes, forms, types and the device only.

Note [Neighbours]: the threads of a warp either follow each other along a row, some of them, all of
them, or all of a block to each row: they meet by exchanges. Or they are rows next to each other,
and those that share a row are in different warps: they meet in shared memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from stagejit.base.records import record
from stagejit.codegen.choices import Ranked, cheapest
from stagejit.codegen.costs import element_code, widest_nbytes
from stagejit.codegen.cuda.coalescing import SECTOR_NBYTES, sectors
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.elements.elements import Elements
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.nest.tree import Node, Parallel, Within
from stagejit.codegen.places.loops import Loops
from stagejit.codegen.rows.nest import RowNest, reducer_of
from stagejit.index.affine import Affine, Var

SETS = 4  # vectors of a row that a thread accumulates apart
_THREADS = 256  # of a block, where rows do not say
_FEWEST = 64  # where rows are few
_HELD_NBYTES = 128  # of a row, in a thread's registers
_ADDRESSES, _REGISTERS = 24, 160  # of a thread: what it needs anyway, and may take
_MOST_CODE = 1024  # operations of code without loops
_OF_WINDOWS = 8  # operations an element of a window, for each that counts
_OF_INDICES = 12  # of a maximum with its index
_REUSED_NBYTES = 128  # of a row that a thread walks through: the next element is in the same line
LATENCY = 0.7e-6  # seconds from a load to its value, where memory is busy
EXCHANGE, BARRIER = 30e-9, 60e-9  # seconds until a value is there


@record
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

    def items(self, kept: Iterable[Var], elements: Elements, body: Node) -> Parallel:
        """`body` for each row, or for as many as a thread has in its lanes."""
        fast = self.fast if self.rows_are_neighbours else None
        loops = [(var, 1) for var in kept if var is not fast]
        if fast is not None:
            loops.append((fast, self.lanes))
            if self.lanes > 1:
                at = partial(elements.at, vector=fast, lanes=self.lanes)
                body = Within("lanes", at, body)
        apart = self.rows_are_neighbours and self.members > 1
        return Parallel(tuple(loops), body, self.together, apart=apart)

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
    found = fitting(nest, device, threads, room)
    return cheapest("rows", found, lambda m: 1e6 * seconds(nest, m, device), str, "us")


def fitting(nest: RowNest, device: Device, threads: int, room: int) -> list[Mapping]:
    """All that there are, those with fewer threads a row first. Some take too many registers where
    all do."""
    found = [m for m in _mappings(nest, device, threads) if merge_nbytes(nest, m) <= room]
    return [m for m in found if registers(nest, m) <= _most(m, device)] or found[-1:]


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
    rows = math.prod(var.extent for var in nest.kept)
    longest = max(nest.reduced, key=lambda var: var.extent, default=None)
    if longest is None and not nest.kept:
        yield _held(nest, Mapping(None, None, 1, 1, threads or WARP, False), device)
    for fast in reversed(nest.reduced):
        for width in widths(nest, fast, lanes):
            for members in powers(device.threads_a_block):
                if members > 1 and members * width >= 2 * fast.extent:
                    break
                if members > WARP and threads not in (0, members):
                    continue
                block = members if members > WARP else threads or block_of(rows, members, device)
                if block % members == 0:
                    yield _held(nest, Mapping(fast, fast, members, width, block, False), device)
    for fast in reversed(nest.kept):
        for width in widths(nest, fast, lanes):
            for members in powers(WARP):
                if members > (longest.extent if longest else 1):
                    break
                block = members * WARP if members > 1 else block_of(rows // width, 1, device)
                block = threads or block
                if block % members == 0:
                    yield _held(nest, Mapping(fast, longest, members, width, block, True), device)


def powers(most: int) -> Iterator[int]:
    """Of two, from 1."""
    power = 1
    while power <= most:
        yield power
        power *= 2


def widths(nest: Loops, var: Var, lanes: int) -> list[int]:
    """How many neighbours along a variable a thread may take at once: whole accesses, or one."""
    forms = [*nest.forms, *nest.offsets]
    whole = var.extent % lanes == 0 and all(
        form.coeff(var) in (0, 1)
        and not any(var in v.operand.loop_vars() for v in form.vars() if v.operand is not None)
        for form in forms
    )
    return [lanes, 1] if whole and lanes > 1 else [1]


def block_of(items: int, members: int, device: Device) -> int:
    """Threads of a block whose rows have nothing to tell each other: fewer where there would not
    be blocks for all multiprocessors."""
    threads = _THREADS
    while threads > max(_FEWEST, members) and items * members < threads * 2 * device.cores:
        threads //= 2
    return threads


def _held(nest: RowNest, mapping: Mapping, device: Device) -> Mapping:
    """The same with rows in registers, if they fit."""
    vectors = _vectors(nest, mapping)
    held = replace(mapping, held=vectors)
    code = vectors * mapping.lanes * _code(nest)
    fits = vectors * mapping.lanes * widest_nbytes(nest.region) <= _HELD_NBYTES
    fits = fits and registers(nest, held) <= _most(mapping, device) and code <= _MOST_CODE
    return held if fits else mapping


def registers(nest: RowNest, mapping: Mapping) -> float:
    """About what a thread needs: for addresses, its part of a row, and what it accumulates."""
    stages = [[reducer_of(op) for op in stage] for stage in nest.stages]
    words = max(
        sum(-(-one.accumulator_dtype.itemsize // 4) + 2 * one.is_arg for one in stage)
        for stage in stages
    )
    each = words * mapping.lanes
    meets = each * mapping.members if mapping.rows_are_neighbours and mapping.members > 1 else 0
    if not mapping.held:  # sets of accumulators, of a run and of those before
        sets = max(SETS // min(max(map(len, stages)), 2), 1)
        return _ADDRESSES + max(2 * sets * each, meets)
    row = mapping.held * mapping.lanes * max(widest_nbytes(nest.region) // 4, 1)
    return _ADDRESSES + row + max(each * (1 + math.log2(mapping.held)), meets)


def _most(mapping: Mapping, device: Device) -> float:
    return min(_REGISTERS, device.registers / mapping.threads)


# -------------------------------------------------------------------- what it costs


def seconds(nest: RowNest, mapping: Mapping, device: Device) -> float:
    """Of all rows: of memory, the nearest cache or instructions what takes longest, and what the
    members of one row wait for each other."""
    rows = math.prod(var.extent for var in nest.kept)
    items = rows // mapping.lanes if mapping.rows_are_neighbours else rows
    busy = min(-(-items // mapping.together), device.cores) / device.cores
    vectors, passes = _vectors(nest, mapping), len(nest.stages) + bool(nest.row_stores)
    nbytes = widest_nbytes(nest.region) * mapping.lanes * (mapping.held or min(SETS, vectors))
    bandwidth = bandwidth_of(items, mapping, nbytes, device)
    far, near = traffic(nest, mapping, nest.reduced, 1 if mapping.held else passes)
    rate = busy * device.f32_flops / 2
    code = _code(nest) * (1 if mapping.held else passes)
    issued = items * mapping.members * (vectors * mapping.lanes * code + _merge_code(nest, mapping))
    work = max(far / bandwidth, near / (busy * device.cores * device.l2_bandwidth), issued / rate)
    walked = 1 if mapping.held else passes * -(-vectors // SETS)
    meets = len(nest.stages) * _merge_seconds(mapping)
    return work + walked * LATENCY + meets


def _code(nest: RowNest) -> float:
    """Operations of an element; most of a window are to find out what lies inside."""
    windows = any(op.definition.is_window for op in nest.region.ops)
    reducers = [reducer_of(op) for stage in nest.stages for op in stage]
    merges = sum(_OF_INDICES if reducer.is_arg else 2 for reducer in reducers)
    return element_code(nest.region) * (_OF_WINDOWS if windows else 1) + merges


def _vectors(nest: RowNest, mapping: Mapping) -> int:
    """Of a row, in a thread."""
    along = mapping.along
    vectors = math.prod(var.extent for var in nest.reduced if var is not along)
    return vectors * (-(-along.extent // mapping.step) if along else 1)


def bandwidth_of(items: int, mapping: Mapping, nbytes: int, device: Device) -> float:
    """Bytes a second from memory, of which each thread waits for so many at a time."""
    there = min(items * mapping.members, device.threads) * nbytes
    busy = min(-(-items // mapping.together), device.cores)
    most = device.bandwidth * min(1.0, there / (device.bandwidth * LATENCY))
    return min(most, busy * device.core_bandwidth)


def traffic(
    nest: Loops, mapping: Mapping, repeated: Sequence[Var], passes: int
) -> tuple[float, float]:
    """Bytes that cross memory, and that the nearest cache gives. repeated: variables through which
    there are so many passes, of which the last cache has the half after the first."""
    far = near = 0.0
    variables = list(itertools.chain(*nest.groups))
    stored = [store.value.type.dtype.itemsize for store in nest.region.stores]
    reads = {(form, value.type.dtype.itemsize) for value, form in nest.reads}
    for (form, nbytes), times in [
        *((read, passes) for read in sorted(reads, key=str)),
        *((at, 1) for at in zip(nest.offsets, stored, strict=True)),
    ]:
        inside = form.loop_vars()
        elements = math.prod(var.extent for var in variables if var in inside)
        moved = _sectors(form, mapping, nbytes) * SECTOR_NBYTES
        near += times * moved * elements
        alone = mapping.members == 1 and not mapping.rows_are_neighbours
        length = mapping.along.extent if mapping.along else 1
        if alone and length * nbytes <= _REUSED_NBYTES:
            moved = min(moved, nbytes)
        again = 1 + (times - 1) / 2 if inside.intersection(repeated) else 1
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
        return BARRIER + mapping.members * 2e-9 if mapping.members > 1 else 0.0
    barrier = BARRIER if mapping.members > WARP else 0.0
    return barrier + math.log2(mapping.members) * EXCHANGE / 2
