"""Many calls, from many threads: right values, and memory that stays what it was."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stagejit
from stagejit.runtime.cpu.loader import call_count

THREADS, CALLS = 4, 1000


def resident_nbytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def settled(call: Any, *, batches: int) -> list[int]:
    """Resident memory after each batch of calls."""
    sizes = []
    for _ in range(batches):
        call()
        gc.collect()
        sizes.append(resident_nbytes())
    return sizes


@stagejit.jit
def several_dispatches(x: Any, shift: Any) -> Any:
    """A transient between dispatches: the arena is claimed by each call."""
    h = jnp.tanh(x @ x.T + shift)
    return jax.nn.softmax(h, axis=-1) @ x, h.sum()


def expected(x: np.ndarray, shift: float) -> tuple[np.ndarray, float]:
    h = np.tanh(x.astype(np.float64) @ x.T + shift)
    e = np.exp(h - h.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ x, h.sum()


def test_four_threads_call_one_function() -> None:
    x = np.random.default_rng(0).standard_normal((24, 16)).astype(np.float32)
    wanted = [expected(x, shift) for shift in range(THREADS)]
    several_dispatches(x, np.float32(0))
    together = threading.Barrier(THREADS)

    def work(shift: int) -> None:
        together.wait()
        for _ in range(CALLS):
            y, total = several_dispatches(x, np.float32(shift))
            np.testing.assert_allclose(y, wanted[shift][0], rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(total, wanted[shift][1], rtol=1e-4)

    def all_threads() -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            for done in [pool.submit(work, shift) for shift in range(THREADS)]:
                done.result()

    before = call_count()
    sizes = settled(all_threads, batches=3)
    assert call_count() - before == 3 * THREADS * CALLS
    assert min(sizes[1:]) - sizes[0] < 4 << 20, sizes


def test_threads_that_fork_over_the_pool() -> None:
    """Work large enough for the thread pool, from several threads at once."""
    x = np.linspace(-2, 2, 1 << 18, dtype=np.float32)
    f = stagejit.jit(lambda x, k: jnp.exp(jnp.sin(x * k)).sum() + x)
    wanted = [np.exp(np.sin(x.astype(np.float64) * k)).sum() + x for k in range(THREADS)]

    def work(k: int) -> None:
        for _ in range(20):
            np.testing.assert_allclose(f(x, np.float32(k)), wanted[k], rtol=1e-4)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, k) for k in range(THREADS)]:
            done.result()


def test_threads_compile_at_once() -> None:
    """First calls of one function and of different ones meet in the compiler."""
    f = stagejit.jit(lambda x: jnp.cos(x) * x.shape[0])
    together = threading.Barrier(THREADS)

    def work(size: int) -> None:
        together.wait()
        x = np.linspace(0, 1, 3 + size // 2, dtype=np.float32)
        np.testing.assert_allclose(f(x), np.cos(x) * x.shape[0], rtol=1e-5)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, size) for size in range(THREADS)]:
            done.result()


def test_memory_is_flat_over_ten_thousand_calls() -> None:
    x = jnp.linspace(0, 1, 512).reshape(16, 32)
    several_dispatches(x, 1.0)

    def batch() -> None:
        for _ in range(2000):
            out = several_dispatches(x, 1.0)
        jax.block_until_ready(out)

    sizes = settled(batch, batches=6)
    assert sizes[-1] - sizes[0] < 2 << 20, sizes


def test_memory_is_flat_with_large_results_and_transients() -> None:
    x, batches = jnp.ones((1 << 20,)), 5
    f = stagejit.jit(lambda x: jnp.cumsum(x)[::-1] * jnp.cumsum(x * 2))

    def batch() -> None:
        for _ in range(10):
            f(x).block_until_ready()

    sizes = settled(batch, batches=batches)
    assert sizes[-1] - sizes[1] < (batches - 2) * x.nbytes, sizes  # one array of each batch
