"""Kernels of a grid that tests run: a sum over blocks, a tiled product, a histogram."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.grid.matrix_tiles import (
    M8N8K4_F64,
    M16N8K8_TF32,
    M16N8K16_BF16,
    M16N8K16_F16,
    WARP,
    MatrixTile,
    m16n8k32,
)
from stagejit.codegen.ir.interpreter.grid import simulate
from stagejit.codegen.ir.nodes import F32, I32, Value
from stagejit.codegen.ir.verifier import verify

Array = np.ndarray[Any, np.dtype[Any]]


def launch(b: GridBuilder, arrays: Sequence[Array], params: Sequence[int] = (), **how: Any) -> None:
    function = b.finish()
    verify(function)
    simulate(function, arrays, params, **how)


def shuffled(count: int) -> list[int]:
    return random.Random(0).sample(range(count), count)


# -------------------------------------------------------------------- a sum over blocks


def block_sum(threads: int, *, barriers: int = 2) -> GridBuilder:
    """Each block adds the sum of its numbers to the result: in warps by exchanges, between warps
    by shared memory."""
    b = GridBuilder([threads])
    x, y, size = b.buffer("x", F32, readonly=True), b.buffer("y", F32), b.param()
    parts = b.shared("parts", F32, threads // WARP)

    def summed(value: Value) -> Value:
        for distance in (16, 8, 4, 2, 1):
            value = value + b.exchange("down", value, distance)
        return value

    at = b.block_id() * threads + b.thread_id()
    total = summed(b.load(x, at, mask=b.compare("lt", at, size)))
    b.store(total, parts, b.warp(), mask=b.compare("eq", b.lane(), 0))
    if barriers > 1:
        b.barrier()

    def first_warp() -> None:
        there = b.compare("lt", b.lane(), threads // WARP)
        whole = summed(b.load(parts, b.lane(), mask=there))
        b.atomic("fadd", whole, y, 0, mask=b.compare("eq", b.lane(), 0))

    b.if_(b.compare("eq", b.warp(), 0), first_warp)
    return b


# -------------------------------------------------------------------- a tiled product


def product(tile: MatrixTile, summed: int) -> GridBuilder:
    """C = A B by blocks of 2 x 2 warps, each with one tile; slices of A and B in shared memory."""
    b = GridBuilder([WARP, 4])
    left, right = (b.buffer(name, tile.operand, readonly=True) for name in "ab")
    out, columns = b.buffer("c", tile.accumulator), b.param()
    rows_of, columns_of = 2 * tile.m, 2 * tile.n
    one, other = (b.shared(n, tile.operand, k * tile.k) for n, k in zip(
        "ab", (rows_of, columns_of), strict=True))  # fmt: skip
    row, column = b.block_id(1) * rows_of, b.block_id(0) * columns_of
    down, along = b.thread_id(1) // 2, b.thread_id(1) % 2

    def fill(k: Value) -> None:
        def each(i: Value) -> None:
            r, c = i // tile.k, i % tile.k
            b.store(b.load(left, (row + r) * summed + k + c), one, i)

        def each_of_right(i: Value) -> None:
            r, c = i // columns_of, i % columns_of
            b.store(b.load(right, (k + r) * columns + column + c), other, i)

        b.loop(b.thread_of_block(), rows_of * tile.k, 4 * WARP, [], each)
        b.loop(b.thread_of_block(), columns_of * tile.k, 4 * WARP, [], each_of_right)

    def step(k: Value, c: Value) -> list[Value]:
        fill(k)
        b.barrier()
        x = b.tile_load(tile, "a", one, down * tile.m * tile.k, (tile.k, 1))
        y = b.tile_load(tile, "b", other, along * tile.n, (columns_of, 1))
        c = b.tile_product(tile, x, y, c)
        b.barrier()
        return [c]

    (c,) = b.loop(0, summed, tile.k, [b.const(0, tile.fragment("c"))], step)
    corner = (row + down * tile.m) * columns + column + along * tile.n
    b.tile_store(tile, c, out, corner, (columns, 1))
    return b


TILES = [
    (M16N8K16_F16, np.float16),
    (M16N8K16_BF16, ml_dtypes.bfloat16),
    (M16N8K8_TF32, np.float32),
    (M8N8K4_F64, np.float64),
    (m16n8k32(), np.int8),
    (m16n8k32(unsigned=(True, False)), np.int8),
    (m16n8k32(unsigned=(True, True)), np.int8),
]


# -------------------------------------------------------------------- a histogram


def histogram(bins: int) -> GridBuilder:
    """In shared memory by block, then added up; each thread keeps its number's rank."""
    b = GridBuilder([64])
    x, y, rank = b.buffer("x", I32, readonly=True), b.buffer("y", I32), b.buffer("r", I32)
    counts, size = b.shared("counts", I32, bins), b.param()
    b.loop(b.thread_id(), bins, 64, [], lambda i: b.store(b.const(0, I32), counts, i))
    b.barrier()
    at = b.block_id() * 64 + b.thread_id()
    there = b.compare("lt", at, size)
    which = b.cast("sext", b.load(x, at, mask=there), "i64")
    b.store(b.atomic("add", 1, counts, which, mask=there), rank, at, mask=there)
    b.barrier()

    def added(i: Value) -> None:
        b.atomic("add", b.load(counts, i), y, i)

    b.loop(b.thread_id(), bins, 64, [], added)
    return b
