"""Kernels for blocks of threads, simulated: what they compute, and the faults that are found."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from stagejit.codegen.cpu.llvm.lower import lower
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
from stagejit.codegen.ir.nodes import F32, F64, I32, I64, Type, Value
from stagejit.codegen.ir.verifier import verify
from stagejit.codegen.target import Target
from stagejit.errors import InternalError, VerificationError

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
    b.loop(b.thread_id(), bins, 64, [],
           lambda i: b.atomic("add", b.load(counts, i), y, i) and None)  # fmt: skip
    return b


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


# -------------------------------------------------------------------- op by op


def test_who_one_is() -> None:
    b = GridBuilder([4, 3, 2])
    y = b.buffer("y", I64)
    block = b.block_id(0) + (b.block_id(1) + b.block_id(2) * 10) * 10
    thread = b.thread_id(0) + (b.thread_id(1) + b.thread_id(2) * 10) * 10
    place = (b.block_id(0) + b.block_id(1) * b.block_count(0)) * 24 + b.thread_of_block()
    count = b.block_count(1) * b.block_count(2) * b.block_size(1)
    b.store((block * 1000 + thread) * 1000 + count, y, place)
    found = np.zeros(2 * 5 * 24, np.int64)
    launch(b, [found], blocks=[2, 5], order=shuffled(10))
    assert list(found) == [
        ((v * 10 + u) * 1000 + (z * 10 + w) * 10 + x) * 1000 + 15
        for v in range(5) for u in range(2) for z in range(2) for w in range(3) for x in range(4)
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int32, np.float64])
def test_exchanges(dtype: Any) -> None:
    b = GridBuilder([64])
    elem = Type(f"{'i' if dtype is np.int32 else 'f'}{8 * np.dtype(dtype).itemsize}")
    x, y = b.buffer("x", elem, readonly=True), b.buffer("y", elem)
    mine = b.load(x, b.thread_id())
    ways = [("idx", b.thread_id() * 7), ("xor", 5), ("down", 3), ("up", b.lane() % 3)]
    for k, (kind, lane) in enumerate(ways):
        b.store(b.exchange(kind, mine, lane), y, b.thread_id() + 64 * k)
    values, found = np.random.default_rng(0).permutation(64).astype(dtype), np.zeros(256, dtype)
    launch(b, [values, found], blocks=[1])
    own, warp = np.arange(64) % 32, np.arange(64) // 32 * 32
    lanes = [own + warp] * 4
    for k, lane in enumerate((np.arange(64) * 7 % 32, own ^ 5, own + 3, own - own % 3)):
        lanes[k] = warp + np.where((lane < 0) | (lane > 31), own, lane)
    np.testing.assert_array_equal(found.reshape(4, 64), [values[lane] for lane in lanes])


def test_votes() -> None:
    b = GridBuilder([96])
    y = b.buffer("y", I32)
    odd_warps = b.compare("ne", b.thread_id() % (b.warp() + 1), 0)
    for k, kind in enumerate(("any", "all", "ballot")):
        vote = b.vote(kind, odd_warps)
        vote = vote if kind == "ballot" else b.cast("zext", vote, "i32")
        b.store(vote, y, b.thread_id() + 96 * k)
    found = np.zeros(3 * 96, np.int32)
    launch(b, [found], blocks=[1])
    thread = np.arange(96)
    flags = (thread % (thread // 32 + 1) != 0).reshape(3, 32)
    ballots = [int("".join("01"[int(f)] for f in row[::-1]), 2) for row in flags]
    for row, wanted in zip(
        found.reshape(3, 96), (flags.any(1), flags.all(1), ballots), strict=True
    ):
        np.testing.assert_array_equal(row.view(np.uint32), np.repeat(np.uint32(wanted), 32))


@pytest.mark.parametrize(
    ("opcode", "dtype", "truth"),
    [("add", np.int32, np.sum), ("add", np.int64, np.sum), ("smin", np.int32, np.min),
     ("smax", np.int64, np.max), ("umin", np.int32, lambda x: x.view(np.uint32).min()),
     ("umax", np.int32, lambda x: x.view(np.uint32).max()), ("fadd", np.float32, np.sum),
     ("fminimum", np.float32, np.min), ("fmaximum", np.float32, np.max)],
)  # fmt: skip
@pytest.mark.parametrize("shared", [False, True])
def test_atomics(opcode: str, dtype: Any, truth: Callable[..., Any], *, shared: bool) -> None:
    b = GridBuilder([32])
    kind = np.dtype(dtype)
    elem = Type(f"{kind.kind}{8 * kind.itemsize}")
    x, y = b.buffer("x", elem, readonly=True), b.buffer("y", elem)
    place = b.shared("s", elem, 1) if shared else y
    first = b.compare("eq", b.thread_id(), 0)
    b.store(b.load(x, 0), place, 0, mask=first)
    b.barrier()
    b.atomic(opcode, b.load(x, b.thread_id() + 1), place, 0)
    b.barrier()
    b.store(b.load(place, 0, mask=first), y, 0, mask=first)
    values = np.random.default_rng(0).integers(-99, 99, 33).astype(dtype)
    found = np.zeros(1, dtype)
    launch(b, [values, found], blocks=[1])
    assert found.view(f"u{kind.itemsize}")[0] == np.array([truth(values)]).astype(
        kind if opcode[0] != "u" else f"u{kind.itemsize}"
    ).view(f"u{kind.itemsize}")


def test_one_thread_wins_each_swap() -> None:
    """And the others see what it put there."""
    b = GridBuilder([64])
    y, seen, place = b.buffer("y", I64), b.buffer("s", I64), b.thread_id() % 3
    b.store(b.compare_and_swap(-1, b.thread_id(), y, place), seen, b.thread_id())
    found, before = np.full(3, -1), np.full(64, -5)
    launch(b, [found, before], blocks=[1])
    for at, winner in enumerate(found):
        assert winner % 3 == at
        others = np.arange(64) % 3 == at
        others[winner] = False
        assert before[winner] == -1
        assert (before[others] == winner).all()


def test_threads_go_different_ways() -> None:
    """Conditionals and loops of different lengths, with a stack of each thread's own, against one
    thread after the other."""
    b = GridBuilder([32])
    y, local = b.buffer("y", I64), b.stack("l", I64, 40)
    t = b.thread_id()

    def body(i: Value, total: Value) -> list[Value]:
        def odd() -> list[Value]:
            b.store(total, local, i)
            return list(b.loop(0, i % 4, 1, [total], lambda j, s: [s + j * t]))

        found = b.if_(b.compare("eq", (i + t) % 2, 1), odd, lambda: [total - 1])
        return list(found)

    (total,) = b.loop(t % 5, t, 1, [t * 10], body)
    b.store(total, y, t)
    found = np.zeros(32, np.int64)
    launch(b, [found], blocks=[1])
    for thread in range(32):
        wanted = thread * 10
        for i in range(thread % 5, thread):
            wanted += sum(j * thread for j in range(i % 4)) if (i + thread) % 2 else -1
        assert found[thread] == wanted


# -------------------------------------------------------------------- what no kernel may do


def barrier_in_an_arm(b: GridBuilder) -> None:
    b.if_(b.compare("lt", b.thread_id(), 40), b.barrier)


def barrier_in_a_loop_of_some(b: GridBuilder) -> None:
    b.loop(0, b.thread_id(), 1, [], lambda i: b.barrier())


def exchange_in_half_a_warp(b: GridBuilder) -> None:
    b.if_(b.compare("lt", b.thread_id(), 40), lambda: b.exchange("xor", b.thread_id(), 1) and None)


def one_place_for_all(b: GridBuilder) -> None:
    b.store(b.thread_id(), b.shared("s", I64, 64), 0)


def read_of_a_neighbour(b: GridBuilder) -> None:
    shared = b.shared("s", I64, 65)
    b.store(b.thread_id(), shared, b.thread_id())
    b.load(shared, b.thread_id() ^ 1)


def write_after_read(b: GridBuilder) -> None:
    shared = b.shared("s", I64, 65)
    b.store(b.thread_id(), shared, b.thread_id())
    b.barrier()
    value = b.load(shared, b.thread_id() ^ 1)
    b.store(value, shared, b.thread_id())


def change_beside_a_read(b: GridBuilder) -> None:
    shared = b.shared("s", I32, 1)
    b.store(b.const(0, I32), shared, 0, mask=b.compare("eq", b.thread_id(), 0))
    b.barrier()
    b.atomic("add", 1, shared, 0)
    b.load(shared, 0)


def unwritten_shared_memory(b: GridBuilder) -> None:
    b.load(b.shared("s", F32, 64), b.thread_id())


def outside_shared_memory(b: GridBuilder) -> None:
    b.store(b.thread_id(), b.shared("s", I64, 63), b.thread_id())


def tiles_at_several_places(b: GridBuilder) -> None:
    x = b.buffer("x", F64, readonly=True)
    b.tile_load(M8N8K4_F64, "a", x, b.thread_id(), (4, 1))


def one_result_for_all(b: GridBuilder) -> None:
    b.store(b.const(1.0, F64), b.buffer("y", F64), b.thread_id() % 63)


def result_read_by_a_neighbour(b: GridBuilder) -> None:
    y = b.buffer("y", F64)
    b.store(b.const(1.0, F64), y, b.thread_id())
    b.load(y, b.thread_id() ^ 1)


def one_result_for_two_blocks(b: GridBuilder) -> None:
    b.store(b.const(1.0, F64), b.buffer("y", F64), b.block_id() * 63 + b.thread_id())


def result_of_another_block(b: GridBuilder) -> None:
    y = b.buffer("y", F64)
    b.barrier()
    b.load(y, (1 - b.block_id()) * 64 + b.thread_id())
    b.barrier()
    b.store(b.const(1.0, F64), y, b.block_id() * 64 + b.thread_id())


FAULTS: list[tuple[Callable[[GridBuilder], None], str]] = [
    (barrier_in_an_arm, "a barrier that not all threads of the block come to"),
    (barrier_in_a_loop_of_some, "a barrier that not all threads"),
    (exchange_in_half_a_warp, "`exchange` that not all threads of a warp come to"),
    (one_place_for_all, "a race: element 0 of @s.b0 is written by thread 0, and written"),
    (read_of_a_neighbour, "a race: element 1 of @s.b0 is read by thread 0, and written"),
    (write_after_read, "a race: element 0 of @s.b0 is written by thread 0, and read"),
    (change_beside_a_read, "a race: element 0 of @s.b0 is read by thread 0, and changed"),
    (one_result_for_all, "a race: element 0 of @y.0 is written by thread 0, and written"),
    (result_read_by_a_neighbour, "a race: element 1 of @y.0 is read by thread 0, and written"),
    (one_result_for_two_blocks, "a race: element 63 of @y.0 is written by block 1, and written"),
    (result_of_another_block, "a race: element 0 of @y.0 is read by block 1, and written"),
    (unwritten_shared_memory, "element 0 of @s.b0 is read, and was not written"),
    (outside_shared_memory, "element 63 of @s.b0, which has 63"),
    (tiles_at_several_places, "the threads of a warp name different places"),
]


@pytest.mark.parametrize(("build", "message"), FAULTS, ids=[build.__name__ for build, _ in FAULTS])
def test_fault(build: Callable[[GridBuilder], None], message: str) -> None:
    b = GridBuilder([64])
    build(b)
    with pytest.raises(VerificationError, match=message):
        launch(b, [np.zeros(256)], blocks=[2])


def test_whole_warps_may_go_different_ways() -> None:
    b = GridBuilder([64])
    y = b.buffer("y", I64)
    first = b.compare("eq", b.warp(), 0)
    b.if_(first, lambda: b.store(b.exchange("xor", b.thread_id(), 1), y, b.thread_id()))
    found = np.zeros(64, np.int64)
    launch(b, [found], blocks=[1])
    np.testing.assert_array_equal(found, [*(np.arange(32) ^ 1), *[0] * 32])


def test_barriers_are_where_all_threads_go() -> None:
    """A conditional and a loop whose ways all threads go together."""
    b = GridBuilder([64])
    y, shared, count = b.buffer("y", I64), b.shared("s", I64, 64), b.param()
    b.store(b.thread_id(), shared, b.thread_id())

    def rotate(i: Value) -> None:
        b.barrier()
        value = b.load(shared, (b.thread_id() + 1) % 64)
        b.if_(b.compare("ge", count, 0), b.barrier)
        b.store(value, shared, b.thread_id())

    b.loop(0, count, 1, [], rotate)
    b.store(b.load(shared, b.thread_id()), y, b.thread_id())
    found = np.zeros(64, np.int64)
    launch(b, [found], [5], blocks=[1])
    np.testing.assert_array_equal(found, (np.arange(64) + 5) % 64)


def test_no_code_for_a_cpu() -> None:
    with pytest.raises(InternalError, match="cannot be lowered for a CPU"):
        lower(block_sum(64).finish(), "k", Target.host())
