"""What a program of the ecosystem is.

Input: the modules of this folder. Output: `LibraryProgram`. Invariant: `make` imports what it
needs, and returns the same function and arguments on every call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LibraryProgram:
    """A function that calls libraries, to be jitted, and its arguments.

    tolerance: largest accepted `|ours - jax.jit's|` relative to the largest element of a result;
        programs whose decisions depend on rounding (accept or reject) have a looser one, and say
        so. exact: numbers of the results (in the order of the tree's leaves) that must agree bit
        for bit.
    modules: what must be importable.
    """

    name: str
    modules: tuple[str, ...]
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    tolerance: float = 1e-5
    exact: tuple[int, ...] = ()
