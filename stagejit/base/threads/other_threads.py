"""Work on threads that no signal interrupts.

Input: a function and items. Output: its results. Invariant: Python runs the handlers of signals on
the main thread alone; what runs here is never cut short by one, whatever the caller does.

Note [Locks and signals]: a handler (that of Ctrl-C raises KeyboardInterrupt) runs between two
bytecodes of the main thread. `with lock:` on a lock written in C is safe: no handler runs after the
lock was taken and before the block has begun, nor after the block and before the lock is free. A
lock whose `__enter__` and `__exit__` are Python functions is not (`threading.Condition`, so `Event`
and `Barrier`; llvmlite's lock): a handler that raises inside of these leaves the lock with the main
thread for ever. That thread can go on, if the lock is reentrant, and all others wait without end.
So our locks are those of `locks.py`, taken by `with` alone, and what has other locks inside (LLVM,
through llvmlite) runs here.
"""

from __future__ import annotations

import os
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from stagejit.base.threads.locks import new_lock
from stagejit.base.users_line import led_to_by, waiting_frames

T = TypeVar("T")
R = TypeVar("R")


def on_another_thread(function: Callable[[], R]) -> R:
    """`function()`, on another thread where this is the main one."""
    return on_other_threads(lambda _: function(), [None])[0]


def on_other_threads(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """`[function(item) for item in items]`, on as many threads as there are cores.

    Raises the error of the first item that failed. An interrupt leaves at once; what has begun
    comes to its end behind it.
    """
    if len(items) < 2 and threading.current_thread() is not threading.main_thread():
        return [function(item) for item in items]
    left = deque(enumerate(items))
    results: dict[int, R] = {}
    errors: dict[int, BaseException] = {}
    users = waiting_frames()  # this thread waits, so they stay where they are

    def behind() -> None:
        with led_to_by(users):
            work()

    def work() -> None:
        while left and not errors:
            try:
                number, item = left.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                results[number] = function(item)
            except BaseException as error:
                errors[number] = error

    try:
        ends = [end for _ in items[: os.cpu_count() or 1] if (end := _started(behind)) is not None]
        for end in ends:
            with end:
                pass
        work()  # what is left where no thread could be started, as in a process that ends
    except BaseException:
        left.clear()
        raise
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(items))]


def _started(work: Callable[[], None]) -> threading.Lock | None:
    """A lock that is taken until a new thread has done the work; None where there can be none."""
    end = new_lock()

    def work_and_end() -> None:
        try:
            work()
        finally:
            end.release()

    # Not by `threading.Thread`, whose `start` waits for an Event: see Note [Locks and signals].
    end.acquire()
    try:
        start_new_thread(work_and_end, ())
    except RuntimeError:
        return None
    return end
