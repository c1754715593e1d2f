"""Host programs: each kind of step, arenas and scratch, aliases, errors; run through JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from stagejit.runtime.cpu.encoding import encoded
from stagejit.runtime.cpu.loader import LoadedProgram, load_program
from stagejit.runtime.hosting.program import HostProgram, Launch, Parallel, Step
from stagejit.runtime.hosting.program_steps import (
    Branch,
    BufferRef,
    Call,
    Copy,
    ForeignArray,
    Loop,
    While,
)

ARG, RESULT, ARENA = BufferRef("arg"), BufferRef("result"), BufferRef("arena")


def kernel(name: str, body: str) -> str:
    """A kernel over [lo, hi) whose buffers are %a, %b, %c and whose first parameter is %param."""
    return f"""
define void @{name}(ptr %bufs, ptr %params, i64 %lo, i64 %hi, ptr %scratch) nounwind {{
entry:
  %a = load ptr, ptr %bufs
  %p1 = getelementptr ptr, ptr %bufs, i64 1
  %b = load ptr, ptr %p1
  br label %loop
loop:
  %i = phi i64 [%lo, %entry], [%next, %loop]
  %pa = getelementptr i32, ptr %a, i64 %i
  %pb = getelementptr i32, ptr %b, i64 %i
{body}  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %hi
  br i1 %more, label %loop, label %out
out:
  ret void
}}
"""


KERNELS = {
    "th_add": kernel(
        "th_add",
        """\
  %param = load i64, ptr %params
  %n = trunc i64 %param to i32
  %v = load i32, ptr %pa
  %w = add i32 %v, %n
  store i32 %w, ptr %pb
""",
    ),
    "th_less": kernel(
        "th_less",
        """\
  %param = load i64, ptr %params
  %n = trunc i64 %param to i32
  %v = load i32, ptr %pa
  %w = icmp slt i32 %v, %n
  %x = zext i1 %w to i8
  store i8 %x, ptr %b
""",
    ),
    "th_scratch": kernel(
        "th_scratch",
        """\
  store i64 %i, ptr %scratch
  %end = getelementptr i8, ptr %scratch, i64 4088
  store i64 %i, ptr %end
  %v = load i64, ptr %scratch
  %w = load i64, ptr %end
  %s = add i64 %v, %w
  %t = trunc i64 %s to i32
  store i32 %t, ptr %pb
""",
    ),
    "th_fault": kernel(
        "th_fault",
        """\
  %v = load i32, ptr %pa
  %w = sext i32 %v to i64
  store i64 %w, ptr %b
""",
    ),
}


def add(source: BufferRef, destination: BufferRef, number: int, **how: Any) -> Launch:
    return Launch("th_add", (source, destination), (number,), **{"total": 8, **how})


def load(
    steps: Sequence[Step], results: int = 1, arena: int = 0, args: int = 1, **more: Any
) -> LoadedProgram:
    nbytes = more.pop("nbytes", 32)
    tested = HostProgram("test", tuple(steps), (nbytes,) * args, (nbytes,) * results, arena, **more)
    return load_program(tested, KERNELS)


def run(loaded: LoadedProgram, *args: Any, aliases: dict[int, int] | None = None) -> Any:
    specs = [jax.ShapeDtypeStruct((n // 4,), np.int32) for n in loaded.program.result_nbytes]
    call = jax.ffi.ffi_call(loaded.target, specs, input_output_aliases=aliases)
    return jax.block_until_ready(jax.jit(lambda *xs: call(*xs, **loaded.attributes))(*args))


X = np.arange(8, dtype=np.int32)


def test_launches_in_order_through_the_arena() -> None:
    loaded = load([add(ARG, ARENA, 1), add(ARENA, RESULT, 10)], arena=32)
    before = loaded.call_count
    np.testing.assert_array_equal(run(loaded, X)[0], X + 11)
    assert loaded.call_count == before + 1


@pytest.mark.parametrize(
    ("total", "grain"), [(0, 1), (1, 4), (8, 3), (8, 8), (1000, 7), (100_000, 1)]
)
def test_parallel_launch(total: int, grain: int) -> None:
    x = np.arange(max(total, 8), dtype=np.int32)
    launch = add(ARG, RESULT, 5, total=total, grain=grain, parallel=True)
    (y,) = run(load([launch], nbytes=x.nbytes), x)
    np.testing.assert_array_equal(y[:total], x[:total] + 5)


def test_parallel_region_of_several_launches() -> None:
    results = [BufferRef("result", i) for i in range(4)]
    launches = (
        add(ARG, results[0], 1, total=1000, grain=10, parallel=True),
        add(ARG, results[1], 2, total=0, grain=10, parallel=True),
        add(ARG, results[2], 3, total=1000),
        add(ARG, results[3], 4, total=1000, grain=999, parallel=True),
    )
    x = np.arange(1000, dtype=np.int32)
    got = run(
        load([Parallel(launches), add(results[3], results[1], 5, total=1000)], 4, nbytes=4000), x
    )
    for y, number in zip(got, (1, 9, 3, 4), strict=True):
        np.testing.assert_array_equal(y, x + number)


def test_each_worker_has_its_scratch() -> None:
    x = np.zeros(50_000, np.int32)
    launch = Launch("th_scratch", (ARG, RESULT), (), 50_000, 1, True, 4096)
    (y,) = run(load([launch], nbytes=x.nbytes, arena=100), x)
    np.testing.assert_array_equal(y, 2 * np.arange(50_000))


def test_loop_with_moving_buffers() -> None:
    element = BufferRef("result", 0, 28, (-4,))
    body = (add(BufferRef("arg", 0, 0, (4,)), element, 100, total=1),)
    np.testing.assert_array_equal(run(load([Loop(8, body)]), X)[0], X[::-1] + 100)


def test_nested_loops() -> None:
    source, destination = BufferRef("arg", 0, 0, (16, 4)), BufferRef("result", 0, 0, (4, 8))
    steps = [
        Loop(2, (Loop(4, (add(source, destination, 0, total=1),)),)),
        Loop(0, (add(ARG, RESULT, 9),)),
    ]
    np.testing.assert_array_equal(run(load(steps), X)[0], X.reshape(2, 4).T.ravel())


def test_loop_carries_a_buffer() -> None:
    steps = [Copy(RESULT, ARG, 32), Loop(1000, (add(RESULT, RESULT, 1, grain=2, parallel=True),))]
    np.testing.assert_array_equal(run(load(steps), X)[0], X + 1000)


@pytest.mark.parametrize(("start", "expected"), [(0, 100), (99, 100), (100, 100), (200, 200)])
def test_while(start: int, expected: int) -> None:
    predicate = BufferRef("arena", 0, 5)
    condition = (Launch("th_less", (RESULT, predicate), (100,)),)
    steps = [Copy(RESULT, ARG, 32), While(condition, predicate, (add(RESULT, RESULT, 1, total=1),))]
    x = np.full(8, start, np.int32)
    assert run(load(steps, arena=6), x)[0][0] == expected


@pytest.mark.parametrize(("index", "number"), [(-5, 1), (0, 1), (1, 2), (2, 3), (7, 3)])
def test_branch_clamps(index: int, number: int) -> None:
    branches = tuple((add(ARG, RESULT, n),) for n in (1, 2, 3))
    x = np.full(8, index, np.int32)
    np.testing.assert_array_equal(run(load([Branch(ARG, 4, branches)]), x)[0], x + number)


def test_branch_of_one_byte_with_an_empty_side() -> None:
    steps = [Copy(RESULT, ARG, 32), Branch(ARG, 1, ((), (add(RESULT, RESULT, 7),)))]
    for first in (0, 1):
        x = np.full(8, first, np.int32)
        np.testing.assert_array_equal(run(load(steps), x)[0], x + 7 * first)


def test_alias_is_in_place_or_copied() -> None:
    loaded = load([add(RESULT, RESULT, 1)], aliases=((0, 0),))
    np.testing.assert_array_equal(run(loaded, X)[0], X + 1)  # the call declares no alias
    np.testing.assert_array_equal(run(loaded, X, aliases={0: 0})[0], X + 1)
    np.testing.assert_array_equal(X, np.arange(8))


def test_large_results() -> None:
    x = np.arange(9 << 20, dtype=np.int32)
    launch = add(ARG, RESULT, 1, total=x.size, grain=1 << 20, parallel=True)
    np.testing.assert_array_equal(run(load([launch], nbytes=x.nbytes), x)[0], x + 1)


def test_wrong_counts_are_an_error() -> None:
    loaded = load([add(ARG, RESULT, 1)])
    with pytest.raises(jax.errors.JaxRuntimeError, match="'test': wrong number of buffers"):
        run(loaded, X, X)
    assert np.array_equal(run(loaded, X)[0], X + 1)


def test_no_memory_is_an_error() -> None:
    loaded = load([add(ARG, RESULT, 1)], arena=1 << 60)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"(?s)RESOURCE_EXHAUSTED.*Next: free memory"
    ):
        run(loaded, X)


@pytest.mark.parametrize(
    ("value", "message"), [(1, "first"), (2, "second"), (9, "first"), (-1, "first")]
)
def test_faults_select_a_message(value: int, message: str) -> None:
    steps = [add(ARG, RESULT, 1), Launch("th_fault", (ARG, BufferRef("fault")))]
    loaded = load(steps, arena=32, faults=("first", "second"))
    np.testing.assert_array_equal(run(loaded, X * 0)[0], X * 0 + 1)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=f"INTERNAL: stagejit program 'test': {message}"
    ):
        run(loaded, np.full(8, value, np.int32))


def test_empty_program_and_many_buffers() -> None:
    run(load([], 0, args=0))
    steps = [add(BufferRef("arg", i), BufferRef("result", 39 - i), i) for i in range(40)]
    got = run(load(steps, 40, args=40), *[X * i for i in range(40)])
    for i, y in enumerate(reversed(got)):
        np.testing.assert_array_equal(y, X * i + i)


def test_names_depend_on_the_program_alone() -> None:
    first = HostProgram("f(x) -> y!", (add(ARG, RESULT, 1),), (32,), (32,))
    other = HostProgram("f(x) -> y!", (add(ARG, RESULT, 2),), (32,), (32,))
    assert encoded(first) == encoded(first)
    assert encoded(first).name != encoded(other).name
    assert encoded(first).name.startswith("stagejit_f_x_y_")


def test_names_depend_on_everything() -> None:
    """also on what is an address in the words: kernels, parameters, messages, attributes"""
    launch, arrays = add(ARG, RESULT, 1), (ForeignArray(ARG, "i32", (8,), 32),)
    call = Call("t", arrays, arrays, (("a", "f32", 1.0),))
    base = HostProgram("f", (launch, call), (32,), (32,), faults=("a",))
    others = [
        replace(base, steps=(replace(launch, kernel="th_other"), call)),
        replace(base, steps=(replace(launch, params=(2,)), call)),
        replace(base, steps=(launch, replace(call, target="u"))),
        replace(base, steps=(launch, replace(call, attributes=(("a", "f32", -1.0),)))),
        replace(base, steps=(launch, replace(call, attributes=(("a", "f64", 1.0),)))),
        replace(base, steps=(call, launch)),
        replace(base, faults=("b",)),
        replace(base, arena_nbytes=64),
    ]
    assert len({encoded(program).name for program in (base, *others)}) == 1 + len(others)


@pytest.mark.parametrize("count", [1, 7, 600])
@pytest.mark.parametrize("arena", [64, 1 << 16])
def test_many_launches(count: int, arena: int) -> None:
    there, back = BufferRef("arena", 0, 0), BufferRef("arena", 0, arena - 32)
    steps = [add(ARG, there, 1)]
    for number in range(count):
        steps += [add(there, back, 10 * number), add(back, there, 1)]
    got = run(load([*steps, add(there, RESULT, 0)], arena=arena), X)[0]
    np.testing.assert_array_equal(got, X + 1 + count + 5 * count * (count - 1))


@pytest.mark.parametrize("count", [1, 3, 600])
@pytest.mark.parametrize("arena", [256, 1 << 16])
def test_many_launches_in_loops(count: int, arena: int) -> None:
    """their addresses stay between turns, but for those that a loop moves; more of them than fit
    the stack are in the arena"""
    there, moving = BufferRef("arena"), BufferRef("arena", 0, 128, (32, 4))
    some = BufferRef("arena", 0, 32)
    inner = [add(moving, moving, n, total=1) for n in range(count)]
    outer = Loop(3, (*[add(there, there, 1)] * count, Loop(8, tuple(inner)), add(there, some, 0)))
    steps = [
        add(ARG, there, 0),
        *[add(ARG, BufferRef("arena", 0, at), 0) for at in (128, 160, 192)],
        outer,
        add(some, RESULT, 0),
        add(BufferRef("arena", 0, 192), BufferRef("result", 1), 0),
    ]
    got = run(load(steps, 2, arena=arena), X)
    np.testing.assert_array_equal(got[0], X + 3 * count)
    np.testing.assert_array_equal(got[1], X + count * (count - 1) // 2)


def test_branches_and_loops_inside_of_each_other() -> None:
    """sides of different lengths, an empty one, a loop in a side, a condition with two launches"""
    predicate, index = BufferRef("arena", 0, 0), BufferRef("arena", 0, 32)
    sides: tuple[tuple[Step, ...], ...] = (
        (),
        (add(RESULT, RESULT, 1), Loop(2, (add(RESULT, RESULT, 1), add(RESULT, RESULT, 1)))),
        (add(RESULT, RESULT, 100),),
    )
    condition = (
        Launch("th_less", (index, BufferRef("arena", 0, 64)), (100,)),
        Launch("th_less", (index, predicate), (3,)),
    )
    body = (Branch(index, 4, sides), add(index, index, 1))
    steps = [Copy(RESULT, ARG, 32), add(ARG, index, 0), While(condition, predicate, body)]
    for start, expected in ((0, 105), (1, 105), (2, 100), (3, 0), (-1, 105)):
        x = np.full(8, start, np.int32)
        np.testing.assert_array_equal(run(load(steps, arena=128), x)[0], x + expected)


def test_some_need_scratch_and_others_do_not() -> None:
    scratch = Launch("th_scratch", (ARG, RESULT), (), total=8, scratch_nbytes=4096)
    loaded = load([*[scratch] * 3, *[add(RESULT, RESULT, 1)] * 3])
    np.testing.assert_array_equal(run(loaded, X)[0], 2 * X + 3)
