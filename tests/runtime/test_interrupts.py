"""Interrupts at every moment leave no lock taken, so other threads go on.

A handler of signals runs between two bytecodes of the main thread: where a Python function begins,
and where a call of a function written in C has returned. A profile function is called at these
moments, too, and raises what the handler of Ctrl-C would raise.
"""

from __future__ import annotations

import gc
import itertools
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
from llvmlite.binding import ffi

import stagejit
from stagejit import pipeline
from stagejit.base import enabling
from stagejit.base.threads import collector, locks, other_threads
from stagejit.base.threads.importing import importing
from stagejit.runtime import gate
from stagejit.runtime.compilations import running
from stagejit.runtime.cpu import loader
from stagejit.runtime.lowering import embedding
from stagejit.runtime.lowering.staged import Request
from stagejit.runtime.objects import code_memory, engine

X = np.linspace(0, 1, 20, dtype=np.float32)
SECONDS = 20  # more than any wait here takes
_numbers = itertools.count(1)
Moment = tuple[CodeType, int, CodeType, int]  # where, and from where that was called


def request() -> Request:
    """A program that nobody compiled before."""
    k = next(_numbers) / 16
    made: Request = stagejit.jit(lambda x: x * k + 1).trace(X).compilation.request
    return made


def at_moments(meet: Callable[[Moment], None]) -> Callable[[FrameType, str, Any], None]:
    """A profile function."""

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_return") and frame.f_back is not None:
            back = frame.f_back
            meet((frame.f_code, frame.f_lasti, back.f_code, back.f_lasti))

    return profile


# What takes locks, by itself or inside of what it calls; the rest of the compiler takes none.
TAKES_LOCKS = {
    module.__file__
    for module in (code_memory, collector, embedding, enabling, engine, gate, loader, locks)
} | {pipeline.__file__, running.__file__, other_threads.__file__}
NOT_OURS = re.compile(
    r"/jax/_src/config\.py$|/threading\.py$|/concurrent/futures/|/llvmlite/binding/|/contextlib\.py$"
)


def is_about_locks(moment: Moment) -> bool:
    file = moment[0].co_filename
    return file in TAKES_LOCKS or bool(NOT_OURS.search(file)) or moment[2].co_name == "shared"


def kept_locks() -> list[Any]:
    """What this thread has, as another one finds it; what has begun elsewhere may end."""

    def look() -> None:
        for lock in [*locks._all, importing, ffi.lib._lock._lock]:
            if lock.acquire(timeout=SECONDS):
                lock.release()
            else:
                kept.append(lock)

    kept: list[Any] = []
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return kept


@pytest.fixture
def profiled() -> Iterator[None]:
    before = sys.getprofile()
    yield
    sys.setprofile(before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_moment_keeps_no_lock(profiled: None) -> None:
    embedding.stage(request())
    moments: dict[Moment, None] = {}
    sys.setprofile(at_moments(lambda moment: moments.setdefault(moment)))
    try:
        embedding.stage(request())
    finally:
        sys.setprofile(None)
    wanted = [moment for moment in moments if is_about_locks(moment)]
    assert {pipeline.__file__, running.__file__, locks.__file__, enabling.__file__} <= {
        moment[0].co_filename for moment in wanted
    }
    left, interrupts, scope = set(wanted), 0, enabling._scope._obj.get_local()

    def interrupt(moment: Moment) -> None:
        if moment in left:
            left.remove(moment)
            sys.setprofile(None)
            raise KeyboardInterrupt

    while left:
        before, asked = len(left), request()
        sys.setprofile(at_moments(interrupt))
        try:
            embedding.stage(asked)
        except KeyboardInterrupt:
            interrupts += 1
        finally:
            sys.setprofile(None)
        assert not kept_locks()
        assert gc.isenabled()
        assert enabling._scope._obj.get_local() is scope
        if len(left) == before:
            break  # moments that came once
    assert interrupts > 50
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(embedding.stage(request())), daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert done
    assert loader.loaded_programs()
