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


def keep_some(
    config: pytest.Config,
    items: list[pytest.Item],
    one_in: int,
    is_one_of_many: Callable[[pytest.Item], bool],
    *,
    and_firsts: bool = True,
    few: int = 0,
    option: str = "--all-targets",
) -> None:
    """and_firsts: of each test function at least its first case that is one of many. few: all of
    functions that have no more of them. option: with which all are kept."""
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
        drawn = _number(item.nodeid) % one_in == 0
        (kept if is_first or drawn else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def keep_some_of_marked(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of cases of tests that are marked `some(n)`, one in n."""
    for one_in in sorted(set(map(_marked, items)) - {0}):
        marked = {item for item in items if _marked(item) == one_in}
        keep_some(config, items, one_in, marked.__contains__, option="--all-cases")


def _marked(item: pytest.Item) -> int:
    mark = item.get_closest_marker("some")
    return mark.args[0] if mark else 0


def _number(nodeid: str) -> int:
    """That of a case for this seed. Checksums of one text and two prefixes are alike."""
    seed = int(os.environ.get("STAGEJIT_TEST_SEED", "0"))
    if not seed:
        return zlib.crc32(nodeid.encode())
    return int.from_bytes(hashlib.sha256(f"{seed} {nodeid}".encode()).digest()[:8], "little")
