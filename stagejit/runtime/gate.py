"""A fork waits for work that it must not cut in half: its locks would stay taken in the child.

Input: locks, and work that threads do beside each other. Output: none. Invariant: while a thread
forks, no other thread has such a lock or is in such work, unless that takes longer than
`PATIENCE_SECONDS`. The forking thread itself goes in and out, also in other hooks of a fork, and so
does who is inside already. In the child all locks are free (`locks.py`).

Note [Order of hooks]: Python runs the hooks before a fork in the reverse order of registration. So
what is held by a thread that waits for another such lock must be registered after that one.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from typing import Any

from stagejit.base.threads.locks import new_rlock

PATIENCE_SECONDS = 10.0


def hold_across_forks(lock: Any) -> None:
    """Take a reentrant lock before each fork, and give it back after it.

    Functions written in C, which no signal cuts in half. Where the lock could not be had, giving it
    back fails, as a note on stderr.
    """
    take = functools.partial(lock.acquire, True, PATIENCE_SECONDS)
    os.register_at_fork(before=take, after_in_parent=lock.release)


class Gate:
    """`with gate():` around work that threads do beside each other.

    It gives each thread a lock of its own; who forks takes them all. See Note [Locks and signals]
    for why it is no condition variable.
    """

    def __init__(self) -> None:
        self._own = threading.local()
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()
        self._making = new_rlock()  # around new locks
        os.register_at_fork(before=self._close, after_in_parent=self._open)

    def __call__(self) -> Any:
        """This thread's lock."""
        lock = getattr(self._own, "lock", None)
        if lock is None:
            with self._making:
                lock = self._own.lock = new_rlock()
                self._all.add(lock)
        return lock

    def _close(self) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        self._making.acquire(timeout=PATIENCE_SECONDS)
        for lock in list(self._all):
            lock.acquire(timeout=max(0.0, end - time.monotonic()))

    def _open(self) -> None:
        for lock in (*self._all, self._making):
            if lock._is_owned():  # it may have had no end
                lock.release()
