"""Launches in a row, as a table: the same calls as code for each of them would make."""

from __future__ import annotations

import numpy as np
import pytest

from stagejit.runtime.launch_table import FEWEST
from stagejit.runtime.program import BufferRef, Copy, Launch, Loop
from tests.runtime.test_handler import ARENA, ARG, RESULT, X, add, load, run

_FAULT = BufferRef("fault")


@pytest.mark.parametrize("count", [FEWEST - 1, FEWEST, 3 * FEWEST])
@pytest.mark.parametrize("arena", [64, 1 << 16])
def test_all_run_in_order(count: int, arena: int) -> None:
    there, back = BufferRef("arena", 0, 0), BufferRef("arena", 0, arena - 32)
    steps = [add(ARG, there, 1)]
    for number in range(count):
        steps += [add(there, back, 10 * number), add(back, there, 1)]
    loaded = load([*steps, add(there, RESULT, 0)], arena=arena)
    assert ("call void @sj_launches" in loaded.ir) == (2 * count + 2 >= FEWEST)
    np.testing.assert_array_equal(run(loaded, X)[0], X + 1 + count + 5 * count * (count - 1))


def test_many_arguments_and_results() -> None:
    count = 3 * FEWEST
    steps = [add(BufferRef("arg", i), BufferRef("result", count - 1 - i), i) for i in range(count)]
    got = run(load(steps, count, args=count), *(X * i for i in range(count)))
    for i, y in enumerate(reversed(got)):
        np.testing.assert_array_equal(y, X * i + i)


def test_some_need_scratch_and_others_do_not() -> None:
    scratch = Launch("th_scratch", (ARG, RESULT), (), total=8, scratch_nbytes=4096)
    loaded = load([*[scratch] * FEWEST, *[add(RESULT, RESULT, 1)] * FEWEST])
    np.testing.assert_array_equal(run(loaded, X)[0], 2 * X + FEWEST)


def test_dont_take_what_moves_with_a_loop() -> None:
    moving = BufferRef("arena", 0, 0, (4,))
    inside = [add(ARENA, moving, number, total=1) for number in range(FEWEST)]
    loaded = load([Loop(4, tuple(inside)), Copy(RESULT, ARENA, 32)], arena=64)
    assert "call void @sj_launches" not in loaded.ir
    still = [add(ARENA, ARENA, 1) for _ in range(FEWEST)]
    loaded = load([add(ARG, ARENA, 0), Loop(4, tuple(still)), Copy(RESULT, ARENA, 32)], arena=64)
    assert "call void @sj_launches" in loaded.ir
    np.testing.assert_array_equal(run(loaded, X)[0], X + 4 * FEWEST)


def test_a_fault_in_the_middle_is_an_error() -> None:
    fault = Launch("th_fault", (BufferRef("arg", 0, 4), _FAULT), total=1)
    steps = [*[add(ARG, RESULT, 1)] * FEWEST, fault, *[add(ARG, RESULT, 1)] * FEWEST]
    with pytest.raises(Exception, match="first"):
        run(load(steps, faults=("first", "second")), X)
