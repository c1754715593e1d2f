"""Native loops and branches: values, in-place carries, what is copied and what is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.options import Options
from stagejit.schedule.plan import Dispatch, Plan
from tests.agreement import close
from tests.schedule.planning import check

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 6)).astype(np.float32)
V = RNG.standard_normal(6).astype(np.float32)
N = np.int32(3)


def scan_add(x: Any) -> Any:
    return lax.scan(lambda c, row: (c + row, c * row), x[0] * 0, x)


def scan_reversed(x: Any) -> Any:
    return lax.scan(lambda c, row: (c * 0.5 + row, c), x[0], x, reverse=True)


def scan_without_xs(x: Any) -> Any:
    return lax.scan(lambda c, _: (c * 0.5, c.sum()), x, None, length=5)


def scan_of_nothing(x: Any) -> Any:
    return lax.scan(lambda c, row: (c + row, c * 2), x[0], x[:0])


def scan_of_one(x: Any) -> Any:
    return lax.scan(lambda c, row: (c + row, c), x[1], x[:1])


def ys_equal_to_carry(x: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        c = jnp.tanh(c + row)
        return c, c

    return lax.scan(step, x[0], x)


def ys_are_the_old_carry_and_the_row(x: Any) -> Any:
    return lax.scan(lambda c, row: (c + 1, (c, row, c)), x[0], x)


def constant_ys(x: Any) -> Any:
    return lax.scan(lambda c, row: (c, (jnp.float32(2), jnp.arange(3))), x[0], x)


def swapped_carries(x: Any) -> Any:
    return lax.scan(lambda c, row: ((c[1], c[0]), c[0] + row), (x[0], x[1]), x[:3])


def swapped_and_updated(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, c: (c[1].at[i].set(0.5), c[0] * 2), (x[0], x[1]))


def rotated_large_carries(x: Any) -> Any:
    big = jnp.broadcast_to(x[0, 0], (3000,)) + jnp.arange(3000.0)
    return lax.fori_loop(0, 7, lambda i, c: (c[1] + i, c[2], c[0][::-1]), (big, big * 2, big + 1))


def carry_is_also_a_constant(x: Any) -> Any:
    return lax.scan(lambda c, row: (c + x[0] * row, c @ x.T), x[0], x)


def init_is_also_scanned(x: Any) -> Any:
    return lax.scan(lambda c, row: (c + row, row * 2), x, x[:, None, :] * jnp.ones((4, 4, 6)))


def one_init_for_two_carries(x: Any) -> Any:
    y = x[0] * 3
    return lax.fori_loop(0, 3, lambda i, c: (c[0] + 1, c[1] * c[0]), (y, y)), y


def while_without_constants(x: Any) -> Any:
    return lax.while_loop(lambda c: c.sum() < 40, lambda c: c * 1.5 + 1, x)


def while_that_never_runs(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 0, lambda c: (c[0] + 1, c[1] * 2), (1, x))


def while_with_constants(x: Any, n: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] @ (x.T @ x)), (0, x))


def large_while(x: Any, n: Any) -> Any:
    big = jnp.broadcast_to(x[0, 0], (3000,)) + jnp.arange(3000.0)
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1][::-1] * 2), (0, big))


def large_while_with_a_condition_on_it(x: Any, n: Any) -> Any:
    big = jnp.broadcast_to(x[0, 0], (3000,)) + jnp.arange(3000.0)
    return lax.while_loop(
        lambda c: c.sum() < 1e6 * (n + 1) ** 2, lambda c: c[::-1] * 1.5 + c[0], big
    )


def loop_of_given_length(x: Any, n: Any) -> Any:
    return lax.fori_loop(0, n, lambda i, y: y * 0.5 + i, x)


def through_and_constant_branches(x: Any, n: Any) -> Any:
    return lax.cond(
        n > 2,
        lambda y: (y, y.sum(), jnp.zeros(3)),
        lambda y: (y * 2, jnp.float32(7), jnp.arange(3.0)),
        x,
    )


def switch_of_three(x: Any, n: Any) -> Any:
    return lax.switch(n, [lambda y: y + 1, jnp.tanh, lambda y: y[::-1] * 2], x)


def nested_loops(x: Any) -> Any:
    def outer(c: Any, row: Any) -> Any:
        def inner(d: Any, item: Any) -> Any:
            return d * 0.5 + item, (d, item * 2)

        d, ys = lax.scan(inner, c + row, jnp.outer(row, row), reverse=True)
        return d, (ys, d)

    return lax.scan(outer, x[0], x)


def large_nested_loops(x: Any) -> Any:
    big = jnp.zeros((40, 40)) + x[0, 0]

    def outer(c: Any, row: Any) -> Any:
        return lax.scan(lambda d, item: (d.T + item, d[0]), c, row[:5], reverse=True)

    return lax.scan(outer, big, x[:3])


def everything_in_everything(x: Any) -> Any:
    def outer(c: Any, row: Any) -> Any:
        def inner(i: Any, y: Any) -> Any:
            return lax.cond(y.sum() > 0, lambda z: jnp.tanh(z), lambda z: z + i, y)

        c = lax.fori_loop(0, 3, inner, c + row)
        return c, lax.while_loop(lambda z: z.max() > 1, lambda z: z / 2, c).max()

    return lax.scan(outer, x[0], x)


def arrays_of_constants(x: Any) -> Any:
    table, offsets = np.arange(24, dtype=np.float32).reshape(4, 6), np.arange(6.0, dtype=np.float32)

    def outer(c: Any, row: Any) -> Any:
        inner = lax.fori_loop(0, 4, lambda i, d: d + jnp.asarray(table)[i] * row, c)
        return lax.cond(row[0] > 0, lambda d: d + offsets, lambda d: d, inner), inner @ table.T

    return lax.scan(outer, x[0], x)


def small_elements(x: Any) -> Any:
    bits, halves = x > 0, x.astype(jnp.bfloat16)

    def step(c: Any, row: Any) -> Any:
        flag, number, half = c
        bit, h = row
        return (flag ^ bit, number + bit.astype(jnp.int8), half + h), (flag, number, h)

    init = (bits[0], jnp.zeros(6, jnp.int8), halves[0])
    return lax.scan(step, init, (bits, halves), reverse=True)


def empty_carry(x: Any) -> Any:
    return lax.scan(lambda c, row: ((c[0], c[1] + row), c[0]), (jnp.zeros((0, 3)), x[0]), x)


def rows_updated(x: Any) -> Any:
    def step(i: Any, buffer: Any) -> Any:
        return lax.dynamic_update_index_in_dim(buffer, jnp.tanh(x[i]), i, 0)

    return lax.fori_loop(0, 4, step, jnp.zeros((8, 6)))


def rows_read_and_updated(x: Any) -> Any:
    def step(i: Any, buffer: Any) -> Any:
        row = lax.dynamic_index_in_dim(buffer, i, 0, keepdims=False)
        return lax.dynamic_update_index_in_dim(buffer, row * 2 + row[0], i, 0)

    return lax.fori_loop(0, 4, step, x)


def reshaped_xs(x: Any) -> Any:
    return lax.scan(lambda c, row: (c + row.sum(), row.T), 0.0, x.reshape(3, 2, 4))


def loop_over_a_padded_array(x: Any) -> Any:
    padded = jnp.pad(jnp.tanh(x), ((2, 1), (1, 1)), constant_values=3)
    return lax.fori_loop(0, 3, lambda i, c: c.at[i].set(c[i + 1] * 2), padded), x + 1


def init_is_read_elsewhere(x: Any) -> Any:
    y = jnp.exp(x)
    z = lax.fori_loop(0, 3, lambda i, c: c * 2 + i, y)
    return z, y[::-1] + z, y.sum()


def loops_one_after_the_other(x: Any) -> Any:
    y = lax.fori_loop(0, 3, lambda i, c: c + i, x)
    z = lax.fori_loop(0, 3, lambda i, c: c * 2, y)
    return lax.fori_loop(0, 2, lambda i, c: c - y, z)


ONE = [
    scan_add,
    scan_reversed,
    scan_without_xs,
    scan_of_nothing,
    scan_of_one,
    ys_equal_to_carry,
    ys_are_the_old_carry_and_the_row,
    constant_ys,
    swapped_carries,
    swapped_and_updated,
    rotated_large_carries,
    carry_is_also_a_constant,
    init_is_also_scanned,
    one_init_for_two_carries,
    while_without_constants,
    while_that_never_runs,
    nested_loops,
    large_nested_loops,
    everything_in_everything,
    arrays_of_constants,
    small_elements,
    empty_carry,
    rows_updated,
    rows_read_and_updated,
    reshaped_xs,
    loop_over_a_padded_array,
    init_is_read_elsewhere,
    loops_one_after_the_other,
]
TWO = [
    while_with_constants,
    large_while,
    large_while_with_a_condition_on_it,
    loop_of_given_length,
    through_and_constant_branches,
    switch_of_three,
]
CASES = [(f, (X,)) for f in ONE] + [(f, (X, np.int32(n))) for f in TWO for n in (0, 2, 5)]
IDS = [f"{f.__name__}{args[1] if args[1:] else ''}" for f, args in CASES]


@pytest.mark.parametrize(("f", "args"), CASES, ids=IDS)
def test_values(f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    jitted = stagejit.jit(f, options=Options(verify=True))
    assert not jitted.plan(*args).delegated
    close(jitted(*args), jax.jit(f)(*args))


@pytest.mark.parametrize(("f", "args"), CASES, ids=IDS)
def test_plans_and_interpreter(f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """The executor follows the plan over poisoned memory and gives what the interpreter gives."""
    plan = check(f, *args)
    assert not plan.delegated
    check(f, *args, options=Options(disable=("reuse-arguments", "fuse-insert", "pack-slots")))


@pytest.mark.parametrize(("f", "args"), CASES[::3], ids=IDS[::3])
def test_disabled(f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    jitted = stagejit.jit(f, options=Options(disable=("native-control-flow",)))
    close(jitted(*args), jax.jit(f)(*args))


def test_disabled_loops_are_delegated() -> None:
    options = Options(disable=("native-control-flow",))
    (delegated,) = stagejit.jit(scan_add, options=options).plan(X).delegated
    assert (delegated.equation, delegated.reason) == (
        "scan",
        "scan: native control flow is disabled",
    )


@pytest.mark.parametrize(
    "f", [scan_add, ys_equal_to_carry, nested_loops, rows_updated, everything_in_everything]
)
def test_donated_argument(f: Callable[..., Any]) -> None:
    for donate in ((), (0,)):
        jitted = stagejit.jit(f, donate_argnums=donate, options=Options(verify=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not every donated argument has a use
            close(jitted(jnp.asarray(X)), jax.jit(f)(X))


def test_transformations() -> None:
    def loss(x: Any, v: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            c = lax.cond(c.sum() > 0, jnp.tanh, lambda z: z * 0.5, c * v + row)
            return c, (c * c).sum()

        return lax.scan(step, v, x)[1].sum()

    two = np.stack([V, V * 2])
    for transformed, args in (
        (jax.grad(loss, argnums=(0, 1)), (X, V)),
        (jax.vmap(loss, (None, 0)), (X, two)),
        (jax.jacfwd(loss, argnums=1), (X, V)),
    ):
        jitted = stagejit.jit(transformed)
        assert not jitted.plan(*args).delegated
        close(jitted(*args), jax.jit(transformed)(*args))


def test_vmap_of_while() -> None:
    f = jax.vmap(lambda x: lax.while_loop(lambda c: c.sum() < 20, lambda c: c * 1.5 + 1, x))
    jitted = stagejit.jit(f)
    assert not jitted.plan(X).delegated
    close(jitted(X), jax.jit(f)(X))


# --------------------------------------------------------------------- what is copied


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
    from stagejit.bench.workloads import WORKLOADS

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
    (carry,) = body_of(plan).carries
    assert carry.argument == "carry1"
