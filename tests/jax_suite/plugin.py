"""A pytest plugin that runs somebody else's tests of JAX through stagejit.

Input: `STAGEJIT_SUITE_MODE` (`plain` or `staged`) and `STAGEJIT_SUITE_LOG`, a file. Output: a line
of JSON in the log for each test that is to run, when it starts and when it ends. Invariant: lines
are flushed one by one, so that a process that dies names the test that killed it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite-skip", help="a file of test names, one a line, that are not run")
    parser.addoption("--suite-only", help="a file of test names, one a line: no others are run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skipped = _listed(config, "--suite-skip") or set()
    wanted = _listed(config, "--suite-only")
    items[:] = [
        item
        for item in items
        if _name(item.nodeid) not in skipped and (wanted is None or _name(item.nodeid) in wanted)
    ]
    for item in items:
        _log.write(test=_name(item.nodeid), outcome="collected")


def _listed(config: pytest.Config, option: str) -> set[str] | None:
    path = config.getoption(option)
    return set(Path(path).read_text().splitlines()) if path else None


def pytest_configure(config: pytest.Config) -> None:
    """Before a test module is imported: it may take `jax.jit` by name."""
    if os.environ["STAGEJIT_SUITE_MODE"] == "staged":
        import stagejit

        stagejit.enable()


class _Log:
    def __init__(self, path: str) -> None:
        self._file = open(path, "a")  # noqa: SIM115  (open as long as the process)

    def write(self, **entry: Any) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


_log = _Log(os.environ["STAGEJIT_SUITE_LOG"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    _log.write(test=_name(item.nodeid), outcome="started")
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The outcome of the call; of the set-up or the tear-down only where it is not a pass."""
    if report.when == "call" or report.outcome != "passed":
        _log.write(
            test=_name(report.nodeid),
            outcome=report.outcome,
            seconds=round(report.duration, 3),
            error=report.longreprtext[-4000:] if report.outcome == "failed" else "",
        )


def _name(nodeid: str) -> str:
    """`api_test.py::JitTest::test_x`, whatever folder pytest was started in."""
    path, separator, rest = nodeid.partition("::")
    return os.path.basename(path) + separator + rest
