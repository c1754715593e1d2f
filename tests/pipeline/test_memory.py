"""Programs whose results may lie in the memory of what they still have to read.

Both arguments are donated; each program runs with all rewrites, with copies materialized, and with
every buffer apart, always with bounds checks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.options import Options
from tests.expected.left import left
from tests.randomness import RNG

X, Y = RNG.standard_normal((2, 6, 8)).astype(np.float32)
ROWS = jnp.array([1, 1, 2])


def average(c: Any) -> Any:
    return (c[:-2, 1:-1] + c[2:, 1:-1] + c[1:-1, :-2] + c[1:-1, 2:]) / 4


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "swap": lambda x, y: (y, x),
    "swap and compute": lambda x, y: (y + 1, x + 1),
    "reverse": lambda x, y: (x[::-1], y[:, ::-1], x + y),
    "other view": lambda x, y: (x.T.reshape(6, 8) + y, x),
    "same memory": lambda x, y: (x.reshape(-1), y.reshape(8, 6), x),
    "shift down": lambda x, y: (x.at[1:3].set(x[2:4]), y.at[0].set(x[0])),
    "shift both ways": lambda x, y: (x.at[1:].set(x[:-1]), x.at[:-1].set(x[1:])),
    "add shifted": lambda x, y: x.at[1:].add(x[:-1]).at[:, 1:].add(x[:, :-1]),
    "overlapping insertions": lambda x, y: (
        x.at[0:2].set(y[0:2]).at[1:3].set(y[3:5]) + 0,
        x.sum(),
    ),
    "read after insertion": lambda x, y: (lambda z: (z, x.sum(0), z @ x.T, y))(x.at[2].set(0)),
    "slice of itself": lambda x, y: lax.dynamic_update_slice(
        x, lax.dynamic_slice(x, (0, 0), (3, 8)), (1, 0)
    ),
    "scatter": lambda x, y: (x.at[ROWS].add(y[:3]), x * 2),
    "scatter of itself": lambda x, y: x.at[ROWS].add(x[:3]),
    "gather of itself": lambda x, y: x[jnp.array([5, 4, 3, 2, 1, 0])] + 0 * y,
    "running sums": lambda x, y: (jnp.cumsum(x, 0), jnp.cumsum(x, 1), jnp.cumsum(y, 0)[::-1]),
    "softmax": lambda x, y: (jax.nn.softmax(x, 0), jax.nn.softmax(y, 1)),
    "rows and columns": lambda x, y: (x - x.mean(1, keepdims=True) + y, y - y.mean(0)),
    "product": lambda x, y: (x @ y.T @ x, y),
    "square": lambda x, y: x[:, :6] @ x[:, :6] + y[:, :6],
    "convolution": lambda x, y: lax.conv_general_dilated(
        x.reshape(1, 3, 4, 4), y.reshape(-1)[:36].reshape(3, 3, 2, 2), (1, 1), "SAME"
    ).reshape(6, 8) + x,
    "around XLA": lambda x, y: (lambda s: (s * 2 + x, left(s + 1), y))(left(x * 2)),
    "arguments of XLA": lambda x, y: (left(x), x, left(y)),
    "insertion of XLA's": lambda x, y: (
        lambda z: (z.at[0].set(left(z[1])), left(z))
    )(x + 1),
    "join with itself": lambda x, y: (
        jnp.concatenate([x, x, y], 0)[3:9],
        jnp.concatenate([y, x], 1)[:, 2:10],
    ),
    "ping-pong": lambda x, y: functools.reduce(
        lambda c, _: (c[1] + c[0] * 0.5, c[0] - c[1] * 0.25), range(9), (x, y)
    ),
    "stencil": lambda x, y: functools.reduce(
        lambda c, _: c.at[1:-1, 1:-1].set(average(c)), range(4), x
    ),
    "loop in place": lambda x, y: lax.fori_loop(
        0, 6, lambda i, c: c.at[i].set(c[i - 1] * 2 + y[i]), x
    ),
    "scan in place": lambda x, y: lax.scan(lambda c, r: (c.at[0].add(r), c[1]), x, y),
    "padded and cropped": lambda x, y: jnp.pad(x, 1)[1:-1, 1:-1] + y,
}  # fmt: skip

OPTIONS = {
    "all": Options(verify=True),
    "materialized": Options(disable=("fuse-producers", "fuse-insert"), verify=True),
    "apart": Options(disable=("reuse-arguments", "pack-slots", "fuse-epilogues"), verify=True),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("f", PROGRAMS.values(), ids=PROGRAMS.keys())
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_donated_memory(f: Callable[[Any, Any], Any], options: Options) -> None:
    expected = jax.jit(f)(X, Y)
    jitted = stagejit.jit(f, options=options, donate_argnums=(0, 1))
    actual = jitted(jnp.array(X), jnp.array(Y))
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_donation_inside_another_jit() -> None:
    """The caller still uses what it gives away, so XLA makes a copy first."""
    update = stagejit.jit(lambda a, b: (a.at[1].set(b), a.sum()), donate_argnums=0)

    def around(update: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        return update(a * 2, b), update(a, b), a + 1

    ours = jax.jit(functools.partial(around, update))(X, Y[0])
    theirs = around(lambda a, b: (a.at[1].set(b), a.sum()), jnp.asarray(X), Y[0])
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)
