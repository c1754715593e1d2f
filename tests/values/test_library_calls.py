"""LAPACK inside staged programs: one program, loops and all, with nothing left to XLA."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.options import SWITCHES
from stagejit.runtime.cpu.loader import call_count
from tests.expected import rounding
from tests.randomness import RNG


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def definite(n: int, *batch: int) -> np.ndarray[Any, Any]:
    x = normal(*batch, n, n)
    return (x @ x.swapaxes(-1, -2) + n * np.eye(n, dtype=np.float32)).astype(np.float32)


def close(ours: Any, reference: Any, tolerance: float = 2e-5) -> None:
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(reference), strict=True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        assert x.shape == y.shape
        scale = max(1.0, float(np.max(np.abs(y), initial=0.0)))
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale)


def run_native(f: Callable[..., Any], *args: Any) -> Any:
    """The results of `f` in one program of ours with nothing delegated."""
    staged = stagejit.jit(f, options=stagejit.Options(delegate=False, verify=True))
    jax.block_until_ready(staged(*args))
    before = call_count()
    results = jax.block_until_ready(staged(*args))
    assert call_count() == before + 1
    assert not staged.plan(*args).delegated
    return results


def in_scan(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`f` of each row, in a loop that also carries something."""

    def run(xs: Any) -> Any:
        def step(total: Any, x: Any) -> Any:
            made = f(x)
            return total + sum(jnp.sum(jnp.abs(part)) for part in jax.tree.leaves(made)), made

        return lax.scan(step, jnp.zeros((), xs.dtype), xs)

    return run


@pytest.mark.parametrize("n", [1, 2, 5, 16, 33])
def test_cholesky(n: int) -> None:
    x = definite(n, 3)
    exact = np.linalg.cholesky(x.astype(np.float64))
    close(run_native(jnp.linalg.cholesky, x), exact)
    close(run_native(in_scan(jnp.linalg.cholesky), x)[1], exact)


def test_a_failure_is_nan_for_its_matrix_alone() -> None:
    x = definite(4, 3)
    x[1] = -x[1]
    made = np.asarray(run_native(jnp.linalg.cholesky, x))
    assert np.isnan(made[1][np.tril_indices(4)]).all()
    close(made[[0, 2]], np.linalg.cholesky(x[[0, 2]].astype(np.float64)))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_triangular_solve(left: bool, lower: bool, transposed: bool, unit: bool) -> None:
    a, b = definite(4, 2), normal(2, 4, 3) if left else normal(2, 3, 4)

    def f(a: Any, b: Any) -> Any:
        return lax.linalg.triangular_solve(
            a, b, left_side=left, lower=lower, transpose_a=transposed, unit_diagonal=unit
        )

    wide = a.astype(np.float64)
    triangle = np.tril(wide) if lower else np.triu(wide)
    if unit:
        triangle = triangle - triangle * np.eye(4) + np.eye(4)
    triangle = triangle.swapaxes(-1, -2) if transposed else triangle
    exact = (
        np.linalg.solve(triangle, b)
        if left
        else np.linalg.solve(triangle.swapaxes(-1, -2), b.swapaxes(-1, -2)).swapaxes(-1, -2)
    )
    close(run_native(f, a, b), exact, 1e-4)


@pytest.mark.some(3)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("columns", [1, 2, 3, 8])
def test_a_nan_stays_out_of_what_is_solved_before_it(
    left: bool, lower: bool, transposed: bool, columns: int
) -> None:
    """see Note [Turned matrices]"""
    a, b = definite(6), normal(6, columns) if left else normal(columns, 6)
    a[3, 1] = a[1, 3] = np.nan

    def f(a: Any, b: Any) -> Any:
        return lax.linalg.triangular_solve(
            a, b, left_side=left, lower=lower, transpose_a=transposed
        )

    np.testing.assert_array_equal(run_native(f, a, b), jax.jit(f)(a, b))


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (3, 6), (6, 3), (2, 5, 5), (40, 40)])
def test_lu(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    factors, _, order = (np.asarray(part) for part in run_native(lax.linalg.lu, x))
    k = min(shape[-2:])
    lower = np.tril(factors, -1)[..., :k] + np.eye(shape[-2], k)
    product = lower.astype(np.float64) @ np.triu(factors)[..., :k, :].astype(np.float64)
    close(product, np.take_along_axis(x, order[..., None], -2))
    close(run_native(in_scan(lax.linalg.lu), x[None])[1][2][0], order)


@pytest.mark.parametrize("shape", [(4, 4), (3, 6), (6, 3), (2, 7, 4)])
@pytest.mark.parametrize("full", [True, False])
def test_qr(shape: tuple[int, ...], full: bool) -> None:
    x = normal(*shape)

    def f(x: Any) -> Any:
        return jnp.linalg.qr(x, mode="complete" if full else "reduced")

    for q, r in (run_native(f, x), [part[0] for part in run_native(in_scan(f), x[None])[1]]):
        q, r = np.asarray(q, np.float64), np.asarray(r, np.float64)
        close(q @ r, x)
        close(
            q.swapaxes(-1, -2) @ q,
            np.broadcast_to(np.eye(q.shape[-1]), (*shape[:-2], *q.shape[-1:] * 2)),
        )
        assert (np.tril(r, -1) == 0).all()


def test_pivoted_qr() -> None:
    x = normal(5, 4)
    q, r, order = run_native(lambda x: jsl.qr(x, mode="economic", pivoting=True), x)
    close(np.asarray(q, np.float64) @ np.asarray(r), x[:, np.asarray(order)])


@pytest.mark.parametrize("shape", [(4, 4), (3, 6), (6, 3), (2, 7, 4)])
@pytest.mark.parametrize("full", [True, False])
def test_svd(shape: tuple[int, ...], full: bool) -> None:
    x = normal(*shape)

    def f(x: Any) -> Any:
        return tuple(jnp.linalg.svd(x, full_matrices=full))

    exact = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    for u, s, vt in (run_native(f, x), [part[0] for part in run_native(in_scan(f), x[None])[1]]):
        u, s, vt = (np.asarray(part, np.float64) for part in (u, s, vt))
        k = s.shape[-1]
        close(s, exact)
        close(u[..., :k] * s[..., None, :] @ vt[..., :k, :], x)
    close(run_native(lambda x: jnp.linalg.svd(x, compute_uv=False), x), exact)


@pytest.mark.parametrize("n", [1, 2, 6])
def test_eigh(n: int) -> None:
    x = definite(n, 3)
    numbers, vectors = run_native(in_scan(lambda x: tuple(jnp.linalg.eigh(x))), x)[1]
    close(numbers, np.linalg.eigvalsh(x.astype(np.float64)))
    vectors = np.asarray(vectors, np.float64)
    close(vectors * np.asarray(numbers)[:, None] @ vectors.swapaxes(-1, -2), x)


def test_hessenberg_and_tridiagonal_solve() -> None:
    x = normal(5, 5)
    close(run_native(lambda x: lax.linalg.hessenberg(x), x), lax.linalg.hessenberg(x))
    lower, diagonal, upper, b = normal(6), normal(6) + 5, normal(6), normal(6, 2)
    lower[0] = upper[-1] = 0
    matrix = np.diag(diagonal) + np.diag(lower[1:], -1) + np.diag(upper[:-1], 1)
    exact = np.linalg.solve(matrix.astype(np.float64), b)
    close(run_native(lax.linalg.tridiagonal_solve, lower, diagonal, upper, b), exact)


def test_float64() -> None:
    with jax.enable_x64(True):
        x = definite(5).astype(np.float64)
        b = normal(5, 2).astype(np.float64)
        close(run_native(jnp.linalg.cholesky, x), np.linalg.cholesky(x), rounding.of_solution(x))
        close(run_native(jnp.linalg.solve, x, b), np.linalg.solve(x, b), rounding.of_solution(x))


def test_what_has_no_routine_is_delegated() -> None:
    """Complex matrices, matrices without elements: XLA runs these."""
    x = definite(3) + 1j * np.eye(3, dtype=np.complex64)
    staged = stagejit.jit(jnp.linalg.cholesky)
    close(np.abs(staged(x)), np.abs(np.linalg.cholesky(x)))
    assert any("cholesky" in item.reason for item in staged.plan(x).delegated)
    assert stagejit.jit(jnp.linalg.cholesky)(np.zeros((0, 3, 3), np.float32)).shape == (0, 3, 3)


def test_kalman_filter() -> None:
    """predict and update in a scan, the gain by a Cholesky solve, against NumPy in float64"""
    transition = np.array([[1, 0.1], [0, 1]], np.float32)
    observation, noise = np.array([[1, 0]], np.float32), np.array([[0.2]], np.float32)
    process, measured = 0.01 * np.eye(2, dtype=np.float32), normal(60, 1)

    def step(np_: Any, solve: Any, mean: Any, cov: Any, z: Any) -> Any:
        mean, cov = transition @ mean, transition @ cov @ transition.T + process
        innovation = observation @ cov @ observation.T + noise
        gain = solve(innovation, observation @ cov).T
        mean = mean + gain @ (z - observation @ mean)
        return mean, cov - gain @ innovation @ gain.T

    def solve(matrix: Any, right: Any) -> Any:
        return jsl.cho_solve(jsl.cho_factor(matrix, lower=True), right)

    def run(measured: Any) -> Any:
        def body(carry: Any, z: Any) -> Any:
            carry = step(jnp, solve, *carry, z)
            return carry, carry[0]

        return lax.scan(body, (jnp.zeros(2), jnp.eye(2)), measured)

    mean, cov, means = np.zeros(2), np.eye(2), []
    for z in measured.astype(np.float64):
        mean, cov = step(np, np.linalg.solve, mean, cov, z)
        means.append(mean)
    (_, last), found = run_native(run, measured)
    close(found, np.stack(means), 1e-4)
    close(last, cov, 1e-4)


def test_newton_in_a_while_loop() -> None:
    matrix = (np.eye(5) + 0.1 * RNG.standard_normal((5, 5))).astype(np.float32)

    def equations(x: Any) -> Any:
        return jnp.tanh(matrix @ x) + x**3 - jnp.arange(5.0) / 5

    def run(start: Any) -> Any:
        def improve(state: Any) -> Any:
            count, x = state
            return count + 1, x - jnp.linalg.solve(jax.jacfwd(equations)(x), equations(x))

        def goes_on(state: Any) -> Any:
            count, x = state
            return (count < 20) & (jnp.max(jnp.abs(equations(x))) > 1e-5)

        return lax.while_loop(goes_on, improve, (0, start))

    count, x = run_native(run, np.full(5, 0.5, np.float32))
    wide = np.asarray(x, np.float64)
    left = np.tanh(matrix.astype(np.float64) @ wide) + wide**3 - np.arange(5) / 5
    assert 0 < int(count) < 20
    assert np.max(np.abs(left)) < 2e-5


def test_in_a_branch() -> None:
    def f(x: Any, which: Any) -> Any:
        return lax.switch(which, [jnp.linalg.cholesky, jnp.linalg.inv, lambda x: x], x)

    x = definite(4)
    exact = [np.linalg.cholesky, np.linalg.inv, lambda x: x]
    for which in range(3):
        close(run_native(f, x, which), exact[which](x.astype(np.float64)))


def test_gradient_of_a_loop_of_solves() -> None:
    a, b = definite(3), normal(3, 2)

    def f(a: Any, b: Any) -> Any:
        def step(b: Any, _: Any) -> Any:
            return jsl.solve_triangular(jnp.linalg.cholesky(a), b, lower=True), None

        return jnp.sum(lax.scan(step, b, None, length=4)[0] ** 2)

    ours = run_native(jax.grad(f, (0, 1)), a, b)
    with jax.enable_x64(True):
        exact = jax.grad(f, (0, 1))(a.astype(np.float64), b.astype(np.float64))
    close(ours, exact, 1e-4)


def test_vmap_of_a_loop_of_factorizations() -> None:
    x = definite(3, 4, 5)
    factors = run_native(jax.vmap(in_scan(jnp.linalg.cholesky)), x)[1]
    close(factors, np.linalg.cholesky(x.astype(np.float64)))


def twice(x: Any) -> Any:
    """equal calls"""
    return jnp.linalg.qr(x)[0] + jnp.linalg.qr(x)[1], jnp.linalg.qr(x)[1]


def of_a_constant(x: Any) -> Any:
    return x + jnp.linalg.qr(jnp.arange(16.0, dtype=x.dtype).reshape(4, 4) + jnp.eye(4))[0]


def fixed_in_a_loop(x: Any) -> Any:
    """the same in every turn"""
    return lax.fori_loop(0, 4, lambda i, y: jnp.linalg.qr(x)[0] @ y + jnp.linalg.inv(x), x)


def written_into(x: Any) -> Any:
    return jnp.linalg.qr(x)[1].at[1:3, 0].set(x[0, :2] * 2), jnp.pad(jnp.linalg.inv(x), 1)


def results_inside_others(x: Any) -> Any:
    return jnp.concatenate([jnp.linalg.inv(x), jnp.linalg.qr(x)[0] * 2, x]), jnp.stack([x, x.T])


def unused_results(x: Any) -> Any:
    return jnp.linalg.svd(x)[1], jnp.linalg.eigh(x + x.T)[0], lax.linalg.lu(x)[2]


def views_of_operands(x: Any) -> Any:
    y = jnp.concatenate([x, x], 0)
    return jnp.linalg.qr(y[2:6, ::-1].T)[0], jnp.linalg.qr(x.reshape(2, 8))[1], jnp.linalg.inv(x.T)


def repeated(x: Any) -> Any:
    return jnp.linalg.cholesky(jnp.broadcast_to(x @ x.T + jnp.eye(4), (3, 4, 4)))


def in_both_arms(x: Any) -> Any:
    return lax.cond(x[0, 0] > 0, lambda: jnp.linalg.inv(x), lambda: jnp.linalg.qr(x)[0])


def one_after_the_other(x: Any) -> Any:
    return jnp.linalg.inv(jnp.linalg.qr(jnp.linalg.inv(x))[0])


def in_a_loop_in_a_loop(x: Any) -> Any:
    def inner(_: Any, y: Any) -> Any:
        return jnp.linalg.solve(x, y) / 2

    return lax.scan(lambda y, _: (lax.fori_loop(0, 2, inner, y), jnp.linalg.det(y)), x, None, 3)


@pytest.mark.some(4)
@pytest.mark.parametrize(
    "f",
    [
        twice, of_a_constant, fixed_in_a_loop, written_into, results_inside_others, unused_results,
        views_of_operands, repeated, in_both_arms, one_after_the_other, in_a_loop_in_a_loop,
    ],
)  # fmt: skip
@pytest.mark.parametrize("donate", [(), (0,)], ids=["kept", "donated"])
@pytest.mark.parametrize("disable", [(), tuple(SWITCHES)], ids=["all", "none"])
def test_programs_around_calls(
    f: Callable[..., Any], donate: tuple[int, ...], disable: tuple[str, ...]
) -> None:
    x = (normal(4, 4) + 4 * np.eye(4)).astype(np.float32)
    with jax.enable_x64(True):
        exact = jax.jit(f)(x.astype(np.float64))
    options = stagejit.Options(disable=disable, verify=True)
    staged = stagejit.jit(f, donate_argnums=donate, options=options)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            close(staged(jnp.array(x)), exact, 1e-5)


def test_threads() -> None:
    """the same program on several threads at once"""
    staged = stagejit.jit(in_scan(lambda x: tuple(jnp.linalg.eigh(x))))
    inputs = [definite(6, 20) for _ in range(4)]
    expected = [np.linalg.eigvalsh(x.astype(np.float64)) for x in inputs]
    staged(inputs[0])
    faults: list[BaseException] = []

    def work(x: Any, exact: Any) -> None:
        try:
            for _ in range(20):
                close(staged(x)[1][0], exact)
        except BaseException as fault:
            faults.append(fault)

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(inputs, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
