"""The lock around imports at run time: a fork waits for them.

Input: none. Output: `importing`, to hold where a function imports a module of ours. Invariant: a
child process never finds one of our modules half imported, whose lock a thread of the parent had.
"""

from __future__ import annotations

import os
import threading

importing = threading.RLock()
os.register_at_fork(
    before=importing.acquire, after_in_parent=importing.release, after_in_child=importing.release
)
