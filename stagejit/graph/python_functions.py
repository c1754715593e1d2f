"""Python functions that a `call` names by number.

Input: a flat function of arrays. Output: its number, an attribute of the op; from a number, the
function. Invariant: a number stands for nothing else, in this process or in another.

Note [Who keeps a callback]: the number in the attribute is an int that holds the function, and the
graph, the host program and the loaded program hold the attribute; the table of numbers holds
nothing. So a function lives as long as code that can call it.
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


def numbered(function: Callable[..., Any], *, plain: bool = False) -> int:
    """The number of a function, which keeps the function. plain: it takes one list, of NumPy
    arrays, instead of what JAX's callbacks take."""
    with _lock:
        number = _Number(next(_numbers))
        kept = _Plain(function) if plain else _Function(function)
        number.function = _functions[int(number)] = kept
    return number
