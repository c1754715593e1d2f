"""Whole programs through PyCUDA: at first launch by launch, from the third call on as graphs.

Each result is held against the same function in float64 on the CPU.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.codegen.cuda.contract import kernel as policy
from stagejit.codegen.cuda.contract.tensor_cores.warpgroup_tile import GroupTile
from stagejit.options import Options
from stagejit.runtime.cuda.driver import Event, Stream
from stagejit.runtime.cuda.drivers import using
from stagejit.runtime.cuda.pycuda import PyCudaDriver
from stagejit.types import bf16
from tests.cuda.pycuda.conftest import Device

SEEDS = range(6)
Program = Callable[..., Any]


def some(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def maps(x: Any, y: Any) -> Any:
    return jnp.tanh(x) * y[:, None] + jnp.exp(-x), jnp.where(x > 0, x, y[:, None])


def dense_block(x: Any, w: Any, b: Any) -> Any:
    h = jax.nn.gelu(x @ w + b)
    centred = h - h.mean(axis=-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) + x


def branches(x: Any, w: Any) -> Any:
    """Two chains that do not meet before the end, so two streams."""
    a, b = x, x.T
    for _ in range(3):
        a, b = jnp.tanh(a @ w), jnp.sin(b @ w)
    return a + b, a.sum(axis=0), b.max(axis=1)


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x, axis=-1), x.max(axis=0)


def convolution(x: Any, k: Any) -> Any:
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.nn.relu(lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=dims))


def recurrence(x: Any, w: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        h = jnp.tanh(h @ w + row)
        return h, h.sum()

    return lax.scan(step, jnp.zeros(w.shape[0], x.dtype), x)


def iteration(x: Any) -> Any:
    return lax.while_loop(lambda c: (c[0] ** 2).sum() > 1, lambda c: (c[0] * 0.7, c[1] + 1), (x, 0))


def choice(x: Any) -> Any:
    return lax.cond(x.sum() > 0, lambda v: jnp.sin(v), lambda v: v * 2, x)


def table(x: Any, at: Any) -> Any:
    return x[at] * 2, x.at[at].add(1.0)


PROGRAMS: list[tuple[Program, tuple[np.ndarray, ...]]] = [
    (maps, (some(13, 37), some(13, seed=1))),
    (dense_block, (some(20, 32), some(32, 32, seed=1), some(32, seed=2))),
    (branches, (some(24, 24), some(24, 24, seed=1) / 5)),
    (softmax, (some(17, 100),)),
    (convolution, (some(2, 9, 11, 3), some(3, 3, 3, 5, seed=1))),
    (recurrence, (some(6, 16), some(16, 16, seed=1) / 4)),
    (iteration, (some(50),)),
    (choice, (some(40),)),
    (choice, (-some(40),)),
    (table, (some(30, 4), np.array([3, 3, 29, 0, 7]))),
]
IDS = [f"{number}-{program.__name__}" for number, (program, _) in enumerate(PROGRAMS)]


def wanted(program: Program, arrays: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """In float64."""
    with jax.enable_x64(True):
        exact = [jnp.asarray(a, np.float64 if a.dtype == np.float32 else None) for a in arrays]
        return [np.asarray(found) for found in jax.tree.leaves(program(*exact))]


def require_close(found: Any, exact: list[np.ndarray]) -> None:
    leaves = jax.tree.leaves(found)
    assert len(leaves) == len(exact)
    for one, other in zip(leaves, exact, strict=True):
        np.testing.assert_allclose(np.asarray(one, other.dtype), other, rtol=3e-5, atol=3e-5)


@pytest.mark.some(2)
@pytest.mark.parametrize(("program", "arrays"), PROGRAMS, ids=IDS)
def test_a_program(
    driver: PyCudaDriver, device: Device, program: Program, arrays: tuple[np.ndarray, ...]
) -> None:
    exact = wanted(program, arrays)
    with using(driver):
        compiled = stagejit.jit(program, options=Options(target="cuda"))
        for seed in SEEDS:
            device.seed(seed)
            require_close(compiled(*arrays), exact)
            assert device.context_depth() == 0


def test_a_launch_asks_for_shared_memory_that_no_kernel_declares(
    driver: PyCudaDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    if driver.arch != "sm_90a":
        pytest.skip("needs a GPU with products of warpgroups")
    tile, asked = GroupTile(2, 1, 64, 256, bf16), list[int]()
    monkeypatch.setattr(policy, "_tiles_of", lambda plan, device: [tile])
    monkeypatch.setattr(policy, "single_seconds", lambda plan, device: 1.0)
    launch = PyCudaDriver.launch

    def noted(self: PyCudaDriver, *args: Any) -> None:
        asked.append(args[3])
        launch(self, *args)

    monkeypatch.setattr(PyCudaDriver, "launch", noted)
    a, b = (some(*shape).astype(jnp.bfloat16) for shape in ((137, 72), (72, 264)))

    def product(a: Any, b: Any) -> Any:
        return lax.dot(a, b, preferred_element_type=jnp.float32)

    with using(driver):
        found = stagejit.jit(product, options=Options(target="cuda"))(a, b)
        require_close(found, [a.astype(np.float64) @ b.astype(np.float64)])
    assert asked == [2 * (128 + 256) * 64 * 2]


def test_threads_call_programs_side_by_side(driver: PyCudaDriver) -> None:
    errors: list[BaseException] = []
    with using(driver):
        compiled = [stagejit.jit(one, options=Options(target="cuda")) for one, _ in PROGRAMS[:4]]

        def work(number: int) -> None:
            try:
                for turn in range(8):
                    which = (number + turn) % len(compiled)
                    require_close(compiled[which](*PROGRAMS[which][1]), exact[which])
            except BaseException as error:  # raised below
                errors.append(error)

        exact = [wanted(program, arrays) for program, arrays in PROGRAMS[:4]]
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for error in errors:
        raise error


def test_what_a_program_has_goes_with_it(driver: PyCudaDriver) -> None:
    table = some(100, 100)
    with using(driver):
        compiled = stagejit.jit(lambda x: x @ table + x, options=Options(target="cuda"))
        for _ in range(3):
            compiled(some(5, 100))
        assert driver._pieces  # the table
        del compiled
        jax.clear_caches()
        gc.collect()
        with driver.current():
            assert not driver._pieces


class WithoutAnEvent(PyCudaDriver):
    """Does not wait for one of the events. number: for which; -1 for none of them."""

    number, waits = -1, 0

    def wait(self, stream: Stream, event: Event) -> None:
        if self.waits != self.number:
            super().wait(stream, event)
        self.waits += 1


def test_each_event_of_a_program_is_needed(device: Device) -> None:
    """Without it, what comes out is wrong, with one seed or another."""
    if not device.emulated:
        pytest.skip("a GPU may do the right thing by chance")
    program, arrays = PROGRAMS[2]
    exact, driver = wanted(program, arrays), WithoutAnEvent(compiler=device.compiler)
    with using(driver):
        compiled = stagejit.jit(program, options=Options(target="cuda", cache_dir=""))
        require_close(compiled(*arrays), exact)
        events = driver.waits
        assert events >= 2
        for driver.number in range(events):
            wrong = []
            for seed in range(20):
                device.seed(seed)
                driver.waits = 0
                compiled = stagejit.jit(program, options=Options(target="cuda"))
                try:
                    require_close(compiled(*arrays), exact)
                    wrong.append(False)
                except Exception:  # wrong numbers, or a capture that the driver refuses
                    wrong.append(True)
            assert any(wrong), driver.number
    driver.close()
