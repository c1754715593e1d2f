"""The runner of JAX's tests, on a checkout with one small file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jax_suite import run

DEMO = """
import os

import jax
import jax.numpy as jnp
import stagejit.runtime.cpu.loader as loader

STAGED = os.environ["STAGEJIT_SUITE_MODE"] == "staged"


def test_agrees():
    assert float(jax.jit(lambda x: jnp.sin(x) * 2)(1.0)) > 1.6
    assert (loader.call_count() > 0) == STAGED


def test_fails_plainly():
    assert STAGED


def test_differs():
    assert not STAGED


def test_ends_the_process_when_staged():
    if STAGED:
        os.abort()


def test_runs_behind_a_crash():
    pass
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "demo_test.py").write_text(DEMO)
    return tmp_path


def test_a_file_that_agrees_differs_and_crashes(checkout: Path, tmp_path: Path) -> None:
    result = run.run_file(checkout, "demo", tmp_path, again=False)
    assert result.passed == 3
    assert sorted(result.different) == [
        "demo_test.py::test_differs",
        "demo_test.py::test_ends_the_process_when_staged",
    ]
    assert "not STAGED" in result.different["demo_test.py::test_differs"]
    plain = run.read_log(next(tmp_path.glob("demo.plain.*.jsonl")))
    assert "demo_test.py::test_agrees" not in plain  # it passes staged: plain JAX need not run it


def test_a_file_that_cannot_be_collected(checkout: Path, tmp_path: Path) -> None:
    (checkout / "tests" / "demo_test.py").write_text("import no_such_module")
    with pytest.raises(RuntimeError, match="pytest failed"):
        run.run_file(checkout, "demo", tmp_path, again=False)


def test_what_is_expected_and_what_is_stale() -> None:
    result = run.FileResult("demo", 1, {"demo_test.py::a": "E  wrong", "demo_test.py::b": ""})
    listed = {"demo_test.py::b": "why", "demo_test.py::c": "why", "other_test.py::d": "why"}
    surprises, stale = run.unexpected([result], listed)
    assert list(surprises) == ["demo_test.py::a"]
    assert stale == ["demo_test.py::c"]


def test_a_test_that_did_not_run_differs(tmp_path: Path) -> None:
    assert run.compare("x", {"x_test.py::a": ("passed", "")}, {}).different
    log = tmp_path / "log.jsonl"
    log.write_text('{"test": "x_test.py::a", "outcome": "collected"}\n')
    assert run.read_log(log)["x_test.py::a"][0] == "missing"


def test_every_expected_difference_has_a_reason() -> None:
    assert all(len(reason.split()) > 3 for reason in run.read_expected().values())
    assert len(run.read_expected()) <= 60
