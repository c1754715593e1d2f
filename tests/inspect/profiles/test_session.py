"""`stagejit.profile`: whose calls a block counts (of threads, of processes), and how it ends."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import textwrap
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.errors import StagejitError
from stagejit.inspect.profiles import session
from stagejit.runtime.compilations import compile_times
from stagejit.runtime.cpu import recording
from tests.inspect.profiles.profiling import counts, layer, profiled, repeated, squared


def test_calls_of_several_threads_are_all_counted() -> None:
    staged, x = stagejit.jit(layer), jnp.ones((64, 64))
    jax.block_until_ready(staged(x, x))

    def call() -> None:
        for _ in range(50):
            jax.block_until_ready(staged(x, x))

    threads = [threading.Thread(target=call) for _ in range(4)]
    with stagejit.profile() as profile:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert profile.calls == 200
    assert set(counts(profile).values()) == {200}


def test_profiles_overlap() -> None:
    staged, x = stagejit.jit(layer), jnp.ones((32, 32))
    staged(x, x)
    with stagejit.profile() as outer:
        staged(x, x)
        with stagejit.profile() as inner:
            staged(x, x)
            staged(x, x)
        staged(x, x)
    assert (outer.calls, inner.calls) == (4, 2)
    assert inner.seconds < outer.seconds


def test_what_is_compiled_in_the_block_is_told() -> None:
    def fresh(x: Any) -> Any:
        return jnp.cos(x * 1.25) + jnp.sin(x[::-1] / 3.5)

    with stagejit.profile() as profile:
        stagejit.jit(fresh)(jnp.ones(100))
    assert profile.calls == 1
    (times,) = profile.compiled
    assert times.name == "fresh"
    assert next(iter(times.seconds_by_step)) == "trace"
    assert list(times.seconds_by_step)[-1] == "load"
    assert times.kernels == times.compiled_kernels + times.cached_kernels > 0
    assert "compiled fresh" in str(profile)


def test_calls_are_counted_whose_results_nobody_keeps() -> None:
    """Operands that are not there yet have JAX run a call on a thread of its own, later."""
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, x: jnp.sin(x @ x), x))
    inner = stagejit.jit(layer)
    around = jax.jit(lambda x: inner(x @ x, x)[:, None] * x)
    x = jnp.ones((300, 300))
    jax.block_until_ready((inner(slow(x), x), around(x), inner(np.ones(x.shape, x.dtype), x)))
    for _ in range(2):
        with stagejit.profile() as profile:
            for _ in range(5):
                inner(slow(x), x)
                around(x)
                inner(np.ones(x.shape, x.dtype), x)
        assert profile.calls == 15


def test_a_function_that_goes_in_the_block_is_counted() -> None:
    with stagejit.profile() as profile:
        staged = stagejit.jit(lambda x: jnp.cos(x + 0.75))
        staged(jnp.ones(10)).block_until_ready()
        del staged
        gc.collect()
    assert profile.calls == 1


def test_nothing_is_timed_outside_of_a_block() -> None:
    staged, x = stagejit.jit(layer), jnp.ones((32, 32))
    with stagejit.profile() as profile:
        staged(x, x)
    staged(x, x).block_until_ready()
    with stagejit.profile() as other:
        pass
    assert profile.calls == 1
    assert other.calls == 0
    assert other.dispatches == ()
    assert "no staged function" in str(other)


def test_an_error_in_the_block_ends_the_profile() -> None:
    staged, x = stagejit.jit(layer), jnp.ones((32, 32))
    profile = stagejit.profile()

    def failing() -> None:
        with profile:
            staged(x, x)
            raise ValueError("of the user's")

    with pytest.raises(ValueError, match="of the user's"):
        failing()
    assert profile.calls == 1


def test_what_a_profile_does_not_have_is_an_error() -> None:
    profile = stagejit.profile()
    with pytest.raises(StagejitError, match="has not ended"):
        _ = profile.dispatches
    with profile, pytest.raises(StagejitError, match="has not ended"):
        str(profile)
    with pytest.raises(StagejitError, match="begun already"), profile:
        pass


def test_the_last_spans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "EVENTS", 16)
    staged = stagejit.jit(repeated)
    staged(jnp.ones((40, 40)))
    with stagejit.profile() as profile:
        for _ in range(20):
            jax.block_until_ready(staged(jnp.ones((40, 40))))
    assert profile.lost_spans
    assert len(profile.spans) <= 16 * profile.peaks.cores * 2
    assert max(counts(profile).values()) >= 140  # sums lose nothing


def test_a_profile_that_has_ended_is_data() -> None:
    profile = profiled(layer, jnp.ones((8, 8)), jnp.ones((8, 8)))
    kept = pickle.loads(pickle.dumps(profile))
    assert kept.dispatches == profile.dispatches
    assert kept.spans == profile.spans
    assert str(kept).splitlines()[0] == str(profile).splitlines()[0]
    with pytest.raises(StagejitError, match="has begun already"), kept:
        pass


IN_A_CHILD = """
    import os, sys, warnings
    warnings.simplefilter("ignore")
    import jax.numpy as jnp, stagejit
    f, x = stagejit.jit(lambda x: jnp.tanh(x) * 2 + x), jnp.ones(8)
    f(x).block_until_ready()
    if "before" in sys.argv:
        with stagejit.profile():
            f(x).block_until_ready()
    child = os.fork()
    if not child:
        with stagejit.profile() as profile:
            f(x).block_until_ready()
        os._exit(profile.calls)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("when", ["", "before"])
def test_in_a_child_of_a_fork(when: str) -> None:
    """What XLA would compile there would wait for ever."""
    command = [sys.executable, "-c", textwrap.dedent(IN_A_CHILD), when]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout == "1\n"


def test_an_interrupt_while_the_block_ends_leaves_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    f, x = stagejit.jit(squared), jnp.ones((8, 8))
    jax.block_until_ready(f(x))
    profile = stagejit.profile()

    def interrupted() -> None:
        raise KeyboardInterrupt

    profile.__enter__()
    jax.block_until_ready(f(x))
    monkeypatch.setattr(session, "wait_for_calls", interrupted)
    with pytest.raises(KeyboardInterrupt):
        profile.__exit__(None, None, None)
    assert counts(profile) == {"contract.0": 1}


@pytest.mark.parametrize("what", ["recorder", "timing"])
def test_a_profile_that_does_not_begin_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def fails() -> None:
        raise MemoryError

    place = session.recorder() if what == "recorder" else session.timing
    with monkeypatch.context() as patch:
        patch.setattr(place, "begin", fails)
        with pytest.raises(MemoryError):
            stagejit.profile().__enter__()
    assert not compile_times._noting
    assert not session.recorder()._open
    assert not session.timing.is_on()
