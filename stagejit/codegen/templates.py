"""Kernels that were made once, for as long as somebody uses them, and a few longer.

Input: keys and what was made for them. Output: what is still known for a key. Invariant: whoever
holds a value finds it again by its key; of values that nobody holds, only the `kept` used last
stay, so memory does not grow with the number of programs that a process has compiled.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")
KEPT = 16


class Templates(Generic[V]):
    """A dictionary of keys to weakly held values, and the values used last."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._all: weakref.WeakValueDictionary[str, V] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[str, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._all)

    def get(self, key: str) -> V | None:
        """The value of `key`, which counts as used now."""
        value = self._all.get(key)
        return None if value is None else self.put(key, value)

    def put(self, key: str, value: V) -> V:
        """Remember `value`, and return it."""
        self._all[key] = self._recent[key] = value
        self._recent.move_to_end(key)
        while len(self._recent) > self._kept:
            self._recent.popitem(last=False)
        return value
