"""What a program of the compile benchmark is.

Input: a number that no two variants of a program share. Output: `Program`s; `make(variant)` is a
function with its arguments. Invariant: variants differ in constants all over the program, so that
no code made for one fits another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stagejit.runtime.lowering.seams import subjaxprs

Made = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Program:
    """make: the function and its arguments, for a variant."""

    name: str
    make: Callable[[int], Made]


def floats(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32) / 4


def constant(variant: int) -> float:
    return 1.0 + variant / 1024


def equation_count(jaxpr: Any) -> int:
    """Equations of a jaxpr and all that it calls."""
    found = 0
    for equation in jaxpr.eqns:
        inner = list(subjaxprs(equation))
        found += sum(map(equation_count, inner)) if inner else 1
    return found
