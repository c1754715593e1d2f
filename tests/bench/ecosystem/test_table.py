"""The table of library programs, on programs that need no library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console
from typer.testing import CliRunner

from stagejit.bench import cli
from stagejit.bench.ecosystem import catalogue
from stagejit.bench.ecosystem.program import LibraryProgram
from stagejit.bench.ecosystem.table import measure, table_of
from tests.expected.left import NAME, left


def native() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return lambda key, x: (jnp.tanh(x) + 1, key), (jax.random.key(0), jnp.ones(8))


def delegating() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return lambda x: jax.lax.fori_loop(0, 3, lambda _, x: left(jnp.cos(x)), x), (jnp.ones(8),)


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "Other": LibraryProgram("Other", (), native),
        "mine": LibraryProgram("mine", (), native),
        "theirs": LibraryProgram("theirs", ("no_such_library",), native),
    }
    monkeypatch.setattr(catalogue, "programs", lambda: made)


def test_a_row() -> None:
    row = measure(LibraryProgram("mine", (), native), 0)
    assert (row.calls, row.loops) == (1, ())
    assert row.error < 1e-6
    assert row.ratio == row.jax.median / row.ours.median


def test_a_loop_of_xla_is_told() -> None:
    (reason,) = measure(LibraryProgram("mine", (), delegating), 0).loops
    assert NAME in reason


def test_the_table() -> None:
    console = Console(width=140, record=True)
    console.print(table_of([measure(LibraryProgram("mine", (), native), 0)]))
    assert "geometric mean" in console.export_text()


def test_the_command(no_library: None) -> None:
    result = CliRunner().invoke(cli.app, ["ecosystem", "oTHER", "--seconds", "0"])
    assert "Other" in result.output
    assert "mine" not in result.output
    result = CliRunner().invoke(cli.app, ["ecosystem", "--seconds", "0"])
    assert result.exit_code == 0, result.output
    assert "theirs: no_such_library is not installed" in result.output
    assert "mine" in result.output
    assert (
        CliRunner().invoke(cli.app, ["ecosystem", "--seconds", "0", "--against", "1e9"]).exit_code
    )


def test_names_are_unique() -> None:
    assert all(name == program.name for name, program in catalogue.programs().items())
    assert len(catalogue.programs()) == 19
