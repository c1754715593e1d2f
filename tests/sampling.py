"""Which cases a run tries of tests that have many alike.

Input: the tests that were collected, and which of them are one of many. Output: one of so many of
these, drawn by the name of the test and STAGEJIT_TEST_SEED, and all others. Invariant: runs of one
seed try the same cases; runs of other seeds try others; with an option all are tried.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings

_ALL = "STAGEJIT_TEST_ALL_CASES"  # for processes that this one starts, too


def try_all() -> None:
    """From now on, `budget` is the whole one."""
    os.environ[_ALL] = "1"


def budget(usual: int, *, of: int) -> int:
    """How many random examples a test tries, each of which costs much: of so many with
    --all-cases."""
    return of if _ALL in os.environ else usual


def examples() -> int:
    """How many each random test tries: STAGEJIT_FUZZ_EXAMPLES, or what tests/conftest.py says."""
    profile = settings.default
    assert profile is not None
    return profile.max_examples


def keep_some(
    config: pytest.Config,
    items: list[pytest.Item],
    one_in: int,
    is_one_of_many: Callable[[pytest.Item], bool],
    *,
    and_firsts: bool = True,
    few: int = 0,
    option: str = "--all-targets",
    drawn_by: Callable[[pytest.Item], str] = lambda item: item.nodeid,
) -> None:
    """and_firsts: of each test function at least its first case that is one of many. few: all of
    functions that have no more of them. option: with which all are kept. drawn_by: cases of one
    name are kept or left together."""
    if config.getoption(option):
        return
    left, kept = list[pytest.Item](), list[pytest.Item]()
    many = {item: item.nodeid.partition("[")[0] for item in items if is_one_of_many(item)}
    counts, functions = Counter(many.values()), set[str]()
    for item in items:
        function = many.get(item)
        if function is None or counts[function] <= few:
            kept.append(item)
            continue
        is_first = and_firsts and function not in functions
        functions.add(function)
        (kept if is_first or drawn(drawn_by(item), one_in) else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def keep_some_of_marked(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of cases of tests that are marked `some(n)`, one in n; with `of="fixture"`, one in n of what
    the fixture makes, for all tests of the file."""
    for one_in in sorted(set(map(_marked, items)) - {0}):
        marked = {item for item in items if _marked(item) == one_in}
        keep_some(
            config, items, one_in, marked.__contains__, option="--all-cases", drawn_by=_drawn_by
        )


def _marked(item: pytest.Item) -> int:
    mark = item.get_closest_marker("some")
    return mark.args[0] if mark else 0


def _drawn_by(item: pytest.Item) -> str:
    mark = item.get_closest_marker("some")
    fixture = mark.kwargs.get("of") if mark else None
    if fixture is None:
        return item.nodeid
    made = item.callspec.params[fixture]  # type: ignore[attr-defined]
    return f"{item.nodeid.partition('::')[0]} {made}"


def drawn(name: str, one_in: int) -> bool:
    """Whether this seed draws the case of that name."""
    return _number(name) % one_in == 0


def _number(nodeid: str) -> int:
    """That of a case for this seed. Checksums of one text and two prefixes are alike."""
    seed = int(os.environ.get("STAGEJIT_TEST_SEED", "0"))
    if not seed:
        return zlib.crc32(nodeid.encode())
    return int.from_bytes(hashlib.sha256(f"{seed} {nodeid}".encode()).digest()[:8], "little")
