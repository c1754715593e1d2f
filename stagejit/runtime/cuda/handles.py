"""What callers hold of a GPU in place of objects of PyCUDA's, and how its errors are told.

Note [What is dropped]: PyCUDA gives a stream, event or module back when its last reference goes,
which may be on any thread, and warns and leaks it where that thread does not have the context. So
nobody but the driver holds an object of PyCUDA's: others hold an `Owned`, and when that goes, what
it stood for waits until the context is current the next time.
"""

from __future__ import annotations

from typing import Any

from stagejit.runtime.cuda.driver_api import DeviceError


class Owned:
    """A handle. inner: an object of PyCUDA's, or a number of the driver's."""

    __slots__ = ("__weakref__", "handle", "inner")

    def __init__(self, inner: Any, handle: int = 0) -> None:
        self.inner, self.handle = inner, handle


def let_go(inner: Any) -> None:
    """The last reference goes when the call is over."""


def told(error: Exception) -> DeviceError:
    """What a kernel did wrong is found out by whoever waits, so it says what can be done."""
    lost = "illegal" in str(error) or "launch fail" in str(error) or "misaligned" in str(error)
    next_step = "start the process anew: its context is lost. `compute-sanitizer` says which access"
    return DeviceError(str(error), next_step=next_step if lost else "")
