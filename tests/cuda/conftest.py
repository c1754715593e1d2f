"""Of the tests with parameters one in `_EVERY` runs by default, always the same: each compiles its
kernels by two compilers, and runs them thread by thread. All run with `--all-targets`."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_EVERY = 24


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all-targets"):
        return
    left, kept = list[pytest.Item](), list[pytest.Item]()
    firsts: set[str] = set()  # tests of which there is a case already
    for item in items:
        (left if _is_left(item, firsts) else kept).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def _is_left(item: pytest.Item, firsts: set[str]) -> bool:
    if item.path.parent != _HERE or getattr(item, "callspec", None) is None:
        return False
    test = item.nodeid.partition("[")[0]
    first = test not in firsts
    firsts.add(test)
    return not first and zlib.crc32(item.nodeid.encode()) % _EVERY > 0
