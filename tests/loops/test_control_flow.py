"""Loops, branches, effects and what stays with XLA, inside a compiled function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import stagejit
from tests.agreement import agrees, close, delegated, native_calls
from tests.expected.left import NAME, left
from tests.randomness import RNG

X = RNG.standard_normal((4, 6)).astype(np.float32)
W = RNG.standard_normal((6, 3)).astype(np.float32)


def test_scan_inside() -> None:
    def f(x: Any, w: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            c = jnp.tanh(c @ w @ w.T + row)
            return c, c.sum()

        carried, sums = lax.scan(step, x[0], x)
        return carried * 2, jnp.cumsum(sums)

    agrees(f, X, W)


def test_reversed_and_unrolled_scan_inside() -> None:
    def f(x: Any) -> Any:
        return lax.scan(lambda c, row: (c + row, c * row), x[0] * 0, x, reverse=True, unroll=2)

    agrees(f, X)


def test_while_cond_and_fori_loop_inside() -> None:
    def f(x: Any, n: Any) -> Any:
        total = lax.while_loop(
            lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.sin(s[1]) + s[0]), (0, x)
        )
        chosen = lax.cond(n > 3, lambda y: jnp.exp(-y), lambda y: y * y, x)
        return total[1], chosen, lax.fori_loop(0, 3, lambda i, y: y * 0.5 + i, x)

    for n in (0, 2, 5):
        agrees(f, X, np.int32(n))


def test_vmapped_while_over_nothing() -> None:
    def f(x: Any) -> Any:
        return jax.vmap(lambda end: lax.while_loop(lambda c: c < end, lambda c: c + 1, 0.0))(x)

    agrees(f, X[0, :0], calls=0)
    agrees(f, X[0])


def test_switch_inside() -> None:
    branches = [lambda x: x + 1, jnp.tanh, lambda x: x[::-1] * 2]
    for index in (-1, 0, 1, 2, 7):
        agrees(lambda i, x: lax.switch(i, branches, x), np.int32(index), X)


def test_nested_control_flow() -> None:
    def f(x: Any) -> Any:
        def outer(c: Any, row: Any) -> Any:
            def inner(i: Any, y: Any) -> Any:
                return lax.cond(y.sum() > 0, lambda z: jnp.tanh(z), lambda z: z + i, y)

            c = lax.fori_loop(0, 3, inner, c + row)
            return c, lax.while_loop(lambda z: z.max() > 1, lambda z: z / 2, c).max()

        return lax.scan(outer, x[0], x)

    agrees(f, X)


def test_gradient_through_control_flow_inside() -> None:
    def f(x: Any, w: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            c = lax.cond(c.sum() > 0, jnp.tanh, lambda z: z * 0.5, c + row @ w)
            return c, c

        return jnp.sum(lax.scan(step, jnp.zeros(3), x)[1] ** 2)

    close(jax.grad(stagejit.jit(f), argnums=(0, 1))(X, W), jax.grad(f, argnums=(0, 1))(X, W))
    close(stagejit.jit(jax.grad(f))(X, W), jax.grad(f)(X, W))


def test_associative_scan_and_map() -> None:
    agrees(lambda x: lax.associative_scan(jnp.add, x, axis=1), X)
    agrees(lambda x: lax.map(lambda row: jnp.outer(row, row).sum(0), x), X)


def test_effects_keep_their_order() -> None:
    seen: list[Any] = []

    def note(name: str, value: Any) -> Any:
        def callback(x: Any) -> Any:
            seen.append((name, np.asarray(x).item()))
            return x

        shape = jax.ShapeDtypeStruct(value.shape, value.dtype)
        return io_callback(callback, shape, value, ordered=True)

    def f(x: Any) -> Any:
        y = jnp.tanh(x)
        note("sum", y.sum())
        z = y * note("first", y[0, 0] * 2)
        note("max", z.max())
        return z + 1

    jitted = stagejit.jit(f)
    for _ in range(2):
        with native_calls(2):
            out = jax.block_until_ready(jitted(X))
            jax.effects_barrier()
    wanted = np.tanh(X) * np.tanh(X[0, 0]) * 2
    np.testing.assert_allclose(out, wanted + 1, rtol=1e-5, atol=1e-5)
    assert [name for name, _ in seen] == ["sum", "first", "max"] * 2
    np.testing.assert_allclose(
        [v for _, v in seen[:3]], [np.tanh(X).sum(), np.tanh(X[0, 0]) * 2, wanted.max()], rtol=1e-4
    )


def test_debug_print(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        jax.debug.print("total {t:.2f}", t=jnp.sum(x))
        return x * 2

    close(stagejit.jit(f)(X), X * 2)
    jax.effects_barrier()
    assert f"total {X.sum():.2f}" in capsys.readouterr().out


def test_pure_callback() -> None:
    def f(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda v: np.sin(v), shape, x * 2, vmap_method="sequential") + 1

    with native_calls(2):
        close(stagejit.jit(f)(X), np.sin(X * 2) + 1)


def test_linear_algebra_between_kernels() -> None:
    def f(a: Any) -> Any:
        spd = a @ a.T + 4 * jnp.eye(4)
        factor = jnp.linalg.cholesky(spd)
        return jnp.tanh(factor).sum(0), jnp.linalg.solve(spd, a), left(a * 2) + 1

    agrees(f, X, calls=2, rtol=1e-4)
    names = delegated(f, X)
    assert NAME in names
    assert not names & {
        "cholesky",
        "lu",
        "triangular_solve",
        "dot_general",
        "tanh",
        "add",
        "reduce_sum",
        "transpose",
    }


def test_random_numbers_inside() -> None:
    def f(key: Any, x: Any) -> Any:
        first, second = jax.random.split(key)
        noise = jax.random.normal(first, x.shape) + jax.random.uniform(second, x.shape)
        keep = jax.random.bernoulli(first, 0.5, x.shape)
        order = jax.random.randint(second, (4,), 0, 100)
        return jnp.where(keep, x + noise, 0), order

    agrees(f, jax.random.key(3), X)
    agrees(f, jax.random.PRNGKey(3), X)
    close(
        jax.random.key_data(stagejit.jit(lambda k: jax.random.fold_in(k, 5))(jax.random.key(1))),
        jax.random.key_data(jax.random.fold_in(jax.random.key(1), 5)),
    )


@pytest.mark.parametrize("inside", [True, False], ids=["loop inside", "loop around"])
@pytest.mark.parametrize(
    "body",
    [
        lambda x, y, i: (x * 2, y * 3, i + 1),
        lambda x, y, i: (y * 2, x * 3, i + 1),
        lambda x, y, i: (x * 2, x + y, i + 1),
        lambda x, y, i: (y, x, i + 1),
    ],
)
def test_body_whose_results_stand_where_its_operands_stood(body: Any, inside: bool) -> None:
    """See Note [Results in reverse] in schedule/schedule.py: such a loop never ended."""

    def loop(body: Callable[..., Any]) -> Callable[..., Any]:
        def f(x: Any, y: Any) -> Any:
            return lax.while_loop(lambda s: s[2] < 4, lambda s: body(*s), (x, y, 0))

        return f

    with native_calls(1 if inside else 4):
        ours = stagejit.jit(loop(body))(X, X + 1) if inside else loop(stagejit.jit(body))(X, X + 1)
    close(ours, jax.jit(loop(body))(X, X + 1))


def test_greatest_common_divisor() -> None:
    n = np.array([[12, -9, 0, 3], [7, 100, 64, -6]], np.int32)
    agrees(jnp.gcd, n, np.abs(n[::-1]) % 50)


def test_start_of_a_loop_is_read_after_it() -> None:
    """The copy that the loop updates is not the value it started from."""

    def f(x: Any) -> Any:
        y = jnp.abs(x)
        return y + lax.while_loop(lambda s: s.sum() < 100, lambda s: s * 2, y)

    agrees(f, X)


def test_iterative_solvers_are_native() -> None:
    """A `custom_linear_solve` is a call of its solver, here loops of products."""
    a = np.eye(4, dtype=np.float32) * 4 + np.float32(0.5)
    b = np.arange(4, dtype=np.float32)

    def solve(b: Any) -> Any:
        return jax.scipy.sparse.linalg.cg(lambda v: a @ v, b)[0]

    assert not stagejit.jit(solve).plan(b).delegated
    np.testing.assert_allclose(stagejit.jit(solve)(b), np.linalg.solve(a, b), rtol=1e-4)
    loss = lambda b: (solve(b) ** 2).sum()  # noqa: E731
    grad = stagejit.jit(jax.grad(loss))
    assert not grad.plan(b).delegated
    np.testing.assert_allclose(grad(b), jax.grad(loss)(b), rtol=1e-3, atol=1e-4)


def test_direct_solvers_call_their_decomposition_themselves() -> None:
    a = np.eye(4, dtype=np.float32) * 4 + np.float32(0.5)
    plan = stagejit.jit(lambda a: jnp.linalg.solve(a, a[0]) * 2).plan(a)
    assert not plan.delegated
    agrees(lambda a: jnp.linalg.solve(a, a[0]) * 2, a)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("method", ["scan", "scan_unrolled", "compare_all"])
def test_searching_in_a_sorted_array_is_native(side: str, method: str) -> None:
    edges = np.array([-np.inf, -1, 0, 0, 2, 5, np.inf, np.nan], np.float32)
    x = np.array([[np.nan, -0.0, 0.0], [1, 2, 7], [-np.inf, np.inf, -3]], np.float32)
    search = stagejit.jit(lambda e, x: jnp.searchsorted(e, x, side=side, method=method))
    assert not search.plan(edges, x).delegated
    np.testing.assert_array_equal(search(edges, x), np.searchsorted(edges, x, side=side))
    agrees(lambda e, x: (jnp.interp(x, e, e * 2), jnp.digitize(x, e)), edges[1:6], x)
