"""Weights on huge pages: which pages are asked for, and that nothing else changes."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from stagejit.base.machine import HELD_FROM_NBYTES
from stagejit.runtime.cpu.huge_pages import Room, put_on_huge_pages, whole_pages
from stagejit.runtime.cpu.native.arenas import HUGE_PAGE_NBYTES as PAGE


@pytest.mark.parametrize(
    ("memory", "pages"),
    [
        ([], []),
        ([(PAGE, PAGE)], [(PAGE, PAGE)]),
        ([(PAGE + 64, PAGE)], []),  # none is whole
        ([(PAGE - 64, 3 * PAGE)], [(PAGE, 2 * PAGE)]),
        ([(PAGE, PAGE // 2), (PAGE + PAGE // 2 + 64, PAGE)], [(PAGE, PAGE)]),  # it is shared
        ([(3 * PAGE // 2, PAGE), (PAGE, PAGE // 2)], [(PAGE, PAGE)]),  # in any order
        ([(PAGE, PAGE // 4), (PAGE + PAGE // 2, PAGE)], []),  # others are between
        ([(PAGE, 2 * PAGE), (9 * PAGE, PAGE)], [(PAGE, 2 * PAGE), (9 * PAGE, PAGE)]),
        ([(PAGE, 4 * PAGE), (2 * PAGE, PAGE)], [(PAGE, 4 * PAGE)]),  # views of one memory
    ],
)
def test_whole_pages_that_neighbours_fill(
    memory: list[tuple[int, int]], pages: list[tuple[int, int]]
) -> None:
    assert whole_pages(memory) == pages


def test_elements_stay() -> None:
    arrays = [np.arange(HELD_FROM_NBYTES // 8 + n, dtype=np.float64) for n in (5, 70_000)]
    asked = put_on_huge_pages(arrays)
    assert asked in (0, sum(nbytes for _, nbytes in _pages(arrays)))
    for n, array in zip((5, 70_000), arrays, strict=True):
        assert np.array_equal(array, np.arange(HELD_FROM_NBYTES // 8 + n, dtype=np.float64))


def test_few_bytes_stay_where_they_are() -> None:
    assert put_on_huge_pages([np.zeros(HELD_FROM_NBYTES // 16)]) == 0


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no smaps")
def test_the_system_says_so_where_it_has_any() -> None:
    """Memory that was touched in small pages is on huge ones, or the system has none for us."""
    memory = mmap.mmap(-1, 2 * HELD_FROM_NBYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(15)  # MADV_NOHUGEPAGE
    array = np.frombuffer(memory, np.uint8)
    array += 1
    before = _huge_nbytes(array)
    put_on_huge_pages([array])
    after = _huge_nbytes(array)
    if after == before:
        pytest.skip("the system gives no huge pages")
    assert (before, after) == (0, whole_pages([(array.ctypes.data, array.nbytes)])[0][1])
    assert (array == 1).all()


def test_a_room_has_its_arrays_one_after_the_other() -> None:
    sizes = [HELD_FROM_NBYTES, 0, 5, 64, 1000]
    room = Room(sizes)
    taken = [room.take(nbytes) for nbytes in sizes]
    assert [len(each) for each in taken] == sizes
    starts = [each.ctypes.data for each in taken if len(each)]
    assert starts[0] % PAGE == 0
    assert np.diff(starts).tolist() == [HELD_FROM_NBYTES, 64, 64]
    for value, each in enumerate(taken):
        each[:] = value
    assert all((each == value).all() for value, each in enumerate(taken))


def test_there_is_no_room_for_few_bytes_nor_for_more_than_were_said() -> None:
    """These have memory of their own, aligned alike."""
    few = Room([64, 64])
    full = Room([HELD_FROM_NBYTES])
    inside = full.take(HELD_FROM_NBYTES)
    assert (few.nbytes, full.nbytes) == (0, HELD_FROM_NBYTES)
    for more in (few.take(100), full.take(100)):
        assert len(more) == 100
        assert more.ctypes.data % 64 == 0
        assert not np.shares_memory(more, inside)


def _pages(arrays: list[np.ndarray]) -> list[tuple[int, int]]:
    return whole_pages((array.ctypes.data, array.nbytes) for array in arrays)


def _huge_nbytes(array: np.ndarray) -> int:
    inside, address = False, array.ctypes.data
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(end, 16) for end in first.split("-"))
            inside = low <= address < high
        elif inside and first == "AnonHugePages:":
            return int(line.split()[1]) << 10
    return 0
