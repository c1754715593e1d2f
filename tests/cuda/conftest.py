"""Of the tests with parameters one in `_EVERY` runs by default: each compiles its
kernels by two compilers, and runs them thread by thread. All run with `--all-targets`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sampling import keep_some

_HERE = Path(__file__).parent
_EVERY = 48
_APART = {"driver", "pycuda"}  # folders of tests that compile little


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    keep_some(config, items, _EVERY, _has_parameters)


def _has_parameters(item: pytest.Item) -> bool:
    here = _HERE in item.path.parents and _APART.isdisjoint(item.path.relative_to(_HERE).parts)
    return here and getattr(item, "callspec", None) is not None
