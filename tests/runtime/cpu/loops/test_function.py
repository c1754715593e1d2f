"""The LLVM IR of a loop that is one function, of steps that are made by hand."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from stagejit.errors import InternalError
from stagejit.runtime.cpu.loops.function import Function, function_of
from stagejit.runtime.cpu.loops.inlined import inlined
from stagejit.runtime.hosting.program import Clear, Launch
from stagejit.runtime.hosting.program_steps import (
    Branch,
    BufferRef,
    Copy,
    Loop,
    Store,
    While,
    Workspace,
)
from stagejit.runtime.objects.engine import engine

# Adds its first parameter to an integer, what two names are for if somebody believed them.
ADD = """define void @add(ptr %bufs, ptr %params, i64 %lo, i64 %hi, ptr %scratch) #0 {
entry:
  %from = load ptr, ptr %bufs, align 8, !invariant.load !0
  %to.at = getelementptr ptr, ptr %bufs, i64 1
  %to = load ptr, ptr %to.at, align 8, !invariant.load !0
  %by = load i64, ptr %params, align 8, !invariant.load !0
  %old = load i64, ptr %from, align 8, !alias.scope !1, !noalias !2, !invariant.load !0
  %all = mul i64 %by, %hi
  %new = add i64 %old, %all
  store i64 %new, ptr %to, align 8, !alias.scope !2, !noalias !1
  ret void
}
attributes #0 = { nounwind }
!0 = !{}
!1 = !{!3}
!2 = !{!4}
!3 = distinct !{!3, !5}
!4 = distinct !{!4, !5}
!5 = distinct !{!5}
"""
A, B, ARENA = BufferRef("arg", 0), BufferRef("result", 0), BufferRef("arena")


def at(ref: BufferRef, offset: int = 0, *strides: int) -> BufferRef:
    return BufferRef(ref.space, ref.index, offset, strides)


def add(source: BufferRef, to: BufferRef, by: int = 1, total: int = 1) -> Launch:
    return Launch("add", (source, to), (by,), total)


def made(loop: Any, loops: int = 0) -> Function:
    return function_of(loop, {"add": ADD}, loops)


def run(loop: Any, **given: list[int]) -> dict[str, list[int]]:
    """What is in each base afterwards. given: by space, 64-bit words."""
    function = made(loop)
    address = engine().load({function.symbol: function.text})[function.symbol]
    memory = {space: np.asarray(words, np.int64) for space, words in given.items()}
    bases = (ctypes.c_void_p * len(function.buffers))(
        *(memory[base.space].ctypes.data for base in function.buffers)
    )
    kinds = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    ctypes.CFUNCTYPE(None, *kinds)(address)(bases, None, 0, 1, None)
    return {space: words.tolist() for space, words in memory.items()}


def test_a_loop_runs_its_steps_in_their_order() -> None:
    loop = Loop(4, (add(A, B, 10, total=2), add(B, A, 1), Store(at(B, 8, 8), 8, 5, 3)))
    assert run(loop, arg=[0], result=[0] * 6) == {"arg": [84], "result": [83, 5, 8, 11, 14, 0]}


def test_what_one_turn_writes_the_next_one_reads() -> None:
    """Also where it lies one element further: no name of a kernel's stays true in a loop."""
    loop = Loop(5, (add(at(B, 0, 8), at(B, 8, 8), 2),))
    assert run(loop, result=[1, 0, 0, 0, 0, 0]) == {"result": [1, 3, 5, 7, 9, 11]}


def test_loops_in_loops_move_by_their_own_turns() -> None:
    inner = Loop(3, (add(at(A, 0, 24, 8), at(B, 0, 8, 16), 100), Copy(at(A, 0, 24), B, 8)))
    found = run(Loop(2, (inner,)), arg=[0] * 6, result=[7] * 6)
    assert found == {"arg": [100, 0, 0, 100, 0, 0], "result": [100, 100, 100, 100, 100, 100]}


def test_what_loops_around_move_backwards_begins_inside_of_its_buffer() -> None:
    """At what is referred to first; the rest is as far from that as before."""
    body = (add(at(B, 16, -8, 8), at(B, 40, -8, 8)), Copy(at(B, 64, -8), at(A, 8, 8), 8))
    function = made(Loop(2, body), loops=1)
    assert function.buffers == (at(B, 16, -8), at(A, 0, 8))
    address = engine().load({function.symbol: function.text})[function.symbol]
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2, ctypes.c_void_p)
    argument, result = np.arange(10, 13), np.arange(9)
    wanted = result.copy()
    for turn in range(2):
        places = (result.ctypes.data + 16 - 8 * turn, argument.ctypes.data + 8 * turn)
        call(address)((ctypes.c_void_p * 2)(*places), None, 0, 1, None)
        for inner in range(2):
            wanted[5 - turn + inner] = wanted[2 - turn + inner] + 1
            wanted[8 - turn] = argument[1 + turn]
    np.testing.assert_array_equal(result, wanted)


def test_a_workspace_stays_on_the_stack_from_turn_to_turn() -> None:
    first = at(ARENA, 64)
    body = (add(first, at(ARENA, 72), 1), add(at(ARENA, 72), first, 1), Copy(at(B, 0, 8), first, 8))
    loop = Loop(3, (Store(first, 8, 40), Loop(2, body[:2]), body[2]), Workspace(first, 64))
    assert run(loop, result=[0] * 3) == {"result": [44, 44, 44]}
    assert [base.space for base in made(loop).buffers] == ["result"]
    large = Loop(3, loop.body, Workspace(first, 1 << 20))
    assert [base.space for base in made(large).buffers] == ["arena", "result"]


def test_a_while_loop_ends_where_its_predicate_is_zero() -> None:
    body = (add(at(B, 8), at(B, 8), -1), add(B, B, 3))
    loop = While((Copy(B, at(B, 16), 8), add(B, B, 1)), at(B, 8), body)
    assert run(loop, result=[0, 5, 50]) == {"result": [51, 0, 50]}


@pytest.mark.parametrize("nbytes", [1, 2, 4, 8])
@pytest.mark.parametrize(("index", "expected"), [(-3, 1), (0, 1), (1, 10), (2, 100), (9, 100)])
def test_a_branch_takes_the_side_of_its_clamped_index(
    nbytes: int, index: int, expected: int
) -> None:
    sides = tuple((add(B, B, by),) for by in (1, 10, 100))
    loop = Loop(1, (Branch(A, nbytes, sides),))
    word = int(np.array([index, *[0] * 7], f"i{nbytes}").view(np.int64)[0])
    assert run(loop, arg=[word], result=[0])["result"] == [expected]


@pytest.mark.parametrize("nbytes", [1, 2, 4])
def test_a_store_writes_so_many_bytes(nbytes: int) -> None:
    loop = Loop(2, (Store(at(B, 0, 8), nbytes, 1, 1),))
    full = (1 << 64) - (1 << 8 * nbytes)
    found = run(loop, result=[-1, -1])["result"]
    assert [word % (1 << 64) for word in found] == [full + 1, full + 2]


def test_steps_that_do_nothing_are_none() -> None:
    loop = Loop(2, (add(A, B, 1, total=0), Copy(A, B, 0), Loop(0, (add(A, B),)), add(B, B, 1)))
    assert run(loop, result=[0]) == {"result": [2]}


def test_bases_of_one_buffer_that_outer_loops_move_may_be_the_same() -> None:
    loop = Loop(3, (add(at(A, 0, 8), at(B, 0, 0, 8)), add(at(A, 0, 16, 8), at(B, 8, 0, 8))))
    function = made(loop, loops=1)
    assert function.buffers == (at(A, 0, 8), at(B, 0), at(A, 0, 16))
    line = next(
        line for line in function.text.splitlines() if "internal" in line and ".loop(" in line
    )
    assert "ptr %base0, ptr noalias %base1, ptr %base2" in line


def test_the_name_is_that_of_the_content() -> None:
    first, same = made(Loop(3, (add(A, B),))), made(Loop(3, (add(A, B),)))
    other = made(Loop(4, (add(A, B),)))
    assert first == same
    assert first.symbol != other.symbol
    assert f"define void @{first.symbol}(" in first.text


def test_other_steps_are_refused() -> None:
    with pytest.raises(InternalError, match="in a loop that is one function"):
        made(Loop(2, (Clear(B, 8),)))


def test_kernels_lose_what_was_only_true_of_one_call() -> None:
    functions, declarations, groups = inlined([ADD])
    assert not [line for line in functions if "!" in line]
    assert functions[0].startswith("define internal void @add(ptr %bufs")
    assert functions[0].endswith(") alwaysinline #0 {")
    assert (declarations, groups) == ([], ["attributes #0 = { nounwind }"])


def test_attributes_of_several_kernels_are_numbered_anew() -> None:
    rare = "\ndefine internal i64 @more.rare(i64 %p) cold noinline #1 {\nentry:\n  ret i64 %p\n}"
    other = ADD.replace("@add", "@more").replace("#0 = { nounwind }", "#0 = { nounwind cold }")
    other += 'attributes #1 = { "rare" }' + rare
    functions, _, groups = inlined([ADD, other, ADD])
    assert [line[-3:] for line in functions if line.startswith("define")] == [
        "0 {",
        "1 {",
        "2 {",
        "0 {",
    ]
    assert groups == [
        "attributes #0 = { nounwind }", "attributes #1 = { nounwind cold }",
        'attributes #2 = { "rare" }',
    ]  # fmt: skip
