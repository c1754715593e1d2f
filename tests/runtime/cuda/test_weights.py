"""Weights that a program keeps on a device: what each call reads, whoever puts others there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stagejit
from stagejit.runtime.cuda.emulation.driver import EmulatedDriver
from stagejit.runtime.cuda.programs.executor import Loaded
from stagejit.runtime.objects.object_cache import cache_in
from tests.runtime.cuda.programs import compiled

X = np.random.default_rng(0).standard_normal((8, 24)).astype(np.float32)
OLD, NEW = (np.full((24, 24), number, np.float32) for number in (0.5, -0.25))


def loaded(function: Callable[..., Any], weights: Callable[[], Any]) -> Loaded:
    executable = compiled(stagejit.bind(function, OLD), X, step="load").executable
    executable.weights = lambda: [weights()]
    return executable.on(EmulatedDriver(seed=1, cache=cache_in(None)))


def test_no_call_reads_older_weights_than_one_that_began_before() -> None:
    """While one looks which they are, no other call can put others there, or be queued."""
    made: Loaded
    now, found, waits = OLD, dict[str, Any](), list[bool]()

    def call(name: str) -> None:
        (found[name],) = made.on_host([X])

    def weights() -> Any:
        nonlocal now
        if now is OLD and not waits:
            now = NEW
            later.start()
            later.join(0.2)
            waits.append(later.is_alive())
            return OLD
        return now

    later = threading.Thread(target=call, args=("later",))
    made = loaded(lambda w, x: x @ w, weights)
    call("first")
    later.join()
    assert waits == [True]
    for name, w in (("first", OLD), ("later", NEW)):
        np.testing.assert_allclose(found[name], X @ w, 1e-5, 1e-5)


def test_a_call_has_its_weights_until_its_end() -> None:
    """Also where the host calls a function in between, and others are put there meanwhile."""
    made: Loaded
    now = OLD

    def others() -> None:
        driver = made.driver
        with driver.current():
            made._weights.now()
        with driver.current():  # where what nobody holds any more goes back to the pool
            driver.free(driver.allocate(OLD.nbytes))

    def between(a: Any) -> Any:
        nonlocal now
        now = NEW
        thread = threading.Thread(target=others)
        thread.start()
        thread.join()
        return np.sin(a)

    def f(w: Any, x: Any) -> Any:
        y = x @ w
        return jax.pure_callback(between, jax.ShapeDtypeStruct(y.shape, y.dtype), y) @ w

    made = loaded(f, lambda: now)
    for w in (OLD, NEW):
        (found,) = made.on_host([X])
        np.testing.assert_allclose(found, np.sin(X @ w) @ w, 1e-5, 1e-5)
    assert not made.is_captured


def test_weights_are_copied_once() -> None:
    now, copies = OLD, list[int]()
    made = loaded(lambda w, x: jnp.sin(x @ w), lambda: now)
    copy_in = made.driver.copy_in
    made.driver.copy_in = lambda place, array, *more: (  # type: ignore[method-assign]
        copies.append(array.nbytes), copy_in(place, array, *more)
    )[-1]  # fmt: skip
    for now in (OLD, OLD, NEW, NEW, OLD):
        (found,) = made.on_host([X])
        np.testing.assert_allclose(found, np.sin(X @ now), 1e-5, 1e-5)
    assert copies.count(OLD.nbytes) == 3
