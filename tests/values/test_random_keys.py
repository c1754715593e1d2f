"""Random numbers: bits equal to JAX's, computed by us, wherever keys may stand in a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

import stagejit
from tests.values.elements import KEYS, assert_same

VERIFYING = stagejit.Options(verify=True)


@pytest.fixture(params=[True, False], ids=["partitionable", "sequential"])
def counting(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways in which JAX counts the blocks of one call."""
    with jax.threefry_partitionable(request.param):
        yield


def check(program: Any, *arguments: Any, exact: bool = True, native: bool = True) -> None:
    staged = stagejit.jit(program, options=VERIFYING)
    actual, expected = staged(*arguments), jax.jit(program)(*arguments)
    if exact:
        assert_same(actual, expected)
    else:
        for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)
    if native:
        assert not staged.plan(*arguments).delegated


def key(seed: int = 3) -> Any:
    return random.key(seed)


BITS = {
    "split": lambda k: random.split(k, 5),
    "split into a matrix": lambda k: random.split(k, (2, 3)),
    "fold in": lambda k: random.fold_in(k, 7),
    "words": lambda k: (random.bits(k), random.bits(k, (7,)), random.bits(k, (3, 5))),
    "narrow words": lambda k: (random.bits(k, (5,), jnp.uint8), random.bits(k, (3, 3), jnp.uint16)),
    "uniform": lambda k: (random.uniform(k, (3, 4)), random.uniform(k, minval=-3.0)),
    "uniform halves": lambda k: random.uniform(k, (9,), jnp.bfloat16),
    "integers": lambda k: (random.randint(k, (9,), 3, 77), random.randint(k, (), -5, 5)),
    "coins": lambda k: random.bernoulli(k, 0.3, (9,)),
    "one of many": lambda k: random.choice(k, 5, (9,)),
    "key data": lambda k: random.wrap_key_data(random.key_data(k)[::-1]),
    "clone": lambda k: random.clone(k),
}
FLOATS = {
    "normal": lambda k: (random.normal(k, (3, 4)), random.normal(k)),
    "truncated": lambda k: random.truncated_normal(k, -1.0, 2.0, (9,)),
    "gumbel": lambda k: random.gumbel(k, (9,)),
    "exponential": lambda k: random.exponential(k, (9,)),
    "laplace": lambda k: random.laplace(k, (9,)),
    "cauchy": lambda k: random.cauchy(k, (2,)),
    "gamma": lambda k: random.gamma(k, jnp.arange(1.0, 5.0)),
    "beta": lambda k: random.beta(k, 2.0, jnp.arange(1.0, 5.0)),
    "dirichlet": lambda k: random.dirichlet(k, jnp.ones(4)),
    "orthogonal shape": lambda k: random.ball(k, 3, shape=(4,)),
}


@pytest.mark.usefixtures("counting")
def test_bits() -> None:
    check(lambda k: {name: made(k) for name, made in BITS.items()}, key())


@pytest.mark.some(2)
@pytest.mark.usefixtures("counting")
def test_bits_of_many_keys() -> None:
    def program(keys: Any) -> Any:
        return jax.vmap(lambda k: {name: made(k) for name, made in BITS.items()})(keys)

    check(program, random.split(key(), 3))


def test_distributions() -> None:
    check(lambda k: {name: made(k) for name, made in FLOATS.items()}, key(), exact=False)


def test_choices_are_the_same() -> None:
    logits = jnp.log(jnp.array([0.1, 0.2, 0.7]))
    check(lambda k: random.categorical(k, logits, shape=(50,)), key())
    check(lambda k: random.permutation(k, 20), key())


def test_seeds() -> None:
    check(lambda s: (random.key(s), random.key_data(random.key(s + 1))), jnp.int32(17))
    check(lambda s: jax.vmap(random.key)(s), jnp.arange(4, dtype=jnp.uint32))
    with jax.enable_x64(True):
        check(lambda s: (random.key(s), random.bits(random.key(s), (3,), jnp.uint64)),
              jnp.int64(2**40 + 17))  # fmt: skip
        check(lambda k: random.uniform(k, (5,)), key())


@pytest.mark.some(2)
@pytest.mark.usefixtures("counting")
def test_in_loops() -> None:
    def scanned(k: Any) -> Any:
        def turn(k: Any, x: Any) -> Any:
            k, mine = random.split(k)
            return k, (mine, x + random.uniform(mine, (3,)))

        return lax.scan(turn, k, jnp.arange(4.0))

    def waiting(k: Any) -> Any:
        """Draws until a number is large, as rejection samplers do."""
        return lax.while_loop(
            lambda c: c[1] < 0.9,
            lambda c: (random.fold_in(c[0], 1), random.uniform(c[0])),
            (k, 0.0),
        )

    check(scanned, key())
    check(waiting, key())
    check(jax.vmap(waiting), random.split(key(), 3))
    check(lambda k: lax.fori_loop(0, 5, lambda i, c: c + random.bits(random.fold_in(k, i)),
                                  jnp.uint32(0)), key())  # fmt: skip
    check(lambda k: lax.map(lambda k: random.bits(k, (3,)), random.split(k, 4)), key())


def test_in_branches() -> None:
    def program(k: Any, flag: Any) -> Any:
        return lax.cond(flag, lambda k: random.split(k)[0], lambda k: k, k)

    check(program, key(), True)
    check(program, key(), False)
    check(lambda k: lax.switch(2, [lambda k: k, lambda k: random.fold_in(k, 1),
                                   lambda k: random.fold_in(k, 2)], k), key())  # fmt: skip
    check(lambda k, f: jnp.where(f, random.split(k, 3), random.split(random.fold_in(k, 1), 3)),
          key(), jnp.array([True, False, True]))  # fmt: skip


def test_keys_can_be_compared() -> None:
    def program(keys: Any) -> Any:
        return keys == keys[::-1], keys != keys[0], keys[1] == keys[1]

    check(program, random.split(key(), 3))


def test_under_differentiation() -> None:
    def loss(w: Any, k: Any) -> Any:
        mask = random.bernoulli(k, 0.5, w.shape)
        return jnp.sum(jnp.where(mask, w, 0.0) ** 2 * random.uniform(k, w.shape))

    w = jnp.arange(6.0)
    check(jax.value_and_grad(loss), w, key(), exact=False)
    check(jax.grad(jax.checkpoint(loss)), w, key(), exact=False)
    check(jax.vmap(jax.grad(loss), (None, 0)), w, random.split(key(), 3), exact=False)


def test_closed_over_keys() -> None:
    """As Flax's `nnx.Rngs` and NumPyro's handlers hold them: in objects, counted up."""
    base, count = key(8), jnp.uint32(4)

    def program(x: Any) -> Any:
        mine = random.fold_in(base, count)
        noise = random.normal(mine, x.shape)
        return x + noise, {"params": mine, "count": count + 1}

    staged = stagejit.jit(program)(jnp.ones(4))
    expected = jax.jit(program)(jnp.ones(4))
    np.testing.assert_allclose(staged[0], expected[0], rtol=1e-6)
    assert_same(staged[1], expected[1])
    check(lambda x: lax.scan(lambda c, x: (c, random.bits(random.fold_in(base, x))), 0, x),
          jnp.arange(3))  # fmt: skip


def test_donated_keys() -> None:
    staged = stagejit.jit(lambda k: random.split(k[0], 2), donate_argnums=0)
    assert_same(staged(random.split(key(), 2)), random.split(random.split(key(), 2)[0], 2))


@pytest.mark.parametrize("implementation", KEYS[1:])
def test_other_implementations(implementation: str) -> None:
    """XLA's own generator stays XLA's; what is threefry of splitting and folding in is ours."""
    k = random.key(5, impl=implementation)
    programs = {
        "split": lambda k: random.split(k, 3),
        "fold in": lambda k: random.fold_in(k, 3),
        "words": lambda k: random.bits(k, (5,)),
        "scan": lambda k: lax.scan(lambda k, _: (random.split(k)[0], random.bits(k)), k, None, 3),
        "vmap": lambda k: jax.vmap(random.bits)(random.split(k, 2)),
    }
    for program in programs.values():
        check(program, k, native=False)


def test_old_keys() -> None:
    check(lambda k: (random.split(k), random.uniform(k, (3,)), random.fold_in(k, 2)),
          random.PRNGKey(3))  # fmt: skip


def test_wide_numbers_of_what_is_lowered_where_there_are_none() -> None:
    """The words of a key are narrow, what is drawn with it is not."""

    def f(words: Any) -> Any:
        return jax.random.normal(jax.random.wrap_key_data(words), (3,), jnp.float64)

    words = np.array([1, 2], np.uint32)
    with jax.enable_x64(True):
        traced, expected = stagejit.jit(f).trace(words), jax.jit(f)(words)
    lowered = traced.lower()
    assert not traced.plan.delegated
    with jax.enable_x64(True):
        np.testing.assert_allclose(lowered.compile()(words), expected, rtol=1e-14)
