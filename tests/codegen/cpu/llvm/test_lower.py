"""Lowered kernels: the module's shape, control flow, metadata, targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stagejit.codegen.cpu.llvm.lower import lower
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import F32, I1, I32, I64, Function, Type, Value
from stagejit.codegen.target import Target

Run = Callable[..., None]
Assembly = Callable[[Function, Target], str]
TARGETS = [Target.avx512(), Target.avx2(), Target.sse2(), Target.neon()]


def doubled() -> Function:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    b.loop(b.lo, b.hi, 16, [], lambda i: b.store(b.load(x, i, 16) * 2.0, y, i))
    return b.finish()


def test_module_defines_one_symbol_of_the_kernel_abi() -> None:
    text = lower(doubled(), "sj_k_1", Target.host())
    defined = [line for line in text.splitlines() if line.startswith("define")]
    assert defined == [
        "define void @sj_k_1(ptr %bufs, ptr %params, i64 %lo, i64 %hi, ptr %scratch) #0 {"
    ]
    assert all("@llvm." in line for line in text.splitlines() if line.startswith("declare"))


def test_text_is_the_same_again() -> None:
    assert lower(doubled(), "k", Target.host()) == lower(doubled(), "k", Target.host())


def test_text_carries_the_cpu() -> None:
    text = lower(doubled(), "k", Target.avx2())
    assert '"target-cpu"="x86-64-v3"' in text
    assert "prefer-vector-width" not in text
    if Target.host().has_avx512:
        assert '"prefer-vector-width"="512"' in lower(doubled(), "k", Target.host())


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_vectors_wider_than_the_machine_are_split(assembly: Assembly, target: Target) -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    b.store(b.load(x, 0, 64) + 1.0, y, 0)
    assert assembly(b.finish(), target).count("add") >= 64 * 4 // target.vector_nbytes


@pytest.mark.parametrize("target", [Target.host(), *TARGETS[1:3]], ids=lambda t: t.name)
def test_a_loop_runs_over_its_chunk(run_kernel: Run, target: Target) -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    run_kernel(doubled(), [x, y], [], 16, 48, target=target)
    expected = np.where((x >= 16) & (x < 48), x * 2, 0)
    np.testing.assert_array_equal(y, expected)
    run_kernel(doubled(), [x, y], [], 48, 48, target=target)
    np.testing.assert_array_equal(y, expected)


def test_loops_are_not_unrolled(assembly: Assembly) -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    b.loop(0, 64, 16, [], lambda i: b.store(b.load(x, i, 16) * 2.0, y, i))
    assert assembly(b.finish(), Target.avx2()).count("ret") == 1
    assert assembly(b.finish(), Target.avx2()).count("mulps") <= 2
    assert "llvm.loop.unroll.disable" in lower(b.finish(), "k", Target.avx2())


def test_a_loop_that_may_not_run_gives_its_initial_values(run_kernel: Run) -> None:
    b = Builder()
    y = b.buffer("y", F32)
    (total,) = b.loop(b.lo, b.hi, 1, [b.const(7.0, F32)], lambda i, s: [s + 1.0])
    b.store(total, y, 0)
    for hi, expected in ((0, 7), (5, 12)):
        out = np.zeros(1, np.float32)
        run_kernel(b.finish(), [out], [], 0, hi)
        assert out[0] == expected


def test_a_loop_may_count_down(run_kernel: Run) -> None:
    b = Builder()
    y = b.buffer("y", I64)
    b.loop(5, -1, -2, [b.const(0)], lambda i, k: [b.store(i, y, k) or k + 1], runs=True)
    out = np.full(4, 9, np.int64)
    run_kernel(b.finish(), [out])
    assert list(out) == [5, 3, 1, 9]


def test_carried_values_may_be_swapped(run_kernel: Run) -> None:
    """Phis read the values of the iteration before, all at once."""
    b = Builder()
    y = b.buffer("y", I64)
    first, second = b.loop(b.lo, b.hi, 1, [b.const(1), b.const(2)], lambda i, p, q: [q, p])
    b.store(first, y, 0)
    b.store(second, y, 1)
    out = np.zeros(2, np.int64)
    run_kernel(b.finish(), [out], [], 0, 3)
    assert list(out) == [2, 1]


def test_conditionals_nest_in_loops(run_kernel: Run) -> None:
    b = Builder()
    y = b.buffer("y", I64)

    def body(i: Value, total: Value) -> list[Value]:
        def many() -> list[Value]:
            return list(b.loop(0, i, 1, [total], lambda j, t: [t + j]))

        return list(b.if_(b.compare("gt", i, 2), many, lambda: [total - 1]))

    (total,) = b.loop(0, 5, 1, [b.const(100)], body)
    b.store(total, y, 0)
    out = np.zeros(1, np.int64)
    run_kernel(b.finish(), [out])
    assert out[0] == 100 - 3 + (0 + 1 + 2) + (0 + 1 + 2 + 3)


def test_masks_are_carried(run_kernel: Run) -> None:
    b = Builder()
    y = b.buffer("y", F32)
    all_on = b.const(True, I1.with_lanes(8))
    (mask,) = b.loop(0, 3, 1, [all_on], lambda i, m: [m & b.mask_below(i, 6, 8)])
    b.store(b.select(mask, b.const(1.0, F32.with_lanes(8)), 2.0), y, 0)
    out = np.zeros(8, np.float32)
    run_kernel(b.finish(), [out])
    assert list(out) == [1, 1, 1, 1, 2, 2, 2, 2]


def test_tables_are_private_constants(run_kernel: Run) -> None:
    b = Builder()
    y = b.buffer("y", I64)
    table = b.table("t", I64, [5, -7, 1 << 62])
    b.loop(0, 3, 1, [], lambda i: b.store(b.load(table, i), y, i))
    out = np.zeros(3, np.int64)
    run_kernel(b.finish(), [out])
    assert list(out) == [5, -7, 1 << 62]
    assert "@k.t1 = private unnamed_addr constant [3 x i64]" in lower(
        b.finish(), "k", Target.host()
    )


def test_params_and_scratch_and_stack(run_kernel: Run) -> None:
    b = Builder()
    y = b.buffer("y", I64)
    first, second = b.param(), b.param()
    spare, local = b.scratch("s", I64, 4), b.stack("l", I64, 4)
    b.store(first, spare, 0)
    b.store(second, local, 3)
    b.store(b.load(spare, 0) * 10 + b.load(local, 3), y, 0)
    out = np.zeros(1, np.int64)
    run_kernel(b.finish(), [out], [4, 2])
    assert out[0] == 42


def test_readonly_buffers_do_not_alias_what_is_written(assembly: Assembly) -> None:
    """Otherwise the store would force the second load to wait for it, and to stay."""
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    b.store(b.load(x, 0) + 1.0, y, 0)
    b.store(b.load(x, 1) + 1.0, y, 1)
    text = lower(b.finish(), "k", Target.host())
    assert text.count("!invariant.load !0, align") == 0
    assert text.count("!alias.scope") == text.count("!noalias") == 4


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_a_large_kernel_has_no_calls(assembly: Assembly, target: Target) -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    limit = b.param()

    def body(i: Value) -> None:
        mask = b.mask_below(i, limit, 8)
        value = b.load(x, i, 8, mask=mask)
        for opcode in ("floor", "ceil", "trunc", "roundeven", "sqrt", "fabs"):
            value = value + b.unary(opcode, value)
        value = b.fma(value, value, b.scalef(value, b.unary("floor", value)), exact=True)
        b.prefetch(x, i + 64)
        b.store(value, y, i, mask=mask)

    b.loop(b.lo, b.hi, 8, [], body)
    text = assembly(b.finish(), target)
    opcodes: set[Any] = {line.split()[0] for line in text.splitlines() if line[:1] == "\t"}
    assert not {"call", "callq", "bl", "blr"} & opcodes


def test_elements_a_constant_apart_share_an_address() -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)

    def body(i: Value) -> None:
        for column in range(4):
            b.store(b.load(x, i * 4 + column), y, (i + column) * 4)

    b.loop(b.lo, b.hi, 1, [], body)
    text = lower(b.finish(), "k", Target.host())
    assert text.count("getelementptr float") == 2
    assert text.count("getelementptr i8") == 2 * 3
    assert " = add i64" not in text  # nobody wants them as numbers


def test_a_sum_is_written_in_each_arm_that_wants_it(run_kernel: Run) -> None:
    """Arms do not see each other, nor what follows them."""
    b = Builder()
    x, out = b.param(), b.buffer("out", I64)
    more = x + 5
    for at in (0, 1):
        condition = b.compare("eq", x, at)
        (chosen,) = b.if_(condition, lambda: [more * x], lambda: [more - x * x])
        b.store(chosen, out, at)
    (total,) = b.loop(0, x, 1, [b.const(0)], lambda i, total: [total + more])
    b.store(total, out, 2)
    b.store(more, out, 3)
    for x_now in (0, 1, 3):
        found = np.zeros(4, np.int64)
        run_kernel(b.finish(), [found], [x_now], 0, 1)
        sums = [(5 + x_now) * x_now if x_now == at else 5 + x_now - x_now**2 for at in (0, 1)]
        assert list(found) == [*sums, x_now * (x_now + 5), x_now + 5]


def in_rows(step: int) -> Function:
    """Every `step`-th element of the rows `lo` to `hi` of 1000, of a table of columns, doubled."""
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)

    def row(r: Value) -> None:
        def column(i: Value) -> None:
            b.store(b.load(x, (i + 1) * 48 + r, 16) * 2.0, y, r * 1000 + i)

        b.loop(0, 900, step, [], column)

    b.loop(b.lo, b.hi, 1, [], row)
    return b.finish()


@pytest.mark.parametrize("step", [1, 16])
def test_loops_only_count_what_addresses_add_to(assembly: Assembly, step: int) -> None:
    """A product, a store, what is counted, and the end."""
    lines = [line.strip() for line in assembly(in_rows(step), Target.avx512()).splitlines()]
    end = next(number for number, line in enumerate(lines) if line.startswith("jl"))
    begin = max(number for number in range(end) if lines[number].endswith(":"))
    inner = [line.split()[0] for line in lines[begin + 1 : end]]
    assert inner.count("vaddps") == 1  # of the product by 2
    assert len(inner) == 6, inner
    assert not {"lea", "leaq", "shlq", "imulq", "movq"} & set(inner), inner


@pytest.mark.parametrize(("lo", "hi", "step"), [(0, 7, 1), (3, 12, 3), (5, 5, 2), (9, -1, -2)])
def test_counted_multiples_are_those_of_the_counter(
    run_kernel: Run, lo: int, hi: int, step: int
) -> None:
    """Of it, and of it with what a loop does not change; beside what it changes, and carries."""
    b = Builder()
    out, given = b.buffer("out", I64), b.param()

    def at(i: Value, total: Value) -> list[Value]:
        parts = [i * 3, (i - given) * 5, (i + given) * -7, (i * i + 1) * 9, (total + 1) * 6, i * 8]
        for number, part in enumerate(parts):
            b.store(part, out, i * 6 + number)
        return [total + i * 3]

    start = b.lo if step > 0 else b.const(lo)
    stop = b.hi if step > 0 else b.const(hi)
    (total,) = b.loop(start, stop, step, [given], at)
    b.store(total, out, 99)
    found, expected, total_now = np.zeros(100, np.int64), np.zeros(100, np.int64), 11
    for i in range(lo, hi, step):
        parts = [i * 3, (i - 11) * 5, (i + 11) * -7, (i * i + 1) * 9, (total_now + 1) * 6, i * 8]
        expected[i * 6 : i * 6 + 6] = parts
        total_now += i * 3
    expected[99] = total_now
    run_kernel(b.finish(), [found], [11], lo, hi)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("elem", [F32, I32])
def test_shuffles_of_floats_end_where_they_are_told_to(assembly: Assembly, elem: Type) -> None:
    b = Builder()
    x, y = b.buffer("x", elem, readonly=True), b.buffer("y", elem)
    turned = b.shuffle(b.load(x, 0, 4), None, (3, 2, 1, 0), ends=True)
    b.store(b.shuffle(turned, None, (3, 2, 1, 0)), y, 0)
    function = b.finish()
    for target in TARGETS:
        fences = lower(function, "k", target).count("call <4 x float> @llvm.arithmetic.fence")
        assert fences == (elem == F32)
        assert assembly(function, target)
