"""Of the tests with parameters one in `_EVERY` runs by default: each compiles its
kernels by two compilers, and runs them thread by thread. All run with `--all-targets`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sampling import keep_some

_HERE = Path(__file__).parent
_EVERY = 48


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    keep_some(config, items, _EVERY, _has_parameters)


def _has_parameters(item: pytest.Item) -> bool:
    return item.path.parent == _HERE and getattr(item, "callspec", None) is not None
