"""All programs of the ecosystem.

Input: the modules of this folder. Output: `programs()`. Invariant: names are unique.
"""

from __future__ import annotations

from importlib.util import find_spec

from stagejit.bench.ecosystem import (
    blackjax,
    diffrax,
    equinox,
    flax,
    haiku,
    jraph,
    numpyro,
    optax,
    optimistix,
)
from stagejit.bench.ecosystem.program import LibraryProgram

_MODULES = (numpyro, blackjax, equinox, flax, haiku, optax, diffrax, optimistix, jraph)


def programs() -> dict[str, LibraryProgram]:
    """Every program, by name."""
    return {program.name: program for module in _MODULES for program in module.PROGRAMS}


def missing(program: LibraryProgram) -> list[str]:
    """The modules that a program needs and that are not installed."""
    return [name for name in program.modules if find_spec(name) is None]
