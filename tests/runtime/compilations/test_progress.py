"""A bar for long compilations: only where somebody looks, only after a while, one display."""

from __future__ import annotations

import importlib.util
import io
import sys
import threading
import time
import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

import stagejit
from stagejit.runtime.compilations import progress as bars


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """What stands for one: a bar is shown there at once."""
    made = Terminal()
    monkeypatch.setattr(bars, "AFTER_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("STAGEJIT_PROGRESS", raising=False)
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=made, width=100))
    return made


def shown(terminal: Terminal, work: Any, stderr: Any = None, *, seconds: float = 0.15) -> str:
    """What is there after a compilation. stderr: in place of the terminal. seconds: how long each
    step takes, unless it is seen before."""
    with pytest.MonkeyPatch.context() as patched:  # pytest sets it anew for each test
        patched.setattr(sys, "stderr", stderr or terminal)
        with bars.progress("f", 3) as began:
            for step in ("trace", "codegen", "load"):
                began(step)
                end = time.monotonic() + seconds
                while f"f: {step}" not in terminal.getvalue() and time.monotonic() < end:
                    time.sleep(0.01)
            work()
    assert bars._display.progress is None  # it is gone
    return terminal.getvalue()


def test_steps_are_shown_on_a_terminal(terminal: Terminal) -> None:
    text = shown(terminal, lambda: None, seconds=30.0)
    assert "compiling f: codegen" in text
    assert "compiling f: load" in text


def test_a_short_compilation_shows_nothing(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "AFTER_SECONDS", 60.0)
    assert shown(terminal, lambda: None) == ""


def test_nothing_is_shown_where_nobody_looks(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert shown(terminal, lambda: None, io.StringIO()) == ""
    monkeypatch.setattr(sys, "stderr", terminal)
    assert bars.is_watched()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not bars.is_watched()
    monkeypatch.setattr(sys, "stderr", None)
    assert not bars.is_watched()


@pytest.mark.parametrize("has_widgets", [False, True])
def test_a_notebook_has_a_bar_where_it_can_show_one(
    has_widgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rich draws into a cell by ipywidgets, and writes a warning where there are none."""
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        if name == "ipywidgets":
            return object() if has_widgets else None
        return real(name, package)

    monkeypatch.delenv("STAGEJIT_PROGRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert bars.is_watched() == has_widgets


def test_it_can_be_switched_off(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    with bars.progress("f", 3, wanted=False) as began:
        began("trace")
        time.sleep(0.1)
    assert terminal.getvalue() == ""
    monkeypatch.setenv("STAGEJIT_PROGRESS", "0")
    assert shown(terminal, lambda: None) == ""


def test_several_threads_share_the_display(terminal: Terminal) -> None:
    def other() -> None:
        with bars.progress("g", 1) as began:
            began("trace")
            time.sleep(0.3)

    threads = [threading.Thread(target=other) for _ in range(3)]

    def work() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    text = shown(terminal, work)
    assert "compiling g: trace" in text


def test_compilations_have_one(terminal: Terminal) -> None:
    seen: list[str] = []
    real = bars._Bar.began

    def began(bar: Any, step: str) -> None:
        seen.append(step)
        real(bar, step)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bars._Bar, "began", began)
        patched.setattr(sys, "stderr", terminal)
        stagejit.jit(lambda x: jnp.sin(x) * 1.375)(jnp.ones(9)).block_until_ready()
        assert seen[0] == "trace"
        assert seen[-1] == "load"
        count = len(seen)
        silent = stagejit.Options(progress=False)
        stagejit.jit(lambda x: jnp.sin(x) * 1.625, options=silent)(jnp.ones(9))
        assert len(seen) == count


def test_compile_times_are_of_the_compilation() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jnp.cos(x) * 0.8125

    lowered = stagejit.jit(f).lower(jnp.ones(7))
    times = lowered.compile().compile_times
    assert times.name == "f"
    assert next(iter(times.seconds_by_step)) == "trace"
    assert times.seconds == sum(times.seconds_by_step.values())
    assert times.kernels == 1
    again = stagejit.jit(f).lower(jnp.ones(7)).compile().compile_times
    assert (again.name, again.compiled_kernels, again.cached_kernels) == ("f", 0, 1)
    assert "1 cached" in str(again)
