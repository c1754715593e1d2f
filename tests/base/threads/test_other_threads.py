"""What runs on other threads: results in order, errors, interrupts, processes that have no more
threads."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from stagejit.base.threads import other_threads
from stagejit.base.threads.other_threads import on_another_thread, on_other_threads


def is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def test_results_are_in_the_order_of_the_items() -> None:
    assert on_other_threads(lambda n: n * n, range(50)) == [n * n for n in range(50)]
    assert on_other_threads(lambda n: n, []) == []


def test_nothing_runs_on_the_main_thread() -> None:
    assert is_main()
    assert on_another_thread(is_main) is False
    assert on_other_threads(lambda _: is_main(), [0, 1, 2]) == [False] * 3


def test_another_thread_does_its_one_item_itself() -> None:
    def here() -> bool:
        return on_another_thread(threading.get_ident) == threading.get_ident()

    assert on_another_thread(here)


def test_the_error_of_the_first_item_is_raised() -> None:
    def work(number: int) -> int:
        if number:
            raise KeyError(number)
        return number

    with pytest.raises(KeyError):
        on_other_threads(work, range(4))
    with pytest.raises(KeyboardInterrupt):
        on_another_thread(lambda: exec("raise KeyboardInterrupt"))


def test_without_threads_it_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(other_threads, "start_new_thread", refuse)
    assert on_other_threads(lambda n: (n, is_main()), [1, 2]) == [(1, True), (2, True)]


def test_an_interrupt_leaves_and_what_has_begun_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        """A lock on which the main thread is interrupted while it waits."""

        def __enter__(self) -> None:
            begun.wait()
            raise KeyboardInterrupt

        def __exit__(self, *exc: object) -> None: ...

    begun, go, ended = threading.Event(), threading.Event(), []
    real = other_threads._started

    def started(work: Any) -> Any:
        real(work)
        return Interrupted()

    def work(number: int) -> None:
        begun.set()
        go.wait()
        ended.append(number)

    monkeypatch.setattr(other_threads, "_started", started)
    with pytest.raises(KeyboardInterrupt):
        on_other_threads(work, range(100))
    go.set()
    while not ended:
        time.sleep(0.001)
    assert len(ended) < 100
