"""Diffrax: Lotka-Volterra with Tsit5 and adaptive steps, and its gradient.

Input: nothing. Output: `PROGRAMS`. Invariant: see `program`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from stagejit.bench.ecosystem.program import LibraryProgram

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def _solve(y0: Any, coefficients: Any, end: float, **options: Any) -> Any:
    import diffrax

    def field(t: Any, y: Any, args: Any) -> Any:
        a, b, c, d = args
        return jnp.stack([a * y[0] - b * y[0] * y[1], c * y[0] * y[1] - d * y[1]])

    return diffrax.diffeqsolve(
        diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, end, 0.1, y0, coefficients,
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-6),
        **options,
    )  # fmt: skip


def lotka_volterra() -> Made:
    import diffrax

    def run(y0: Any, coefficients: Any) -> Any:
        saved = diffrax.SaveAt(ts=jnp.linspace(0.0, 20.0, 101))
        return _solve(y0, coefficients, 20.0, saveat=saved).ys

    return run, (jnp.array([10.0, 5.0]), jnp.array([1.5, 0.4, 0.1, 1.0]))


def lotka_volterra_gradient() -> Made:
    def loss(coefficients: Any, y0: Any) -> Any:
        found = _solve(y0, coefficients, 5.0, max_steps=64)
        return jnp.sum(found.ys**2)

    run = jax.value_and_grad(loss)
    return run, (jnp.array([1.5, 0.4, 0.1, 1.0]), jnp.array([10.0, 5.0]))


PROGRAMS = (
    LibraryProgram("diffrax Lotka-Volterra", ("diffrax",), lotka_volterra, 1e-3),
    LibraryProgram("diffrax gradient", ("diffrax",), lotka_volterra_gradient, 1e-3),
)
