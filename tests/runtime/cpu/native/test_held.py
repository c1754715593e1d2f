"""Memory that calls update in place comes on huge pages, one a call, once enough have had it."""

from __future__ import annotations

import ctypes
import itertools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.base.machine import HELD_FROM_NBYTES
from stagejit.options import Options
from stagejit.runtime.cpu.encoding import encoded
from stagejit.runtime.cpu.native.arenas import HUGE_PAGE_NBYTES as HUGE
from stagejit.runtime.cpu.native.frame import HEADER
from stagejit.runtime.cpu.native.held import CALLS, ENTRIES, settle_ir
from stagejit.runtime.cpu.native.interpreter import KINDS
from stagejit.runtime.hosting.program import HostProgram
from stagejit.runtime.objects.engine import engine

MADVISE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
CLOCK = ctypes.CFUNCTYPE(ctypes.c_int64)
MOVED = list[tuple[int, int]]()
TIME = [0, 0]  # now, and how long a move takes
OTHERS = itertools.count(500)  # where no other test had memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux moves pages")


@MADVISE
def _note(address: int, nbytes: int, advice: int) -> int:
    assert advice == 25  # MADV_COLLAPSE
    MOVED.append((address, nbytes))
    TIME[0] += TIME[1]
    return 0


@CLOCK
def _now() -> int:
    return TIME[0]


@pytest.fixture(scope="module")
def settle() -> Any:
    """Of a module of its own, which tells the test what it would move."""
    declared = "declare i32 @madvise_noted(ptr, i64, i32)\ndeclare i64 @sj_nanoseconds()\n"
    text = (declared + settle_ir()).replace("@madvise(", "@madvise_noted(")
    functions = {"madvise_noted": _note, "noted_nanoseconds": _now}
    imports = {name: ctypes.cast(f, ctypes.c_void_p).value or 0 for name, f in functions.items()}
    text = text.replace("sj_", "noted_")
    address = engine().load({"noted_settle": text}, imports)["noted_settle"]
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)


def moved(
    settle: Any, calls: int, *places: tuple[int, int], lasts: int = 1, move: int = 1
) -> list[tuple[int, int]]:
    """By so many rounds of calls with memory at these addresses, of these bytes. lasts: how long a
    call does, and move: a move behind it."""
    MOVED.clear()
    TIME[1] = move
    for _ in range(calls):
        for place in places:
            began, TIME[0] = TIME[0], TIME[0] + lasts
            settle(*place, began)
    return list(MOVED)


@pytest.mark.parametrize(
    ("before", "nbytes", "pages"),
    [
        (0, 3 * HUGE, [0, 1, 2]),
        (64, 3 * HUGE, [1, 2]),
        (HUGE - 64, 3 * HUGE, [1, 2]),
        (HUGE - 64, 3 * HUGE + 64, [1, 2, 3]),
        (4096, HUGE, []),  # holds no huge page
    ],
)
def test_each_huge_page_inside_is_moved_once(
    settle: Any, before: int, nbytes: int, pages: list[int]
) -> None:
    base = next(OTHERS) * ENTRIES * HUGE
    place = base + before, nbytes
    assert moved(settle, CALLS, place) == []
    for page in pages:
        assert moved(settle, 1, place) == [(base + page * HUGE, HUGE)]
    assert moved(settle, 100, place) == []


def test_a_move_that_takes_longer_than_its_call_is_the_last_one(settle: Any) -> None:
    place = next(OTHERS) * ENTRIES * HUGE, 8 * HUGE
    assert moved(settle, CALLS, place, lasts=10, move=1000) == []
    assert len(moved(settle, 3, place, lasts=10, move=10)) == 3
    assert len(moved(settle, 3, place, lasts=10, move=11)) == 1
    assert moved(settle, 2 * CALLS, place, lasts=1000, move=1) == []


def test_memory_that_is_new_in_each_call_stays(settle: Any) -> None:
    for turn in range(3 * CALLS):
        assert moved(settle, 1, ((100 + turn * ENTRIES) * HUGE, 4 * HUGE)) == []


def test_two_that_share_an_entry_take_turns_and_stay(settle: Any) -> None:
    places = (100 * HUGE, 4 * HUGE), ((100 + ENTRIES) * HUGE, 4 * HUGE)
    assert moved(settle, 3 * CALLS, *places) == []
    assert len(moved(settle, 3 * CALLS, places[0])) == 4


@pytest.mark.parametrize(
    ("result", "aliases", "kind"),
    [
        (HELD_FROM_NBYTES, ((0, 0),), "settle"),
        (HELD_FROM_NBYTES - 1, ((0, 0),), None),
        (HELD_FROM_NBYTES, (), None),  # fresh, and smaller than what allocators do not keep
        (64 << 20, (), "advise"),
    ],
)
def test_which_results_are_asked_for(result: int, aliases: Any, kind: str | None) -> None:
    program = HostProgram("held", (), (result,), (result,), aliases=aliases)
    steps = _kinds(program)
    assert [each for each in steps if each in ("settle", "advise")] == ([kind] if kind else [])
    assert (steps[0] == "watch") == (steps[-2:] == ["settle", "end"]) == (kind == "settle")


def _kinds(program: HostProgram) -> list[str]:
    """Of the steps of its words, up to the end."""
    words, at, found = encoded(program).words, len(HEADER), list[str]()
    while not found or found[-1] != "end":
        found.append(KINDS[words[at]])
        at += words[at + 1] // 8
    return found


def test_values_stay_while_pages_move() -> None:
    step = stagejit.jit(
        lambda x, i: x.at[i].add(1.0), donate_argnums=0, options=Options(cache_dir="")
    )
    x = jnp.zeros((64, HUGE // 32))  # 16 MiB
    for turn in range(CALLS + 12):
        x = step(x, jnp.int32(turn % 64))
    jax.block_until_ready(x)
    counts = np.bincount(np.arange(CALLS + 12) % 64, minlength=64)
    assert (np.asarray(x) == counts[:, None]).all()
