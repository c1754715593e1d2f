"""Calls of a function that has room for frames, from wherever it is called.

Input: functions at each depth of two chunks of frames. Output: pages that the system maps while
they call others. Invariant: with room there are none for each call, as there are for some without.
"""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest

from stagejit.base.threads.frames import with_room_for_frames

_CALLS, _DEPTHS = 200, 400


def _leaf(a: int = 1, b: int = 2, c: int = 3, d: int = 4) -> int:
    return a + b + c + d


def _pages_of_calls(*, depth: int = 10) -> int:
    if depth:
        return _pages_of_calls(depth=depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(_CALLS):
        _leaf()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _from(depth: int, function: Callable[[], int]) -> int:
    return _from(depth - 1, function) if depth else function()


def _most(function: Callable[[], int]) -> int:
    return max(_from(depth, function) for depth in range(_DEPTHS))


def test_calls_with_room_map_no_pages_at_any_depth() -> None:
    if _most(_pages_of_calls) < _CALLS:
        pytest.skip("this Python keeps its chunks of frames")
    assert _most(with_room_for_frames(_pages_of_calls)) < _CALLS // 4


def test_what_goes_in_and_comes_out_is_the_functions_own() -> None:
    @with_room_for_frames
    def halved(number: int, *, rest: bool = False) -> tuple[int, int] | int:
        """Of a number."""
        return divmod(number, 2) if rest else number // 2

    assert halved(7) == 3
    assert halved(7, rest=True) == (3, 1)
    assert (halved.__name__, halved.__doc__) == ("halved", "Of a number.")
    with pytest.raises(TypeError):
        halved("7")  # type: ignore[arg-type]
