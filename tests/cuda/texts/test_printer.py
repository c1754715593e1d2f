"""The text of kernels in CUDA C++."""

from __future__ import annotations

import re

import numpy as np
import pytest

from stagejit.codegen.cuda.text.printer import cuda_source
from stagejit.codegen.cuda.text.types import constant
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.interpreter.arithmetic import DTYPES
from stagejit.codegen.ir.nodes import BF16, F16, F32, F64, I1, I8, I32, I64, Type, Value
from stagejit.codegen.ir.shared_code import INLINED, called, repeats_code, shared
from stagejit.errors import InternalError
from tests.codegen.ir.grid.kernels import block_sum
from tests.cuda.emulation.checked import checked

SCALED = """\
// dispatch @scale.0  reads x[0:100]  writes y[0:100]
// Blocks of 64 threads; compile with -fmad=false.

using i8 = signed char; using i16 = short; using i32 = int; using i64 = long long;
using u8 = unsigned char; using u16 = unsigned short; using u32 = unsigned int;
using u64 = unsigned long long;

extern "C" __global__ void __launch_bounds__(64)
scale(const float* __restrict__ x, float* __restrict__ y, u64 n0, u64 lo, u64 hi) {
  alignas(16) __shared__ float parts[64];
  const u64 thread = threadIdx.x;
  parts[thread] = 0.0f;
  __syncthreads();
  float total = 1.0f;
  for (u64 i = thread; i64(i) < i64(n0); i += 64) {
    const float x_at = x[i];
    y[i] = fmaf(x_at, 2.0f, x_at);
    total = total + x_at;
  }
  float either;
  if (total > 0.5f) {
    either = sqrtf(total);
  } else {
    either = -total;
  }
  parts[thread] = either;
}
"""


def test_a_kernel() -> None:
    b = GridBuilder([64])
    x, y, n = b.buffer("x", F32, readonly=True), b.buffer("y", F32), b.param()
    parts, thread = b.shared("parts", F32, 64), b.thread_id()
    b.store(b.const(0.0, F32), parts, thread)
    b.barrier()

    def body(i: Value, total: Value) -> list[Value]:
        value = b.load(x, i)
        b.store(b.fma(value, 2.0, value), y, i)
        return [total + value]

    (total,) = b.loop(thread, n, b.block_size(), [b.const(1.0, F32)], body)
    found = b.if_(total > 0.5, lambda: [b.unary("sqrt", total)], lambda: [-total])
    b.store(found[0], parts, thread)
    about = "dispatch @scale.0  reads x[0:100]  writes y[0:100]"
    assert cuda_source(b.finish(), "scale", about) == SCALED


def body_of(b: GridBuilder) -> str:
    """What is between the braces of a kernel."""
    text = cuda_source(b.finish(), "k")
    return text[text.index('extern "C"') :]


def test_what_nobody_uses_is_not_printed() -> None:
    """Nor what only that uses."""
    b = GridBuilder([32])
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    unused = b.unary("sqrt", b.load(x, b.thread_id())) * 2.0
    b.store(b.const(1.0, F32), y, b.thread_id())

    def floored() -> None:
        b.unary("floor", unused)

    b.if_(b.compare("lt", b.thread_id(), 5), floored)
    assert "x[" not in body_of(b)


def test_long_argument_lists_have_a_line_each() -> None:
    b = GridBuilder([32])
    for k in range(6):
        b.buffer(f"buffer_{k}", F32)
    assert "\nk(\n    float* buffer_0,\n    float* buffer_1," in body_of(b)


def test_equal_kernels_have_equal_texts() -> None:
    assert cuda_source(block_sum(64).finish(), "k") == cuda_source(block_sum(64).finish(), "k")


def test_one_of_several_results_may_be_another() -> None:
    """So none of them is `__restrict__`."""
    b = GridBuilder([32])
    b.buffer("x", F32, readonly=True)
    b.buffer("y", F32)
    b.buffer("z", F32)
    assert "k(const float* __restrict__ x, float* y, float* z, u64 lo, u64 hi)" in body_of(b)


def test_names_that_are_taken() -> None:
    b = GridBuilder([32])
    for name in ("float", "load", "k", "x", "x", "2"):
        b.buffer(name, F32)
    names = re.findall(r"float\* (\w+)", body_of(b))
    assert names == ["float2", "load2", "k2", "x", "x2", "v2"]


@pytest.mark.parametrize(
    ("elem", "lanes", "alignment", "text"),
    [(F32, 4, 16, "load<4, 4>"), (F32, 2, 8, "load<2, 2>"), (F32, 8, 16, "load<4, 8>"),
     (F32, 4, 8, "load<2, 4>"), (BF16, 8, 16, "load<8, 8>"), (I8, 4, 4, "load<4, 4>"),
     (F64, 2, 16, "load<2, 2>"), (F32, 3, 16, ""), (F32, 4, 4, "")],
)  # fmt: skip
def test_vectors_move_as_they_are_aligned(
    elem: Type, lanes: int, alignment: int, text: str
) -> None:
    b = GridBuilder([32])
    x, y = b.buffer("x", elem, readonly=True), b.buffer("y", elem)
    at = b.thread_id() * lanes
    b.store(b.load(x, at, lanes, alignment=alignment), y, at, alignment=alignment)
    shown = body_of(b)
    assert (f"{text}(&x[at])" in shown) if text else "load<" not in shown
    assert shown.count("y[at") == (1 if text else lanes)
    if alignment > 4 and lanes != 3:
        numbers = np.arange(32 * lanes, dtype=np.uint8).repeat(elem.bits // 8)
        numbers = numbers.view(DTYPES[elem.elem])
        checked(b.finish(), [numbers, np.zeros_like(numbers)], blocks=[1])


def test_masked_vectors_and_indices() -> None:
    b = GridBuilder([32])
    x, k, y = (
        b.buffer("x", F32, readonly=True),
        b.buffer("k", I32, readonly=True),
        b.buffer("y", F32),
    )
    at = b.thread_id() * 4
    mask = b.mask_below(at, b.param(), 4)
    where = b.load(k, at, 4, mask=mask)
    b.scatter(b.gather(x, where, mask=mask), y, where, mask=mask)
    b.store(b.load(x, at, 4, mask=mask), y, at + 128, mask=mask)
    numbers = np.random.default_rng(0).permutation(128).astype(np.int32)
    arrays = [np.arange(128, dtype=np.float32), numbers, np.zeros(256, np.float32)]
    checked(b.finish(), arrays, [101], blocks=[1])


def test_tables_and_memory_of_a_thread() -> None:
    b = GridBuilder([32])
    y = b.buffer("y", F16)
    table = b.table("t", F16, [0.1, -2.0, float("inf")])
    local = b.stack("l", F16, 3)
    b.loop(0, 3, 1, [], lambda i: b.store(b.load(table, i), local, 2 - i))
    b.store(b.load(local, b.thread_id() % 3), y, b.thread_id())
    assert "static __device__ const f16 t[3] = {f16{0x2e66}, f16{0xc000}, f16{0x7c00}};" in (
        cuda_source(b.finish(), "k")
    )
    checked(b.finish(), [np.zeros(32, np.float16)], blocks=[1])


def test_code_that_is_called() -> None:
    """With a table of its own, by a vector and a scalar."""

    def polynomial(b: Builder, x: Value, k: Value) -> Value:
        table = b.table("c", F32, [1.5, -0.25])
        return b.fma(x, b.load(table, k), x)

    b = GridBuilder([32])
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    at = b.thread_id() * 2
    made = called(b, "p", [b.load(x, at, 2), b.thread_id() % 2], polynomial, "long")
    b.store(made, y, at)
    assert "const vec<float, 2> p_of = p_f32(" in body_of(b)
    checked(b.finish(), [np.arange(64, dtype=np.float32), np.zeros(64, np.float32)], blocks=[1])


def test_code_that_is_called_for_each_lane() -> None:
    """It stands once, and what it calls rarely beside it; it is written out where it is called."""

    def cube(b: Builder, x: Value) -> Value:
        return x * x * x

    def bounded(b: Builder, x: Value) -> Value:
        large = b.compare("gt", x, 40.0)
        (made,) = b.if_(large, lambda: [called(b, "cube", [x], cube, "rare")], lambda: [x + 1.0])
        return made

    b = GridBuilder([32])
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    at = b.thread_id() * 2
    made = shared(b, "bounded", [b.load(x, at, 2)], bounded, "key")
    alone = shared(b, "bounded", [b.load(x, at)], bounded, "key")
    b.store(made + alone, y, at)
    text = cuda_source(b.finish(), "k")
    assert text.count("static __device__ __forceinline__ float bounded_f32(float x) {") == 1
    assert text.count("static __device__ __noinline__ float cube_f32(float x) {") == 1
    assert "bounded_of = {bounded_f32(x_at[0]), bounded_f32(x_at[1])};" in text
    arrays = [np.arange(64, dtype=np.float32), np.zeros(64, np.float32)]
    checked(b.finish(), arrays, blocks=[1])
    numbers = np.arange(64, dtype=np.float64)
    each = np.where(numbers > 40, numbers**3, numbers + 1)
    np.testing.assert_array_equal(arrays[1], (each + np.repeat(each[::2], 2)).astype(np.float32))


def test_code_that_is_called_often_is_not_written_out() -> None:
    b = GridBuilder([32])
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    for number in range(INLINED + 1):
        value = b.load(x, b.thread_id() + number)
        b.store(shared(b, "twice", [value], lambda b, x: x + x, "key"), y, b.thread_id() + number)
    text = cuda_source(b.finish(), "k")
    assert text.count("static __device__ float twice_f32(float x) {") == 1
    assert not repeats_code(b.finish())


def test_a_lane_that_is_used_in_a_loop_and_after_it() -> None:
    b = GridBuilder([32])
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    lane = b.extract(b.load(x, b.thread_id() * 2, 2, alignment=8), 1)
    zero = b.const(0.0, F32.with_lanes(2))
    (total,) = b.loop(0, b.thread_id(), 1, [zero], lambda i, t: [t * 2.0 + b.splat(lane, 2)])
    b.store(b.reduce("fadd", total) + lane, y, b.thread_id())
    checked(b.finish(), [np.arange(64, dtype=np.float32), np.zeros(32, np.float32)], blocks=[1])


def test_what_a_loop_carries_changes_at_once() -> None:
    b = GridBuilder([32])
    y = b.buffer("y", I64)
    pair = b.loop(0, 9, 1, [b.thread_id(), b.const(1)], lambda i, p, q: [q, p + q * i])
    b.store(pair[0] * 100 + pair[1], y, b.thread_id())
    checked(b.finish(), [np.zeros(32, np.int64)], blocks=[1])


def test_loops_that_count_down() -> None:
    b = GridBuilder([32])
    y = b.buffer("y", I64)
    (total,) = b.loop(b.thread_id(), -5, -3, [b.const(0)], lambda i, total: [total * 3 + i])
    b.store(total, y, b.thread_id())
    assert "for (u64 i = thread; i64(i) > -5; i -= 3) {" in body_of(b)
    checked(b.finish(), [np.zeros(32, np.int64)], blocks=[1])


@pytest.mark.parametrize(
    ("number", "type", "text"),
    [(7, I64, "u64(7)"), (-1, I32, "u32(-1)"), (255, I8, "u8(-1)"), (1, I1, "true"),
     (-(1 << 63), I64, "u64((-9223372036854775807ll - 1))"), (1 << 40, I64, "u64(1099511627776ll)"),
     (0.5, F32, "0.5f"), (-2.0, F64, "(-2.0)"), (0.1, F32, "0x1.99999ap-4f"),
     (0.1, F64, "0x1.999999999999ap-4"), (-0.0, F32, "(-0.0f)"), (1.0, BF16, "bf16{0x3f80}"),
     (float("inf"), F32, "__uint_as_float(0x7f800000u)"),
     (float("-inf"), F64, "__longlong_as_double(-0x10000000000000ll)")],
)  # fmt: skip
def test_constants(number: float, type: Type, text: str) -> None:
    assert constant(number, type).text == text


def test_no_kernels_of_a_cpu() -> None:
    with pytest.raises(InternalError, match="cannot be printed as CUDA C\\+\\+"):
        cuda_source(Builder().finish(), "k")


def test_what_is_loaded_is_loaded_once() -> None:
    """A store comes in between; the text of the element is as short as a name."""
    b = GridBuilder([1])
    x, y = b.buffer("x", I64), b.buffer("y", I64)
    value = b.load(x, 0)
    b.store(value + 1, x, 0)
    b.store(value, y, 0)
    arrays = [np.full(1, 5, np.int64), np.zeros(1, np.int64)]
    checked(b.finish(), arrays, blocks=[1])
    assert [int(array[0]) for array in arrays] == [6, 5]
