"""Whether JAX's client is that of the process from which this one was forked.

Input: forks. Output: a fact. Invariant: it is known from the fork on, whoever asks for it first.

The threads of a client do not come along: it can compile nothing here, and what it still can do, it
does in the calling thread. So there is nothing to wait for, and nothing to wait with.
"""

from __future__ import annotations

import sys

_is_inherited = False


def is_client_inherited() -> bool:
    return _is_inherited


def after_fork_in_child() -> None:
    """For `os.register_at_fork`. A JAX that does not say whether it has a client has none."""
    global _is_inherited
    made = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", None)
    _is_inherited = _is_inherited or (made is not None and bool(made()))
