"""What rewrites are worth: a call without them, compared and measured."""

from __future__ import annotations

import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.errors import OptionsError
from stagejit.inspect.explain.what_if import Measured, Worth, _time, data_of_worths, lines_of
from stagejit.options import Options
from stagejit.schedule.plans.comparison import Totals
from tests.inspect.pages import rows_of

X = np.ones((4, 8), np.float32)


@stagejit.jit
def joined(x: Any) -> Any:
    return jnp.concatenate((jnp.sin(x), x.sum(1, keepdims=True)), axis=1)


def test_a_rewrite_is_worth_the_copies_that_it_spares() -> None:
    explanation = joined.explain(X, what_if=["fuse-insert"])
    (worth,) = explanation.what_if
    assert worth.rewrites == ("fuse-insert",)
    plan = stagejit.jit(joined._fun, options=Options(disable=("fuse-insert",))).plan(X)
    assert worth.without_them.copies == len(plan.copies) == 2
    assert worth.with_them.copies == len(explanation.copies) == 0
    assert worth.measured is None
    assert str(worth).startswith("without fuse-insert, dispatches +2, copies +2, moves +")
    (row,) = (line for line in str(explanation).splitlines() if line.startswith("  fuse-insert"))
    assert row.split()[:3] == ["fuse-insert", "+2", "+2"]
    assert ["fuse-insert", "+2", "+2"] in [r[:3] for r in rows_of(explanation.as_html())]
    (data,) = json.loads(json.dumps(explanation.as_json()))["what_if"]
    assert data["without_them"]["copies"] == 2
    assert data["measured_seconds"] is None


def test_one_that_did_nothing_is_worth_nothing() -> None:
    (worth,) = joined.explain(X, what_if="fuse-rows").what_if
    assert worth.comparison.differing == ()
    assert worth.with_them == worth.without_them


def test_times_in_another_order_are_the_same_time() -> None:
    one, other = 0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1  # from 3.12 on, sum is exact
    assert one != other
    assert _time(one, other) == "="
    assert _time(2e-6, 3e-6) == "+1 us (+50%)"


def test_all_that_were_applied() -> None:
    explanation = joined.explain(X, what_if=True)
    applied = {decision.rewrite for decision in explanation.decisions if decision.applied}
    assert [worth.name for worth in explanation.what_if] == sorted(
        applied, key=[*stagejit.options.SWITCHES].index
    )


def test_without_some_it_explains_what_would_run_then() -> None:
    explanation = joined.explain(X, disable=["fuse-insert", "fuse-epilogues"])
    assert not any(d.rewrite == "fuse-insert" and d.applied for d in explanation.decisions)
    (worth,) = explanation.what_if
    assert worth.name == "fuse-insert and fuse-epilogues"
    assert worth.without_them.copies == len(explanation.copies) > worth.with_them.copies
    assert worth.without_them.dispatches == len(explanation.dispatches)


def test_measured_seconds_are_of_calls() -> None:
    f = stagejit.jit(lambda x: jnp.concatenate((jnp.sin(x[:9]), x[9:])), donate_argnums=0)
    shapes = jax.ShapeDtypeStruct((64, 8), np.float32)
    (worth,) = f.explain(shapes, what_if=["fuse-insert"], measure=True).what_if
    assert worth.measured is not None
    assert all(0 < each.seconds < 10 for each in worth.measured)
    assert all(0 <= each.spread < 10 for each in worth.measured)
    assert re.search(r"measured (within the noise|\S+ \S?s( \(\S+%\))?) ±[\d.]+ \S?s$", str(worth))
    (data,) = data_of_worths([worth])
    assert data["measured_seconds"] == [each.seconds for each in worth.measured]
    assert data["spread_seconds"] == [each.spread for each in worth.measured]
    assert data["least_seconds"] == [each.least for each in worth.measured]
    assert data["is_noise"] == worth.is_noise


def test_a_spread_is_that_of_the_middle_half() -> None:
    assert Measured.of([float(at) for at in range(1, 8)]) == Measured(4.0, 4.0, 1.0)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Measured(16e-3, 2e-3, 15e-3), "+6 ms (+60%) ±2 ms"),
        (Measured(5e-3, 2e-3, 4e-3), "-5 ms (-50%) ±2 ms"),
        (Measured(12e-3, 2e-3, 12e-3), "within the noise ±2 ms"),  # medians: no more than spreads
        (Measured(16e-3, 2e-3, 9.5e-3), "within the noise ±2 ms"),  # the shortest: under a half
        (Measured(16e-3, 2e-3, 8e-3), "within the noise ±2 ms"),  # the shortest: the opposite
        (Measured(5e-3, 2e-3, 9e-3), "within the noise ±2 ms"),
    ],
)
def test_what_calls_of_one_program_differ_by_is_noise(other: Measured, said: str) -> None:
    worth = Worth(("fuse",), Totals(), Totals(), (Measured(10e-3, 2e-3, 9e-3), other))
    assert str(worth).endswith(f"measured {said}")
    assert worth.is_noise == ("noise" in said)
    assert not Worth(("fuse",), Totals(), Totals()).is_noise


def test_a_peak_is_told_beside_the_sum_of_transients() -> None:
    plain, shared = Totals(1, transient_nbytes=9, peak_nbytes=2048), Totals(1, peak_nbytes=1024)
    worth = Worth(("fuse",), shared, plain)
    assert str(worth) == "without fuse, transients +9 bytes, peak +1,024 bytes, model ?"
    text = "\n".join(lines_of([worth]))
    assert "with them: 1 dispatch, a peak of 1,024 bytes\n" in text


def test_what_differences_are_of_stands_above_the_table() -> None:
    explanation = joined.explain(X, what_if=["fuse-insert"], measure=True)
    _, title, first, *_ = str(explanation).splitlines()
    assert title.startswith("what rewrites are worth")
    assert re.fullmatch(
        r"  with them: 2 dispatches, a peak of 0 bytes, \S+ \S+ by the model,"
        r" \S+ \S+ ±\S+ \S+ measured",
        first,
    )
    assert first.strip() in explanation.as_html()


def test_measuring_leaves_what_is_donated_alone() -> None:
    x = jnp.ones((64, 8))
    f = stagejit.jit(lambda x: jnp.sin(x) * 2, donate_argnums=0)
    f.explain(x, what_if=["fuse-producers"], measure=True)
    assert not x.is_deleted()


def test_a_function_may_have_parameters_of_these_names() -> None:
    f = stagejit.jit(lambda x, disable: x * disable + 1)
    explanation = f.explain(X, disable=2.0)
    assert explanation.what_if == ()
    assert [note.ops for note in explanation.dispatches] == [("mul", "add")]


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(OptionsError, match=r"(?s)in what_if.*did you mean 'fuse-insert'"):
        joined.explain(X, what_if=["fuse-insrt"])


def test_bound_functions_have_it_too() -> None:
    bound = stagejit.bind(lambda w, x: jnp.concatenate((jnp.sin(x), x @ w)), jnp.ones((8, 8)))
    (worth,) = bound.explain(X, what_if=["fuse-insert"]).what_if
    assert worth.without_them.copies > worth.with_them.copies
