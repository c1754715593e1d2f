"""Optax: optimizers, each for many steps in one scan.

Input: nothing. Output: `PROGRAMS`. Invariant: see `program`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from stagejit.bench.ecosystem.program import LibraryProgram

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def _descent(optimizer: Callable[[], Any], steps: int) -> Made:
    chosen = optimizer()

    def loss(params: Any) -> Any:
        w, b = params["w"], params["b"]
        return jnp.mean((jnp.tanh(w @ w.T) - jnp.eye(w.shape[0])) ** 2) + jnp.sum((b - 1) ** 2)

    def run(params: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            params, state = carry
            value, grads = jax.value_and_grad(loss)(params)
            updates, state = chosen.update(grads, state, params)
            return (jax.tree.map(jnp.add, params, updates), state), value

        (params, _), losses = jax.lax.scan(step, (params, chosen.init(params)), None, length=steps)
        return params, losses

    params = {"w": jax.random.normal(jax.random.key(0), (24, 12)) * 0.2, "b": jnp.zeros(24)}
    return run, (params,)


def adamw() -> Made:
    import optax

    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 10, 100)
    return _descent(lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule)), 100)


def lion() -> Made:
    import optax

    return _descent(lambda: optax.lion(1e-3), 100)


def adafactor() -> Made:
    import optax

    return _descent(lambda: optax.adafactor(1e-2, min_dim_size_to_factor=8), 100)


def lbfgs() -> Made:
    import optax

    def loss(x: Any) -> Any:
        return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)

    def run(x: Any) -> Any:
        solver = optax.lbfgs()
        value_and_grad = optax.value_and_grad_from_state(loss)

        def step(carry: Any, _: Any) -> Any:
            x, state = carry
            value, grad = value_and_grad(x, state=state)
            updates, state = solver.update(grad, state, x, value=value, grad=grad, value_fn=loss)
            return (optax.apply_updates(x, updates), state), value

        (x, _), losses = jax.lax.scan(step, (x, solver.init(x)), None, length=15)
        return x, losses

    return run, (jnp.linspace(-1.0, 1.0, 8),)


PROGRAMS = (
    LibraryProgram("optax AdamW", ("optax",), adamw, 1e-4),
    LibraryProgram("optax Lion", ("optax",), lion, 1e-2),  # signs of gradients near zero
    LibraryProgram("optax Adafactor", ("optax",), adafactor, 1e-3),
    LibraryProgram("optax L-BFGS", ("optax",), lbfgs, 1e-2),
)
