"""`stagejit.profile`: what XLA runs between programs has rows, and around them is named."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from stagejit.inspect.profiles.pieces_of_xla import outside
from stagejit.inspect.profiles.rows import XLA
from stagejit.runtime.cpu.recording import Clock, Event, ProgramTimes, Slot
from stagejit.runtime.hosting.program import HostProgram
from tests.inspect.profiles.profiling import layer, profiled


def test_pieces_of_xla_between_programs_are_rows() -> None:
    def solved(x: Any) -> Any:
        return jnp.abs(jnp.linalg.eigvals(jnp.sin(x) + 2.0 * x)) * 2.0

    profile = profiled(solved, jnp.eye(40) + 0.1)
    (row,) = [row for row in profile.dispatches if row.kind == XLA]
    assert row.count == 3
    assert row.ops == ("eig",)
    assert row.loc.line
    assert profile.calls == 6


def _slow(x: Any) -> Any:
    time.sleep(0.01)
    return x


def called_back(x: Any) -> Any:
    return jax.pure_callback(_slow, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


# Where XLA runs what no program of ours comes before, or after; no two have a program in common, by
# which one would be taken for the other while both are alive.
AT_THE_ENDS: dict[str, Any] = {
    "last": lambda x: called_back(jnp.sin(x) @ x),
    "first": lambda x: jnp.cos(called_back(x)) @ x,
    "both": lambda x: called_back(jnp.sin(called_back(x)) @ x),
}


@pytest.mark.parametrize("name", AT_THE_ENDS)
def test_what_xla_runs_at_the_ends_is_outside_and_named(name: str) -> None:
    profile = profiled(AT_THE_ENDS[name], jnp.ones((20, 20)))
    outside = profile.outside
    assert len(outside.ops) == (2 if name == "both" else 1)
    assert all("delegate." in each for each in outside.ops)
    assert outside.loc.line
    assert outside.seconds > 3 * 0.01 * len(outside.ops)  # the sleeps
    assert profile.block_seconds == pytest.approx(profile.seconds + outside.seconds)
    rows = len(profile.dispatches) + len(profile.around)
    *_, last, _, told = str(profile).split("\n")[: rows + 5]
    assert last.split()[:3] == ["outside", "of", "calls"]
    assert told.startswith("outside of calls: Python, JAX's way to a call and back, and what XLA")
    assert outside.ops[0] in told
    assert outside.ops[0] in profile.as_html()


def test_without_pieces_at_the_ends_nothing_is_named() -> None:
    profile = profiled(layer, jnp.ones((20, 20)), jnp.ones((20, 20)))
    assert profile.outside.ops == ()
    assert profile.block_seconds == pytest.approx(profile.seconds + profile.outside.seconds)
    assert "outside of calls: Python, JAX's way to a call and back\n" in str(profile)


def test_what_is_between_two_programs_is_not_outside() -> None:
    def both(x: Any) -> Any:
        return jnp.sin(called_back(jnp.sin(x) @ x)) @ x

    profile = profiled(both, jnp.ones((20, 20)))
    assert profile.outside.ops == ()
    (row,) = [row for row in profile.dispatches if row.kind == XLA]
    assert row.seconds > 3 * 0.01
    assert profile.block_seconds == pytest.approx(profile.seconds + profile.outside.seconds)


def test_calls_beside_each_other_are_not_outside_twice() -> None:
    program = HostProgram("f", (), (), ())
    calls = [Event(10, 30, 1, 0, 0), Event(20, 40, 2, 0, 0), Event(60, 70, 1, 0, 0)]
    inner = Event(12, 14, 1, 128, 0)
    slots = {0: [Slot(3, 50, 10, 20, 0, 0, 0)]}
    clock = Clock(0, 0.0, 0.5)
    times = ProgramTimes("f_1", program, slots, [*calls, inner], 0, 1)
    assert outside([times], [], [], clock, 50.0).seconds == 50.0 - 0.5 * 40
    lost = replace(times, events=calls[2:], lost_events=3)
    assert outside([lost], [], [], clock, 50.0).seconds == 50.0 - 0.5 * 50
    assert outside([lost], [], [], clock, 20.0).seconds == 0.0
