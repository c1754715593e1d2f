"""Waiting for calls that have begun, also for those whose results nobody keeps.

Input: none. Output: none. Invariant: afterwards the calls have ended that this thread made, and
those of other threads whose results somebody keeps.

Note [Calls without results]: JAX's CPU client may run a call on a thread of its own, and tells
through the arrays that come out of it alone when it has ended. But what a thread enqueues there
runs in its order, as long as it is not so cheap that the client runs it at once, in the calling
thread. So we enqueue a loop, which the client never takes for cheap, and wait for that.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stagejit.base.enabling import apart, suspended
from stagejit.base.threads.other_threads import on_another_thread
from stagejit.runtime.lowering import inherited


def wait_for_calls() -> None:
    """Until they have ended."""
    for array in jax.live_arrays():  # type: ignore[no-untyped-call]
        with contextlib.suppress(Exception):  # it is deleted, or its error is whoever reads it's
            array.block_until_ready()
    if inherited.is_client_inherited():
        return
    with contextlib.suppress(RuntimeError), apart():  # or without a CPU client
        (device,) = jax.local_devices(backend="cpu")[:1]
        run, turns = _loop(device)
        run(turns).block_until_ready()


@functools.lru_cache(maxsize=1)
def _loop(device: Any) -> tuple[Any, Any]:
    """A compiled loop and its operand: how often it turns, which XLA may not know, or it would not
    leave a loop. Both are made ahead, so that a call of it is not traced, wherever we are called,
    and it is of no mesh. Not on the main thread, where an interrupt could leave that without one.
    device: of the client that is there now."""

    def turn(turns: Any) -> Any:
        return jax.lax.fori_loop(0, turns, lambda _, sum: sum + turns, jnp.int32(0))

    turns = jax.device_put(np.int32(1), device)

    def compiled() -> Any:
        with apart(), jax.set_mesh(None):
            return suspended(lambda: jax.jit(turn).lower(turns).compile())

    return on_another_thread(compiled), turns
