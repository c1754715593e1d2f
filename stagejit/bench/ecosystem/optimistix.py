"""Optimistix: Levenberg-Marquardt, Newton, BFGS.

Input: nothing. Output: `PROGRAMS`. Invariant: see `program`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from stagejit.bench.ecosystem.program import LibraryProgram

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def levenberg_marquardt() -> Made:
    import optimistix as optx

    t = jnp.linspace(0.0, 3.0, 60)

    def residual(p: Any, y: Any) -> Any:
        return p[0] * jnp.exp(-p[1] * t) + p[2] * jnp.sin(p[3] * t) - y

    def run(start: Any, y: Any) -> Any:
        solver = optx.LevenbergMarquardt(rtol=1e-4, atol=1e-4)
        return optx.least_squares(residual, solver, start, args=y, throw=False).value

    truth = jnp.array([2.0, 1.3, 0.5, 4.0])
    return run, (truth + 0.1, residual(truth, jnp.zeros(60)))


def newton() -> Made:
    import optimistix as optx

    def equations(x: Any, args: Any) -> Any:
        return jnp.tanh(args @ x) + x**3 - jnp.arange(6.0) / 6

    def run(start: Any, matrix: Any) -> Any:
        solver = optx.Newton(rtol=1e-5, atol=1e-5)
        return optx.root_find(equations, solver, start, args=matrix, throw=False).value

    matrix = jnp.eye(6) + 0.1 * jax.random.normal(jax.random.key(0), (6, 6))
    return run, (jnp.ones(6) * 0.5, matrix)


def bfgs() -> Made:
    import optimistix as optx

    def rosenbrock(x: Any, args: Any) -> Any:
        return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)

    def run(start: Any) -> Any:
        solver = optx.BFGS(rtol=1e-4, atol=1e-4)
        return optx.minimise(rosenbrock, solver, start, max_steps=400, throw=False).value

    return run, (jnp.array([-1.2, 1.0, 0.5, 0.7]),)


PROGRAMS = (
    LibraryProgram("optimistix Levenberg-Marquardt", ("optimistix",), levenberg_marquardt, 1e-3),
    LibraryProgram("optimistix Newton", ("optimistix",), newton, 1e-3),
    LibraryProgram("optimistix BFGS", ("optimistix",), bfgs, 1e-2),
)
