"""Locks that a forked child finds free, and the order in which they are taken.

Input: none. Output: `new_lock()`, `new_rlock()`, from which the package takes all of its locks.
Invariant: no thread of the parent that held one when the process forked holds it in the child. What
such a lock guards must be in order between any two bytecodes, as a thread may be gone at any. They
are taken by `with` alone (Note [Locks and signals] in `other_threads.py`).

Note [Order of locks]: a thread that has one of these may wait for one further down, never for one
further up.
1. Entries of JAX's caches that are being made: our compiler is called from inside of them.
2. The entry of a program (`embedding._Entry`): one for each jaxpr, so its thread compiles alone.
3. `importing`, then the import locks of Python's.
4. `running.one_at_a_time`. The step that traces the functions of other people goes without: it
   may wait for an entry of JAX's whose thread waits for us.
5. `loader._programs_lock`: whoever comes first compiles what all programs need, and starts JAX.
6. A claim on symbols (`Engine._once`): whoever waits for another's has let its own go.
7. A thread's place in LLVM (`Gate`), then that of LLVM's option (`_LoopsAsWritten`), then
   llvmlite's lock.
8. Those around a few lines: of the engine, the table of programs, the object cache, index
   variables, callbacks, code memory, `entry`'s spin lock.
Finalizers and callbacks of the garbage collector run with any of these held, so they take the last
two of these alone; who holds one of those allocates memory at most, and waits for nothing.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

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


def free_in_child(lock: Any) -> None:
    """Treat a lock of somebody else's as one of ours, if it is one of Python's."""
    if hasattr(lock, "_at_fork_reinit"):
        _all.add(lock)


def _free() -> None:
    for lock in list(_all):
        lock._at_fork_reinit()  # what Python does with its own locks


os.register_at_fork(after_in_child=_free)


class remembered(Generic[T]):
    """A property that is worked out once. As `functools.cached_property`, but for the lock that
    Python 3.11's has for all objects of a class: two threads may both work it out."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self.make, self.name, self.__doc__ = make, make.__name__, make.__doc__

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> T:
        if instance is None:
            raise AttributeError(self.name)
        value: T = self.make(instance)
        instance.__dict__[self.name] = value
        return value
