"""A bar for compilations that take long, where somebody looks at it.

Input: the steps of a compilation, as they begin. Output: nothing, or a bar on stderr that goes away
when it is done. Invariants: there is none before `AFTER_SECONDS`, none where stderr is neither a
terminal nor a notebook with ipywidgets, and none with `Options(progress=False)` or
$STAGEJIT_PROGRESS=0; what goes wrong with it fails nothing. Compilations of several threads have a
line each in one display.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from stagejit.base.threads.locks import new_lock

AFTER_SECONDS = 2.0
Began = Callable[[str], None]


class _Display:
    """The one of the process, as long as there is a line in it."""

    def __init__(self) -> None:
        self.lock, self.lines = new_lock(), 0
        self.progress: Any = None

    def add(self, name: str, total: int) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with self.lock:
            if self.progress is None:
                columns = (TextColumn("{task.description:40}"), BarColumn(), TimeElapsedColumn())
                console = Console(stderr=True)
                self.progress = Progress(*columns, console=console, transient=True)
                self.progress.start()
            self.lines += 1
            return self.progress.add_task(name, total=total)

    def update(self, line: Any, text: str, done: int) -> None:
        with self.lock:
            if self.progress is not None:
                self.progress.update(line, description=text, completed=done)

    def remove(self, line: Any) -> None:
        with self.lock:
            self.lines -= 1
            if self.progress is not None and not self.lines:
                self.progress.stop()
                self.progress = None
            elif self.progress is not None:
                self.progress.remove_task(line)


_display = _Display()


def _after_fork_in_child() -> None:
    """Its thread is the parent's."""
    global _display
    _display = _Display()


os.register_at_fork(after_in_child=_after_fork_in_child)


def is_watched() -> bool:
    """Whether somebody would see a bar."""
    if os.environ.get("STAGEJIT_PROGRESS", "") == "0":
        return False
    if "ipykernel" in sys.modules:
        # Without ipywidgets, rich writes a warning into the cell instead of a bar.
        return importlib.util.find_spec("ipywidgets") is not None
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


@contextlib.contextmanager
def progress(name: str, total: int, *, wanted: bool = True) -> Iterator[Began]:
    """Call what this gives at the begin of each of `total` steps, with the step's name."""
    if not wanted or not is_watched():
        yield lambda step: None
        return
    bar = _Bar(name, total)
    timer = threading.Timer(AFTER_SECONDS, bar.show)
    timer.daemon = True
    timer.start()
    try:
        yield bar.began
    finally:
        timer.cancel()
        bar.end()


class _Bar:
    def __init__(self, name: str, total: int) -> None:
        self.name, self.total = name, total
        self.steps, self.step = 0, ""
        self.line: Any = None
        self.ended = False
        self.lock = new_lock()

    def began(self, step: str) -> None:
        with self.lock:
            self.steps, self.step = self.steps + 1, step
            self._draw()

    def show(self) -> None:
        with self.lock, contextlib.suppress(Exception):
            if not self.ended:
                self.line = _display.add(self._text(), self.total)
                self._draw()

    def end(self) -> None:
        with self.lock, contextlib.suppress(Exception):
            self.ended = True
            if self.line is not None:
                _display.remove(self.line)

    def _text(self) -> str:
        return f"compiling {self.name}: {self.step}"

    def _draw(self) -> None:
        if self.line is not None:
            with contextlib.suppress(Exception):
                _display.update(self.line, self._text(), self.steps - 1)
