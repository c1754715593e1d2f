"""Python's cycle collector rests while we compile, and is as the user left it afterwards."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit import pipeline
from stagejit.collector import collector_paused


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_no_collection_while_a_function_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, collections = False, 0

    def count(phase: str, info: dict[str, int]) -> None:
        nonlocal collections
        collections += inside and phase == "start"

    run_until = pipeline.Compilation.run_until

    def watched(self: pipeline.Compilation, name: str) -> pipeline.Compilation:
        nonlocal inside
        inside = True
        try:
            return run_until(self, name)
        finally:
            inside = False

    monkeypatch.setattr(pipeline.Compilation, "run_until", watched)
    x = np.ones(7, np.float32)

    def f(x: jnp.ndarray) -> jnp.ndarray:
        for k in range(200):
            x = jnp.sin(x * k)
        return x

    gc.callbacks.append(count)
    try:
        stagejit.jit(f).lower(x)
    finally:
        gc.callbacks.remove(count)
    assert not collections
    assert gc.isenabled()


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), collector_paused():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_it_is_paused_once() -> None:
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_stays_off_where_the_user_has_it_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


@contextmanager
def another_thread_inside() -> Iterator[None]:
    started, ended = threading.Event(), threading.Event()

    def inside() -> None:
        with collector_paused():
            started.set()
            ended.wait(60)

    thread = threading.Thread(target=inside)
    thread.start()
    assert started.wait(60)
    try:
        yield
    finally:
        ended.set()
        thread.join(60)


def test_the_first_of_two_threads_ends_the_pause() -> None:
    with ExitStack() as stack:
        with collector_paused():
            stack.enter_context(another_thread_inside())
        assert gc.isenabled()
    assert gc.isenabled()


FORKS = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


def collects_in_child() -> bool:
    child = os.fork()
    if not child:
        os._exit(0 if gc.isenabled() else 1)
    return not os.waitpid(child, 0)[1]


@FORKS
def test_it_is_on_in_a_child_without_the_thread_that_paused_it() -> None:
    with another_thread_inside():
        assert not gc.isenabled()
        assert collects_in_child()


@FORKS
def test_the_pause_goes_on_in_a_child_of_its_own_thread() -> None:
    with collector_paused():
        assert not collects_in_child()
    assert gc.isenabled()
