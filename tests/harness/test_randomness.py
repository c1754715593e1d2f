"""Data of tests: the same for a test alone, after others, and for each example of hypothesis."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import RNG, Draws

TESTS = Path(__file__).resolve().parents[1]
MAKERS = {"default_rng", "RandomState", "Random"}
NUMBERS: list[float] = []  # filled by the examples of one test, emptied by its first


def drawn(test: str) -> list[float]:
    ours = Draws()
    with ours.inside(test):
        return list(ours.random(4))


def test_a_test_has_its_own_data_and_a_run_may_ask_for_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("STAGEJIT_TEST_SEED", raising=False)
    assert drawn("a") == drawn("a") != drawn("b")
    usual = drawn("a")
    monkeypatch.setenv("STAGEJIT_TEST_SEED", "7")
    assert drawn("a") != usual


def test_nobody_draws_between_tests() -> None:
    ours = Draws()
    with pytest.raises(RuntimeError, match="RNG is for tests"):
        ours.random()


def test_a_module_has_constants_of_its_own() -> None:
    ours = Draws()

    def constants(module: str) -> list[float]:
        names: dict[str, Any] = {"__name__": module, "draw": lambda: ours.random()}
        exec(compile("made = [draw(), draw()]", module, "exec"), names)
        return names["made"]

    first, again, other = (constants(name) for name in ("tests.a", "tests.a", "tests.b"))
    assert len({*first, *again, *other}) == 6
    ours = Draws()  # as in a process that imports them the other way round
    assert (constants("tests.b"), constants("tests.a")) == (other, first)


@settings(max_examples=5)
@given(st.integers())
def test_examples_start_anew(number: int) -> None:
    NUMBERS.append(RNG.random())
    assert set(NUMBERS) == {NUMBERS[0]}


@pytest.mark.parametrize("turn", [0, 1])
def test_hypothesis_leaves_the_data_of_the_next_test_alone(turn: int) -> None:
    assert not isinstance(RNG.random(), np.ndarray)
    assert RNG.random() not in NUMBERS


def test_no_module_shares_a_generator_among_its_tests() -> None:
    """`RNG = np.random.default_rng(0)` at module level gives data by the order of tests."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        for line in ast.parse(path.read_text()).body:
            made = line.value if isinstance(line, ast.Assign | ast.AnnAssign) else None
            if isinstance(made, ast.Call):
                name = getattr(made.func, "attr", getattr(made.func, "id", ""))
                if name in MAKERS:
                    found.append(f"{path.relative_to(TESTS)}:{line.lineno}")
    assert not found
