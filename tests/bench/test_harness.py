"""Rows: what is computed from a workload's measurements, and what a failure leaves behind.

The harness does not care who its contenders are, so most tests put jax.jit against variants of it.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from stagejit.bench import harness, report
from stagejit.bench.compile_time import CompileTimes
from stagejit.bench.contenders import (
    EAGER,
    JAX,
    STAGEJIT,
    Contender,
    Footprint,
    on_device,
    opponents,
    waiting_call,
)
from stagejit.bench.cost import Cost
from stagejit.bench.harness import Entry, Row
from stagejit.bench.programs import Arguments, CommandError, Function, Workload
from stagejit.bench.reading import Reader, reader_of
from stagejit.bench.timing import Timing
from stagejit.runtime.peaks import Peaks

MACHINE = Peaks(2, 200.0, 100.0, 50.0, 40.0, 512)
PRODUCT = Workload("product", jnp.matmul, lambda: (np.ones((8, 8), np.float32),) * 2)


def wrong(function: Function, donated: tuple[int, ...] = ()) -> Function:
    return jax.jit(lambda *args: function(*args) + 1)


def no_footprint(function: Function, args: Arguments, donated: tuple[int, ...] = ()) -> Footprint:
    return Footprint()


WRONG = Contender("wrong", wrong, no_footprint)


def test_a_row_has_an_entry_for_each_contender() -> None:
    row = harness.measure(PRODUCT, [JAX, EAGER], seconds=0.01, peaks=MACHINE)
    assert not row.failure
    assert [entry.name for entry in row.entries] == ["jax", "eager"]
    assert row.right
    assert row.cost == Cost(2 * 8**3, 3 * 8 * 8 * 4)
    assert row.ours.footprint.peak_nbytes is not None
    assert row.floor == pytest.approx(768 / 50e9)


def running_total(total: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return total + x, total.sum()


def test_results_take_the_place_of_donated_arguments() -> None:
    args = on_device((np.zeros(4, np.float32), np.ones(4, np.float32)))
    calls = [waiting_call(c.compile(running_total, (0,)), args, (0,)) for c in (STAGEJIT, JAX)]
    for call in calls:
        call()
        assert call()[1] == 4  # the total that the first call left
    assert not args[0].is_deleted()  # each call gave away a copy of its own
    assert calls[0]()[1] == 8


def test_rows_with_donated_arguments() -> None:
    workload = Workload(
        "total",
        running_total,
        lambda: (np.ones(4, np.float32), np.ones(4, np.float32)),
        donated=(0,),
    )
    row = harness.measure(workload, [STAGEJIT, JAX, EAGER], seconds=0.01, peaks=MACHINE)
    assert row.right, row
    assert row.cost == Cost(0, 4 * 4 + 4)  # the total itself may stay where it is


def test_a_wrong_result_is_said() -> None:
    row = harness.measure(PRODUCT, [JAX, WRONG], seconds=0.0, peaks=MACHINE)
    assert not row.failure
    assert not row.right
    assert row.entries[1].error == pytest.approx(1 / 8)


def test_an_exception_becomes_the_rows_failure() -> None:
    def broken(x: Any) -> Any:
        raise ValueError("first line\nsecond line")

    row = harness.measure(Workload("broken", broken, lambda: (1.0,)), [JAX], seconds=0.0)
    assert row.failure.startswith("ValueError: first line (")
    assert "second line" not in row.failure
    assert not row.right


def measured_row(error: float = 1e-7) -> Row:
    return Row(
        name="w",
        tolerance=1e-5,
        cost=Cost(flops=2_000_000, nbytes=1_000_000),
        floor=0.5e-4,
        entries=(
            Entry("stagejit", Timing(1e-4, 0.02, 0.9e-4, 10), error, Footprint(2048, 3, 0)),
            Entry("jax", Timing(2e-4, 0.03, 1.9e-4, 10), 1e-7, Footprint(4096)),
        ),
        compile_times=CompileTimes(cold=0.1, warm=0.01, jax=0.05),
    )


def test_derived_figures() -> None:
    row = measured_row()
    assert row.ratio(row.entries[1]) == pytest.approx(2.0)
    assert row.gflops == pytest.approx(20.0)
    assert row.gbytes == pytest.approx(10.0)
    assert row.percent_of_floor == pytest.approx(50.0)


def test_reads_are_timed_where_weights_come_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def reader(nbytes: int) -> Any:
        asked.append(nbytes)
        return lambda: None

    monkeypatch.setattr(harness, "reader_of", reader)
    w, x = np.ones((64, 128), np.float32), np.ones((1, 64), np.float32)
    bound = Workload("bound", lambda w, x: x @ w, lambda: (w, x), weights="f32")
    plain = Workload("plain", lambda w, x: x @ w, lambda: (w, x))
    row, other = (harness.measure(each, [STAGEJIT, JAX], seconds=0.0) for each in (bound, plain))
    assert not row.failure
    assert asked == [w.nbytes + x.nbytes + 128 * 4] == [row.cost.nbytes]
    assert row.reading is not None
    assert other.reading is None
    assert other.percent_of_reading is None
    table = rendered(report.speed_table([row, other], ["jax"]))
    assert "reading" in table
    assert "reading" not in rendered(report.speed_table([other], ["jax"]))


def test_percent_of_reading() -> None:
    row = replace(measured_row(), reading=Timing(0.9e-4, 0.0, 0.9e-4, 10))
    assert row.percent_of_reading == pytest.approx(90.0)
    assert report.as_json([row], MACHINE)["rows"][0]["percent_of_reading"] == pytest.approx(90.0)


def test_a_reader_reads_all_bytes_in_one_call() -> None:
    made = Reader(1 << 20)
    made._memory.view(np.uint32)[:] = np.float32(1).view(np.uint32)
    made()
    assert made._sinks.sum() == made.nbytes // 4
    assert reader_of(1 << 20) is None  # from a cache


def rendered(table: Any) -> str:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_tables_show_the_figures() -> None:
    failed = Row("broken", 1e-5, failure="ValueError: no")
    speed = rendered(report.speed_table([measured_row(), failed], ["jax"]))
    assert ["w", "0.1000", "2", "0.2000", "3", "2.00", "20.0", "10.0", "50", "1e-07"] in [
        [cell.strip() for cell in line.strip("│ ").split("│")] for line in speed.splitlines()
    ]
    assert "failed" in speed
    plan = rendered(report.plan_table([measured_row(), failed], ["jax"]))
    assert ["w", "100.00", "10.00", "50.00", "2.0", "4.0", "3", "0"] in [
        [cell.strip() for cell in line.strip("│ ").split("│")] for line in plan.splitlines()
    ]


def test_json_holds_everything_measured() -> None:
    found = json.loads(json.dumps(report.as_json([measured_row()], MACHINE)))
    assert found["peaks"]["gflops"] == 200.0
    assert found["environment"]["jax"] == jax.__version__
    (row,) = found["rows"]
    assert row["ratios"] == {"jax": pytest.approx(2.0)}
    assert row["entries"][0]["footprint"] == {
        "peak_nbytes": 2048,
        "dispatches": 3,
        "delegated": 0,
        "weight_nbytes": None,
    }
    assert row["right"] is True


def test_unknown_contender() -> None:
    assert [found.name for found in opponents(["eager", "jax", "eager"])] == ["eager", "jax"]
    with pytest.raises(CommandError, match=r"'torch'[\s\S]*known contenders: jax"):
        opponents(["torch"])
