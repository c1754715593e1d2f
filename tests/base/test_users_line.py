"""Warnings are told once for each line of the user's program, and stand at that line."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import stagejit
from stagejit import pipeline
from stagejit.base.threads.other_threads import on_other_threads
from stagejit.base.users_line import warn
from stagejit.errors import FallbackWarning
from stagejit.pipeline import STEPS, Compilation
from stagejit.runtime.objects.object_cache import CacheWarning

X = np.arange(5, dtype=np.float32)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(c: Compilation) -> None:
        raise KeyError("lost value")

    monkeypatch.setenv("STAGEJIT_STRICT", "0")
    monkeypatch.setattr(pipeline, "STEPS", tuple(replace(s, run=failing) for s in STEPS))


def here() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def warnings_of(call: Callable[[], Any]) -> list[tuple[type, str, int]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        call()
    return [(warning.category, warning.filename, warning.lineno) for warning in caught]


@pytest.mark.usefixtures("broken")
def test_a_fallback_is_told_at_the_line_of_the_call() -> None:
    f = stagejit.jit(lambda x: x * 3 + x.sum())
    line = here()

    def calls() -> None:
        f(X)
        stagejit.jit(lambda x: x * 4 + x.sum()).lower(X)
        jax.jit(lambda x: f(x) + 1)(X[:3])
        with stagejit.enabled():
            jax.jit(lambda x: x * 5 + x.sum())(X)

    first = line + 3
    lines = (first, first + 1, first + 2, first + 4)
    assert warnings_of(calls) == [(FallbackWarning, __file__, line) for line in lines]


@pytest.mark.usefixtures("broken")
def test_on_a_thread_of_the_users() -> None:
    def call() -> None:
        made.append(here())
        stagejit.jit(lambda x: x * 6 + x.sum())(X)

    made: list[int] = []
    thread = threading.Thread(target=call)

    def run() -> None:
        thread.start()
        thread.join()

    assert warnings_of(run) == [(FallbackWarning, __file__, made[0] + 1)]


def test_a_cache_is_complained_of_at_the_line_of_the_call(tmp_path: Path) -> None:
    tmp_path.joinpath("file").touch()
    options = stagejit.Options(cache_dir=str(tmp_path / "file" / "folder"))
    f = stagejit.jit(lambda x: x * 7.625 + x.sum(), options=options)
    line = here() + 1
    assert warnings_of(lambda: f(X)) == [(CacheWarning, __file__, line)]


def test_what_runs_on_threads_of_ours() -> None:
    line = here() + 1
    told = warnings_of(lambda: on_other_threads(partial(warn, category=UserWarning), ["a", "b"]))
    assert told == [(UserWarning, __file__, line)] * 2
