"""What arrays are: by that, what is made of them is found again, and made anew where it changed.

Input: arrays, of JAX's or of NumPy's. Output: a `Content`, the same for the same array. Invariant:
it keeps no array alive, neither one of JAX's nor the one of NumPy's that it is a copy of. An array
of NumPy's that was written to is no longer what it was, one of JAX's when an update gives it again.

Note [Copies for weights]: who gave an array of NumPy's may write to it, so that it is copied
when it is bound. The copy goes as an array of JAX's would, when programs read only what is made of
it; whoever needs it later gets a copy of the caller's array again, if that still has the same
bytes. These are compared by a digest, which is computed before the copy goes.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from stagejit.base.enabling import apart
from stagejit.base.threads.locks import new_lock


class Content:
    """What an array is, for those who made something of it: as long as a weight has it.

    array: of JAX's. given: of NumPy's, if that is a copy of it.
    """

    def __init__(self, array: Any, given: NDArray[Any] | None = None) -> None:
        self._array, self._dtype = weakref.ref(array), array.dtype
        self._given = None if given is None else _Given(given)
        self._digest = b""
        self.weights: weakref.WeakSet[Any] = weakref.WeakSet()

    def array(self) -> Any:
        """None where nobody has it, or the caller has written to what it is a copy of."""
        array = self._array()
        given = None if self._given is None else self._given.array()
        if array is not None or given is None or not self._digest:
            return array
        again = array_of(np.array(given, self._dtype))
        return self._shared(again) if _digest(again) == self._digest else None

    def is_of(self, array: Any) -> bool:
        return self._array() is array

    def is_still(self, given: NDArray[Any], copy: Any) -> bool:
        """Whether a copy of that array would be the same now as it was; copy: of now."""
        if self._given is None or not self._given.is_of(given):
            return False
        self.note_bytes()
        return self._digest == _digest(copy)

    def note_bytes(self) -> None:
        """Before the copy goes: so that another one is known to be the same."""
        array = self._array()
        if array is not None and not self._digest and self._given and self._given.is_there:
            self._digest = _digest(array)

    def _shared(self, copy: Any) -> Any:
        """An equal copy, or the one that somebody has: the same for all who ask."""
        with _lock:
            known = self._array()
            if known is not None:
                return known
            self._array = weakref.ref(copy)
            _contents[id(copy)] = self
        return copy


class _Given:
    """An array of NumPy's, as long as somebody has its memory. Who keeps what it is a view of may
    have forgotten the view."""

    def __init__(self, array: Any) -> None:
        """array: or what NumPy makes one of."""
        owner = array.base if isinstance(array, np.ndarray) and array.size else None
        self._array = self._owner = weakref.ref(array)
        self._start, self._type = None, ((), np.dtype(bool), ())
        if isinstance(owner, np.ndarray) and owner.flags.forc:
            self._owner = weakref.ref(owner)
            self._start = array.ctypes.data - owner.ctypes.data
            self._type = array.shape, array.dtype, array.strides

    @property
    def is_there(self) -> bool:
        return self._owner() is not None

    def array(self) -> NDArray[Any] | None:
        owner = self._owner()
        if owner is None or self._start is None:
            return owner
        memory, (shape, dtype, strides) = owner.reshape(-1, order="A"), self._type
        return np.ndarray(shape, dtype, memory.view(np.uint8).data, self._start, strides)

    def is_of(self, array: NDArray[Any]) -> bool:
        return self._array() is array


_contents: weakref.WeakValueDictionary[int, Content] = weakref.WeakValueDictionary()
_of_copies: weakref.WeakValueDictionary[int, Content] = weakref.WeakValueDictionary()  # by `given`
_lock = new_lock()


def content_of(array: Any) -> Content:
    """The same for the same array of JAX's."""
    with _lock:
        found = _contents.get(id(array))
        if found is None or not found.is_of(array):
            found = _contents[id(array)] = Content(array)
        return found


def content_anew(array: Any) -> Content:
    """What an array is from now on, that somebody gives again: one of JAX's does not change, but
    for memory that it shares with others, who may have written to that."""
    with _lock:
        found = _contents[id(array)] = Content(array)
        return found


def copy_of(given: NDArray[Any] | np.generic) -> tuple[Any, Content]:
    """A copy of an array of NumPy's, and what it is: the same until somebody writes to it. Raises
    TypeError for what JAX has no arrays of."""
    copy = _copy(given)
    if isinstance(given, np.generic):
        return copy, content_of(copy)
    with _lock:
        known = _of_copies.get(id(given))
    if known is not None and known.is_still(given, copy):
        return known._shared(copy), known
    content = Content(copy, given)
    with _lock:
        _contents[id(copy)] = _of_copies[id(given)] = content
    return copy, content


def array_of(elements: NDArray[Any]) -> Any:
    """Of JAX's and of the same type, whatever `jax.enable_x64` is. Nobody writes to these."""
    with apart(), jax.enable_x64(True):
        return jnp.asarray(elements)


def _copy(given: NDArray[Any] | np.generic) -> Any:
    with apart():  # an array, also inside of a jit or a map
        return jnp.array(given, copy=True)


def _digest(array: Any) -> bytes:
    elements = np.ascontiguousarray(np.asarray(array))
    hasher = hashlib.sha256(repr((elements.dtype, elements.shape)).encode())
    hasher.update(elements.reshape(-1).view(np.uint8).data)
    return hasher.digest()
