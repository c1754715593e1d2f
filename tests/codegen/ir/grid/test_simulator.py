"""Kernels for blocks of threads, simulated: what they compute, and that they need each barrier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stagejit.codegen.ir.grid.matrix_tiles import (
    M16N8K8_TF32,
    M16N8K16_BF16,
    WARP,
    MatrixTile,
    m16n8k32,
)
from stagejit.codegen.ir.interpreter.grid import simulate
from stagejit.codegen.ir.nodes import I32
from stagejit.errors import VerificationError
from tests.codegen.ir.grid.kernels import TILES, block_sum, histogram, launch, product, shuffled

# -------------------------------------------------------------------- a sum over blocks


@pytest.mark.parametrize("threads", [32, 64, 256])
@pytest.mark.parametrize("size", [0, 1, 37, 256, 1000])
def test_a_sum(threads: int, size: int) -> None:
    x = np.random.default_rng(0).integers(-9, 9, size).astype(np.float32)
    blocks = max(-(-size // threads), 1)
    for order in (None, shuffled(blocks)):
        total = np.zeros(1, np.float32)
        launch(block_sum(threads), [x, total], [size], blocks=[blocks], order=order)
        assert total[0] == x.sum()


def test_a_missing_barrier_is_a_race() -> None:
    b = block_sum(64, barriers=1)
    arrays = [np.ones(64, np.float32), np.zeros(1, np.float32)]
    with pytest.raises(VerificationError) as caught:
        launch(b, arrays, [64], blocks=[1])
    assert "element 1 of @parts.b2 is read by thread 1, and written by another" in str(caught.value)
    assert "-->" in str(caught.value)


# -------------------------------------------------------------------- a tiled product


_RESULTS = {"f32": np.float32, "f64": np.float64, "i32": np.int32}


@pytest.mark.parametrize(("tile", "dtype"), TILES, ids=[str(tile) for tile, _ in TILES])
def test_a_product_by_tiles(tile: MatrixTile, dtype: Any) -> None:
    """Of small integers, so that all sums are exact; of all there are where they have 8 bits."""
    rng = np.random.default_rng(0)
    m, n, k = 4 * tile.m, 6 * tile.n, 3 * tile.k
    least, most = (-128, 128) if tile.accumulator == I32 else (-8, 8)
    x, y = (rng.integers(least, most, shape).astype(dtype) for shape in ((m, k), (k, n)))
    out = np.full((m, n), -77, _RESULTS[tile.accumulator.elem])
    launch(product(tile, k), [x, y, out], [n], blocks=[3, 2], order=shuffled(6))
    wide = [
        (side.view(np.uint8) if unsigned else side).astype(np.float64)
        for side, unsigned in zip((x, y), tile.unsigned, strict=True)
    ]
    np.testing.assert_array_equal(out, wide[0] @ wide[1])


@pytest.mark.parametrize(("tile", "dtype"), TILES, ids=[str(tile) for tile, _ in TILES])
@pytest.mark.parametrize("role", ["a", "b", "c"])
def test_each_element_of_a_tile_is_in_one_fragment(tile: MatrixTile, role: Any, dtype: Any) -> None:
    lanes = range(tile.fragment(role).lanes)
    places = [tile.place(role, thread, lane) for thread in range(WARP) for lane in lanes]
    rows, columns = tile.shape(role)
    assert sorted(places) == [(r, c) for r in range(rows) for c in range(columns)]


def test_fragments_lie_as_in_the_instruction_set() -> None:
    """Of the thread 5, from the figures of PTX ISA, "Matrix fragments for mma.m16n8k16" and
    "mma.m16n8k8" (.tf32), "mma.m16n8k32" (.s8)."""
    tile = M16N8K16_BF16
    assert [tile.place("a", 5, i) for i in range(8)] == [
        (1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11)]  # fmt: skip
    assert [tile.place("b", 5, i) for i in range(4)] == [(2, 1), (3, 1), (10, 1), (11, 1)]
    assert [tile.place("c", 5, i) for i in range(4)] == [(1, 2), (1, 3), (9, 2), (9, 3)]
    short, bytes_ = M16N8K8_TF32, m16n8k32()
    assert [short.place("a", 5, i) for i in range(4)] == [(1, 1), (9, 1), (1, 5), (9, 5)]
    assert [short.place("b", 5, i) for i in range(2)] == [(1, 1), (5, 1)]
    assert [bytes_.place("a", 5, i) for i in range(0, 16, 4)] == [(1, 4), (9, 4), (1, 20), (9, 20)]
    assert [bytes_.place("a", 5, i) for i in range(4)] == [(1, 4), (1, 5), (1, 6), (1, 7)]
    assert [bytes_.place("b", 5, i) for i in (0, 3, 4, 7)] == [(4, 1), (7, 1), (20, 1), (23, 1)]


def test_tf32_has_ten_bits_of_mantissa() -> None:
    """Rounded to nearest, ties away from zero, which `np.round` of what is scaled cannot do."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((64, 24)) * 2.0 ** rng.integers(-140, 120, (64, 24))).astype(
        np.float32
    )
    x[0, :8] = (
        1 + 2.0**-11,
        -1 - 2.0**-11,
        1 + 3 * 2.0**-11,
        2 - 2.0**-12,
        0.0,
        -0.0,
        1e-45,
        2.0**-127,
    )
    y = np.zeros((24, 48), np.float32)
    y[:, :24] = np.eye(24)
    _, exponent = np.frexp(x.astype(np.float64))
    exponent = np.maximum(exponent, -125)  # subnormal numbers have fewer bits
    scaled = np.ldexp(x.astype(np.float64), 11 - exponent)
    wanted = np.ldexp(np.sign(scaled) * np.floor(np.abs(scaled) + 0.5), exponent - 11)
    out = np.zeros((64, 48), np.float32)
    launch(product(M16N8K8_TF32, 24), [x, y, out], [48], blocks=[3, 2])
    np.testing.assert_array_equal(out[:, :24], wanted)


def test_what_is_not_finite_stays_so_in_tf32() -> None:
    x = np.zeros((64, 24), np.float32)
    low = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF], np.uint32).view(np.float32)
    x[0, 0], x[1, 1], x[2, 2], x[3:6, 3] = np.inf, -np.inf, np.finfo(np.float32).max, low
    out = np.zeros((64, 48), np.float32)
    launch(product(M16N8K8_TF32, 24), [x, np.ones((24, 48), np.float32), out], [48], blocks=[3, 2])
    np.testing.assert_array_equal(out[:7, 5], [np.inf, -np.inf, np.inf, *[np.nan] * 3, 0])


# -------------------------------------------------------------------- a histogram


@pytest.mark.parametrize("bins", [1, 7, 64])
def test_a_histogram(bins: int) -> None:
    numbers = np.random.default_rng(0).integers(0, bins, 300).astype(np.int32)
    found, ranks = np.zeros(bins, np.int32), np.full(300, -1, np.int32)
    launch(histogram(bins), [numbers, found, ranks], [300], blocks=[5], order=shuffled(5))
    np.testing.assert_array_equal(found, np.bincount(numbers, minlength=bins))
    for block in range(0, 300, 64):
        for bin in range(bins):
            mine = ranks[block : block + 64][numbers[block : block + 64] == bin]
            assert sorted(mine) == list(range(len(mine)))


BARRIERS = [("product", 0), ("product", 1), ("histogram", 0), ("histogram", 1)]


@pytest.mark.parametrize(("kernel", "which"), BARRIERS)
def test_each_barrier_is_needed(kernel: str, which: int) -> None:
    """Without it there is a race, or an element that nobody wrote."""
    tile = M16N8K8_TF32
    if kernel == "product":
        function, params = product(tile, 3 * tile.k).finish(), [2 * tile.n]
        arrays = [np.ones((2 * tile.m, 3 * tile.k)), np.ones((3 * tile.k, 2 * tile.n)),
                  np.ones((2 * tile.m, 2 * tile.n))]  # fmt: skip
        arrays = [array.astype(np.float32) for array in arrays]
    else:
        function, params = histogram(7).finish(), [64]
        arrays = [np.arange(64, dtype=np.int32) % 7, np.zeros(7, np.int32), np.zeros(64, np.int32)]
    simulate(function, arrays, params, blocks=[1])
    parents = [op.blocks[0] for op in function.walk() if op.opcode == "for"]
    barriers = [(block, op) for block in (function.body, *parents) for op in block.ops
                if op.opcode == "barrier"]  # fmt: skip
    assert len(barriers) == 2
    block, barrier = barriers[which]
    block.ops.remove(barrier)
    with pytest.raises(VerificationError, match=r"a race|was not written"):
        simulate(function, arrays, params, blocks=[1])
