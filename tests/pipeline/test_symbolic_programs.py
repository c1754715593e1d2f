"""Random programs whose sizes are symbols: they have a plan, and the same one each time.

What is worth while may depend on sizes that nobody knows; then one way is taken, always the same.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import stagejit
from stagejit.errors import UnsupportedOpError
from stagejit.options import Options

N, M, K = jax.export.symbolic_shape("n, m, k")
SIZES = (N, M, K, 1, 4, 64)
Array = Any
Step = Callable[[Array, Array], Array | None]


def _normalized(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1)


def _repeated(x: Array) -> Array:
    """Each element several times side by side, in rows that are repeated in turn."""
    several = jnp.broadcast_to(x[..., None], (*x.shape, 3)) * 2
    return jnp.broadcast_to(several[None], (2, *several.shape))


STEPS: tuple[Step, ...] = (
    lambda x, y: jnp.exp(x),
    lambda x, y: x * 2 + 1,
    lambda x, y: jnp.tanh(x).T,
    lambda x, y: jnp.sum(x),
    lambda x, y: jnp.broadcast_to(x, (3, *x.shape)),
    lambda x, y: x + y if x.shape == y.shape else None,
    lambda x, y: jnp.concatenate([x, y * 2]) if x.shape == y.shape and x.ndim else None,
    lambda x, y: jnp.concatenate([x, jnp.exp(x)], axis=-1) if x.ndim else None,
    lambda x, y: x - jnp.max(x, axis=0, keepdims=True) if x.ndim else None,
    lambda x, y: jnp.sum(x, axis=-1) if x.ndim else None,
    lambda x, y: x * jnp.sum(x, axis=0, keepdims=True) + 1 if x.ndim else None,
    lambda x, y: jax.nn.softmax(x, axis=-1) if x.ndim else None,
    lambda x, y: _normalized(x) if x.ndim else None,
    lambda x, y: x @ jnp.tanh(x).T if x.ndim == 2 else None,
    lambda x, y: _repeated(x * 2 + x * x) if 0 < x.ndim < 3 else None,
)
# What may be no view, or no box, of what it is made of.
RELAID: tuple[Step, ...] = (
    lambda x, y: x.reshape(-1),
    lambda x, y: jnp.pad(x, [(1, 2)] * x.ndim) if x.ndim else None,
    lambda x, y: jnp.pad(x, 1).reshape(-1) if x.ndim else None,
    lambda x, y: x[1:] if x.ndim and x.shape[0] == 4 else None,
    lambda x, y: jnp.tanh(x)[:, None] if x.ndim == 1 else x.swapaxes(0, -1) if x.ndim else None,
    lambda x, y: x.at[0].set(1.0) if x.ndim and x.shape[0] == 4 else None,
)


def program(
    seed: int, known: tuple[Step, ...] = STEPS
) -> tuple[Callable[..., list[Array]], list[jax.ShapeDtypeStruct]]:
    rng = random.Random(seed)
    steps = [(rng.choice(known), rng.random(), rng.random()) for _ in range(rng.randint(1, 6))]
    shapes = [tuple(rng.choice(SIZES) for _ in range(rng.randint(1, 3))) for _ in range(2)]
    if rng.random() < 0.6:
        shapes[1] = shapes[0]
    results = rng.randint(1, 3)

    def f(x: Array, y: Array) -> list[Array]:
        values = [x, y]
        for step, first, second in steps:
            given = (values[int(part * len(values))] for part in (first, second))
            made = step(*given)
            values += [] if made is None else [made]
        return values[-results:]

    return f, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


@pytest.mark.parametrize("seeds", [range(first, first + 15) for first in (0, 120, 135, 640)])
def test_random_programs_have_one_plan_for_all_sizes(seeds: range) -> None:
    rubbish = []
    for seed in seeds:
        fn, specs = program(seed)
        plans = set()
        for again in range(3):
            rubbish.append([object() for _ in range(997 * again)])
            plans.add(stagejit.jit(lambda *args, fn=fn: fn(*args)).plan(*specs).as_text())
        assert len(plans) == 1, seed


@pytest.mark.parametrize("first", [120, 160])
def test_what_sizes_leave_open_is_said_by_each_step_and_verifier(first: int) -> None:
    planned = 0
    for seed in range(first, first + 40):
        fn, specs = program(seed, (*STEPS, *RELAID, *RELAID))
        with contextlib.suppress(UnsupportedOpError):
            planned += bool(stagejit.jit(fn, options=Options(verify=True)).plan(*specs).sizes)
    assert planned
