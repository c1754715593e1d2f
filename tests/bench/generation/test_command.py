"""`python -m stagejit generate`, as a user meets it, with a model of seconds."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner, Result

from stagejit.bench import cli
from stagejit.bench.generation import command
from stagejit.bench.generation.training import Schedule
from stagejit.bench.programs import CommandError
from tests.bench.generation.test_model import TINY


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One folder for all tests here."""
    folder = tmp_path_factory.getbasetemp() / "generation"
    (folder / "text").mkdir(parents=True, exist_ok=True)
    (folder / "text" / "m.py").write_text(f'"""{"All work and no play. " * 20}"""\n')
    monkeypatch.setenv("STAGEJIT_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setattr(command.corpus, "modules", lambda: [folder / "text" / "m.py"])
    monkeypatch.setattr(command, "SIZES", {"small": TINY, "gpt2": TINY})
    monkeypatch.setattr(command, "Schedule", lambda: Schedule(steps=40, batch=4, rate=1e-2))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["generate", *arguments])


def test_text_and_table() -> None:
    result = run("--prompt", "All work", "--tokens", "50", "--seconds", "0.01", "--seed", "3")
    assert result.exit_code == 0, result.output
    text = result.stdout.split("2.0 M")[0]
    assert text.startswith("All work")
    assert "stagejit.bind, f32" in result.stdout
    assert "jax.jit" in result.stdout
    assert "0 equations left to XLA, 0 copies, 0 weights that it may pack" in result.stdout
    again = run("--prompt", "All work", "--tokens", "50", "--seconds", "0", "--seed", "3")
    written = again.stdout.split("stagejit's loop")[0].rstrip()
    assert len(written.encode()) <= len("All work") + 50
    assert text.startswith(written)
    assert "Training" not in again.output


def test_random_weights_of_another_size() -> None:
    result = run("--size", "gpt2", "--weights", "int8", "--seconds", "0.01", "--against", "")
    assert result.exit_code == 0, result.output
    assert "stagejit.bind, int8" in result.stdout
    assert "jax.jit  " not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--size", "huge"), "'huge' is no size"),
        (("--weights", "int2"), "'int2' is no form of weights"),
        (("--prompt", ""), "the prompt is empty"),
        (("--prompt", "é"), "not ASCII"),
        (("--against", "numpy"), "'numpy' is no opponent"),
    ],
)
def test_what_cannot_be_done_has_a_next_step(arguments: tuple[str, ...], what: str) -> None:
    result = run("--size", "gpt2", "--seconds", "0.01", *arguments)
    assert isinstance(result.exception, CommandError)
    assert what in str(result.exception)
    assert "Next:" in str(result.exception)


def test_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run("--size", "gpt2", "--against", "torch")
    assert isinstance(result.exception, CommandError)
    assert "PyTorch is not installed" in str(result.exception)
    assert "pip install torch" in str(result.exception)


def test_without_pytorch_nothing_is_trained_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(command, "trained", lambda *given: pytest.fail("trained"))
    result = run("--against", "jax,torch.compile")
    assert isinstance(result.exception, CommandError)
    assert "PyTorch is not installed" in str(result.exception)
