"""Which cases a run tries of tests that have many alike.

Input: the tests that were collected, and which of them are one of many. Output: one of so many of
these, drawn by the name of the test and STAGEJIT_TEST_SEED, and all others. Invariant: runs of one
seed try the same cases; runs of other seeds try others; `--all-targets` tries all.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable

import pytest


def keep_some(
    config: pytest.Config,
    items: list[pytest.Item],
    one_in: int,
    is_one_of_many: Callable[[pytest.Item], bool],
    *,
    and_firsts: bool = True,
) -> None:
    """and_firsts: of each test function at least its first case that is one of many."""
    if config.getoption("--all-targets"):
        return
    seed = int(os.environ.get("STAGEJIT_TEST_SEED", "0"))
    left, kept = list[pytest.Item](), list[pytest.Item]()
    functions: set[str] = set()
    for item in items:
        if not is_one_of_many(item):
            kept.append(item)
            continue
        function = item.nodeid.partition("[")[0]
        is_first = and_firsts and function not in functions
        functions.add(function)
        drawn = zlib.crc32(item.nodeid.encode(), seed) % one_in == 0
        (kept if is_first or drawn else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept
