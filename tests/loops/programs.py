"""Programs with loops and branches."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.randomness import RNG

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


def empty_carries_around_a_branch(x: Any) -> Any:
    """What has no elements has no memory, however deep a body is that hands it on."""
    nothing = jnp.zeros((0, 3))

    def turn(i: Any, carry: Any) -> Any:
        one, two, three = carry
        a, b = lax.switch(i, [lambda p, q: (three, q), lambda p, q: (nothing, three)], one, two)
        return nothing, b, a

    def branch(p: Any, q: Any) -> Any:
        return q, lax.fori_loop(0, 1, turn, (p, q, nothing))[2], x.sum()

    return lax.switch(jnp.int32(x[0, 0]), [branch, branch], nothing, nothing)


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


def whole_arrays_updated(x: Any) -> Any:
    """`x.at[...]` has index vectors without components, which in a body have no memory."""
    several = jnp.zeros((2, 0), jnp.int32)
    dims = lax.ScatterDimensionNumbers((1, 2), (), ())
    taken = lax.GatherDimensionNumbers((1, 2), (), ())

    def step(carry: Any, row: Any) -> Any:
        new = carry.at[...].add(row).at[:].multiply(2)
        new = lax.scatter_add(new, several, jnp.stack([new, new + 1]), dims, mode="drop")
        new = lax.cond(row[0] > 0, lambda v: v.at[...].set(v + 1), lambda v: v, new)
        return new, lax.gather(new, several, taken, new.shape, mode="fill").sum()

    return lax.scan(step, x, x)


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
    whole_arrays_updated,
    empty_carries_around_a_branch,
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
