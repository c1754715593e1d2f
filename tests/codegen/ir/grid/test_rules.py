"""Kernels for blocks of threads: their text, where ops go, and one broken kernel for each rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.grid.matrix_tiles import M8N8K4_F64, M16N8K16_BF16
from stagejit.codegen.ir.nodes import BF16, F16, F32, F64, I1, I32, I64, Function, Op, Type, Value
from stagejit.codegen.ir.shared_code import called
from stagejit.codegen.ir.verifier import verify
from stagejit.errors import VerificationError


def raw(b: Builder, opcode: str, operands: list[Value], *results: Type, **attrs: object) -> None:
    """Appends an op without the builder's help."""
    values = tuple(b._value(type, b.block) for type in results)
    b.block.ops.append(Op(opcode, tuple(operands), values, dict(attrs)))


def test_text() -> None:
    b = GridBuilder([32, 4])
    x, s = b.buffer("x", BF16, readonly=True), b.shared("s", F32, 128)
    c = b.tile_load(M16N8K16_BF16, "c", s, 0, (8, 1))
    a = b.tile_load(M16N8K16_BF16, "a", x, 0, (16, 1))
    b.tile_product(M16N8K16_BF16, a, a, c)
    b.barrier()
    b.atomic("fadd", b.exchange("xor", b.extract(c, 0), 1), s, b.thread_id(1))
    assert b.finish().as_text() == (
        "kernel(@x.0: bf16 readonly) for [%0, %1) by blocks of 32 x 4 {\n"
        "  @s.b1: f32[128] shared\n"
        "  %2: i64 = const {value=0}\n"
        "  %3: i64 = const {value=8}\n"
        "  %4: i64 = const {value=1}\n"
        "  %5: <4 x f32> = tile_load %2, %3, %4 "
        "{buffer=@s.b1 role=c tile=m16n8k16.bf16.f32}\n"
        "  %6: i64 = const {value=16}\n"
        "  %7: <8 x bf16> = tile_load %2, %6, %4 "
        "{buffer=@x.0 role=a tile=m16n8k16.bf16.f32}\n"
        "  %8: <4 x f32> = tile_product %7, %7, %5 {tile=m16n8k16.bf16.f32}\n"
        "  barrier\n"
        "  %9: f32 = extract %5 {lane=0}\n"
        "  %10: f32 = exchange %9, %4 {kind=xor}\n"
        "  %11: i64 = thread_id {axis=1}\n"
        "  %12: f32 = atomic %10, %11 {buffer=@s.b1 op=fadd}\n"
        "}"
    )


def test_loads_do_not_pass_barriers() -> None:
    b = GridBuilder([32])
    shared = b.shared("s", F32, 32)
    first = b.load(shared, 0)
    assert b.load(shared, 0) is first
    b.barrier()
    assert b.load(shared, 0) is not first


def test_what_a_warp_does_stays_where_it_is_written() -> None:
    b = GridBuilder([32])
    own: list[Value] = []

    def body(i: Value) -> None:
        own.append(b.exchange("xor", b.thread_id(), 1))
        own.append(b.exchange("xor", b.thread_id(), 1))

    b.loop(0, 4, 1, [], body)
    assert own[0] is not own[1]
    assert own[0].block.is_loop
    assert b.thread_id() is b.thread_id()
    assert b.thread_id().block is b.body


def without_threads(b: Builder) -> None:
    raw(b, "barrier", [])


def shared_without_threads(b: Builder) -> None:
    b._declared("s", F32, "shared", size=4)


def test_of_a_kernel_without_threads() -> None:
    for build, message in (
        (without_threads, "`barrier` in a kernel without threads"),
        (shared_without_threads, "@s.b0 is shared, without threads"),
    ):
        b = Builder()
        build(b)
        with pytest.raises(VerificationError, match=message):
            verify(b.finish())


def scratch(b: GridBuilder) -> None:
    b.scratch("s", F32, 4)


def in_a_function(b: GridBuilder) -> None:
    def write(inner: Builder, x: Value) -> Value:
        raw(inner, "barrier", [])
        return x + 1

    called(b, "f", [b.thread_id()], write, "rare")


def no_such_axis(b: GridBuilder) -> None:
    b.thread_id(2)


def narrow_id(b: GridBuilder) -> None:
    raw(b, "block_id", [], I32, axis=0)


def barrier_with_an_operand(b: GridBuilder) -> None:
    raw(b, "barrier", [b.thread_id()])


def exchange_of_another_kind(b: GridBuilder) -> None:
    b.exchange("left", b.thread_id(), 1)


def exchange_with_a_narrow_lane(b: GridBuilder) -> None:
    raw(b, "exchange", [b.thread_id(), b.const(1, I32)], I64, kind="xor")


def vote_of_numbers(b: GridBuilder) -> None:
    b.vote("any", b.thread_id())


def vote_of_another_kind(b: GridBuilder) -> None:
    b.vote("most", b.compare("eq", b.thread_id(), 0))


def vote_with_another_result(b: GridBuilder) -> None:
    raw(b, "vote", [b.compare("eq", b.thread_id(), 0)], I1, kind="ballot")


def unknown_atomic(b: GridBuilder) -> None:
    b.atomic("mul", 1, b.buffer("x", I32), 0)


def atomic_of_another_type(b: GridBuilder) -> None:
    b.atomic("add", 1.0, b.buffer("x", F32), 0)


def atomic_of_short_floats(b: GridBuilder) -> None:
    b.atomic("fadd", 1.0, b.buffer("x", F16), 0)


def atomic_of_mixed_types(b: GridBuilder) -> None:
    b.atomic("fadd", b.const(1.0, F64), b.buffer("x", F32), 0)


def atomic_by_a_vector(b: GridBuilder) -> None:
    b.atomic("add", 1, b.buffer("x", I32), b.lane_ids(4))


def atomic_to_readonly(b: GridBuilder) -> None:
    b.atomic("add", 1, b.buffer("x", I32, readonly=True), 0)


def atomic_on_the_stack(b: GridBuilder) -> None:
    b.atomic("add", 1, b.stack("x", I32, 4), 0)


def swap_of_floats(b: GridBuilder) -> None:
    b.compare_and_swap(0.0, 1.0, b.buffer("x", F32), 0)


def tile_of_another_type(b: GridBuilder) -> None:
    b.tile_load(M16N8K16_BF16, "a", b.buffer("x", F16), 0, (16, 1))


def fragment_of_another_length(b: GridBuilder) -> None:
    value = b.const(0.0, F64.with_lanes(4))
    b.tile_store(M8N8K4_F64, value, b.buffer("x", F64), 0, (8, 1))


def tile_stored_to_readonly(b: GridBuilder) -> None:
    value = b.const(0.0, F64.with_lanes(2))
    b.tile_store(M8N8K4_F64, value, b.buffer("x", F64, readonly=True), 0, (8, 1))


def tile_at_a_vector(b: GridBuilder) -> None:
    b.tile_load(M8N8K4_F64, "a", b.buffer("x", F64), b.lane_ids(4), (8, 1))


def product_of_other_fragments(b: GridBuilder) -> None:
    a = b.tile_load(M8N8K4_F64, "a", b.buffer("x", F64), 0, (4, 1))
    b.tile_product(M8N8K4_F64, a, a, a)


def product_with_another_result(b: GridBuilder) -> None:
    x = b.buffer("x", F64)
    a, c = (b.tile_load(M8N8K4_F64, role, x, 0, (8, 1)) for role in ("a", "c"))
    raw(b, "tile_product", [a, a, c], F64, tile=M8N8K4_F64)


CASES: list[tuple[Callable[[GridBuilder], None], str]] = [
    (scratch, "@s.s0 is scratch, which only workers have"),
    (in_a_function, "`barrier` in a kernel without threads"),
    (no_such_axis, "blocks have no axis 2"),
    (narrow_id, "`block_id` gives an i64"),
    (barrier_with_an_operand, "`barrier` takes and gives nothing"),
    (exchange_of_another_kind, "no exchange by left"),
    (exchange_with_a_narrow_lane, "`exchange` of i64 by i32"),
    (vote_of_numbers, "`vote` takes a scalar condition"),
    (vote_of_another_kind, "no vote on most"),
    (vote_with_another_result, "`vote` on ballot gives i32"),
    (unknown_atomic, "no atomic mul"),
    (atomic_of_another_type, "`atomic` add of f32"),
    (atomic_of_short_floats, "`atomic` fadd of f16"),
    (atomic_of_mixed_types, "`atomic` of f64 in @x.0, of f32"),
    (atomic_by_a_vector, "is indexed by an i64"),
    (atomic_to_readonly, "which is readonly"),
    (atomic_on_the_stack, "which is a thread's own"),
    (swap_of_floats, "`cas` of f32"),
    (tile_of_another_type, "`tile_load` of <8 x bf16> in @x.0"),
    (fragment_of_another_length, "<4 x f64> is no fragment of m8n8k4.f64.f64"),
    (tile_stored_to_readonly, "which is readonly"),
    (tile_at_a_vector, "takes an index and two strides"),
    (product_of_other_fragments, r"`tile_product` by m8n8k4.f64.f64 takes"),
    (product_with_another_result, r"`tile_product` by m8n8k4.f64.f64 gives <2 x f64>"),
]


@pytest.mark.parametrize(("build", "message"), CASES, ids=[build.__name__ for build, _ in CASES])
def test_broken_kernel(build: Callable[[GridBuilder], None], message: str) -> None:
    b = GridBuilder([32, 2])
    build(b)
    with pytest.raises(VerificationError, match=message):
        verify(b.finish())


def test_blocks_of_whole_warps() -> None:
    b = GridBuilder([48])
    b.exchange("xor", b.thread_id(), 1)
    with pytest.raises(VerificationError, match="blocks that are not whole warps"):
        verify(b.finish())


@pytest.mark.parametrize("threads", [(1, 1, 1, 32), (0,), (32, -1)])
def test_sizes_of_blocks(threads: tuple[int, ...]) -> None:
    b = GridBuilder([32])
    b.barrier()
    function: Function = replace(b.finish(), threads=threads)
    with pytest.raises(VerificationError, match="blocks of"):
        verify(function)
