"""Names of buffers: the caller's for arguments, numbered letters for all others.

Input: argument names. Output: names that the text form of a plan can carry. Invariant: no two are
equal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


class Names:
    """Hands out names. `given`: those of the arguments, made printable and distinct."""

    def __init__(self, given: Sequence[str] = ()) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}
        self.given = [self._distinct(re.sub(r"\W+", "_", name).strip("_") or "x") for name in given]

    def new(self, letter: str) -> str:
        """The next of `letter`0, `letter`1, ..."""
        while True:
            number = self._next.get(letter, 0)
            self._next[letter] = number + 1
            name = f"{letter}{number}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def _distinct(self, name: str) -> str:
        if name in self._taken:
            return self.new(f"{name}_")
        self._taken.add(name)
        return name
