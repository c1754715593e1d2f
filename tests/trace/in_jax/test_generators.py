"""`rng_bit_generator` has the bits and states of XLA."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import stagejit

SHAPES = [(), (1,), (3,), (5, 7), (3, 4), (4, 3), (0, 3)]
# The lower, or all, words of a counter are about to turn over.
STATES = [[1, 2, 3, 4], [5, 2**32 - 1, 2**32 - 2, 7], [5, 2**32 - 1, 2**32 - 2, 2**32 - 1]]


def same(fn: Any, *args: Any) -> None:
    assert not stagejit.jit(fn).plan(*args).delegated
    for ours, theirs in zip(stagejit.jit(fn)(*args), jax.jit(fn)(*args), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("algorithm", list(lax.RandomAlgorithm))
def test_the_bits_are_those_of_xla(algorithm: Any, dtype: str) -> None:
    def every(state: Any) -> Any:
        made = [lax.rng_bit_generator(state, shape, dtype, algorithm=algorithm) for shape in SHAPES]
        return jax.tree.leaves(made)

    with jax.enable_x64(dtype == "uint64"):
        for state in STATES:
            same(every, np.array(state, np.uint32))


def test_states_of_64_bits() -> None:
    with jax.enable_x64(True):
        same(lambda state: lax.rng_bit_generator(state, (5,)), np.array([7, 2**64 - 1], np.uint64))


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_keys_of_these_generators(impl: str) -> None:
    def draw(seed: Any) -> Any:
        key = jax.random.key(seed, impl=impl)
        one, two = jax.random.split(key)
        return jax.random.bits(one, (4, 3)), jax.random.key_data(jax.random.fold_in(two, 3))

    same(draw, 5)
