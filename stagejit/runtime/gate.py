"""A fork waits for LLVM: a child that is forked in the middle of its work finds its locks taken.

Input: work that threads do inside the gate. Output: none. Invariant: while a thread forks, no other
thread is inside, unless its work takes longer than `PATIENCE_SECONDS`, or is that thread's own.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from stagejit.importing import importing

PATIENCE_SECONDS = 10.0


class Gate:
    """`with gate:` around the work. `lock` is another lock to hold across a fork."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._reset()
        os.register_at_fork(
            before=self._close, after_in_parent=self._open, after_in_child=self._open_in_child
        )

    def __enter__(self) -> None:
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def _reset(self) -> None:
        self._inside, self._closed = 0, False
        self._changed = threading.Condition()

    def _close(self) -> None:
        importing.acquire()  # first, since an import may take the lock of LLVM
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._inside, PATIENCE_SECONDS)
        self._lock.__enter__()

    def _open(self) -> None:
        self._lock.__exit__(None, None, None)
        with self._changed:
            self._closed = False
            self._changed.notify_all()
        importing.release()

    def _open_in_child(self) -> None:
        self._lock.__exit__(None, None, None)
        self._reset()
        importing.release()
