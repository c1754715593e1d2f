"""Broken kernels, one for each rule of the verifier."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import (
    BF16,
    F32,
    F64,
    I1,
    I8,
    I32,
    I64,
    Block,
    Buffer,
    Op,
    Type,
    Value,
)
from stagejit.codegen.ir.verifier import verify
from stagejit.errors import VerificationError

V8 = F32.with_lanes(8)


def raw(b: Builder, opcode: str, operands: list[Value], *results: Type, **attrs: object) -> None:
    """Appends an op without the builder's help."""
    values = tuple(b._value(type, b.block) for type in results)
    b.block.ops.append(Op(opcode, tuple(operands), values, dict(attrs)))


def access(buffer: Buffer, **attrs: object) -> dict[str, object]:
    return {"buffer": buffer, "alignment": 4, "nontemporal": False, **attrs}


def loop_with(b: Builder, block: Block, operands: list[Value]) -> None:
    b.body.ops.append(Op("for", tuple(operands), (), {"runs": True}, (block,)))


def mixed_types(b: Builder) -> None:
    raw(b, "fadd", [b.const(1.0, F32), b.const(1.0, F64)], F32)


def short_float_arithmetic(b: Builder) -> None:
    raw(b, "fmul", [b.const(1.0, BF16), b.const(1.0, BF16)], BF16)


def float_bits(b: Builder) -> None:
    raw(b, "and", [b.const(1.0, F32), b.const(1.0, F32)], F32)


def mask_sum(b: Builder) -> None:
    raw(b, "add", [b.const(1, I1), b.const(1, I1)], I1)


def unknown_op(b: Builder) -> None:
    raw(b, "frem", [b.const(1.0, F32), b.const(1.0, F32)], F32)


def bad_predicate(b: Builder) -> None:
    raw(b, "icmp", [b.const(1), b.const(1)], I1, predicate="olt")


def select_between_types(b: Builder) -> None:
    raw(b, "select", [b.const(1, I1), b.const(1.0, F32), b.const(1.0, F64)], F32)


def select_by_a_number(b: Builder) -> None:
    raw(b, "select", [b.const(1, I32), b.const(1.0, F32), b.const(1.0, F32)], F32)


def widening_trunc(b: Builder) -> None:
    raw(b, "trunc", [b.const(1, I8)], I32)


def bitcast_of_other_width(b: Builder) -> None:
    raw(b, "bitcast", [b.const(1.0, F32)], I64)


def splat_of_a_vector(b: Builder) -> None:
    raw(b, "splat", [b.const(1.0, V8)], V8)


def lane_beyond(b: Builder) -> None:
    raw(b, "extract", [b.const(1.0, V8)], F32, lane=8)


def shuffle_beyond(b: Builder) -> None:
    raw(b, "shuffle", [b.const(1.0, V8)], V8, lanes=(0, 1, 2, 3, 4, 5, 6, 8))


def reduction_of_another_kind(b: Builder) -> None:
    raw(b, "reduce", [b.const(1.0, V8)], F32, op="smax")


def store_to_readonly(b: Builder) -> None:
    x = b.buffer("x", F32, readonly=True)
    b.store(b.const(1.0, F32), x, 0)


def store_of_another_type(b: Builder) -> None:
    b.store(b.const(1.0, F64), b.buffer("x", F32), 0)


def narrow_index(b: Builder) -> None:
    raw(b, "load", [b.const(1, I32)], F32, **access(b.buffer("x", F32)))


def mask_of_other_lanes(b: Builder) -> None:
    b.load(b.buffer("x", F32), 0, 8, mask=b.active(3, 4))


def foreign_buffer(b: Builder) -> None:
    raw(b, "load", [b.const(1)], F32, **access(Builder().buffer("x", F32)))


def gather_by_floats(b: Builder) -> None:
    raw(b, "gather", [b.const(1.0, V8)], V8, buffer=b.buffer("x", F32))


def odd_alignment(b: Builder) -> None:
    b.load(b.buffer("x", F32), 0, 8, alignment=24)


def unaligned_nontemporal(b: Builder) -> None:
    b.store(b.const(1.0, V8), b.buffer("x", F32), 0, nontemporal=True)


def endless_loop(b: Builder) -> None:
    b.loop(0, 4, 0, [], lambda i: None)


def loop_that_forgets(b: Builder) -> None:
    block = Block(b.body, 1)
    block.args = (b._value(I64, block), b._value(F32, block))
    loop_with(b, block, [b.const(0), b.const(4), b.const(1), b.const(1.0, F32)])


def arms_that_differ(b: Builder) -> None:
    known = b.compare("lt", b.lo, 1)
    b.if_(known, lambda: [b.const(1.0, F32)], lambda: [b.const(1.0, F64)])


def conditional_by_a_vector(b: Builder) -> None:
    b.if_(b.active(3, 8), lambda: None)


def use_outside_its_loop(b: Builder) -> None:
    seen: list[Value] = []
    b.loop(0, 4, 1, [], lambda i: seen.append(i * 3))
    b.store(seen[0], b.buffer("x", I64), 0)


def use_in_the_other_arm(b: Builder) -> None:
    x = b.buffer("x", I64)
    seen: list[Value] = []
    b.if_(
        b.compare("lt", b.lo, 1),
        lambda: seen.append(b.load(x, 0)),
        lambda: b.store(seen[0], x, 0),
    )


def yield_from_elsewhere(b: Builder) -> None:
    block = Block(b.body, 1)
    other = Block(b.body, 1)
    block.args = (b._value(I64, block), b._value(F32, block))
    block.yields = (b._value(F32, other),)
    loop_with(b, block, [b.const(0), b.const(4), b.const(1), b.const(1.0, F32)])
    b.body.ops[-1].results = (b._value(F32, b.body),)


CASES: list[tuple[Callable[[Builder], None], str]] = [
    (mixed_types, "`fadd` mixes the types"),
    (short_float_arithmetic, "`fmul` takes f32 or f64, not bf16"),
    (float_bits, "`and` takes integers or masks, not f32"),
    (mask_sum, "`add` takes integers, not i1"),
    (unknown_op, "unknown op `frem`"),
    (bad_predicate, "`icmp` has no predicate olt"),
    (select_between_types, "`select` between f32 and f64"),
    (select_by_a_number, "by a condition of type i32"),
    (widening_trunc, "`trunc` from i8 to i32"),
    (bitcast_of_other_width, "`bitcast` from f32 to i64"),
    (splat_of_a_vector, "`splat` from <8 x f32>"),
    (lane_beyond, "<8 x f32> has no lane 8"),
    (shuffle_beyond, "picks a lane beyond 8"),
    (reduction_of_another_kind, "`reduce` by smax of <8 x f32>"),
    (store_to_readonly, "which is readonly"),
    (store_of_another_type, "`store` of f64 in @x.0, of f32"),
    (narrow_index, "indexed by an i64, not i32"),
    (mask_of_other_lanes, "masked by <4 x i1>"),
    (foreign_buffer, "@x.0 is not a buffer of this kernel"),
    (gather_by_floats, "by indices of type <8 x f32>"),
    (odd_alignment, "alignment of 24"),
    (unaligned_nontemporal, "a nontemporal store aligned below 32"),
    (endless_loop, "a step of 0"),
    (loop_that_forgets, r"the loop must yield \[f32\]"),
    (arms_that_differ, r"an arm of `if` yields \[f64\], not \[f32\]"),
    (conditional_by_a_vector, "`if` takes a scalar condition"),
    (use_outside_its_loop, "operand 0 of `store` is not defined here"),
    (use_in_the_other_arm, "operand 0 of `store` is not defined here"),
    (yield_from_elsewhere, "yields a value that is not visible"),
]


@pytest.mark.parametrize(("build", "message"), CASES, ids=[build.__name__ for build, _ in CASES])
def test_broken_kernel(build: Callable[[Builder], None], message: str) -> None:
    b = Builder()
    build(b)
    with pytest.raises(VerificationError, match=message):
        verify(b.finish())


def test_the_error_shows_the_lines_around_the_fault() -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F64)
    b.loop(b.lo, b.hi, 8, [], lambda i: b.store(b.load(x, i, 8), y, i))
    with pytest.raises(VerificationError) as caught:
        verify(b.finish())
    assert str(caught.value) == (
        "invalid kernel: `store` of <8 x f32> in @y.1, of f64\n"
        "      for %0, %1, %2 {runs=False}\n"
        "      (%3: i64) {\n"
        "        %4: <8 x f32> = load %3 {alignment=4 buffer=@x.0}\n"
        "-->     store %4, %3 {alignment=8 buffer=@y.1 nontemporal=False}\n"
        "      }\n"
        "    }\n"
        "Next: a generator built this kernel; report it with the text above"
    )


def test_a_good_kernel_passes() -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    b.loop(b.lo, b.hi, 8, [], lambda i: b.store(b.load(x, i, 8) + 1.0, y, i))
    verify(b.finish())
