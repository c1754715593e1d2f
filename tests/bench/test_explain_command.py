"""`python -m stagejit explain`: functions of files and modules, what is written, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from stagejit.bench import cli
from stagejit.errors import OptionsError
from tests.inspect.pages import rows_of

MODEL = """
import functools
import jax.numpy as jnp
import stagejit

weights = {"w": jnp.ones((8, 16))}


def layer(x, params, scale=1.0):
    return jnp.concatenate((x, jnp.maximum(x @ params["w"], 0.0) * scale), axis=1)


@functools.partial(stagejit.jit, options=stagejit.Options(disable="fuse-insert"))
def staged(x):
    return jnp.concatenate((jnp.sin(x), x))
"""
ARGS = "f32[4,8], weights, scale=0.5"


@pytest.fixture(name="model")
def _model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


@pytest.fixture(name="run")
def _run() -> Callable[..., Result]:
    def run(*arguments: object) -> Result:
        return CliRunner().invoke(cli.app, ["explain", *map(str, arguments)])

    return run


def test_a_function_of_a_file(run: Callable[..., Result], model: Path) -> None:
    result = run(f"{model}:layer", "--args", ARGS)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("layer: 2 dispatches, 1 copy of 128 bytes;")
    assert f"{model}:10    return jnp.concatenate" in result.output
    assert "  * " not in result.output
    assert "  * @contract" in run(f"{model}:layer", "--args", ARGS, "--kernels").output


def test_a_function_of_a_module(run: Callable[..., Result]) -> None:
    result = run("jax.numpy:argmax", "--args", "f32[64,64]")
    assert result.exit_code == 0, result.output
    assert "the program as a whole" in result.output


def test_a_staged_function_keeps_its_options(run: Callable[..., Result], model: Path) -> None:
    assert "2 copies" in run(f"{model}:staged", "--args", "f32[8]").output


def test_arrays_of_files_are_arguments(
    run: Callable[..., Result], model: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 8), np.float32))
    result = run(f"{model}:layer", "--args", f'"{tmp_path}/x.npy", weights')
    assert result.exit_code == 0, result.output
    missing = run(f"{model}:layer", "--args", f'"{tmp_path}/y.npy", weights')
    assert "cannot read" in str(missing.exception)
    np.save(tmp_path / "y.npy", np.array([{}]), allow_pickle=True)
    refused = run(f"{model}:layer", "--args", f'"{tmp_path}/y.npy", weights')
    assert "cannot read" in str(refused.exception)


def test_what_rewrites_are_worth(run: Callable[..., Result], model: Path) -> None:
    asked = (f"{model}:layer", "--args", ARGS)
    told = run(*asked, "--what-if", "fuse-insert", "--what-if", "fuse-epilogues").output
    assert "what rewrites are worth" in told
    assert [line.split()[0] for line in told.splitlines()[4:6]] == ["fuse-insert", "fuse-epilogues"]
    assert "fuse-epilogues" in run(*asked, "--what-if", "all").output
    without = run(*asked, "--disable", "fuse-insert").output
    assert without.startswith("layer: 3 dispatches, 2 copies")
    assert isinstance(run(*asked, "--disable", "nothing").exception, OptionsError)


def test_files_are_written(run: Callable[..., Result], model: Path, tmp_path: Path) -> None:
    page, data = tmp_path / "out.html", tmp_path / "out.json"
    result = run(f"{model}:layer", "--args", ARGS, "--html", page, "--json", data)
    assert result.exit_code == 0, result.output
    assert json.loads(data.read_text())["summary"]["copied_nbytes"] == 128
    assert any(row[0].startswith("@contract") for row in rows_of(page.read_text()))
    failed = run(f"{model}:layer", "--args", ARGS, "--html", tmp_path / "no" / "out.html")
    assert "cannot write" in str(failed.exception)


def test_several_programs_are_not_one_file(run: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text("import numpy as np\nf = lambda x: x + 1\nx = np.ones(3, np.float32)\n"
                    "BENCH = {'one': (f, (x,)), 'two': (f, (x,))}\n")  # fmt: skip
    assert run(path).output.count("== ") == 2
    failed = run(path, "--json", tmp_path / "out.json")
    assert f"write {path}:NAME of one, two" in str(failed.exception)


def test_the_glossary(run: Callable[..., Result]) -> None:
    result = run("--glossary")
    assert result.exit_code == 0
    assert "fuse-insert" in result.output
    assert isinstance(run().exception, OptionsError)


def test_why_two_things_are_not_one_dispatch(run: Callable[..., Result], model: Path) -> None:
    result = run(f"{model}:layer", "--args", ARGS, "--why", "max", "@copy.0")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("max is evaluated in @contract.1")
    assert "No data flows between them" in result.output
    assert "declined" not in result.output
    unknown = run(f"{model}:layer", "--args", ARGS, "--why", "sin", "max")
    assert isinstance(unknown.exception, OptionsError)
    assert "there is no dispatch, line or op 'sin' in layer" in str(unknown.exception)
