"""The table of compile times by length: programs are as long as asked, each step is timed."""

from __future__ import annotations

import jax
import pytest
from typer.testing import CliRunner

from stagejit.bench import cli
from stagejit.bench.compiling import growth
from stagejit.bench.compiling.growth import TOTAL, Growth
from stagejit.bench.compiling.large import LARGE_PROGRAMS
from stagejit.bench.compiling.program import equation_count
from stagejit.errors import OptionsError
from stagejit.pipeline import STEPS
from stagejit.runtime.objects.engine import engine


def test_programs_are_as_long_as_asked() -> None:
    for program in LARGE_PROGRAMS:
        for length in (300, 600):
            f, args = program.make(length, 1)
            count = equation_count(jax.make_jaxpr(f)(*args).jaxpr)
            assert abs(count - length) < 0.2 * length, f"{program.name}: {count}"


def test_each_step_is_timed_at_each_length_anew() -> None:
    before = engine().compiled_count
    found = growth.measure(LARGE_PROGRAMS[0], (20, 40), 2)
    assert engine().compiled_count - before >= 4
    assert sorted(found.seconds) == [20, 40]
    for seconds in found.seconds.values():
        assert list(seconds) == [*(step.name for step in STEPS), TOTAL]
        assert seconds["trace"] > 0
        assert seconds[TOTAL] > seconds["trace"]


def test_growth_is_that_of_the_last_two_lengths_and_of_steps_that_take_time() -> None:
    seconds = {8: {"a": 3.0, "b": 0.009, TOTAL: 3.009}, 4: {"a": 1.0, "b": 0.001, TOTAL: 1.001}}
    found = Growth("f", seconds | {2: {"a": 0.1, "b": 0.1, TOTAL: 0.2}})
    assert found.of("a") == 3.0
    assert found.steps == ["a", TOTAL]
    assert found.worst == pytest.approx(3.009 / 1.001)
    assert growth.table_of([found]).row_count == 2


def test_a_table_of_what_takes_no_time() -> None:
    nothing = Growth("f", {1: {"a": 0.0, TOTAL: 0.0}, 2: {"a": 0.0, TOTAL: 0.0}})
    assert growth.table_of([nothing]).row_count == 0
    assert nothing.worst == 0


def test_the_command_prints_both_tables() -> None:
    asked = ["growth", "wide", "--sizes", "10,20", "--jax-sizes", "10", "--repeats", "1"]
    done = CliRunner().invoke(cli.app, asked)
    assert done.exit_code == 0, done.output
    assert "10 to 20" in done.output
    assert "wide, 10" in done.output
    assert CliRunner().invoke(cli.app, [*asked, "--against-jax", "0"]).exit_code == 1
    assert isinstance(
        CliRunner().invoke(cli.app, ["growth", "--sizes", "a"]).exception, OptionsError
    )
