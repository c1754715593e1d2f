"""Values that were made of weights, found again while somebody keeps them.

Input: what is computed, by which code, of which contents. Output: the array as it lies in memory,
of those who made it before. Invariant: nothing is kept alive for those who may come. See Note [What
finds a value again] in `bound.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from stagejit.base.extension import Extension
from stagejit.base.threads.locks import new_lock
from stagejit.index.layout import Layout
from stagejit.rewrites.weights.made import Made
from stagejit.trace.contents import Content

Array = np.ndarray[Any, np.dtype[Any]]


class Lookup:
    """What `made` is of these contents, by code of that name and extensions, however it lies."""

    def __init__(
        self, made: Made, code: str | None, extensions: Sequence[Extension], of: Sequence[Content]
    ) -> None:
        self._layout, self._shape, self._of = made.type.layout, made.type.shape, of
        self._key = made.plain, code, tuple(extensions), *map(id, of)

    def found(self) -> Array | None:
        """As it is to lie."""
        with _lock:
            entry = _known.get(self._key)
            return entry.arrays().get(self._layout) if entry and entry.is_of(self._of) else None

    def row_major(self) -> Array | None:
        """Of an array that lies otherwise: a copy, or that itself."""
        with _lock:
            entry = _known.get(self._key)
            arrays = entry.arrays() if entry and entry.is_of(self._of) else {}
        for layout, memory in arrays.items():
            return memory if layout.is_row_major else layout.restored(memory, self._shape)
        return None

    def remember(self, array: Array) -> None:
        global _most_known
        with _lock:
            if len(_known) >= _most_known:  # each is looked at once or twice, not by all others
                for gone in [key for key, entry in _known.items() if not entry.arrays()]:
                    del _known[gone]
                _most_known = max(2 * len(_known), _FEWEST_KNOWN)
            entry = _known.get(self._key)
            if entry is None or not entry.is_of(self._of):
                entry = _known[self._key] = _Entry(self._of)
            entry.refs[self._layout] = weakref.ref(array)


class _Entry:
    """Where a value lies, by its layout."""

    def __init__(self, of: Sequence[Content]) -> None:
        self._of = [weakref.ref(content) for content in of]
        self.refs: dict[Layout, weakref.ref[Array]] = {}

    def is_of(self, contents: Sequence[Content]) -> bool:
        return all(ref() is content for ref, content in zip(self._of, contents, strict=True))

    def arrays(self) -> dict[Layout, Array]:
        known = ((layout, ref()) for layout, ref in self.refs.items())
        return {layout: array for layout, array in known if array is not None}


_known: dict[Any, _Entry] = {}
_FEWEST_KNOWN = 64
_most_known = _FEWEST_KNOWN  # what is gone is forgotten when there are so many
_lock = new_lock()
