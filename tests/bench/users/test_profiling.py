"""Profiles from the command line, and the table of what they cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stagejit.bench.cli import app
from stagejit.bench.users import profiling

MODEL = """
import jax.numpy as jnp
import stagejit

def layer(x, w):
    return jnp.tanh(x @ w).sum(1)

donated = stagejit.jit(lambda x, w: layer(x, w)[:, None] + x, donate_argnums=0)
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(MODEL)
    return str(tmp_path / "model.py")


@pytest.mark.parametrize("name", ["layer", "donated"])
def test_a_function_is_measured(name: str, model: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    command = ["profile", f"{model}:{name}", "--args", "f32[32,64], w=f32[64,8]", "--calls", "3"]
    result = CliRunner().invoke(app, [*command, "-o", str(trace)])
    assert result.exit_code == 0, result.output
    assert "3 calls of programs" in result.output
    assert "model.py:6" in result.output
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert any("contract" in event for event in names)


def test_a_page_is_written(model: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ["--args", "f32[4,4], f32[4,4]", "-o", str(page)]
    result = CliRunner().invoke(app, ["profile", f"{model}:layer", *arguments])
    assert result.exit_code == 0, result.output
    assert "Flame graph" in page.read_text()


def test_other_files_are_refused(model: str) -> None:
    result = CliRunner().invoke(app, ["profile", f"{model}:layer", "-o", "x.png"])
    assert result.exit_code != 0
    assert "ends with .json (for Perfetto), .html or .txt" in str(result.exception)


def test_costs_are_of_the_same_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "_CALLS", 2)
    cost = profiling.measure("chain", rounds=2)
    assert cost.dispatches >= 120
    assert 0 < cost.recorded <= 1
    assert cost.overhead == pytest.approx(cost.seconds_on / cost.seconds_off - 1)
    assert profiling.table_of([cost]).row_count == 1
