"""What the host does around a driver that does nothing: one replay a call, whatever its length."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from stagejit.bench.cli import app
from stagejit.bench.gpus import overhead
from stagejit.bench.gpus.idle_driver import IdleDriver
from stagejit.errors import NoDriverError
from stagejit.runtime.cuda import drivers


def test_each_length_has_a_row() -> None:
    rows = overhead.measure(IdleDriver(), (1, 5), batches=2)
    assert [row.launches for row in rows] == [1, 5]
    assert all(row.captured and 0 < row.seconds < 1 for row in rows)
    table = overhead.table_of(rows)
    assert table.row_count == 2


def test_a_call_does_the_same_whatever_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of functions of Python, which is what takes the time: the number is small, and the same."""
    found = []

    def counted(call: Any, *_: Any) -> float:
        calls = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event == "call"

        call()
        sys.setprofile(count)
        try:
            call()
        finally:
            sys.setprofile(None)
        found.append(calls)
        return 1e-6

    monkeypatch.setattr(overhead, "_least", counted)
    overhead.measure(IdleDriver(), (4, 40))
    assert found[0] == found[1] < 40


def test_the_command_says_what_it_did_not_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise NoDriverError("there is none", next_step="get one")

    monkeypatch.setattr(drivers, "_real", none)
    result = CliRunner().invoke(app, ["overhead", "--no-profiles", "--against", "0"])
    assert result.exit_code == 1, result.output
    assert "nothing" in result.output
    assert "of a GPU nothing is measured: there is none" in result.stderr
