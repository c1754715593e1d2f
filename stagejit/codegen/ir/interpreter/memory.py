"""The memory that a kernel is interpreted over, and the accesses to it that no kernel may make.

Input: elements, and accesses by index. Output: elements, or a `Fault`. Invariant: nothing outside
a buffer is touched; what a kernel has not written to memory of its own has no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stagejit.codegen.ir.interpreter.arithmetic import DTYPES, filled, numbers
from stagejit.codegen.ir.interpreter.rounding import Array
from stagejit.codegen.ir.nodes import Buffer
from stagejit.codegen.ir.rules import Fault


class Memory:
    """The elements of one buffer.

    written: which elements have a value, where the memory is the kernel's own. copies: threads that
    have such memory each to itself, one behind the other. address: of the first element.
    """

    def __init__(self, buffer: Buffer, elements: Array, written: Array | None, copies: int) -> None:
        self.buffer, self.elements, self.written, self.copies = buffer, elements, written, copies
        self.size = elements.size // copies
        own = buffer.space not in ("arg", "words")  # begins on a cache line
        self.address = 0 if own else elements.__array_interface__["data"][0]

    # ---------------------------------------------------------------- accesses

    def read(self, index: Array, on: Array | None) -> Array:
        """The elements at `index`; zeros where `on` is off."""
        at = self._places(index, on)
        self._require_readable(at, on)
        self.touch(at, on, "read")
        if on is None:
            return self.elements[at]
        nothing = np.zeros(on.shape, self.elements.dtype)
        nothing[on] = self.elements[at[on]]
        return nothing

    def write(self, index: Array, value: Array, on: Array | None) -> None:
        """One after the other, in the order of threads and of their lanes."""
        at = self._places(index, on)
        if value.shape != at.shape:  # the same in all threads, or in all lanes
            value = np.broadcast_to(value, at.shape)
        self.touch(at, on, "write")
        if on is not None:
            at, value = at[on], value[on]
        self._require_once(at)
        self.elements[at] = value
        if self.written is not None:
            self.written[at] = True

    def spoil(self, index: Array, on: Array | None) -> None:
        """Something else is about to be written to the kernel's own memory: it has no value."""
        at = self._places(index, on)
        self.touch(at, on, "write")
        assert self.written is not None
        self.written[at if on is None else at[on]] = False

    def changed(self, index: Array, on: Array | None) -> Array:
        """Where elements lie that are read and written undivided."""
        at = self._places(index, on)
        self._require_readable(at, on)
        self.touch(at, on, "change")
        return at

    def touch(self, at: Array, on: Array | None, kind: str) -> None:
        """A "read", "write" or "change" (both, undivided) by each thread, of memory that threads
        share."""

    def forget(self) -> None:
        if self.written is not None:
            self.written[...] = False

    # ---------------------------------------------------------------- what they may not do

    def _places(self, index: Array, on: Array | None) -> Array:
        """Where the elements lie; anything inside where `on` is off."""
        bad = (index < 0) | (index >= self.size)
        if on is not None:
            bad, index = bad & on, np.where(on, index, 0)
        if bad.any():
            first = int(np.broadcast_to(index, bad.shape)[bad][0])
            raise Fault(f"element {first} of {self.buffer}, which has {self.size}")
        if self.copies > 1:
            own = np.arange(self.copies) * self.size
            index = index + own.reshape(-1, *[1] * (index.ndim - 1))
        return index

    def _require_readable(self, at: Array, on: Array | None) -> None:
        """Raises a Fault where an element has no value."""
        if self.written is None:
            return
        known = self.written[at]
        if on is not None:
            known = known | ~on
        if not known.all():
            first = int(np.broadcast_to(at, known.shape)[~known][0]) % self.size
            raise Fault(f"element {first} of {self.buffer} is read, and was not written")

    def _require_once(self, at: Array) -> None:
        if not self.buffer.once or self.written is None:
            return
        if self.written[at].any() or np.unique(at).size < at.size:
            raise Fault(f"an element of {self.buffer} is written again before a `forget`")

    def require_aligned(self, index: Array, alignment: int) -> None:
        """Raises a Fault where one of the elements `index` is not aligned to bytes."""
        bad = (self.address + index * self.elements.itemsize) % alignment != 0
        if bad.any():
            first = int(index[bad][0])
            raise Fault(f"element {first} of {self.buffer} is not aligned to {alignment} bytes")


def memory_of(
    buffer: Buffer, arrays: Sequence[Array], threads: int, unwritten: int | None
) -> Memory:
    """The memory of a buffer before a kernel, or a function that it calls, runs.

    unwritten: the byte that the kernel's own memory holds then; None: it may not be read. What is
    written once never may be.
    """
    if buffer.space == "arg":
        return _argument(buffer, arrays)
    if buffer.space == "words":
        return _words(buffer, arrays[buffer.index])
    if buffer.space == "table":
        return Memory(buffer, numbers(buffer.data, buffer.elem), None, 1)
    copies = threads if buffer.space == "stack" else 1
    size = buffer.size * copies
    known = None if unwritten is not None and not buffer.once else np.zeros(size, np.bool_)
    elements = filled((size,), DTYPES[buffer.elem.elem], unwritten or 0)
    return Memory(buffer, elements, known, copies)


def _argument(buffer: Buffer, arrays: Sequence[Array]) -> Memory:
    if buffer.index >= len(arrays):
        raise Fault(f"there is no array for {buffer}")
    array: np.ndarray[Any, Any] = arrays[buffer.index]
    wanted = np.dtype(DTYPES[buffer.elem.elem])
    if array.dtype.itemsize != wanted.itemsize or not array.flags.c_contiguous:
        raise Fault(f"{buffer}, of {buffer.elem}, is given a {array.dtype} array")
    return Memory(buffer, array.reshape(-1).view(wanted), None, 1)


def _words(buffer: Buffer, array: Array) -> Memory:
    octets: Array = array.reshape(-1).view(np.uint8)
    whole = octets[: octets.size // 4 * 4]
    return Memory(buffer, whole.view(DTYPES[buffer.elem.elem]), None, 1)
