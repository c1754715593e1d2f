"""Python functions that a `call` names by number.

Input: a flat function of arrays. Output: its number, an attribute of the op; from a number, the
function. Invariant: a number stands for nothing else, in this process or in another.

Note [Who keeps a callback]: the number in the attribute is an int that holds the function, and the
graph, the host program and the loaded program hold the attribute; the table of numbers holds
nothing. So a function lives as long as code that can call it.

Note [Who waits for a copy]: a thread of XLA's pool may call, and all of its threads at once: on two
cores there are two. JAX makes arrays of its own of what a function is given, and has the pool copy
what has 100 KiB or more, unless it can stay where it is: at a multiple of 64 bytes. A function that
looks at its argument then waits for a thread that waits as it does, for ever. (So do programs of
`jax.jit`: with 256 KiB on two cores two calls at once are enough, on one core one.) Whoever calls
from the pool gives what is `kept`.
"""

from __future__ import annotations

import itertools
import secrets
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from stagejit.base.threads.locks import new_lock

TARGET = "stagejit_python_callback"
ATTRIBUTE = "function"

Array = np.ndarray[Any, np.dtype[Any]]

_KEPT_AT = 64  # a multiple of so many bytes


class _Function:
    """A flat function of arrays, called as JAX calls it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        cpu = jax.local_devices(backend="cpu")[0]
        with jax.default_device(cpu):
            made = self.function(*jax.device_put(list(arrays), cpu))
        return [x.astype(jax.dtypes.canonicalize_dtype(x.dtype)) for x in map(np.asarray, made)]


class _Plain(_Function):
    """A flat function of NumPy arrays, called with them."""

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        return list(self.function(arrays))


class _Number(int):
    """The number of a function, which it keeps: see Note [Who keeps a callback]."""

    function: _Function


# Numbers of one process are not those of another, which may load what this one has compiled.
_numbers = itertools.count(secrets.randbits(61))
_functions: weakref.WeakValueDictionary[int, _Function] = weakref.WeakValueDictionary()
_lock = new_lock()


def function_of(number: int) -> Callable[[Sequence[Array]], list[Array]] | None:
    """The function with this number, as long as something can call it."""
    return _functions.get(int(number))


def kept(array: Array) -> Array:
    """The array, or a copy of it where JAX would make one."""
    return array if array.ctypes.data % _KEPT_AT == 0 else kept_copy(array)


def kept_copy(array: Array) -> Array:
    """A copy that JAX takes as it lies; see Note [Who waits for a copy]."""
    memory = np.empty(array.nbytes + _KEPT_AT, np.uint8)
    start = -memory.ctypes.data % _KEPT_AT
    copy: Array = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def numbered(function: Callable[..., Any], *, plain: bool = False) -> int:
    """The number of a function, which keeps the function. plain: it takes one list, of NumPy
    arrays, instead of what JAX's callbacks take."""
    with _lock:
        number = _Number(next(_numbers))
        kept = _Plain(function) if plain else _Function(function)
        number.function = _functions[int(number)] = kept
    return number
