"""The generators of XLA: `rng_bit_generator` with JAX's bits.

Input: a state of two 64-bit words, a key and a counter, each a pair of u32 (low, high); the shape
and type of the bits. Output: the state after them, and the bits. Invariant: the bits are XLA's.
All arithmetic is on 32-bit words, for JAX has no others unless it is told so.

A counter counts hashes: of Threefry-2x32, which gives two words, or of Philox-4x32-10, which gives
four (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry2x32_p

Words = Sequence[Any]  # u32 arrays of one shape

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def rng_bit_generator(
    state: Any, *, shape: tuple[int, ...], dtype: Any, algorithm: Any, out_sharding: Any = None
) -> tuple[Any, Any]:
    """The next state and the bits."""
    words = _words(state)
    key, counter = words[:2], words[2:]
    dtype = np.dtype(dtype)
    is_threefry = algorithm == lax.RandomAlgorithm.RNG_THREE_FRY
    made, hashes = (_threefry if is_threefry else _philox)(key, counter, shape, dtype.itemsize == 8)
    bits = _joined(*made) if dtype.itemsize == 8 else made[0].astype(dtype)
    return _state([*key, *_advanced(counter, np.uint32(hashes))], state), bits


def _words(state: Any) -> list[Any]:
    """Key and counter, low words first."""
    if state.dtype != np.uint64:
        return [state[number] for number in range(4)]
    halves = [state.astype(np.uint32), lax.shift_right_logical(state, np.uint64(32))]
    low, high = halves[0], halves[1].astype(np.uint32)
    return [low[0], high[0], low[1], high[1]]


def _state(words: Words, like: Any) -> Any:
    if like.dtype != np.uint64:
        return jnp.stack(words)
    return jnp.stack([_joined(*words[:2]), _joined(*words[2:])])


def _joined(low: Any, high: Any) -> Any:
    wide = lax.shift_left(high.astype(np.uint64), np.uint64(32))
    return lax.bitwise_or(low.astype(np.uint64), wide)


def _advanced(counter: Words, by: Any) -> Words:
    """A number of two or more words with a word added to it."""
    low = counter[0] + by
    made, carry = [low], (low < by).astype(np.uint32)
    for word in counter[1:]:
        made.append(word + carry)
        carry = (made[-1] < carry).astype(np.uint32)
    return made


# -- Threefry -------------------------------------------------------------------------------------


def _threefry(
    key: Words, counter: Words, shape: tuple[int, ...], is_wide: bool
) -> tuple[Words, int]:
    """A hash gives both words of a 64-bit number, or two numbers: an axis is cut in halves, of
    which the first words are the even elements, and the second ones the odd elements."""
    if is_wide:
        return _hashed(key, counter, shape), math.prod(shape)
    if not shape:
        return [_hashed(key, counter, (1,))[0].reshape(())], 1
    axis = next((at for at, size in enumerate(shape) if size % 2 == 0), None)
    if axis is None:
        axis = max(range(len(shape)), key=lambda at: (shape[at], -at))
    half = [*shape]
    half[axis] = -(-shape[axis] // 2)
    pair = jnp.stack(_hashed(key, counter, half), axis + 1)
    both = pair.reshape(*half[:axis], 2 * half[axis], *half[axis + 1 :])
    return [lax.slice_in_dim(both, 0, shape[axis], axis=axis)], math.prod(half)


def _hashed(key: Words, counter: Words, shape: Sequence[int]) -> Words:
    numbers = _counted(counter, math.prod(shape))
    keys = [jnp.broadcast_to(word, numbers[0].shape) for word in key]
    hash: Any = threefry2x32_p
    return [word.reshape(shape) for word in hash.bind(*keys, *numbers)]


def _counted(counter: Words, count: int) -> Words:
    """The counter and those after it."""
    return [
        jnp.broadcast_to(word, (count,)) for word in _advanced(counter, lax.iota(np.uint32, count))
    ]


# -- Philox ---------------------------------------------------------------------------------------


def _philox(key: Words, counter: Words, shape: tuple[int, ...], is_wide: bool) -> tuple[Words, int]:
    """The words of one hash after the other; the key is the upper half of the counter, too."""
    wanted = math.prod(shape) * (2 if is_wide else 1)
    hashes = -(-wanted // 4)
    words = jnp.stack(_philox4x32(key, _counted([*counter, *key], hashes)), 1).reshape(-1)
    if is_wide:
        low, high = words[0::2], words[1::2]
        return [half[: math.prod(shape)].reshape(shape) for half in (low, high)], hashes
    return [words[:wanted].reshape(shape)], hashes


def _philox4x32(key: Words, x: Words) -> Words:
    for number in range(_ROUNDS):
        steps = (np.uint32(number * step % 2**32) for step in _KEY_STEPS)
        a, b = (word + step for word, step in zip(key, steps, strict=True))
        first, second = (np.uint32(factor) for factor in _MULTIPLIERS)
        x = [
            _upper(second, x[2]) ^ x[1] ^ a,
            second * x[2],
            _upper(first, x[0]) ^ x[3] ^ b,
            first * x[0],
        ]
    return x


def _upper(factor: Any, word: Any) -> Any:
    return lax.mulhi(jnp.full_like(word, factor), word)
