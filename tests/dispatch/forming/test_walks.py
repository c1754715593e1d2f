"""What is evaluated at many indices, or at indices that are divided again and again, is stored on
the way: a kernel's code and the time to make it stay small."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

import stagejit
from stagejit.dispatch.forming.demand import MOST_PLACES

SHAPES = ((6, 35), (10, 21), (14, 15), (5, 42), (7, 30), (2, 105), (3, 70))


def test_reshapes_in_a_row_are_cut() -> None:
    """Each divides what the one before it has divided. They cost no flops, so that readers would
    compute them for nothing."""

    def f(x, xp=jnp):  # type: ignore[no-untyped-def]
        for number in range(14):
            x = x.reshape(SHAPES[number % len(SHAPES)]).T
            if number % 6 == 5:
                x = xp.maximum(x, 1)
        return x + 1

    x = np.arange(210, dtype=np.float32).reshape(6, 35)
    staged = stagejit.jit(f)
    plan = staged.plan(x)
    assert len(plan.dispatches) > 1
    for dispatch in plan.dispatches:
        assert sum(op.startswith("transpose") for op in dispatch.ops) <= 10
    np.testing.assert_array_equal(staged(x), f(x, np))


def test_a_sorting_network_is_cut() -> None:
    """Each stage reads the one before it in two places, one of which is where it stores."""

    def f(x):  # type: ignore[no-untyped-def]
        index = jnp.arange(x.shape[0])
        size = 2
        while size <= x.shape[0]:
            apart = size // 2
            while apart:
                other = x[index ^ apart]
                first = (index & apart == 0) == (index & size == 0)
                x = jnp.where(first, jnp.minimum(x, other), jnp.maximum(x, other))
                apart //= 2
            size *= 2
        return x

    x = np.random.default_rng(0).normal(size=32).astype(np.float32)
    staged = stagejit.jit(f)
    for dispatch in staged.plan(x).dispatches:
        gathers = sum(op.startswith("gather") for op in dispatch.ops)
        assert 2**gathers <= 2 * MOST_PLACES
    np.testing.assert_array_equal(staged(x), np.sort(x))


def test_stages_that_reverse_an_axis_are_cut() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        apart = 1
        while apart < x.size:
            y = x.reshape(-1, 2, apart)
            sign = np.array([1, -1], x.dtype)[None, :, None]
            x = (y[:, ::-1] + y * sign).reshape(-1)
            apart *= 2
        return x

    x = np.arange(256, dtype=np.float32) % 7
    staged = stagejit.jit(f)
    assert len(staged.plan(x).dispatches) > 1
    np.testing.assert_array_equal(staged(x), f(x))


def test_what_has_no_elements_is_wanted_nowhere() -> None:
    """A reshape of it would divide by 0."""

    def f(x):  # type: ignore[no-untyped-def]
        nothing = jnp.zeros((3, 0))
        ys = lax.scan(lambda c, _: (c, nothing[2:2, 0:0]), x, None, length=4)[1]
        return jnp.roll(ys, 0, 2), ys

    rolled, ys = stagejit.jit(f, options=stagejit.Options(delegate=False))(np.zeros(3))
    assert rolled.shape == ys.shape == (4, 0, 0)
