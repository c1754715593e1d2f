"""Updates between the forward and the backward program of a gradient.

Input: a seed. Output: what went wrong, in words. Invariants that are checked: a gradient is that of
the weights that the forward program read, or there is an error that says that they are gone; that
one only where there was an update, and not where all is evaluated at once.
"""

from __future__ import annotations

from collections.abc import Callable
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
AT_ONCE = ("it", "map", "twice")


def trouble(seed: int) -> list[str]:
    """What is wrong with a few gradients of a random model."""
    rng = Random(seed)
    model = Model.random(rng)
    given = [model.parameters(number) for number in range(4)]  # kept: any program may read them
    bound, now, found = stagejit.bind(model, given[0]), 0, list[str]()
    names = rng.sample(list(AROUND), 4)
    for name in names:
        around, in_programs = AROUND[name], rng.random() < 0.5
        x = jnp.asarray(np.random.default_rng(rng.randrange(99)).normal(
            size=(rng.choice((1, 3, 17)), model.sizes[0])), jnp.float32)  # fmt: skip
        forward: Any = jax.vjp
        backward: Any = _called
        if in_programs:
            forward, backward = jax.jit(jax.vjp, static_argnums=0), jax.jit(_called)
        for updates in (0, rng.choice((1, 2)), 0):
            before, what = now, f"seed {seed}, {model}: {name} of {x.shape}, {updates} updates"
            y, back = forward(around(bound), x)
            for _ in range(updates):
                now = (now + 1) % len(given)
                bound.update(given[now])
            try:
                (result,) = backward(back, jnp.cos(y))
                result = np.asarray(result)
            except Exception as error:
                is_refused = "were updated between" in str(error) and updates > 0
                if not is_refused or (name in AT_ONCE and not in_programs):
                    found.append(f"{what}: {type(error).__name__}: {error}")
                continue
            plain = around(lambda x, p=given[before]: model(p, x))  # type: ignore[misc]
            y, back = jax.vjp(plain, x)
            (wanted,) = back(jnp.cos(y))
            off = np.linalg.norm(result - wanted) / (np.linalg.norm(wanted) + 1e-9)
            if not off < 5e-3:
                found.append(f"{what}: an error of {off:.3g}")
    return found


def _called(back: Any, t: Any) -> Any:
    return back(t)
