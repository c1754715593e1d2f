"""Who is measured: stagejit, and what it is measured against.

Input: a function. Output: a `Contender` that compiles it and says what the compiled program holds.
Invariant: contenders differ in nothing but the compiler; each gets the same arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax

import stagejit
from stagejit.bench.programs import Arguments, BenchError, Function


@dataclass(frozen=True)
class Footprint:
    """What a compiled program needs besides its arguments and results; None where unknown.

    transient_nbytes: intermediate buffers after packing. delegated: equations left to XLA.
    """

    transient_nbytes: int | None = None
    dispatches: int | None = None
    delegated: int | None = None


@dataclass(frozen=True)
class Contender:
    """A way to run a function. compile returns a callable of the same signature."""

    name: str
    compile: Callable[[Function], Function]
    footprint: Callable[[Function, Arguments], Footprint]


def _stagejit_footprint(function: Function, args: Arguments) -> Footprint:
    plan = stagejit.jit(function).plan(*args)
    return Footprint(plan.peak_nbytes, len(plan.dispatches), len(plan.delegated))


def _jax_footprint(function: Function, args: Arguments) -> Footprint:
    analysis = jax.jit(function).lower(*args).compile().memory_analysis()
    return Footprint(None if analysis is None else int(analysis.temp_size_in_bytes))


STAGEJIT = Contender("stagejit", lambda function: stagejit.jit(function), _stagejit_footprint)
JAX = Contender("jax", jax.jit, _jax_footprint)
EAGER = Contender("eager", lambda function: function, lambda function, args: Footprint())

OTHERS = {contender.name: contender for contender in (JAX, EAGER)}


def opponents(names: Iterable[str]) -> list[Contender]:
    """The contenders called `names`. Raises BenchError for one that does not exist."""
    found = []
    for name in dict.fromkeys(names):
        if name not in OTHERS:
            raise BenchError(
                f"no contender is called {name!r}",
                next_step="known contenders: jax (jax.jit), eager (JAX without jit)",
            )
        found.append(OTHERS[name])
    return found


def on_device(args: Arguments) -> Arguments:
    """The arguments as JAX arrays, all of them there."""
    placed: Arguments = jax.device_put(args)
    _wait(placed)
    return placed


def _wait(tree: Any) -> None:
    for leaf in jax.tree_util.tree_leaves(tree):
        leaf.block_until_ready()


def waiting_call(compiled: Function, args: Arguments) -> Callable[[], Any]:
    """A call that returns when every result is there; results are freed before the next call."""

    def call() -> Any:
        result = compiled(*args)
        _wait(result)
        return result

    return call
