"""The command line as a user meets it: output, exit status, errors with a next step."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from typer.testing import CliRunner, Result

import stagejit
from stagejit.bench import cli, timing

PROGRAM = """
import jax.numpy as jnp, numpy as np
def f(x): return jnp.tanh(x) + 1
BENCH = {"mine": (f, lambda: (np.ones((16, 16), np.float32),))}
"""


@pytest.fixture
def run() -> Callable[..., Result]:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(cli.app, list(arguments))

    return invoke


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    path = tmp_path / "user.py"
    path.write_text(PROGRAM)
    return path


def test_list(run: Callable[..., Result]) -> None:
    result = run("bench", "--list")
    assert result.exit_code == 0
    assert "dense_block" in result.output
    assert "tiny_mlp_grad" in result.output


def test_version(run: Callable[..., Result]) -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.output == f"stagejit {stagejit.__version__}, jax {jax.__version__}\n"


def test_bench_prints_tables_and_writes_json(run: Callable[..., Result], tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    result = run("bench", "tiny", "--seconds", "0", "--no-compile-times", "--json", str(target))
    assert result.exit_code == 0, result.output
    assert "tiny_add_16" in result.output
    assert "% of" in result.output
    rows = json.loads(target.read_text())["rows"]
    assert [row["name"] for row in rows] == ["tiny_add_16", "tiny_mlp_grad"]
    assert all(row["right"] for row in rows)
    assert all(row["entries"][0]["footprint"]["delegated"] == 0 for row in rows)


def test_bench_of_a_users_file(run: Callable[..., Result], user_file: Path) -> None:
    result = run("bench", "--file", str(user_file), "--seconds", "0", "--against", "jax,eager")
    assert result.exit_code == 0, result.output
    assert "mine" in result.output
    assert "to eager" in result.output
    compiled = next(line for line in result.output.splitlines()[::-1] if "mine" in line)
    assert "-" not in compiled  # cold, warm and jax compile times were all measured


def test_a_failing_row_ends_in_status_1(run: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def f(x): raise ValueError('on purpose')\nBENCH = {'broken': (f, (1.0,))}\n")
    result = run("bench", "--file", str(path), "--seconds", "0")
    assert result.exit_code == 1
    assert "broken: ValueError: on purpose" in result.output


def test_explain(run: Callable[..., Result], user_file: Path) -> None:
    result = run("explain", f"{user_file}:mine")
    assert result.exit_code == 0, result.output
    assert result.output.strip()
    assert run("explain", str(user_file)).output == result.output


def test_picture(run: Callable[..., Result], user_file: Path, tmp_path: Path) -> None:
    for name in ("plan.svg", "plan.html"):
        target = tmp_path / name
        result = run("picture", f"{user_file}:mine", "-o", str(target))
        assert result.exit_code == 0, result.output
        assert "<svg" in target.read_text(encoding="utf-8")
    result = run("picture", f"{user_file}:mine", "--what", "memory", "-o", str(tmp_path / "m.svg"))
    assert "memory" in (tmp_path / "m.svg").read_text(encoding="utf-8")


def test_demo(run: Callable[..., Result]) -> None:
    result = run("demo", "--seconds", "0", "--size", "16x24")
    assert result.exit_code == 0, result.output
    for text in ("dispatch @", "barrier", "1x64x16x24", "1x64x90x62", "max relative error"):
        assert text in result.output


@pytest.mark.parametrize(
    "arguments",
    [["bench", "--list"], ["ecosystem", "x"], ["demo", "--size", "x"], ["generate", "--size", "x"]],
    ids=lambda arguments: arguments[0],
)
def test_what_measures_meets_no_new_pages(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    kept = list[bool]()
    monkeypatch.setattr(timing, "keep_pages", lambda: kept.append(True))
    run(*arguments)
    assert kept == [True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "no_such_workload"], "known names: dense_block"),
        (["bench", "--against", "torch"], "known contenders: jax"),
        (["bench", "--file", "/no/such/file.py"], "give the path of a .py file"),
        (["explain", "/no/such/file.py:f"], "give the path of a .py file"),
        (["picture", "/no/such/file.py:f", "-o", "x.svg"], "give the path of a .py file"),
        (["picture", "/no/such/file.py:f", "-o", "/no/such/x.svg"], "name a file that can be"),
        (["profile", "/no/such/file.py:f", "-o", "/no/such/x.html"], "name a file that can be"),
        (["profile", "/no/such/file.py:f", "-o", "/no/such/x.json"], "name a file that can be"),
        (["demo", "--size", "wide"], "give HEIGHTxWIDTH"),
        (["demo", "--photo", "/no/such/photo.jpg"], "give a JPEG or PNG file"),
    ],
)
def test_a_bad_request_names_the_next_step(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["stagejit", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert f"Next: {message}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["import no_such_module", "def f(x): return x @ x", "f = 1 +"])
def test_of_an_error_of_a_program_only_what_lies_in_it_is_shown(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "theirs.py"
    path.write_text(text)
    monkeypatch.setattr(sys, "argv", ["stagejit", "explain", f"{path}:f", "--args", "f32[2,3]"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert str(path) in said
    assert "typer" not in said
    assert "user_functions.py" not in said


def test_help_runs_as_a_module() -> None:
    command = (
        "import sys, runpy; sys.argv = ['stagejit', '--help']\n"
        "try: runpy.run_module('stagejit', run_name='__main__')\n"
        "except SystemExit as stop: print('status', stop.code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    for text in ("demo", "bench", "explain", "picture", "status 0"):
        assert text in done.stdout
