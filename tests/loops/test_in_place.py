"""Native loops: what is updated in place, what is copied, what is read before an update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.options import Options
from stagejit.schedule.plans.plan import Dispatch, Plan
from tests.agreement import close
from tests.loops.programs import N, X, large_while, rotated_large_carries, scan_reversed
from tests.randomness import RNG
from tests.schedule.planning import check


def body_of(plan: Plan) -> Any:
    """The body of the only loop."""
    (loop,) = [d for d in plan.dispatches if d.kind == "loop"]
    return loop.bodies[0]


def written(dispatch: Dispatch) -> int:
    return sum(access.nbytes for access in dispatch.writes)


def row_update(buffer: Any, rows: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        buffer, at = carry
        return (lax.dynamic_update_index_in_dim(buffer, jnp.tanh(row), at, 0), at + 1), None

    return lax.scan(step, (buffer, 0), rows)[0][0]


def indexed_update(buffer: Any, rows: Any) -> Any:
    return lax.fori_loop(0, rows.shape[0], lambda i, b: b.at[i].set(rows[i]).at[0].add(1), buffer)


LARGE = jax.ShapeDtypeStruct((1 << 14, 1 << 10), jnp.float32)
ROWS = jax.ShapeDtypeStruct((100, 1 << 10), jnp.float32)


@pytest.mark.parametrize("f", [row_update, indexed_update])
def test_a_row_of_a_carry_of_64_mib_is_updated_in_place(f: Callable[..., Any]) -> None:
    plan = stagejit.jit(f, donate_argnums=0).plan(LARGE, ROWS)
    body = body_of(plan)
    assert not plan.copies
    assert not body.carries
    assert plan.peak_nbytes < 1 << 12
    update = body.plan.dispatches[0]
    assert [access.buffer for access in update.writes] == [
        "carry0" if f is row_update else "carry1"
    ]
    assert update.writes[0].exact  # in terms of the iteration
    assert update.writes[0].nbytes == 4096


def test_an_undonated_carry_is_copied_once_before_the_loop() -> None:
    plan = stagejit.jit(row_update).plan(LARGE, ROWS)
    (copy,) = plan.copies
    assert written(copy) == 64 << 20
    assert copy in plan.dispatches
    assert not body_of(plan).carries
    assert plan.peak_nbytes < 1 << 12


def test_what_computes_the_first_carry_writes_it_into_the_loop() -> None:
    plan = stagejit.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: c * 2, jnp.exp(x))).plan(X)
    assert not plan.copies
    exp = next(d for d in plan.dispatches if "exp" in d.ops)
    assert exp.writes[0].buffer == "r0"


def test_slices_are_read_and_written_where_they_lie() -> None:
    body = body_of(stagejit.jit(scan_reversed).plan(X))
    assert [str(binding) for binding in body.bindings] == [
        "bind carry0 = r0",
        "bind x0 = x + 72 - 24*i",
        "bind r0 = r1 + 72 - 24*i",
    ]
    assert body.trip == 4


def test_large_carries_change_places_and_small_ones_are_copied() -> None:
    large = body_of(stagejit.jit(rotated_large_carries).plan(X))
    assert large.alternates
    while_loop = stagejit.jit(large_while).lower(X, N)
    assert body_of(while_loop.plan).alternates
    assert while_loop.as_text("host").count("copy") == 1  # before the end, after an odd number
    small = body_of(stagejit.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: c[::-1], x)).plan(X))
    assert [carry.alternates for carry in small.carries] == [False]


def test_branches_do_not_fuse_with_what_is_around() -> None:
    """A13."""

    def f(x: Any, n: Any) -> Any:
        y = lax.cond(n > 0, jnp.exp, lambda z: z * 2, x + 1)
        return jnp.tanh(y)

    plan = stagejit.jit(f).plan(X, N)
    kinds = [d.kind for d in plan.dispatches]
    assert kinds.count("branch") == 1
    assert "tanh" in plan.dispatches[-1].ops
    (branch,) = [d for d in plan.dispatches if d.kind == "branch"]
    assert [d.ops for body in branch.bodies for d in body.plan.dispatches] == [("mul",), ("exp",)]


def test_workload_lstm_is_native() -> None:
    from stagejit.bench.workloads.catalogue import WORKLOADS

    workload = WORKLOADS["lstm_256x16x128"]
    args = workload.make_args()
    jitted = stagejit.jit(workload.function)
    plan = jitted.plan(*args)
    body = body_of(plan)
    assert not plan.delegated
    assert not plan.copies
    assert not body.carries
    assert len(body.plan.dispatches) == 3
    close(jitted(*args), jax.jit(workload.function)(*args), rtol=1e-4)


def test_mandelbrot() -> None:
    def mandelbrot(c: Any) -> Any:
        def step(i: Any, state: Any) -> Any:
            zr, zi, count = state
            inside = zr * zr + zi * zi < 4
            new = (zr * zr - zi * zi + c[0], 2 * zr * zi + c[1])
            return (jnp.where(inside, new[0], zr), jnp.where(inside, new[1], zi), count + inside)

        zeros = jnp.zeros_like(c[0])
        return lax.fori_loop(0, 50, step, (zeros, zeros, zeros.astype(jnp.int32)))[2]

    real, imaginary = np.meshgrid(np.linspace(-2, 1, 60), np.linspace(-1, 1, 40))
    c = np.stack([real, imaginary]).astype(np.float32)
    jitted = stagejit.jit(mandelbrot)
    plan = jitted.plan(c)
    assert not plan.delegated
    assert not body_of(plan).carries
    np.testing.assert_array_equal(jitted(c), jax.jit(mandelbrot)(c))


# --------------------------------------------------------------------- rows that are read before


def same_row(b: Any, i: Any) -> Any:
    return b.at[i].set(b[i] * 2 + 1)


def row_and_its_sum(b: Any, i: Any) -> Any:
    row = lax.dynamic_index_in_dim(b, i, 0, keepdims=False)
    return lax.dynamic_update_index_in_dim(b, row * 2 + row.sum(), i, 0)


def next_row(b: Any, i: Any) -> Any:
    row = lax.dynamic_index_in_dim(b, i + 1, 0, keepdims=False)
    return lax.dynamic_update_index_in_dim(b, row * 2 + 1, i, 0)


def reversed_row(b: Any, i: Any) -> Any:
    row = lax.dynamic_index_in_dim(b, i, 0, keepdims=False)
    return lax.dynamic_update_index_in_dim(b, row[::-1] * 2 + row, i, 0)


def exchanged_rows(b: Any, i: Any) -> Any:
    first = lax.dynamic_index_in_dim(b, i, 0, keepdims=False)
    second = lax.dynamic_index_in_dim(b, i + 1, 0, keepdims=False)
    b = lax.dynamic_update_index_in_dim(b, second, i, 0)
    return lax.dynamic_update_index_in_dim(b, first, i + 1, 0)


def sum_before_update(b: Any, i: Any) -> Any:
    return b.at[i].set(b.sum(0) + b[i - 1])


def overlapping_slices(b: Any, i: Any) -> Any:
    return b.at[2:5].set(b[1:4] * 2).at[0].set(b[6])


@pytest.mark.parametrize(
    "update",
    [
        same_row,
        row_and_its_sum,
        next_row,
        reversed_row,
        exchanged_rows,
        sum_before_update,
        overlapping_slices,
    ],
)
def test_what_is_read_before_is_no_reason_to_copy(update: Callable[..., Any]) -> None:
    def f(b: Any) -> Any:
        return lax.fori_loop(0, 4, lambda i, c: update(c, i), b)

    b = RNG.standard_normal((8, 6)).astype(np.float32)
    plan = check(f, b, donated=(True,), orders=4)
    body = body_of(plan)
    assert all(
        access.buffer.startswith("carry") or access.nbytes < b.nbytes // 2
        for d in body.plan.dispatches
        for access in d.writes
    )
    assert all(body.plan.buffer(carry.result).nbytes == 4 for carry in body.carries)
    jitted = stagejit.jit(f, donate_argnums=0, options=Options(verify=True))
    close(jitted(jnp.asarray(b)), jax.jit(f)(b))


def test_dont_overwrite_what_is_read_later() -> None:
    def f(b: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            return c.at[1:-1].set((c[:-2] + c[2:]) / 2)

        return lax.fori_loop(0, 4, step, b)

    b = RNG.standard_normal((8, 6)).astype(np.float32)
    plan = check(f, b, donated=(True,))
    assert body_of(plan).carries == ()  # what is new lies elsewhere until all of the old is read
