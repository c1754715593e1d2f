"""Profiles of the user's functions, and what profiles cost.

Input: a function with its arguments; nothing. Output: a `Profile`; for each of some programs its
time without and with a profile, and how much of the measured time the profile accounts for.
Invariant: both times are taken in turns, in one process, on warm code.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

import stagejit
from stagejit.bench import programs
from stagejit.bench.users.user_functions import UserCall

_CALLS = 12  # of a round, without and with


def profile_of(call: UserCall, calls: int) -> stagejit.Profile:
    """Of so many calls, after one that compiles. Shapes in place of arguments become arrays."""
    args, kwargs = jax.tree.map(_array, (call.args, call.kwargs))
    function = call.function
    if not hasattr(function, "plan"):
        function = stagejit.jit(programs.undecorated(function))

    def once() -> None:
        given, named = jax.tree.map(_copied, (args, kwargs))  # the function may take them over
        jax.block_until_ready(function(*given, **named))  # type: ignore[no-untyped-call]

    once()
    with stagejit.profile() as profile:
        for _ in range(calls):
            once()
    return profile


def _array(leaf: Any) -> Any:
    """Normal numbers for a type with a shape; small integers."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        values = np.random.default_rng(0).standard_normal(leaf.shape)
        return jnp.asarray(values, leaf.dtype)
    return jnp.ones(leaf.shape, leaf.dtype)


def _copied(leaf: Any) -> Any:
    return jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf


# ------------------------------------------------------------------------------ what profiles cost


def _layers(x: Any, weights: Sequence[Any]) -> Any:
    for weight in weights:
        x = jnp.maximum(x @ weight, 0.0)
    return x.sum(1)


def _loop(x: Any, weight: Any) -> Any:
    def body(x: Any, _: None) -> Any:
        x = jnp.tanh(x @ weight)
        return x, x.sum()

    return jax.lax.scan(body, x, None, length=1600)


def _chain(x: Any) -> Any:
    for _ in range(120):
        x = jnp.sort(x[::-1] * 1.01) + jnp.cumsum(x)
    return x


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "layers": (_layers, lambda: (jnp.ones((256, 512)), [jnp.ones((512, 512)) * 0.01] * 8)),
    "loop": (_loop, lambda: (jnp.ones((8, 64)), jnp.ones((64, 64)) * 0.01)),
    "chain": (_chain, lambda: (jnp.ones(2000),)),
}


@dataclass(frozen=True)
class Cost:
    """Of a profile of a program. dispatches: that a call executes; seconds of a call without and
    with a profile; recorded: of the time with one, the part that its rows have."""

    name: str
    dispatches: int
    seconds_off: float
    seconds_on: float
    recorded: float

    @property
    def overhead(self) -> float:
        """As a part of the time without."""
        return self.seconds_on / self.seconds_off - 1


def measure(name: str, rounds: int = 12) -> Cost:
    """Of one of `PROGRAMS`."""
    function, make = PROGRAMS[name]
    staged, args = stagejit.jit(function), make()

    def timed(times: list[float]) -> None:
        for _ in range(_CALLS):
            started = time.perf_counter()
            jax.block_until_ready(staged(*args))  # type: ignore[no-untyped-call]
            times.append(time.perf_counter() - started)

    timed([])
    off, on, recorded, count = list[float](), list[float](), list[float](), 0
    for turn in range(rounds):
        own = list[float]()
        if turn % 2:
            timed(off)
        with stagejit.profile() as profile:
            timed(own)
        if not turn % 2:
            timed(off)
        on += own
        recorded.append(profile.seconds / sum(own))
        executed = sum(row.count for row in profile.dispatches if row.loc)
        count = executed // _CALLS
    return Cost(
        name,
        count,
        statistics.median(off),
        statistics.median(on),
        statistics.median(recorded),
    )


def table_of(costs: Sequence[Cost]) -> Table:
    """A row for each program."""
    table = Table("program", title="calls without and with a profile", title_justify="left")
    for title in ("dispatches", "us without", "us with", "overhead %", "recorded %"):
        table.add_column(title, justify="right")
    for cost in costs:
        table.add_row(
            cost.name,
            str(cost.dispatches),
            f"{1e6 * cost.seconds_off:.1f}",
            f"{1e6 * cost.seconds_on:.1f}",
            f"{100 * cost.overhead:.2f}",
            f"{100 * cost.recorded:.1f}",
        )
    return table
