"""What a program does not run makes no NaN: loops of no turn, branches that are not taken.

Random programs whose only NaN is in what does not run, at any depth, of arguments, constants or
weights. With `Options(check_nans=True)` none of them ends, and each gives what JAX gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit

Array = jax.Array
SIZE = 16
CHECKED = stagejit.Options(check_nans=True, check_infs=True)

# What makes a NaN of a matrix of ones, of one of a vector, and of both; each gives a vector.
MAKING: tuple[Callable[[Array, Array], Array], ...] = (
    lambda w, c: jnp.log(-w).sum(0),
    lambda w, c: c @ jnp.sqrt(-w),
    lambda w, c: (w - w).sum(0) / (w - w).sum(1),
    lambda w, c: jnp.tanh(c) * jnp.log(-w)[0],
    lambda w, c: jnp.cumsum(jnp.log(-w[:, 1])) + c,
    lambda w, c: jnp.sort(jnp.log(-w[:, 1])),
    lambda w, c: jnp.log(-w @ w.T)[1] + c,
    lambda w, c: jnp.concatenate([jnp.log(-w[0, :8]), c[8:]]),
    lambda w, c: jnp.take(jnp.log(-w), 3, axis=0),
    lambda w, c: jnp.linalg.norm(jnp.sqrt(-w), axis=1),
    lambda w, c: c.at[2].set(jnp.log(-w[0, 0])),
    lambda w, c: jax.nn.softmax(w / (w - w), axis=1).sum(0),
    lambda w, c: (w / (w - w))[:, ::-1].T[2] + c,
    lambda w, c: jnp.log(-w).reshape(4, -1).max(0)[:SIZE] - c,
)
# What makes none, around them.
SOUND: tuple[Callable[[Array, Array], Array], ...] = (
    lambda w, c: jnp.tanh(w @ c),
    lambda w, c: c + jnp.exp(w).sum(1) * 0.01,
    lambda w, c: c[::-1],
    lambda w, c: jnp.cumsum(c) * 0.1,
)


def program(seed: int) -> Callable[..., Any]:
    """f(n, no, w, v, c), where n is 0 and no is False: nothing that runs reads v."""
    rng = random.Random(seed)

    def skipped(depth: int) -> Callable[..., Array]:
        """Something around a body that does not run: `way(n, no, w, v, c)`."""
        if depth == 0:
            made, after = rng.choice(MAKING), rng.choice((None, *SOUND))
            return lambda n, no, w, v, c: made(v, c) if after is None else after(w, made(v, c))
        return rng.choice((stops, runs))(depth)

    def stops(depth: int) -> Callable[..., Array]:
        body = skipped(depth - 1)
        which = rng.randrange(7)

        def run(n: Array, no: Array, w: Array, v: Array, c: Array) -> Array:
            if which == 0:
                return lax.fori_loop(0, n, lambda i, c: c + body(n, no, w, v, c), c)
            if which == 1:
                state = (jnp.int32(0), c)
                turn = lambda s: (s[0] + 1, body(n, no, w, v, s[1]))  # noqa: E731
                return lax.while_loop(lambda s: s[0] < n, turn, state)[1]
            if which == 2:
                return lax.cond(no, lambda c: body(n, no, w, v, c), lambda c: c + 1, c)
            if which == 3:
                return lax.switch(n, [lambda c: c, lambda c: body(n, no, w, v, c), jnp.tanh], c)
            if which == 4:
                other = lambda c: body(n, no, w, v, c) + w[0]  # noqa: E731
                return lax.cond(~no, lambda c: c + w[0], other, c)
            if which == 5:
                turn = lambda s: body(n, no, w, v, s)  # noqa: E731
                return lax.while_loop(lambda s: jnp.isnan(s[0]), turn, c)
            scanned = lax.cond(no, lambda c: body(n, no, w, v, c), lambda c: c, c)
            return lax.scan(lambda c, x: (c + x, scanned), c, w)[0]

        return run

    def runs(depth: int) -> Callable[..., Array]:
        """Around something that does not run."""
        body, which = stops(depth), rng.randrange(4)

        def run(n: Array, no: Array, w: Array, v: Array, c: Array) -> Array:
            if which == 0:
                return lax.scan(lambda c, x: (body(n, no, w, v, c) + x * 0.1, None), c, w)[0]
            if which == 1:
                return lax.fori_loop(0, n + 2, lambda i, c: body(n, no, w, v, c), c)
            if which == 2:
                return lax.cond(no, lambda c: c, lambda c: body(n, no, w, v, c), c)
            return lax.scan(lambda c, x: (c, body(n, no, x * w, v, c)), c, w[:3])[1].sum(0)

        return run

    first, inside, last = rng.choice(SOUND), stops(rng.choice((1, 1, 2, 3))), rng.choice(SOUND)
    return lambda n, no, w, v, c: last(w, inside(n, no, w, v, first(w, c)))


@pytest.mark.parametrize("seed", range(24))
def test_what_does_not_run_makes_none(seed: int) -> None:
    _judge(seed, jnp.ones((SIZE, SIZE)))


@pytest.mark.parametrize("seed", range(100, 112))
def test_what_nothing_reads_that_runs_may_be_nan(seed: int) -> None:
    _judge(seed, jnp.full((SIZE, SIZE), jnp.nan))


def _judge(seed: int, v: Array) -> None:
    """The same as JAX, and no error: of arguments, of constants, of weights."""
    f, n, no = program(seed), jnp.int32(0), jnp.bool_(False)
    w, c = jnp.ones((SIZE, SIZE)), jnp.linspace(0, 1, SIZE)
    expected = jax.jit(f)(n, no, w, v, c)
    assert np.isfinite(expected).all()
    constant = stagejit.jit(lambda n, no, c: f(n, no, w, v, c), options=CHECKED)
    weights = stagejit.bind(lambda p, n, no, c: f(n, no, *p, c), (w, v), options=CHECKED)
    given = stagejit.jit(f, options=CHECKED)(n, no, w, v, c)
    for got in (given, constant(n, no, c), weights(n, no, c)):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
