"""Choices by platform inside loops and branches, under all transformations: native, as on XLA.

JAX computes the index of such a choice outside of a loop where that is differentiated or batched,
so that inside of it the index is an operand like any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from tests.agreement import close

X = np.random.default_rng(0).uniform(0.2, 1.0, (5, 3, 3)).astype(np.float32)


def _chosen(x: Any) -> Any:
    return lax.platform_dependent(
        x, cuda=lambda x: x * 100, cpu=lambda x: jnp.sin(x) * x, default=lambda x: x * 10
    )


def _default(x: Any) -> Any:
    return lax.platform_dependent(x, tpu=lambda x: x * 100, default=jnp.tanh)


def _nested(x: Any) -> Any:
    return lax.platform_dependent(x, cpu=lambda x: _default(x) * x, default=_chosen)


def _with_condition(x: Any) -> Any:
    return lax.cond(x.sum() > 4, _chosen, lambda x: _default(x) * 2, x)


def _determinant(x: Any) -> Any:
    lower = jnp.linalg.cholesky(x @ x.T + jnp.eye(3))
    return x * jnp.log(jnp.diag(lower)).sum()


# Functions of a matrix to a matrix of the same shape.
CHOICES: dict[str, Callable[[Any], Any]] = {
    "diag": lambda x: x * jnp.log1p(jnp.diag(x) ** 2),
    "trace": lambda x: x * jnp.trace(x @ x),
    "chosen": _chosen,
    "default": _default,
    "nested": _nested,
    "condition": _with_condition,
    "determinant": _determinant,
    "remat": jax.checkpoint(_nested),  # type: ignore[attr-defined]
}


def _scan(f: Callable[[Any], Any], x: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        c = jnp.tanh(c + f(row * (1 + 0.1 * c)))
        return c, c.sum()

    carry, sums = lax.scan(step, jnp.zeros_like(x[0]), x)
    return carry.sum() + (sums**2).sum()


def _scan_in_scan(f: Callable[[Any], Any], x: Any) -> Any:
    def step(c: Any, _: Any) -> Any:
        return jnp.tanh(c + _scan(f, x * 0.1 + c * 0.1)), None

    return lax.scan(step, jnp.zeros_like(x[0]), None, length=2)[0].sum()


def _counted(f: Callable[[Any], Any], x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, c: jnp.tanh(c + f(x[i])), x[0]).sum()


def _while(f: Callable[[Any], Any], x: Any) -> Any:
    def step(state: tuple[Any, Any]) -> Any:
        i, c = state
        return i + 1, jnp.tanh(c + f(x[i]))

    return lax.while_loop(lambda s: (s[0] < 5) & (s[1].sum() < 100), step, (0, x[0]))[1].sum()


def _branch_in_scan(f: Callable[[Any], Any], x: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        return lax.cond(c.sum() > 1, lambda c: c * 0.5 + f(row), lambda c: c + f(row), c), None

    return lax.scan(step, x[0], x)[0].sum()


def _remat_scan(f: Callable[[Any], Any], x: Any) -> Any:
    step = jax.checkpoint(lambda c, row: (jnp.tanh(c + f(row)), None))  # type: ignore[attr-defined]
    return lax.scan(step, x[0], x)[0].sum()


LOOPS: dict[str, Callable[..., Any]] = {
    "scan": _scan,
    "scan in scan": _scan_in_scan,
    "counted": _counted,
    "while": _while,
    "branch in scan": _branch_in_scan,
    "remat": _remat_scan,
    "vmap": lambda f, x: jax.vmap(f)(x).sum(),
    "scan of vmap": lambda f, x: _scan(lambda row: jax.vmap(f)(row[None])[0], x),
    "vmap of scan": lambda f, x: jax.vmap(lambda s: _scan(f, x * s))(jnp.arange(1.0, 3.0)).sum(),
}

TRANSFORMATIONS: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "value": lambda g: g,
    "grad": jax.grad,
    "jvp": lambda g: lambda x: jax.jvp(g, (x,), (jnp.cos(x),))[1],
    "vjp": lambda g: lambda x: jax.vjp(g, x)[1](jnp.float32(2))[0],
    "linearize": lambda g: lambda x: jax.linearize(g, x)[1](jnp.sin(x)),
    "vmap of grad": lambda g: lambda x: jax.vmap(jax.grad(g))(jnp.stack([x, x * 0.5])),
    "grad of remat": lambda g: jax.grad(jax.checkpoint(g)),  # type: ignore[attr-defined]
    "hessian": lambda g: lambda x: jax.jvp(jax.grad(g), (x,), (jnp.ones_like(x),))[1],
}
REVERSE = {"grad", "vjp", "vmap of grad", "grad of remat", "hessian"}


def _cases() -> list[tuple[str, str, str]]:
    """Every choice in every loop, under some transformations in turn."""
    made, others = [], itertools.cycle(TRANSFORMATIONS)
    for choice, loop in itertools.product(CHOICES, LOOPS):
        fitting = (name for name in others if loop != "while" or name not in REVERSE)
        first = "jvp" if loop == "while" else "grad"
        made += [(choice, loop, first), (choice, loop, next(n for n in fitting if n != first))]
    return made


CASES = _cases()


@pytest.mark.some(3)
@pytest.mark.parametrize("case", CASES, ids="/".join)
def test_nothing_is_left_to_xla(case: tuple[str, str, str]) -> None:
    """Neither a loop nor what chooses."""
    choice, loop, transformation = case
    f = TRANSFORMATIONS[transformation](lambda x: LOOPS[loop](CHOICES[choice], x))
    plan = stagejit.jit(f).plan(X)
    assert [left.reason for left in plan.delegated] == []


@pytest.mark.some(4)
@pytest.mark.parametrize("case", CASES[::3], ids="/".join)
def test_values_are_those_of_the_cpu(case: tuple[str, str, str]) -> None:
    choice, loop, transformation = case
    f = TRANSFORMATIONS[transformation](lambda x: LOOPS[loop](CHOICES[choice], x))
    close(stagejit.jit(f)(X), jax.jit(f)(X), rtol=2e-4)


def test_a_choice_without_the_cpu_is_an_error_as_in_jax() -> None:
    def f(x: Any) -> Any:
        return lax.scan(lambda c, x: (lax.platform_dependent(c, tpu=jnp.sin) + x, None), 0.0, x)[0]

    with pytest.raises(NotImplementedError, match="not found for platform cpu"):
        jax.jit(f)(X[:, 0, 0])
    with pytest.raises(NotImplementedError, match="not found for platform cpu"):
        stagejit.jit(f)(X[:, 0, 0])
