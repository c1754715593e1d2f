"""Python's cycle collector waits while the compiler runs.

Input: work that allocates many containers which stay alive, `with collector_paused():` around it.
Output: none. Invariant: the collector is on again when the thread that paused it is done, also
after an error, and in a forked child without that thread; where the user has switched it off, it
stays off. Of threads that overlap, the first one's pause counts, so that some time it ends.

What the steps make lives until the function is compiled, so a collection in between finds little;
but it walks through all that JAX keeps: collections took a third of the time of a compile.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_paused_by: set[int] = set()  # threads


@contextmanager
def collector_paused() -> Iterator[None]:
    """Without effect where the collector is off already."""
    if not gc.isenabled():
        yield
        return
    me = threading.get_ident()
    try:  # around all calls, any of which an interrupt may follow
        _paused_by.add(me)
        gc.disable()
        yield
    finally:
        gc.enable()
        _paused_by.discard(me)


def _after_fork_in_child() -> None:
    others = _paused_by - {threading.get_ident()}
    _paused_by.difference_update(others)
    if others and not _paused_by:
        gc.enable()


os.register_at_fork(after_in_child=_after_fork_in_child)
