"""Kernels with an operand of which they read no element, in loops and branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit

Function = Callable[[Any], Any]
OPTIONS = stagejit.Options(delegate=False, verify=True)


def in_the_padding(x: Any) -> Any:
    """Every window of an `x` of one element lies in the padding."""
    return lax.reduce_window(x, -np.inf, lax.max, (1,), (2,), ((3, 2),))


def in_the_holes(x: Any) -> Any:
    return lax.reduce_window(x, np.float32(0), lax.add, (1,), (3,), ((2, 1),), (3,))


PLACES: dict[str, Callable[[Function, Any], Any]] = {
    "loop": lambda f, x: lax.fori_loop(0, 3, lambda i, c: c / 2 + f(lax.sin(x)), f(x)),
    "slices": lambda f, x: lax.scan(lambda c, row: (c / 2 + f(row), c), f(x), jnp.stack([x, x])),
    "carry": lambda f, x: lax.fori_loop(0, 3, lambda i, c: (f(c[1]), c[1]), (f(x), x)),
    "while": lambda f, x: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, f(x) + c[1]), (0, f(x))
    ),
    "branch": lambda f, x: lax.cond(x[0] > 0, f, lambda x: f(x) * 3 + 1, x),
    "nested": lambda f, x: lax.fori_loop(
        0, 3, lambda i, c: lax.fori_loop(0, 2, lambda k, d: f(lax.sin(x)) + d / 4, c), f(x)
    ),
    "branch in a loop": lambda f, x: lax.fori_loop(
        0, 3, lambda i, c: lax.cond(i > 1, lambda c: f(x), lambda c: c * 2, c), f(x)
    ),
    "iterations on threads": lambda f, x: lax.map(f, jnp.stack([x] * 40)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("function", [in_the_padding, in_the_holes])
def test_an_operand_of_which_nothing_is_read(function: Function, place: str) -> None:
    x = np.float32([1.5])

    def program(x: Any) -> Any:
        return PLACES[place](function, x)

    ours, theirs = stagejit.jit(program, options=OPTIONS)(x), jax.jit(program)(x)
    for left, right in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(left, right)
