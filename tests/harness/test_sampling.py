"""Samples of cases: the same in each run, others with another seed, all of them on demand."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sampling import budget, keep_some, keep_some_of_marked, try_all

CASES = [f"tests/a.py::test_{name}[{k}]" for name in ("few", "many") for k in range(200)]
OTHER = "tests/a.py::test_without_parameters"


@dataclass(frozen=True)
class Item:
    nodeid: str
    one_in: int = 0
    of: str | None = None

    def get_closest_marker(self, name: str) -> Any:
        found = SimpleNamespace(args=(self.one_in,), kwargs={"of": self.of} if self.of else {})
        return found if self.one_in and name == "some" else None

    @property
    def callspec(self) -> Any:
        """Of one parameter, which a fixture `made` has."""
        return SimpleNamespace(params={"made": self.nodeid.partition("[")[2]})


def kept(every: bool = False, **how: Any) -> list[str]:
    left: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left.extend(items))
    config: Any = SimpleNamespace(getoption=lambda name: every, hook=hook)
    items: list[Any] = [Item(nodeid) for nodeid in (*CASES[100:], OTHER)]
    before = [item.nodeid for item in items]
    keep_some(config, items, 4, lambda item: "[" in item.nodeid, **how)
    found = [item.nodeid for item in items]
    assert sorted(found + [item.nodeid for item in left]) == sorted(before)
    return found


def test_one_in_so_many_is_kept() -> None:
    found = kept()
    assert found == kept()
    assert 50 < len(found) < 110
    assert OTHER in found


def test_the_first_of_each_function_is_kept() -> None:
    assert {CASES[100], CASES[200]} <= set(kept())
    assert len(kept(and_firsts=False)) in range(len(kept()) - 2, len(kept()) + 1)


def test_functions_of_few_cases_keep_all() -> None:
    found = kept(few=100)
    assert [name for name in found if "few" in name] == CASES[100:200]
    assert sum("many" in name for name in found) < 100


def test_another_seed_draws_others(monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept(and_firsts=False)
    monkeypatch.setenv("STAGEJIT_TEST_SEED", "7")
    both = set(first) & set(kept(and_firsts=False)) - {OTHER}
    assert len(both) < len(first) / 2


def test_cases_of_marked_tests_are_sampled() -> None:
    asked: list[str] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    config: Any = SimpleNamespace(getoption=asked.append, hook=hook)
    items: list[Any] = [Item(nodeid, 4 * ("many" in nodeid)) for nodeid in CASES]
    keep_some_of_marked(config, items)
    assert [item.nodeid for item in items if not item.one_in] == CASES[:200]
    assert 20 < sum(item.one_in for item in items) / 4 < 80
    assert asked == ["--all-cases"]


def test_what_a_fixture_makes_is_kept_for_all_tests_or_for_none() -> None:
    config: Any = SimpleNamespace(
        getoption=lambda name: False, hook=SimpleNamespace(pytest_deselected=lambda items: None)
    )
    items: list[Any] = [Item(nodeid, 4, "made") for nodeid in CASES]
    keep_some_of_marked(config, items)
    few, many = (
        {i.nodeid.split("[")[1] for i in items if name in i.nodeid} for name in ("w[", "y[")
    )
    assert few == many
    assert 20 < len(few) < 80


def test_budgets_are_whole_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STAGEJIT_TEST_ALL_CASES", raising=False)
    assert budget(3, of=10) == 3
    monkeypatch.setenv("STAGEJIT_TEST_ALL_CASES", "")  # so that it goes with the test
    try_all()
    assert budget(3, of=10) == 10


def test_all_are_kept_on_demand() -> None:
    assert kept(every=True) == [*CASES[100:], OTHER]
