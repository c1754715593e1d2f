"""The handler through which host programs call Python.

Input: a call frame of XLA's FFI with an attribute that names a function, see
`graph/python_functions.py`. Output: the function's results in the frame's buffers, or an error of
XLA's with the traceback. Invariants: the function gets copies of the operands, which it may keep;
nothing that is raised leaves the handler.

Note [Who waits for a copy]: a thread of XLA's pool may call, and all of its threads at once: on two
cores there are two. JAX makes arrays of its own of what a function is given, and has the pool copy
what is large (256 KiB are, 16 are not), unless it can stay where it is: at a multiple of 64 bytes,
as memory of programs. A function that looks at its argument then waits for a thread that waits as
it does, for ever. (So do programs of `jax.jit`: with 256 KiB on two cores two calls at once are
enough, on one core one.) Whoever calls from the pool gives what lies so.
"""

from __future__ import annotations

import ctypes
import math
import traceback
from typing import Any

import numpy as np

from stagejit.graph.python_functions import function_of
from stagejit.runtime import ffi_abi as abi
from stagejit.schedule.memory.host import aligned_copy
from stagejit.types import dtype_named

_DTYPES = {number: name for name, number in abi.DATA_TYPES.items()}


def address() -> int:
    """Where the handler starts."""
    return ctypes.cast(_handler, ctypes.c_void_p).value or 0


def _handle(frame: int) -> int | None:
    try:
        _call(frame)
    except BaseException:
        # What leaves this function is lost, and the host program takes whatever it finds for an
        # error of XLA's: an exception may refuse to be printed, or have a text that is no UTF-8.
        try:
            text = f"CpuCallback error calling callback: {traceback.format_exc()}"
            message = text.encode(errors="backslashreplace")
        except BaseException:
            message = b"CpuCallback error calling callback: an exception that cannot be printed"
        return _error(_word(frame + abi.FRAME_API), message)
    return None


_handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_handle)  # for ever: code calls it


def _call(frame: int) -> None:
    operands = _arrays(frame, abi.FRAME_ARGS_COUNT, abi.FRAME_ARGS)
    results = _arrays(frame, abi.FRAME_RESULTS_COUNT, abi.FRAME_RESULTS)
    scalar = _word(_word(frame + abi.FRAME_ATTRS_VALUES))
    number = ctypes.c_int64.from_address(_word(scalar + abi.SCALAR_VALUE)).value
    function = function_of(number)
    if function is None:
        raise RuntimeError(f"no function has the number {number} in this process")
    made = function([aligned_copy(x) for x in operands])
    if len(made) != len(results):
        raise ValueError(f"a callback returned {len(made)} arrays instead of {len(results)}")
    for given, result in zip(made, results, strict=True):
        if (given.shape, given.dtype) != (result.shape, result.dtype):
            raise ValueError(
                f"a callback returned {given.dtype}{list(given.shape)} where it had promised"
                f" {result.dtype}{list(result.shape)}"
            )
        result[...] = given


def _arrays(frame: int, count: int, table: int) -> list[np.ndarray[Any, Any]]:
    """Views of the operands or results of a frame."""
    start = _word(frame + table)
    return [_view(_word(start + 8 * at)) for at in range(_word(frame + count))]


def _view(buffer: int) -> np.ndarray[Any, Any]:
    kind = ctypes.c_int32.from_address(buffer + abi.BUFFER_DTYPE).value
    dtype = dtype_named(_DTYPES[kind]).numpy
    rank, dims = _word(buffer + abi.BUFFER_RANK), _word(buffer + abi.BUFFER_DIMS)
    shape = [_word(dims + 8 * axis) for axis in range(rank)]
    nbytes = math.prod(shape) * dtype.itemsize
    memory: Any = (ctypes.c_char * nbytes).from_address(_word(buffer + abi.BUFFER_DATA))
    flat: np.ndarray[Any, Any] = np.frombuffer(memory, np.uint8)
    return flat.view(dtype).reshape(shape)


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _error(api: int, message: bytes) -> int | None:
    """An error for XLA, which copies the message."""
    text = ctypes.create_string_buffer(message)
    arguments = (ctypes.c_int64 * 4)(32, 0, ctypes.addressof(text), abi.INTERNAL)
    create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_word(api + abi.API_ERROR_CREATE))
    made: int | None = create(ctypes.addressof(arguments))
    return made
