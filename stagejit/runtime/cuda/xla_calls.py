"""Programs as calls of XLA's on a GPU: on the stream of XLA's call frame.

Input: an executable. Output: a `StreamProgram`, which emits a custom call; XLA calls `_handler` for
it. Invariants: what a call does is queued on XLA's stream, or on ours with XLA's around it, and
nothing is waited for but by programs that the host does something for in between; no memory is
asked for, as XLA gives it as one more result.

Note [Buffers of XLA's]: a result that a program writes into the memory of an argument is an alias
of the call's, so XLA gives both one buffer, which holds the argument: its own where it is donated,
a copy where it is not. What else is written into is copied to scratch memory first. Results that
are there twice, or are arguments, are copied at the end.

Note [On their stream]: of buffers that come again a graph is captured, which is launched on XLA's
stream itself, and the main one of ours follows it. Before that, and where there is no graph, the
program runs on our streams: those follow XLA's stream, and it follows them.

This has not run on a GPU: tests call the handler with frames of their own.
"""

from __future__ import annotations

import ctypes
import itertools
import secrets
import weakref
from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from typing import Any

import jax
import numpy as np

from stagejit.base.records import record
from stagejit.base.threads.locks import remembered
from stagejit.errors import InternalError
from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.cuda.drivers import driver_of
from stagejit.runtime.cuda.programs.executor import Executable, Placed
from stagejit.runtime.lowering.ffi_calls import Layouts, ffi_call
from stagejit.schedule.memory.packing import aligned
from stagejit.types import TensorType, dtype_named

TARGET = "stagejit_cuda"
_ALIGNED = 256
_KEY = b"key"


class StreamProgram:
    """A program for XLA's calls. target: as in options. The last result of a call is scratch
    memory."""

    def __init__(self, executable: Executable, target: str) -> None:
        self.executable, self._target, self.key = executable, target, next(_keys)
        self.layout = _Layout.of(executable, executable.given)
        _programs[self.key] = self

    @property
    def program(self) -> _Layout:
        """What it has in common with programs of the CPU: aliases."""
        return self.layout

    def emit(
        self,
        ctx: Any,
        operands: list[Any],
        layouts: Layouts | None = None,
    ) -> list[Any]:
        """IR values of a call of this program, where JAX lowers. layouts: of operands and results,
        the fastest axis first; None for row-major."""
        _register()
        ctx.module_context.add_keepalive(self)
        name, key = self.executable.program.name, np.int64(self.key)
        aliases = self.layout.aliases
        return ffi_call(ctx, TARGET, operands, aliases, layouts, key=key, program=name)

    def run(self, stream: int, operands: Sequence[int], results: Sequence[int]) -> None:
        """Queues a call. results: the last is scratch memory."""
        loaded = self.executable.on(driver_of(self._target))
        loaded.on_stream(stream, lambda more: self.layout.placed([*operands, *more], results))


@record
class _Layout:
    """Where everything of a call is. aliases: (result, argument); sources: for each result of the
    program the result of the call that is its memory, or None; copies: (argument or constant,
    offset in scratch memory); arenas, unused: offsets in it."""

    executable: Executable
    given: int
    aliases: tuple[tuple[int, int], ...]
    copied: tuple[tuple[int, int], ...]
    arenas: tuple[int, ...]
    results: tuple[tuple[bool, int], ...]
    scratch_nbytes: int

    @classmethod
    def of(cls, executable: Executable, given: int) -> _Layout:
        """given: how many of the inputs a call gives."""
        program, used = executable.program, 0

        def room(nbytes: int) -> int:
            nonlocal used
            start, used = used, used + aligned(nbytes, _ALIGNED)
            return start

        aliases: dict[int, int] = {}  # by argument
        for number, ref in enumerate(program.outputs):
            writes = ref.space == "arg" and ref.index in program.overwritten
            if writes and ref.index < given and not ref.offset_nbytes:
                aliases.setdefault(ref.index, number)
        own = {
            ref.index: number
            for number, ref in reversed(list(enumerate(program.outputs)))
            if ref.space == "result" and not ref.offset_nbytes
        }
        return cls(
            executable,
            given,
            tuple((number, argument) for argument, number in aliases.items()),
            tuple(
                (written, room(program.arg_nbytes[written]))
                for written in program.overwritten
                if written not in aliases
            ),
            tuple(room(nbytes) for nbytes in program.arena_nbytes),
            tuple(
                (True, own[n]) if n in own else (False, room(nbytes))
                for n, nbytes in enumerate(program.result_nbytes)
            ),
            max(used, _ALIGNED),
        )

    @remembered
    def scratch(self) -> TensorType:
        """The last result of a call."""
        return TensorType(dtype_named("u8"), (self.scratch_nbytes,))

    def placed(self, given: Sequence[int], results: Sequence[int]) -> Placed:
        """Addresses of a call. given: of all inputs, and of constants."""
        program, places, (*made, scratch) = self.executable.program, [*given], results
        for number, argument in self.aliases:
            places[argument] = made[number]
        before = []
        for argument, offset in self.copied:
            before.append((scratch + offset, places[argument], program.arg_nbytes[argument]))
            places[argument] = scratch + offset
        return Placed(
            tuple(places),
            tuple(made[at] if own else scratch + at for own, at in self.results),
            tuple(scratch + offset for offset in self.arenas),
            tuple(before),
            tuple(made),
        )


# -------------------------------------------------------------------- what XLA calls

_keys = itertools.count(secrets.randbits(61))  # of this process alone
_programs: weakref.WeakValueDictionary[int, StreamProgram] = weakref.WeakValueDictionary()
_Handler = ctypes.CFUNCTYPE(c_void_p, c_void_p)


def _handler_of(frame: int) -> int | None:
    """XLA_FFI_Handler. Python's lock is held, and the thread is whatever XLA calls on."""
    extension = _word(frame, abi.FRAME_EXTENSION)
    if extension and _number(extension, abi.EXTENSION_TYPE) == abi.EXTENSION_TYPE_METADATA:
        _tell_metadata(frame, _word(extension, abi.EXTENSION_METADATA))
        return None
    try:
        if _number(frame, abi.FRAME_STAGE) != abi.STAGE_EXECUTE:
            raise InternalError("a call in another stage than that of execution", step="xla")
        program = _programs.get(_key(frame))
        if program is None:
            raise InternalError("a program that this process has not compiled", step="xla")
        program.run(
            _stream(frame),
            _buffers(frame, abi.FRAME_ARGS_COUNT, abi.FRAME_ARGS),
            _buffers(frame, abi.FRAME_RESULTS_COUNT, abi.FRAME_RESULTS),
        )
    except BaseException as error:  # nobody above would hear of it
        return _error(frame, f"{type(error).__name__}: {error}")
    return None


handler = _Handler(_handler_of)


@cache
def _register() -> None:
    """Tells XLA of the handler. Its platform need not have been started."""
    capsule = jax.ffi.pycapsule(handler)  # type: ignore[no-untyped-call]
    jax.ffi.register_ffi_target(TARGET, capsule, platform="CUDA")


def _tell_metadata(frame: int, metadata: int) -> None:
    """The version of XLA's own table: what is read of it is the same in those that are known."""
    api = _word(frame, abi.FRAME_API)
    told = metadata + abi.METADATA_API_VERSION
    c_uint64.from_address(told).value = abi.API_VERSION_NBYTES
    c_uint64.from_address(told + 8).value = 0
    for offset, known in ((16, abi.API_VERSION_MAJOR), (20, abi.API_VERSION_MAJOR + 4)):
        c_int32.from_address(told + offset).value = _number(api, known)
    c_int32.from_address(metadata + abi.METADATA_TRAITS).value = 0
    if _word(metadata, 0) >= abi.METADATA_NBYTES_WITH_STATE:
        c_uint64.from_address(metadata + abi.METADATA_STATE_TYPE_ID).value = 0


def _key(frame: int) -> int:
    count = _word(frame, abi.FRAME_ATTRS_COUNT)
    names, values = (
        _word(frame, abi.FRAME_ATTRS + table) for table in (abi.ATTRS_NAMES, abi.ATTRS_VALUES)
    )
    for number in range(count):
        span = _word(names, 8 * number)
        if ctypes.string_at(_word(span, 0), _word(span, 8)) == _KEY:
            return c_int64.from_address(_word(_word(values, 8 * number), abi.SCALAR_VALUE)).value
    raise InternalError("a call without a key", step="xla")


def _buffers(frame: int, count: int, table: int) -> list[int]:
    """Addresses."""
    items = _word(frame, table)
    return [
        _word(_word(items, 8 * number), abi.BUFFER_DATA) for number in range(_word(frame, count))
    ]


def _stream(frame: int) -> int:
    """The CUstream of a call."""
    given = (c_uint64 * 4)(32, 0, _word(frame, abi.FRAME_CONTEXT), 0)
    found = _function(frame, abi.API_STREAM_GET)(ctypes.addressof(given))
    if found:
        raise InternalError("XLA has no stream for this call", step="xla")
    return int(given[3])


def _error(frame: int, message: str) -> int | None:
    """An error of XLA's, which takes the message over."""
    text = ctypes.create_string_buffer(message.encode())
    given = (c_uint64 * 4)(32, 0, ctypes.addressof(text), abi.INTERNAL)
    made: int | None = _function(frame, abi.API_ERROR_CREATE)(ctypes.addressof(given))
    return made


def _function(frame: int, offset: int) -> Any:
    return _Handler(_word(_word(frame, abi.FRAME_API), offset))


def _word(base: int, offset: int) -> int:
    return c_uint64.from_address(base + offset).value


def _number(base: int, offset: int) -> int:
    return c_int32.from_address(base + offset).value
