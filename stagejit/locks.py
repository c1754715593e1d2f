"""Locks that a forked child finds free.

Input: none. Output: `new_lock()`, `new_rlock()`, from which the package takes all of its locks.
Invariant: no thread of the parent that held one when the process forked holds it in the child. What
such a lock guards must be in order between any two bytecodes, as a thread may be gone at any.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_all: weakref.WeakSet[Any] = weakref.WeakSet()


def new_lock() -> threading.Lock:
    """As `threading.Lock()`."""
    made = threading.Lock()
    _all.add(made)
    return made


def new_rlock() -> threading.RLock:
    """As `threading.RLock()`."""
    made = threading.RLock()
    _all.add(made)
    return made


def _free() -> None:
    for lock in list(_all):
        lock._at_fork_reinit()  # what Python does with its own locks


os.register_at_fork(after_in_child=_free)
