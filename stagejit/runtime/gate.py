"""A fork waits for work that it must not cut in half: its locks would stay taken in the child.

Input: work that threads do inside a gate. Output: none. Invariant: while a thread forks, no other
thread is inside of any gate, unless its work takes longer than `PATIENCE_SECONDS`. The forking
thread itself goes in and out, also in other hooks of a fork, and so does who is inside already.

Note [Order of gates]: Python runs the hooks before a fork in the reverse order of registration. So
a gate in whose work another gate is entered must be made after it: it is closed first, and its work
can come to an end.
"""

from __future__ import annotations

import os
import threading
from typing import Any

PATIENCE_SECONDS = 10.0


class Gate:
    """`with gate:` around the work. `locks` are held across a fork, too, taken in this order."""

    def __init__(self, *locks: Any) -> None:
        self._locks = locks
        self._inside: dict[int, int] = {}  # how deep each thread is
        self._forking: int | None = None  # the thread that closed the gate
        self._changed = threading.Condition()
        os.register_at_fork(
            before=self._close, after_in_parent=self._open, after_in_child=self._open_in_child
        )

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            while self._forking not in (None, me) and me not in self._inside:
                self._changed.wait()
            self._inside[me] = self._inside.get(me, 0) + 1

    def __exit__(self, *exc: object) -> None:
        me = threading.get_ident()
        with self._changed:
            self._inside[me] -= 1
            if not self._inside[me]:
                del self._inside[me]
                self._changed.notify_all()

    def _close(self) -> None:
        with self._changed:
            self._forking = me = threading.get_ident()
            self._changed.wait_for(lambda: not self._inside.keys() - {me}, PATIENCE_SECONDS)
        for lock in self._locks:
            lock.__enter__()

    def _open(self) -> None:
        for lock in reversed(self._locks):
            lock.__exit__(None, None, None)
        with self._changed:
            self._forking = None
            self._changed.notify_all()

    def _open_in_child(self) -> None:
        """The other threads are not in this process."""
        others = self._inside.keys() - {threading.get_ident()}
        for thread in others:
            del self._inside[thread]
        self._changed = threading.Condition()
        self._open()
