"""Updates between the forward and the backward program of a gradient.

Input: a seed. Output: what went wrong, in words. Invariants that are checked: a gradient is that of
the weights that the forward program read, or there is an error that says that they are gone; that
one only where there was an update, and not where all is evaluated at once. What a gradient keeps
of weights goes with it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import stagejit
from tests.fuzz.bound.models import Model

Array = Any
Function = Callable[[Array], Array]
# What is differentiated, and how it is called.
AROUND: dict[str, Callable[[Function], Function]] = {
    "it": lambda f: f,
    "jit": lambda f: jax.jit(lambda x: jnp.sin(f(x))),
    "stagejit": lambda f: stagejit.jit(lambda x: jnp.sin(f(x))),
    "scan": lambda f: lambda x: lax.scan(lambda s, x: (s + f(x).sum(), f(x)), 0.0, x[None])[1],
    "map": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])),
    "branch": lambda f: lambda x: lax.cond(x.sum() < 1e9, f, lambda x: 2 * f(x), x),
    "branches": lambda f: jax.vmap(lambda x: lax.cond(x[0] > 0, f, lambda x: -f(x), x[None])),
    "twice": lambda f: lambda x: f(x) + f(x / 2),
    "checkpoint": lambda f: jax.checkpoint(lambda x: jnp.sin(f(x))),
    "saved": lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.everything_saveable),
    "gradient": lambda f: jax.grad(lambda x: (f(x) ** 2).sum()),
}  # fmt: skip
AT_ONCE = ("it", "map", "twice", "gradient")
# How a gradient begins; how it ends is a function of it and of a tangent or cotangent.
BEGUN: dict[str, tuple[Any, Any]] = {
    "vjp": (jax.vjp, lambda back, _, t: back(t)[0]),
    "linearize": (jax.linearize, lambda linear, x, t: linear(x * t.sum())),
}


@dataclass
class Gradient:
    """One that has begun. end: it, applied; wanted: that of plain JAX. may_fail: where there are
    updates meanwhile, of which `updates` is the number."""

    what: str
    end: Callable[[], Array]
    wanted: Array
    may_fail: bool
    updates: int = 0


def trouble(seed: int) -> list[str]:
    """What is wrong with a few gradients of a random model, of which some end much later."""
    rng = Random(seed)
    model = Model.random(rng)
    given = [model.parameters(number) for number in range(4)]  # kept: any program may read them
    bound, now, found = stagejit.bind(model, given[0]), 0, list[str]()
    begun: list[Gradient] = []
    for name in rng.sample(list(AROUND), 4):
        in_programs = rng.random() < 0.5
        x = jnp.asarray(np.random.default_rng(rng.randrange(99)).normal(
            size=(rng.choice((1, 3, 17)), model.sizes[0])), jnp.float32)  # fmt: skip
        how = "vjp" if in_programs else rng.choice(list(BEGUN))
        for updates in (0, rng.choice((1, 2)), 0):
            made = _begun(bound, model, given[now], AROUND[name], x, how, in_programs)
            made.what = f"seed {seed}, {model}: {how} of {name} of {x.shape}"
            made.may_fail = in_programs or name not in AT_ONCE
            begun.append(made)
            for _ in range(updates):
                now = (now + 1) % len(given)
                bound.update(given[now])
                begun = [replace(each, updates=each.updates + 1) for each in begun]
            while begun and rng.random() < 0.7:
                found += _ended(begun.pop(rng.randrange(len(begun))))
    while begun:
        found += _ended(begun.pop())
    del made
    gc.collect()
    bound.update(given[now])
    tables = {table.table for weight in bound._weights() for table in weight.tables}
    if any(len(table._lists) > 1 for table in tables):
        found.append(f"seed {seed}, {model}: weights of earlier updates are still there")
    return found


def _begun(
    bound: Function, model: Model, params: Any, around: Any, x: Array, how: str, in_programs: bool
) -> Gradient:
    forward, applied = BEGUN[how]
    y, plain = forward(around(lambda x: model(params, x)), x)
    wanted = applied(plain, x, jnp.cos(y))
    if in_programs:
        forward, applied = jax.jit(forward, static_argnums=0), jax.jit(applied)
    _, made = forward(around(bound), x)
    return Gradient("", lambda: applied(made, x, jnp.cos(y)), wanted, in_programs)


def _ended(gradient: Gradient) -> list[str]:
    what = f"{gradient.what}, {gradient.updates} updates"
    try:
        result = np.asarray(gradient.end())
    except Exception as error:
        is_refused = "were updated between" in str(error) and gradient.updates > 0
        if is_refused and gradient.may_fail:
            return []
        return [f"{what}: {type(error).__name__}: {error}"]
    off = np.linalg.norm(result - gradient.wanted) / (np.linalg.norm(gradient.wanted) + 1e-9)
    return [] if off < 5e-3 else [f"{what}: an error of {off:.3g}"]
