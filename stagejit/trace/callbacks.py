"""Python functions that native loops and branches call: `jax.pure_callback` inside of a body.

Input: a `pure_callback` equation. Output: a `call` of one handler of ours, whose attribute says
which function. Invariant: a function is called where and as often as the program says, never ahead
of its branch; its number stands for nothing else, in this process or in another.

A callback would hold a whole loop back otherwise, even in a branch that is never taken (Equinox's
`error_if`). Outside of loops and branches it stays XLA's.

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

from stagejit.locks import new_lock
from stagejit.trace.emitter import Emitter
from stagejit.trace.program import Var
from stagejit.trace.translation import Site, Translation, Unsupported, translation

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


def _numbered(function: Callable[..., Any]) -> _Number:
    with _lock:
        number = _Number(next(_numbers))
        number.function = _functions[int(number)] = _Function(function)
    return number


def _pure_callback(emit: Emitter, site: Site, *operands: Var) -> Sequence[Var]:
    if not all(type.size for type in (*(x.type for x in operands), *site.results)):
        raise Unsupported("it calls Python with arrays without elements")
    attributes = ((ATTRIBUTE, "i64", _numbered(site.params["callback"])),)
    rows = ((False,) * len(operands), (False,) * len(site.results))
    return emit.emit_many(
        "call", operands, site.results, target=TARGET, attributes=attributes, column_major=rows
    )


# In bodies only, see translate.py.
TRANSLATIONS: dict[str, Translation] = {
    "pure_callback": translation(
        _pure_callback, "callback", ignored=("result_avals", "vmap_method")
    ),
}
