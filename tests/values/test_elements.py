"""Values of every element type move, and pass through, as in JAX; what only moves is ours."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from tests.expected.left import left
from tests.values.elements import (
    AROUND,
    KEYS,
    NATIVE,
    NUMBERS,
    array_of,
    assert_same,
    chain,
    expected,
    wrapped,
)

EVERY = (*KEYS, *NUMBERS, *NATIVE)
# The bodies of loops that XLA runs are ours here, however small: XLA aborts on packed numbers.
VERIFYING = stagejit.Options(verify=True, disable=("leave-bodies",))


def check(program: Any, x: Any, native: bool = True) -> None:
    staged = stagejit.jit(program, options=VERIFYING)
    assert_same(staged(x), expected(program, x))
    if native:
        assert not staged.plan(x).delegated


PASSING = {
    "unchanged": lambda x: x,
    "twice": lambda x: (x, [x]),
    "beside a kernel": lambda x: (x, jnp.float32(2) * x.shape[0]),
    "through a nested jit": lambda x: jax.jit(lambda x: (x, x))(x),
    "through scan": lambda x: lax.scan(lambda c, _: (c, c), x, None, length=2),
    "as what scan reads": lambda x: lax.scan(lambda c, row: (c + 1, row), 0, x),
    "through while": lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c, x),
    "through cond": lambda x: lax.cond(x.shape[0] > 2, lambda x: x, lambda x: x[::-1], x),
    "through switch": lambda x: lax.switch(x.ndim, [lambda x: x, lambda x: x[::-1]], x),
    "as a row": lambda x: x[1],
    "empty": lambda x: x[:0],
    "empty and back": lambda x: jnp.concatenate([x[:0], x]),
}  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.parametrize("element", EVERY)
def test_passing_through(element: str) -> None:
    x = array_of(element, (4, 2), np.random.default_rng(0))
    check(lambda x: {name: passing(x) for name, passing in PASSING.items()}, x)


@pytest.mark.some(2)
@pytest.mark.parametrize("passing", PASSING)
def test_passing_through_alone(passing: str) -> None:
    element = EVERY[sum(map(ord, passing)) % len(EVERY)]  # another one for each
    check(PASSING[passing], array_of(element, (4, 2), np.random.default_rng(0)))


@pytest.mark.some(3)
@pytest.mark.parametrize("element", EVERY)
def test_closing_over(element: str) -> None:
    rng = np.random.default_rng(1)
    table, one = array_of(element, (4, 2), rng), array_of(element, (), rng)
    check(lambda i: (table, one, table[i], jnp.where(i > 1, table, one)), jnp.int32(2))
    check(lambda i: lax.fori_loop(0, i, lambda j, c: table[j], table[3]), jnp.int32(2))
    empty = array_of(element, (0, 3), rng)
    check(lambda x: (empty, x + 1), jnp.float32(2))


@pytest.mark.some(3)
@pytest.mark.parametrize("element", EVERY)
def test_random_movements(element: str) -> None:
    seed = EVERY.index(element)
    x = array_of(element, [(4, 2), (3, 1, 5)][seed % 2], np.random.default_rng(seed))
    around = AROUND[seed % len(AROUND)]
    check(wrapped(chain(seed, 5), around), x, native=around != "fori of delegated")


@pytest.mark.some(4)
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(40))
def test_more_random_movements(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for around in AROUND:
        for element in rng.permutation(EVERY)[:8]:
            check(wrapped(chain(seed, 8), around), array_of(element, (4, 3), rng), native=False)


@pytest.mark.parametrize("element", ["complex64", *NUMBERS[1:5]])
def test_donated(element: str) -> None:
    x, y = (array_of(element, (4, 2), np.random.default_rng(3)) for _ in range(2))
    program = lambda x: (x.at[1].set(x[0]), x[::-1])  # noqa: E731
    actual = stagejit.jit(program, donate_argnums=0)(x)
    assert_same(actual, expected(program, y))


def test_one_value_read_under_two_types() -> None:
    """Zeros of complex numbers and zeros of floats may be one buffer for us, never for XLA."""

    def program(x: Any) -> Any:
        z = jnp.zeros((4,), jnp.complex64)
        f = jnp.zeros((4, 2), jnp.float32)
        return left(z + x), left(f + 0), z, f

    check(program, array_of("complex64", (4,), np.random.default_rng(4)), native=False)


def test_integer_gradients() -> None:
    """`allow_int` gives float0, whose elements XLA has as bools."""

    def loss(n: Any, x: Any) -> Any:
        return jnp.sum(x**2) * n

    program = lambda x: jax.grad(loss, argnums=(0, 1), allow_int=True)(jnp.int32(3), x)  # noqa: E731
    check(program, jnp.arange(3.0))
    zeros = stagejit.jit(program)(jnp.arange(3.0))[0]
    check(lambda z: (z, z), zeros)


def test_double_complex() -> None:
    with jax.enable_x64(True):
        x = jnp.arange(6) * (1 + 2j)
        assert x.dtype == np.complex128
        for around in AROUND:
            check(wrapped(chain(5, 5), around), x, native=around != "fori of delegated")
