"""Building kernels: placement, numbering, folding, text."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import F32, F64, I1, I8, I32, I64, Function, Op, Value
from stagejit.codegen.ir.verifier import verify

Run = Callable[..., None]


def opcodes(function: Function) -> list[str]:
    return [op.opcode for op in function.walk() if op.opcode != "const"]


def the(function: Function, opcode: str) -> Op:
    (found,) = [op for op in function.walk() if op.opcode == opcode]
    return found


def test_text_of_a_kernel() -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    limit = b.param()
    scratch = b.scratch("s", F64, 3)
    b.store(b.const(0.5, F64), scratch, 0)

    def body(i: Value) -> None:
        b.store(b.load(x, i, 16) * 2.0, y, i, mask=b.mask_below(i, limit, 16))

    b.loop(b.lo, b.hi, 16, [], body)
    assert b.finish().as_text() == (
        "kernel(@x.0: f32 readonly, @y.1: f32, %0: i64) for [%1, %2) {\n"
        "  @s.s2: f64[3] at scratch + 0\n"
        "  %3: f64 = const {value=0x1.0000000000000p-1}\n"
        "  %4: i64 = const {value=0}\n"
        "  store %3, %4 {alignment=8 buffer=@s.s2 nontemporal=False}\n"
        "  %5: i64 = const {value=16}\n"
        "  %6: <16 x f32> = const {value=0x1.0000000000000p+1}\n"
        "  for %1, %2, %5 {runs=False}\n"
        "  (%7: i64) {\n"
        "    %8: <16 x f32> = load %7 {alignment=4 buffer=@x.0}\n"
        "    %9: <16 x f32> = fmul %8, %6\n"
        "    %10: <16 x i1> = mask_below %7, %0\n"
        "    store %9, %7, %10 {alignment=4 buffer=@y.1 nontemporal=False}\n"
        "  }\n"
        "}"
    )


TEXT_PROGRAM = """
from stagejit import types
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import F32
from stagejit.codegen.cpu.llvm.lower import lower_named
from stagejit.codegen.target import Target
b = Builder()
x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
b.loop(b.lo, b.hi, 16, [], lambda i: b.store(
    vmath.emit(b, "sin", types.f32, [b.load(x, i, 16)]), y, i))
print(b.finish().as_text())
print(*lower_named(b.finish(), Target.avx2()))
"""


def test_text_and_symbol_are_stable_between_processes(repository: Path) -> None:
    texts = set()
    for seed in ("0", "1", "12345"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(repository)}
        command = [sys.executable, "-c", TEXT_PROGRAM]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        texts.add(done.stdout)
    assert len(texts) == 1
    assert "sj_k_" in texts.pop()


def test_equal_pure_ops_are_one() -> None:
    b = Builder()
    x = b.buffer("x", F32, readonly=True)
    value = b.load(x, 0, 16)
    assert value * 2.0 is value * 2.0
    assert b.load(x, 0, 16) is value
    assert b.table("t", F32, [1, 2]) is b.table("other", F32, [1, 2])
    assert b.table("t", F32, [1, 2]) is not b.table("t", F32, [1, 3])


def test_loads_of_written_memory_are_not_merged() -> None:
    b = Builder()
    y = b.buffer("y", F32)
    first = b.load(y, 0)
    b.store(first + 1.0, y, 0)
    assert b.load(y, 0) is not first


def test_invariant_ops_leave_their_loops() -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    seen: list[Value] = []

    def inner(i: Value) -> None:
        seen.append(b.load(x, 0) * 3.0)
        b.store(seen[0], y, i)

    b.loop(0, 4, 1, [], lambda j: b.loop(0, 4, 1, [], inner) and None)
    assert seen[0].block is b.body
    verify(b.finish())


def test_partly_invariant_ops_leave_the_inner_loop_only() -> None:
    b = Builder()
    y = b.buffer("y", I64)
    blocks = []

    def outer(j: Value) -> None:
        b.loop(0, 4, 1, [], lambda i: b.store(scaled(j), y, i))

    def scaled(j: Value) -> Value:
        value = j * 7
        blocks.append((value.block, j.block))
        return value

    b.loop(0, 4, 1, [], outer)
    assert blocks[0][0] is blocks[0][1]


def test_a_load_stays_in_a_loop_that_may_not_run() -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    b.loop(b.lo, b.hi, 1, [], lambda i: b.store(b.load(x, 0), y, i))
    assert the(b.finish(), "load").results[0].block is not b.body


def test_ops_stay_in_an_arm_but_leave_the_loop_around_it() -> None:
    """Note [Hoisting]: the arm may be the rare one."""
    b = Builder()
    y = b.buffer("y", I64)
    rare: list[Value] = []
    invariant: list[Value] = []

    def body(i: Value) -> None:
        def arm() -> None:
            rare.append(i * 5)
            invariant.append(b.lo * 7)
            b.store(rare[0] + invariant[0], y, i)

        b.if_(b.compare("lt", i, 3), arm)

    b.loop(0, 9, 1, [], body)
    assert rare[0].block.parent is not None
    assert not rare[0].block.is_loop
    assert invariant[0].block is b.body
    verify(b.finish())


def test_an_op_of_an_outer_block_is_found_again_in_an_arm() -> None:
    b = Builder()
    doubled = b.lo * 2
    seen: list[Value] = []
    b.if_(b.compare("lt", b.lo, 3), lambda: seen.append(b.lo * 2))
    assert seen == [doubled]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda b, v: b.const(6) * 7 + 0, 42),
        (lambda b, v: v * 1, None),
        (lambda b, v: v + 0, None),
        (lambda b, v: v * 0, 0),
        (lambda b, v: v // 1, None),
        (lambda b, v: v % 1, 0),
    ],
)
def test_index_arithmetic_is_folded(
    build: Callable[[Builder, Value], Value], expected: int | None
) -> None:
    b = Builder()
    value = build(b, b.lo)
    assert value.const == expected
    if expected is None:
        assert value is b.lo


def test_what_may_be_written_is_loaded_once_until_something_is() -> None:
    b = Builder()
    x, y = b.buffer("x", F32), b.buffer("y", F32)
    first = b.load(x, 0)
    assert b.load(x, 0) is first
    assert b.load(x, 1) is not first
    assert b.load(y, 0) is not first
    b.store(first, y, 0)  # may be the same memory
    second = b.load(x, 0)
    assert second is not first
    inside: list[Value] = []

    def body(i: Value) -> None:
        inside.append(b.load(x, 0))
        inside.append(b.load(x, 0))
        b.store(inside[0], y, i)
        inside.append(b.load(x, 0))

    b.loop(0, 4, 1, [], body)
    assert inside[0] is inside[1]
    assert len({second, *inside, b.load(x, 0)}) == 4


def test_floats_are_not_folded() -> None:
    b = Builder()
    x = b.load(b.buffer("x", F32, readonly=True), 0)
    assert (x + 0.0) is not x  # -0 + 0 is 0


def test_scalars_and_numbers_take_the_lanes_of_vectors() -> None:
    b = Builder()
    x = b.buffer("x", F32, readonly=True)
    vector, scalar = b.load(x, 0, 8), b.load(x, 8)
    assert (scalar + vector).type == (1.0 - vector).type == vector.type
    assert b.select(scalar < 0.0, vector, 0.0).type == vector.type
    assert b.splat(b.const(2.0, F32), 8).const == 2.0


def test_a_choice_that_is_known_takes_no_instruction() -> None:
    b = Builder()
    x = b.load(b.buffer("x", F32, readonly=True), 0, 8)
    assert b.select(b.compare("lt", b.const(2), 3), x, 0.0) is x
    assert b.select(b.compare("lt", b.const(3), 3), x, 0.5).const == 0.5
    assert b.select(b.const(1, I1), b.load(b.buffer("y", F32), 0), x).type == x.type
    assert b.select(b.compare("lt", b.param(), 3), x, 0.0) is not x


def test_loop_must_return_what_it_carries() -> None:
    b = Builder()
    with pytest.raises(TypeError, match="loop carries"):
        b.loop(0, 4, 1, [b.const(0.0, F32)], lambda i, s: [b.const(0, I32)])


def test_scratch_is_laid_out_in_lines() -> None:
    b = Builder()
    first, second = b.scratch("a", F32, 3), b.scratch("b", F64, 9)
    assert (first.offset_nbytes, second.offset_nbytes) == (0, 64)
    assert b.finish().scratch_nbytes == 64 + 128


def test_carried_values_and_conditionals_compute(run_kernel: Run) -> None:
    """Collatz steps of each element: a loop with carried values around a conditional."""
    b = Builder()
    x, y = b.buffer("x", I64, readonly=True), b.buffer("y", I64)

    def step(_: Value, n: Value, count: Value) -> list[Value]:
        even = b.compare("eq", n & 1, 0)
        (following,) = b.if_(even, lambda: [n >> 1], lambda: [n * 3 + 1])
        done = b.compare("eq", n, 1)
        return [b.select(done, n, following), count + b.select(done, b.const(0), 1)]

    def element(i: Value) -> None:
        _, count = b.loop(0, 200, 1, [b.load(x, i), b.const(0)], step)
        b.store(count, y, i)

    b.loop(b.lo, b.hi, 1, [], element)
    numbers = np.arange(1, 30)
    steps = np.zeros_like(numbers)
    function = b.finish()
    verify(function)
    run_kernel(function, [numbers, steps], [], 0, 29)
    assert list(steps[[0, 1, 2, 6, 26]]) == [0, 1, 7, 16, 111]


def test_masks_are_types_of_their_own() -> None:
    b = Builder()
    assert b.active(3, 8).type == I1.with_lanes(8)
    assert "mask_below" in opcodes(b.finish())


@pytest.mark.parametrize("opcode", ["add", "sub", "mul", "udiv", "urem", "sdiv", "srem"])
def test_folded_numbers_are_what_the_machine_computes(run_kernel: Run, opcode: str) -> None:
    ends = (0, 1, 2, 7, 16, 2**62, 2**63 - 1, -1, -2, -(2**63))
    pairs = [(x, y) for x in ends for y in ends if y not in (0, -1) or opcode in ("add", "sub")]
    b = Builder()
    xs, ys = (b.buffer(name, I64) for name in "xy")
    folded, computed = (b.buffer(name, I64) for name in "fc")
    for at, (x, y) in enumerate(pairs):
        b.store(b.binary(opcode, b.const(x), b.const(y)), folded, at)
        b.store(b.binary(opcode, b.load(xs, at), b.load(ys, at)), computed, at)
    arrays = [np.array(side, np.int64) for side in zip(*pairs, strict=True)]
    found = [np.zeros(len(pairs), np.int64) for _ in range(2)]
    run_kernel(b.finish(), [*arrays, *found], [], 0, 1)
    np.testing.assert_array_equal(found[0], found[1])


def test_small_positive_numbers_of_few_bits_are_folded() -> None:
    """What may have a sign, or wrap, is left to the machine."""
    b = Builder()
    four, many = b.const(4, I8), b.const(100, I8)
    assert b.cast("trunc", b.const(100), "i8").const == 100
    assert b.cast("trunc", b.const(128), "i8").const is None
    assert b.cast("trunc", b.const(-1), "i8").const is None
    assert (four * 2).const == 8
    assert (many + four).const == 104
    assert (many * 2).const is None
    assert (many + 28).const is None
    assert (many + b.const(-4, I8)).const is None


@pytest.mark.parametrize("predicate", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_folded_comparisons(predicate: str) -> None:
    b = Builder()
    wanted = {"eq": False, "ne": True, "lt": True, "le": True, "gt": False, "ge": False}
    # 2**63 is the least number of 64 bits.
    for x, y in ((-5, 3), (b.const(2**63), 3)):
        assert b.compare(predicate, b.as_value(x, I64), y).const == wanted[predicate]


def test_what_never_runs_is_not_written() -> None:
    b = Builder()
    out = b.buffer("out", I64)

    def body(i: Value, total: Value) -> list[Value]:
        b.store(total, out, i)
        return [total + i]

    start = b.const(3)
    assert b.loop(b.binary("urem", 19, b.const(16)), 3, 1, [start], body) == (start,)
    assert b.loop(3, 3, -1, [start], body) == (start,)
    (kept,) = b.if_(b.compare("lt", b.const(2), 3), lambda: [start + 4], lambda: [start])
    assert kept.const == 7
    assert b.if_(b.compare("lt", b.const(3), 3), lambda: body(start, start)) == ()
    assert opcodes(b.finish()) == []


@pytest.mark.parametrize("apart", [False, True])
def test_one_iteration_is_a_block_of_its_own_where_it_is_wanted(apart: bool) -> None:
    b = Builder()
    out = b.buffer("out", I64)
    b.loop(b.lo, b.lo + 1, 1, [], lambda i: b.store(i, out, i), apart=apart)
    assert opcodes(b.finish()).count("for") == apart
