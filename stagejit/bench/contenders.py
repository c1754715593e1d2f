"""Who is measured: stagejit, and what it is measured against.

Input: a function. Output: a `Contender` that compiles it and says what the compiled program holds.
Invariant: contenders differ in nothing but the compiler; each gets the same arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

import stagejit
from stagejit.bench.programs import Arguments, CommandError, Function


@dataclass(frozen=True)
class Footprint:
    """What a compiled program needs besides its arguments and results; None where unknown.

    peak_nbytes: most memory that temporary values take at once: ours after packing, XLA's as its
    `memory_analysis().temp_size_in_bytes`. delegated: equations left to XLA. weight_nbytes: what a
    call reads of what it is bound to.
    """

    peak_nbytes: int | None = None
    dispatches: int | None = None
    delegated: int | None = None
    weight_nbytes: int | None = None


class Compile(Protocol):
    """Returns a callable of the same signature, which may reuse the memory of the arguments whose
    numbers are in `donated`."""

    def __call__(self, function: Function, donated: tuple[int, ...] = ()) -> Function: ...


class Measure(Protocol):
    """The footprint of what `Compile` would make of the same program for these arguments."""

    def __call__(
        self, function: Function, args: Arguments, donated: tuple[int, ...] = ()
    ) -> Footprint: ...


@dataclass(frozen=True)
class Contender:
    """A way to run a function."""

    name: str
    compile: Compile
    footprint: Measure


def _stagejit(function: Function, donated: tuple[int, ...] = ()) -> Any:
    return stagejit.jit(function, donate_argnums=donated)


def _jax(function: Function, donated: tuple[int, ...] = ()) -> Any:
    return jax.jit(function, donate_argnums=donated)


def _eager(function: Function, donated: tuple[int, ...] = ()) -> Function:
    return function


def _stagejit_footprint(
    function: Function, args: Arguments, donated: tuple[int, ...] = ()
) -> Footprint:
    plan = _stagejit(function, donated).plan(*args)
    return Footprint(plan.peak_nbytes, len(plan.dispatches), len(plan.delegated))


def _jax_footprint(function: Function, args: Arguments, donated: tuple[int, ...] = ()) -> Footprint:
    analysis = _jax(function, donated).lower(*args).compile().memory_analysis()
    return Footprint(None if analysis is None else int(analysis.temp_size_in_bytes))


def _no_footprint(function: Function, args: Arguments, donated: tuple[int, ...] = ()) -> Footprint:
    return Footprint()


def bound_to(params: Any, weights: str) -> Contender:
    """Ours, bound to the first argument. What it compiles takes that, and does not look at it."""
    form: Any = None if weights == "f32" else weights

    def made(function: Function, donated: tuple[int, ...]) -> Any:
        others = tuple(number - 1 for number in donated)
        return stagejit.bind(function, params, weights=form, donate_argnums=others)

    def compile(function: Function, donated: tuple[int, ...] = ()) -> Function:
        bound = made(function, donated)
        return lambda _, *args: bound(*args)

    def footprint(function: Function, args: Arguments, donated: tuple[int, ...] = ()) -> Footprint:
        plan = made(function, donated).plan(*args[1:])
        read = sum(buffer.nbytes for buffer in plan.buffers if buffer.kind == "weight")
        return Footprint(plan.peak_nbytes, len(plan.dispatches), len(plan.delegated), read)

    return Contender("stagejit", compile, footprint)


STAGEJIT = Contender("stagejit", _stagejit, _stagejit_footprint)
JAX = Contender("jax", _jax, _jax_footprint)
EAGER = Contender("eager", _eager, _no_footprint)

UNBOUND = Contender("unbound", _stagejit, _stagejit_footprint)

OTHERS = {contender.name: contender for contender in (JAX, EAGER, UNBOUND)}


def opponents(names: Iterable[str]) -> list[Contender]:
    """The contenders called `names`. Raises CommandError for one that does not exist."""
    found = []
    for name in dict.fromkeys(names):
        if name not in OTHERS:
            raise CommandError(
                f"no contender is called {name!r}",
                next_step="known contenders: jax (jax.jit), eager (JAX without jit), unbound "
                "(stagejit.jit where a row is bound to its weights)",
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


def waiting_call(
    compiled: Function, args: Arguments, donated: tuple[int, ...] = ()
) -> Callable[[], Any]:
    """A call that returns when every result is there.

    Results are freed before the next call, but for those that take the place of arguments that
    were `donated` (see `Workload`); these are copied before the first call, so that others may
    share `args`."""
    current = list(args)
    for number in donated:
        current[number] = jax.tree.map(jnp.copy, args[number])

    def call() -> Any:
        result = compiled(*current)
        _wait(result)
        for number, successor in zip(donated, result if donated else (), strict=False):
            current[number] = successor
        return result

    return call
