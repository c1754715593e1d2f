"""From a schedule to a host program: which launches share a parallel region."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.base.decisions import Decision
from stagejit.errors import VerificationError
from stagejit.options import Options
from stagejit.schedule.schedule import Run, Wave
from stagejit.schedule.threads.waves import NAME
from stagejit.schedule.verifier.waves import verify_waves

BIG = (512, 1024)


def host_text(fn: Any, *args: Any, **options: Any) -> str:
    text: str = stagejit.jit(fn, options=Options(**options)).lower(*args).as_text("host")
    return text


def array(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def concatenated(a: Any, b: Any, c: Any) -> Any:
    return jnp.concatenate([jnp.exp(a), jnp.sin(b), jnp.tanh(c)])


def test_independent_neighbours_share_a_parallel_region() -> None:
    args = [array(*BIG), array(*BIG), array(*BIG)]
    assert "parallel region of 3" in host_text(concatenated, *args)
    ours, theirs = stagejit.jit(concatenated)(*args), jax.jit(concatenated)(*args)
    np.testing.assert_allclose(ours, theirs, 1e-5, 1e-5)


def test_full_barriers_keep_them_apart() -> None:
    args = [array(*BIG), array(*BIG), array(*BIG)]
    assert "parallel region" not in host_text(concatenated, *args, full_barriers=True)


def test_dont_put_a_consumer_beside_its_producer() -> None:
    def fn(a: Any, b: Any) -> Any:
        return jnp.cumsum(jnp.cumsum(jnp.exp(a), 1), 0), jnp.cumsum(jnp.sin(b), 0)

    args = [array(*BIG), array(*BIG)]
    ours, theirs = stagejit.jit(fn)(*args), jax.jit(fn)(*args)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, 1e-3, 1e-2)
    plan = stagejit.jit(fn).plan(*args)
    assert plan.barriers


def test_what_is_not_worth_a_fork_stays_serial() -> None:
    args = [array(4, 8), array(4, 8), array(4, 8)]
    assert "parallel" not in host_text(concatenated, *args)


def test_borders_run_beside_the_interior() -> None:
    text = host_text(lambda a: jnp.pad(jnp.exp(a), 1), array(*BIG), disable=("overlay-parts",))
    assert "parallel region of 5" in text
    small = host_text(lambda a: jnp.pad(jnp.exp(a), 1), array(4, 8))
    assert small.count("serial") == 5


def chains(x: Any, y: Any, w: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ w) @ w), jnp.tanh(jnp.tanh(y @ w) @ w)


def test_chains_that_are_worth_it_run_beside_each_other() -> None:
    args = [array(64, 128), array(64, 128), array(128, 128)]
    assert host_text(chains, *args).count("parallel region of 2") == 2
    small = [array(4, 8), array(4, 8), array(8, 8)]
    assert "parallel" not in host_text(chains, *small)


def test_what_stays_on_one_core_runs_beside_what_does_not() -> None:
    def fn(a: Any, b: Any) -> Any:
        return jnp.exp(a), b @ b

    text = host_text(fn, array(*BIG), array(16, 16))
    region = text[text.index("parallel region of 2") :]
    assert region.splitlines()[1].endswith(" serial")
    ours, theirs = (
        stagejit.jit(fn)(array(*BIG), array(16, 16)),
        jax.jit(fn)(*map(jnp.asarray, (array(*BIG), array(16, 16)))),
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-4)


def many(a: Any) -> Any:
    return [a @ (a * i) for i in range(1, 101)]


def test_a_wave_may_be_of_any_length() -> None:
    assert "parallel region of 100:" in host_text(many, array(128, 128))
    for i, each in enumerate(stagejit.jit(many)(array(128, 128)), 1):
        a = array(128, 128)
        np.testing.assert_allclose(each, a @ (a * i), 1e-3, 1e-2)


def test_switched_off_each_dispatch_forks_by_itself() -> None:
    text = host_text(many, array(128, 128), disable=("share-forks",))
    assert "parallel region" not in text


def test_explain_tells_what_shares_a_wave() -> None:
    notes = stagejit.jit(many).explain(array(64, 64)).chosen
    threads = [note.reason for note in notes if note.name == "threads"]
    assert len(threads) == 100
    assert all(reason.endswith("; in a wave of 100") for reason in threads)
    off = stagejit.jit(many, options=Options(disable=("share-forks",))).explain(array(64, 64))
    assert not any("wave" in note.reason for note in off.chosen)


def decisions_of(f: Any, *args: Any, **options: Any) -> list[Decision]:
    """Those on waves, which need kernels: plans have none."""
    jitted = stagejit.jit(f, options=Options(**options))
    assert not any(d.rewrite == NAME for d in jitted.plan(*args).decisions)
    return [d for d in jitted.explain(*args).decisions if d.rewrite == NAME]


def test_each_wave_is_a_decision() -> None:
    (shared,) = decisions_of(many, array(64, 64))
    assert shared.applied
    times = r"100 kernels take [\d.]+ us if threads are woken once for all of them, "
    assert re.fullmatch(times + r"[\d.]+ us one after the other", shared.reason)
    (declined,) = decisions_of(concatenated, *(array(4, 8) for _ in range(3)))
    assert not declined.applied
    less = "3 kernels take less than the 7.5 us in which other threads are woken"
    assert declined.reason == less
    (big,) = decisions_of(concatenated, *(array(*BIG) for _ in range(3)))
    assert big.applied
    padded, apart = (lambda a: jnp.pad(jnp.exp(a), 1)), ("overlay-parts",)
    (borders,) = decisions_of(padded, array(*BIG), disable=apart)
    assert borders.applied
    assert not decisions_of(jnp.cumsum, array(64, 64))
    assert not decisions_of(many, array(64, 64), disable=(NAME,))


def in_a_loop(x: Any, w: Any) -> Any:
    return lax.fori_loop(0, 4, lambda i, c: (jnp.tanh(c[0] @ w), jnp.sin(c[1] @ w)), (x, x))


def test_waves_of_iterations() -> None:
    (shared,) = decisions_of(in_a_loop, array(128, 128), array(128, 128))
    assert shared.applied
    assert "parallel region of 2" in host_text(in_a_loop, array(128, 128), array(128, 128))


def side_by_side(xs: Any, w: Any) -> Any:
    return lax.map(lambda x: (jnp.tanh(x @ w) @ w, jnp.sin(x @ w) @ w), xs)


def test_iterations_that_threads_share_have_no_waves() -> None:
    args = array(64, 32, 32), array(32, 32)
    assert "parallel region" not in host_text(side_by_side, *args)
    assert not decisions_of(side_by_side, *args)


@pytest.mark.parametrize(("parts", "fault"), [
    ([slice(2), slice(2, None)], "depends on a part of its wave"),
    ([slice(0, None, 2), slice(1, 2)], "other steps"),
    ([slice(1)], "other steps"),
])  # fmt: skip
def test_a_wave_with_a_dependence_is_refused(parts: list[slice], fault: str) -> None:
    """Of a chain of three, whose barriers are all there, the verifier takes no two together."""
    x = np.ones((300, 300), np.float32)
    lowered = stagejit.jit(lambda x: jnp.cumsum(jnp.cumsum(x, 1) @ x, 0)).lower(x)
    schedule = lowered.compilation.run_until("schedule").schedule
    verify_waves(schedule)
    (run,) = schedule.segments
    assert isinstance(run, Run)
    waves = tuple(Wave(run.steps[part], shared=True) for part in parts)
    with pytest.raises(VerificationError, match=fault):
        verify_waves(replace(schedule, waves={run: waves}))
