"""Waves on threads: with one fork, and one after the other; what is decided is what is told."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import stagejit
from stagejit.base.decisions import Decision
from stagejit.base.machine import HOT_FORK_SECONDS
from stagejit.codegen.target import Target
from stagejit.explaining import explanation_of
from stagejit.options import Options
from stagejit.pipeline import Compilation
from stagejit.runtime.modelled.threads import OnThreads
from stagejit.runtime.modelled.waves import (
    AWAKE_SECONDS,
    WAKING_SECONDS,
    Job,
    Laid,
    forking,
    in_turn,
    together,
)
from stagejit.schedule.threads.waves import NAME

LANES = st.integers(1, 9)
SINCE = st.sampled_from([0.0, AWAKE_SECONDS, 1.0, math.inf])
JOBS = st.lists(st.builds(Job, st.floats(1e-8, 1e-2), st.integers(1, 12)), min_size=1, max_size=12)


def work_of(laid: Laid, job: int) -> float:
    return sum(bar.seconds * bar.lanes for bar in laid.bars if bar.job == job)


@given(JOBS, LANES, SINCE)
def test_one_fork_does_all_of_the_work(jobs: list[Job], lanes: int, since: float) -> None:
    laid = together(jobs, lanes, since)
    threads = [min(job.threads, lanes) for job in jobs]
    for number, job in enumerate(jobs):
        assert work_of(laid, number) == pytest.approx(job.seconds * threads[number])
    busy = [[bar for bar in laid.bars if bar.lane == lane] for lane in range(lanes)]
    for bars in busy:
        ends = [(bar.start, bar.start + bar.seconds) for bar in sorted(bars, key=lambda b: b.start)]
        assert all(bar.lanes == 1 for bar in bars)
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(ends))
    work = sum(job.seconds * count for job, count in zip(jobs, threads, strict=True))
    few = (job for job, count in zip(jobs, threads, strict=True) if count < lanes)
    alone = max((job.seconds for job in few), default=0.0)
    assert laid.seconds >= forking(since) + max(work / lanes, alone) - 1e-9
    assert laid.seconds <= forking(since) + work / lanes + alone + 1e-9


@given(JOBS, LANES, SINCE)
def test_one_after_the_other(jobs: list[Job], lanes: int, since: float) -> None:
    laid = in_turn(jobs, lanes, since)
    forks = sum(bar.seconds - job.seconds for bar, job in zip(laid.bars, jobs, strict=True))
    assert laid.seconds == pytest.approx(sum(job.seconds for job in jobs) + forks)
    count = sum(job.shared for job in jobs) if lanes > 1 else 0
    assert count * HOT_FORK_SECONDS - 1e-9 <= forks <= count * WAKING_SECONDS + 1e-9


def test_threads_that_slept_are_woken_and_others_go_on() -> None:
    long, short = Job(1e-3, threads=2), Job(1e-7)
    assert in_turn([long], 2, math.inf).seconds == pytest.approx(1e-3 + WAKING_SECONDS)
    both = in_turn([long, short, long], 2, math.inf)
    assert both.seconds == pytest.approx(2e-3 + 1e-7 + WAKING_SECONDS + HOT_FORK_SECONDS)
    between = in_turn([long, Job(1e-4), long], 2, math.inf)
    assert between.seconds == pytest.approx(2.1e-3 + 2 * WAKING_SECONDS)


def several(x: Any) -> Any:
    return tuple(jnp.tanh(x * float(at)) @ x for at in range(3))


def in_a_loop(x: Any) -> Any:
    return lax.fori_loop(0, 4, lambda i, c: (jnp.tanh(c[0] @ x), jnp.sin(c[1] @ x)), (x, x))


def padded(x: Any) -> Any:
    return jnp.pad(jnp.exp(x), 1)


def unequal(x: Any) -> Any:
    return jnp.cumsum(x, 1), x[:9].sum(1), x.T * 2, x[:16, :16] @ x[:16, :16]


def compiled(f: Callable[..., Any], x: Any, cores: int, **options: Any) -> Compilation:
    made = stagejit.jit(f, options=Options(**options)).trace(x).compilation
    return Compilation(made.request, made.left_to_xla, replace(Target.host(), cores=cores))


def decisions(made: Compilation) -> list[Decision]:
    return [d for d in explanation_of(made).decisions if d.rewrite == NAME]


@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize("side", [8, 64, 300, 900])
@pytest.mark.parametrize("program", [several, in_a_loop, padded, unequal])
def test_what_is_decided_takes_the_less_modelled_time(
    program: Callable[..., Any], side: int, cores: int
) -> None:
    """Of a wave the reason has both times, of which the timeline has the less."""
    x = np.ones((side, side), np.float32)
    made = compiled(program, x, cores).run_until("host")
    explained = explanation_of(made)
    assert explained.seconds is not None
    without = explanation_of(compiled(program, x, cores, disable=(NAME,)))
    assert without.seconds is not None
    assert explained.seconds <= without.seconds * (1 + 1e-9)
    assert isinstance(made.target, Target)
    again = OnThreads(made.schedule, made.schedule.waves, made.kernels, made.target).run()
    assert again.now == explained.seconds
    shared = [wave for waves in made.schedule.waves.values() for wave in waves if wave.shared]
    assert len(shared) == sum(d.applied for d in decisions(made))
    if cores == 1:
        assert not shared


def test_switched_off_nothing_is_decided() -> None:
    x = np.ones((64, 64), np.float32)
    assert decisions(compiled(several, x, 2))
    assert not decisions(compiled(several, x, 2, disable=(NAME,)))
