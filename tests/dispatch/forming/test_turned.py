"""What rows would read across its lines is transposed before; else nothing is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.dispatch.groups import cost
from stagejit.options import Options
from stagejit.schedule.plans.plan import Plan
from tests.randomness import RNG

Fn = Callable[..., Any]
OFF = Options(disable=("store-transposes",))
ROWS, COLUMNS = 515, 520  # f32: beyond what is expected to be near


def f32(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


X, Y = f32(COLUMNS, ROWS), f32(ROWS, COLUMNS)
CUBE, TURNED = f32(14, COLUMNS, 40), f32(14, 40, COLUMNS)


def softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def across(plan: Plan) -> int:
    """Transposes in dispatches that go along rows."""
    along = [d for d in plan.dispatches if d.kind in ("reduce", "cumulative")]
    return sum(op.startswith("transpose") for dispatch in along for op in dispatch.ops)


APART: dict[str, tuple[Fn, tuple[Any, ...], Fn]] = {
    "rows of both orders": (
        lambda x, y: jax.nn.softmax(x.T + y, 1),
        (X, Y),
        lambda x, y: softmax(x.T + y, 1),
    ),
    "columns of both": (
        lambda x, y: jax.nn.softmax(x.T + y, 0),
        (X, Y),
        lambda x, y: softmax(x.T + y, 0),
    ),
    "rows that are returned": (
        lambda x: jax.nn.softmax(x.T, 1),
        (X,),
        lambda x: softmax(x.T, 1),
    ),
    "a sum of all": (lambda x, y: (x.T * y).sum(), (X, Y), lambda x, y: (x.T * y).sum()),
    "an index": (
        lambda x, y: jnp.argmax(x.T * y, 1),
        (X, Y),
        lambda x, y: np.argmax(x.T * y, 1),
    ),
    "running sums": (
        lambda x, y: jnp.cumsum(x.T + y, 1),
        (X, Y),
        lambda x, y: np.cumsum(x.T + y, 1),
    ),
    "what is computed before it is transposed": (
        lambda x, y: (jnp.exp(x).T * y).sum(1),
        (X, Y),
        lambda x, y: (np.exp(x).T * y).sum(1),
    ),
    "behind the sums that it meets": (
        lambda x, y: x.T * jax.nn.softmax(y, 1),
        (X, Y),
        lambda x, y: x.T * softmax(y, 1),
    ),
    "a flipped one": (
        lambda x, y: (jnp.rot90(x) * y).sum(1),
        (X, Y),
        lambda x, y: (np.rot90(x) * y).sum(1),
    ),
    "axes of a cube": (
        lambda x, y: (jnp.swapaxes(x, 1, 2) * y).sum((0, 2)),
        (CUBE, TURNED),
        lambda x, y: (np.swapaxes(x, 1, 2) * y).sum((0, 2)),
    ),
    "a part": (
        lambda x, y: (x.T[1:, 3:] * y[1:, 3:]).sum(1),
        (X, Y),
        lambda x, y: (x.T[1:, 3:] * y[1:, 3:]).sum(1),
    ),
}


@pytest.mark.parametrize("case", APART)
def test_lines_across_rows_are_transposed_before(case: str) -> None:
    f, args, expected = APART[case]
    staged, without = stagejit.jit(f), stagejit.jit(f, options=OFF)
    assert across(staged.plan(*args)) == 0
    assert across(without.plan(*args)) == 1
    wanted = expected(*(a.astype(np.float64) for a in args))
    for each in (staged, without):
        np.testing.assert_allclose(each(*args), wanted, rtol=3e-5, atol=3e-5)


SMALL = COLUMNS // 5


def lax_scan(x: Any, y: Any) -> Any:
    return lax.scan(lambda c, _: (jax.nn.softmax(c.T + y, 1).T, None), x, None, length=2)[0]


TOGETHER: dict[str, tuple[Fn, tuple[Any, ...]]] = {
    "all lie alike": (lambda x, z: (x.T * z.T).sum(1), (X, X + 1)),
    "what stays near": (
        lambda x, y: jax.nn.softmax(x.T + y, 1),
        (X[:SMALL, :SMALL], Y[:SMALL, :SMALL]),
    ),
    "lines that stay lines": (
        lambda x, y: (jnp.swapaxes(x, 0, 1) * y).sum((0, 2)),
        (f32(70, 60, 80), f32(60, 70, 80)),
    ),
    "lines shorter than one of memory": (
        lambda x, y: (jnp.moveaxis(x, -1, 0) * y).sum((1, 2)),
        (f32(380, 390, 3), f32(3, 380, 390)),
    ),
    "a column for all rows": (
        lambda x, y: (x.T[:, :1] + y).sum(1),
        (X, Y),
    ),
    "what a dispatch makes lies as it is liked": (
        lambda x, y, w: ((x @ w).T * y).sum(1),
        (X[:, :64], Y, f32(64, ROWS)),
    ),
    "a product packs what it reads": (lambda x, y: x.T @ y.T, (X, Y)),
    "a convolution": (
        lambda x, w: lax.conv(jnp.moveaxis(x, -1, 1), w, (1, 1), "SAME"),
        (f32(2, 80, 80, 32), f32(16, 32, 3, 3)),
    ),
    "a map": (lambda x, y: x.T + y, (X, Y)),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_else_nothing_is_stored(case: str) -> None:
    f, args = TOGETHER[case]
    staged, without = stagejit.jit(f), stagejit.jit(f, options=OFF)
    assert staged.plan(*args).as_text() == without.plan(*args).as_text()
    np.testing.assert_allclose(staged(*args), without(*args), rtol=1e-6, atol=1e-6)


def test_what_depends_on_the_rows_is_not_stored_before_them() -> None:
    """Its transpose is read where the sums are made that it is made of."""

    def f(x: Any, xp: Any = jnp) -> Any:
        low = x - x.max(1, keepdims=True)
        return (low * low.T).sum(1)

    x = f32(600, 600)
    staged = stagejit.jit(f)
    np.testing.assert_allclose(staged(x), f(x.astype(np.float64), np), rtol=1e-4)


def test_it_says_what_and_why() -> None:
    f, args, _ = APART["rows of both orders"]
    decisions = stagejit.jit(f).plan(*args).decisions
    (found,) = (d for d in decisions if d.rewrite == "store-transposes")
    assert found.applied
    assert found.reason == f"rows of reduce would read f32[{COLUMNS},{ROWS}] across its lines"


def test_inside_of_loops() -> None:
    x = f32(600, 600)
    y = f32(600, 600)
    wanted = x.astype(np.float64)
    for _ in range(2):
        wanted = softmax(wanted.T + y, 1).T
    np.testing.assert_allclose(stagejit.jit(lax_scan)(x, y), wanted, rtol=1e-4)


def test_what_is_far_is_as_large_as_it_says() -> None:
    """One element less than that stays in one dispatch."""
    side = int((cost.FAR_NBYTES // 4) ** 0.5)
    for size, expected in ((side, 0), (side - 1, 1)):
        x = f32(size, size)
        plan = stagejit.jit(lambda x, y: (x.T * y).sum(1)).plan(x, x)
        assert across(plan) == expected
