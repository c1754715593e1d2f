"""Whole kernels: control flow, memory and calls against machine code, and rules that are broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.interpreter.run import interpret
from stagejit.codegen.ir.nodes import F32, F64, I32, I64, Function, Value
from stagejit.codegen.ir.shared_code import called
from stagejit.errors import VerificationError

Run = Callable[..., None]


@pytest.fixture
def agree(run_kernel: Run) -> Callable[..., list[Any]]:
    """The arrays after the kernel, which machine code leaves, too."""

    def run(function: Function, arrays: list[Any], params: Any = (), lo: int = 0, hi: int = 0) -> (
        list[Any]
    ):  # fmt: skip
        compiled, interpreted = ([a.copy() for a in arrays] for _ in range(2))
        run_kernel(function, compiled, params, lo, hi)
        interpret(function, interpreted, params, lo, hi)
        for a, b in zip(interpreted, compiled, strict=True):
            np.testing.assert_array_equal(a, b)
        return interpreted

    return run


Agree = Callable[..., list[Any]]


def test_a_loop_over_its_chunk(agree: Agree) -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    b.loop(b.lo, b.hi, 16, [], lambda i: b.store(b.load(x, i, 16) * 2.0, y, i))
    arrays = [np.arange(64, dtype=np.float32), np.zeros(64, np.float32)]
    _, y_after = agree(b.finish(), arrays, [], 16, 48)
    assert y_after.sum() == 2 * sum(range(16, 48))


def test_loops_in_conditionals_in_loops(agree: Agree) -> None:
    b = Builder()
    y = b.buffer("y", I64)

    def body(i: Value, total: Value) -> list[Value]:
        def many() -> list[Value]:
            return list(b.loop(0, i, 1, [total], lambda j, t: [t + j]))

        return list(b.if_(b.compare("gt", i, 2), many, lambda: [total - 1]))

    total, other = b.loop(
        b.lo, b.hi, 1, [b.const(100), b.const(7)], lambda i, t, u: [u, *body(i, t)]
    )
    b.store(total, y, 0)
    b.store(other, y, 1)
    for hi in (0, 1, 5, 8):
        agree(b.finish(), [np.zeros(2, np.int64)], [], 0, hi)


def test_a_loop_that_counts_down(agree: Agree) -> None:
    b = Builder()
    y = b.buffer("y", I64)
    b.loop(5, -1, -2, [b.const(0)], lambda i, k: [b.store(i, y, k) or k + 1], runs=True)
    assert list(agree(b.finish(), [np.full(4, 9)])[0]) == [5, 3, 1, 9]


def test_masked_moves(agree: Agree) -> None:
    """The last lanes lie beyond the arrays."""
    b = Builder()
    x, y, limit = b.buffer("x", F32, readonly=True), b.buffer("y", F32), b.param()
    mask = b.mask_below(0, limit, 16)
    b.store(b.load(x, 0, 16, mask=mask), y, 0, mask=mask)
    b.store(b.load(x, 0, 16, mask=mask), y, 11)
    on = b.compare("gt", limit, 20)
    b.store(b.load(x, 99, mask=on), y, 99, mask=on)
    arrays = [np.arange(1, 12, dtype=np.float32), np.full(27, 9, np.float32)]
    agree(b.finish(), arrays, [11])


def test_gathers_and_scatters_in_lane_order(agree: Agree) -> None:
    b = Builder()
    x, y = b.buffer("x", F64, readonly=True), b.buffer("y", F64)
    at = b.load(b.buffer("i", I32, readonly=True), 0, 8)
    b.scatter(b.gather(x, at, mask=b.active(7, 8)), y, at & 3, mask=b.active(6, 8))
    b.scatter(b.gather(x, b.const(2, I32)), y, b.const(5, I32))
    order = np.array([31, 2, 9, 0, 17, 5, 6, 10**6], np.int32)
    agree(b.finish(), [np.arange(100, 132.0), np.zeros(8), order])


def test_tables_stack_and_scratch(agree: Agree) -> None:
    b = Builder()
    y, table = b.buffer("y", I64), b.table("t", I64, [5, -7, 1 << 62])
    spare, local = b.scratch("s", I64, 4), b.stack("l", I64, 4)
    b.loop(0, 3, 1, [], lambda i: b.store(b.load(table, i), spare, i))
    b.store(b.load(spare, 1, 2), local, 2)
    b.prefetch(y, 1 << 40)
    b.store(b.load(local, 2, 2) + b.load(spare, 0, 2), y, 0)
    agree(b.finish(), [np.zeros(2, np.int64)])


def test_calls(agree: Agree) -> None:
    """Each call has its own stack and the tables of the function."""

    def write(b: Builder, x: Value) -> Value:
        steps, local = b.table("t", F32, [0.5, 2.0]), b.stack("l", F32, 8)
        b.store(x * b.load(steps, 1), local, 0)
        return b.load(local, 0, 8) + b.load(steps, 0)

    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    b.loop(b.lo, b.hi, 8, [],
           lambda i: b.store(called(b, "f", [b.load(x, i, 8)], write, "rare"), y, i))  # fmt: skip
    assert len(b.finish().callees) == 1
    agree(b.finish(), [np.arange(16, dtype=np.float32), np.zeros(16, np.float32)], [], 0, 16)


def test_one_array_for_two_arguments(agree: Agree) -> None:
    b = Builder()
    x, y = b.buffer("x", F32), b.buffer("y", F32)
    b.loop(0, 7, 1, [], lambda i: b.store(b.load(x, i) + 1.0, y, i + 1))
    array = np.zeros(8, np.float32)
    interpret(b.finish(), [array, array])
    np.testing.assert_array_equal(array, np.arange(8))


def test_a_kernel_without_fused_multiply_add() -> None:
    b = Builder()
    y, x = b.buffer("y", F32), b.const(1 + 2.0**-23, F32)
    b.store(b.fma(x, x, -1.0), y, 0)
    b.store(b.fma(x, x, -1.0, exact=True), y, 1)
    once, twice = np.zeros((2, 2), np.float32)
    interpret(b.finish(), [once], has_fma=True)
    interpret(b.finish(), [twice], has_fma=False)
    assert list(once) == [2.0**-22 + 2.0**-46] * 2
    assert list(twice) == [2.0**-22, 2.0**-22 + 2.0**-46]


def test_unwritten_scratch_may_have_a_content() -> None:
    b = Builder()
    y, kept = b.buffer("y", I32), b.scratch("kept", I32, 8, once=True)
    b.store(b.load(b.scratch("s", I32, 8), 3), y, 0)
    for byte, number in ((0xFF, -1), (1, 0x01010101)):
        out = np.zeros(1, np.int32)
        interpret(b.finish(), [out], unwritten=byte)
        assert out[0] == number
    b.load(kept, 0)
    with pytest.raises(VerificationError, match="element 0 of @kept"):
        interpret(b.finish(), [out], unwritten=0)


# -------------------------------------------------------------------- what no kernel may do


def outside(b: Builder) -> None:
    y = b.buffer("y", F32)
    b.loop(b.lo, b.hi, 1, [], lambda i: b.store(b.const(1.0, F32), y, i))


def before_the_start(b: Builder) -> None:
    b.gather(b.buffer("y", F32), b.lane_ids(4, I32) - 1)


def unwritten_scratch(b: Builder) -> None:
    spare = b.scratch("s", F32, 16)
    b.store(b.const(1.0, F32.with_lanes(8)), spare, 0, mask=b.active(7, 8))
    b.load(spare, 0, 8)


def unwritten_stack(b: Builder) -> None:
    b.load(b.stack("l", F32, 8), b.lo)


def forgotten(b: Builder) -> None:
    kept = b.scratch("kept", F32, 8, once=True)
    b.store(b.const(1.0, F32), kept, 0)
    b.forget(kept)
    b.load(kept, 0)


def written_twice(b: Builder) -> None:
    kept = b.scratch("kept", F32, 8, once=True)
    b.forget(kept)
    b.loop(0, 2, 1, [], lambda i: b.store(b.const(1.0, F32), kept, 3))


def an_empty_loop_that_runs(b: Builder) -> None:
    b.loop(b.hi, b.lo, 1, [], lambda i: None, runs=True)


def unaligned(b: Builder) -> None:
    spare = b.scratch("s", F32, 32)
    b.store(b.const(1.0, F32.with_lanes(8)), spare, b.lo + 4, alignment=32)


def division_by_zero(b: Builder) -> None:
    b.store(b.binary("div", 5, b.lo), b.buffer("y", I64), 0)


def division_that_overflows(b: Builder) -> None:
    b.store(b.binary("rem", -(1 << 63), b.lo - 1), b.buffer("y", I64), 0)


def no_such_array(b: Builder) -> None:
    for name in "xyz":
        b.buffer(name, F32)


RULES: list[tuple[Callable[[Builder], None], str]] = [
    (outside, "element 8 of @y.0, which has 8"),
    (before_the_start, "element -1 of @y.0"),
    (unwritten_scratch, "element 7 of @s.s0 is read, and was not written"),
    (unwritten_stack, "element 0 of @l.s0 is read"),
    (forgotten, "element 0 of @kept.s0 is read"),
    (written_twice, "written again before a `forget`"),
    (an_empty_loop_that_runs, "a loop that is said to run does not"),
    (unaligned, "element 4 of @s.s0 is not aligned to 32 bytes"),
    (division_by_zero, "`sdiv` of"),
    (division_that_overflows, "`srem` of"),
    (no_such_array, "there is no array for @z.2"),
]


@pytest.mark.parametrize(("build", "message"), RULES, ids=[build.__name__ for build, _ in RULES])
def test_broken_rule(build: Callable[[Builder], None], message: str) -> None:
    b = Builder()
    build(b)
    kernel = b.finish()
    given = [x for x in kernel.buffers if x.space == "arg"][:2]
    with pytest.raises(VerificationError, match=message):
        interpret(kernel, [np.zeros(8, f"f{x.elem.bits // 8}") for x in given], [], 0, 9)


def test_the_error_shows_the_lines_around() -> None:
    b = Builder()
    outside(b)
    with pytest.raises(VerificationError) as caught:
        interpret(b.finish(), [np.zeros(8, np.float32)], [], 0, 9)
    assert str(caught.value) == (
        "a kernel breaks a rule: element 8 of @y.0, which has 8\n"
        "      %3: f32 = const {value=0x1.0000000000000p+0}\n"
        "      for %0, %1, %2 {runs=False}\n"
        "      (%4: i64) {\n"
        "-->     store %3, %4 {alignment=4 buffer=@y.0 nontemporal=False}\n"
        "      }\n"
        "    }\n"
        "Next: a generator built this kernel; report it with the text above"
    )
