"""Dispatches in the traces of JAX's own profiler (`jax.profiler.trace`).

Input: nothing; sessions of XLA's profiler. Output: in each of them a plane with our calls and their
dispatches. Invariants: no call takes times while no session is open; nothing that goes wrong here
fails the user's trace.

Plugins of XLA bring profilers along, as an extension of their table of functions (PJRT's C API, by
which `jaxlib` registers those of GPUs and TPUs). We hand over a table that has nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import time
from collections.abc import Callable
from typing import Any

from stagejit.runtime.cpu.loader import recorder
from stagejit.runtime.cpu.recording import Recording, clock

_PROFILER_EXTENSION = 1
_Callback = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_Words = ctypes.c_int64
# Fields of what callbacks get: struct_size, then the profiler; of `create` the options come first.
_PROFILER, _CREATED, _BUFFER, _BUFFER_NBYTES = 8, 24, 16, 24


class _Session:
    """One of XLA's: what is recorded from its begin to its end."""

    def __init__(self) -> None:
        self.recording: Recording | None = None
        self.begin_ns = 0
        self.made = b""

    def start(self) -> None:
        self.recording = recorder().begin()
        self.begin_ns = time.time_ns() - round(1e9 * (time.perf_counter() - self.recording.begin))

    def stop(self) -> None:
        from stagejit.inspect.profiles.session import spans_in  # no call of JAX's waits for it
        from stagejit.inspect.profiles.views.xspace import xspace

        recording, self.recording = self.recording, None
        if recording is not None:
            recorder().end(recording)
            self.made = xspace(spans_in(recording, clock()), self.begin_ns)


_sessions: dict[int, _Session] = {}


@functools.cache
def register() -> None:
    """Add our profiler to XLA's; where this jaxlib has no such thing, traces do without."""
    with contextlib.suppress(Exception):
        importlib.import_module("jaxlib._profiler").register_plugin_profiler(_capsule())


def _capsule() -> Any:
    """A table of functions with the extension."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    return new(ctypes.addressof(_table()), b"pjrt_c_api", None)


@functools.cache
def _table() -> Any:
    """PJRT_Api up to its version, whose extension is a PJRT_Profiler_Extension; what they point to
    stays as long as the process."""
    functions = (_created, _destroyed, _started, _stopped, _collected)
    callbacks = [_Callback(_quietly(function)) for function in functions]
    addresses = [ctypes.cast(callback, ctypes.c_void_p).value or 0 for callback in callbacks]
    errors = [0, 0, 0]  # no function of ours returns one
    profiler = (_Words * 10)(80, 0, *errors, *addresses)
    extension = (_Words * 4)(32, _PROFILER_EXTENSION, 0, ctypes.addressof(profiler))
    table = (_Words * 64)(64 * 8, ctypes.addressof(extension))
    _kept.extend([*callbacks, profiler, extension, table])
    return table


_kept: list[Any] = []


def _quietly(function: Callable[[int], None]) -> Callable[[int], None]:
    """Null, which is no error, whatever happens."""

    def called(arguments: int) -> None:
        with contextlib.suppress(Exception):
            function(arguments)

    return called


def _word(address: int) -> Any:
    return _Words.from_address(address)


def _created(arguments: int) -> None:
    number = max(_sessions, default=0) + 1
    _sessions[number] = _Session()
    _word(arguments + _CREATED).value = number


def _session(arguments: int) -> _Session:
    return _sessions[_word(arguments + _PROFILER).value]


def _destroyed(arguments: int) -> None:
    session = _sessions.pop(_word(arguments + _PROFILER).value)
    if session.recording is not None:
        recorder().end(session.recording)


def _started(arguments: int) -> None:
    _session(arguments).start()


def _stopped(arguments: int) -> None:
    _session(arguments).stop()


def _collected(arguments: int) -> None:
    """Where the bytes are, and how many; copied to where the caller has room for them, as some
    versions ask a second time."""
    session = _session(arguments)
    address = ctypes.cast(ctypes.c_char_p(session.made), ctypes.c_void_p).value or 0
    buffer = _word(arguments + _BUFFER)
    if buffer.value:
        ctypes.memmove(buffer.value, address, len(session.made))
    else:
        buffer.value = address
    _word(arguments + _BUFFER_NBYTES).value = len(session.made)
