"""Arrays of every element type that JAX has on the CPU, and programs that only move elements.

Input: a random number generator. Output: arrays, and functions of one array made of random chains
of movements, under jit, vmap, scan, while and cond. Invariant: a program is valid for every element
type, so what it does to one can be compared with what JAX does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.expected.left import left

Array = Any
Program = Callable[[Array], Any]

KEYS = ("threefry2x32", "rbg", "unsafe_rbg")
NUMBERS = (
    "complex64", "int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float8_e3m4", "float8_e4m3",
    "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu",
)  # fmt: skip
NATIVE = ("bool", "int8", "uint16", "int32", "uint32", "float16", "bfloat16", "float32")


def array_of(element: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """An array of different elements, as far as the type has that many. "float0" too."""
    if element in KEYS:
        seeds = rng.integers(0, 2**31, shape, dtype=np.int32)
        one = jnp.vectorize(lambda seed: jax.random.key_data(jax.random.key(seed, impl=element)),
                            signature="()->(n)")  # fmt: skip
        return jax.random.wrap_key_data(one(seeds), impl=element)
    if element == "float0":
        return np.zeros(shape, jax.dtypes.float0)
    numbers = rng.integers(-2, 7, shape).astype(np.float32)
    if element.startswith("complex"):
        numbers = numbers + 1j * rng.integers(-9, 9, shape)
    return jnp.asarray(numbers).astype(element)


def bits(value: Array) -> np.ndarray[Any, Any]:
    """What tells two arrays apart: words of keys, else the elements with one NaN for all NaNs."""
    if value.dtype == jax.dtypes.float0:
        return np.zeros(value.shape)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(value))
    array = np.asarray(value)
    if jnp.issubdtype(array.dtype, jnp.floating):  # ml_dtypes' too, with their signed zeros
        return np.stack([array.astype(np.float64), np.signbit(array.astype(np.float64))])
    return array if array.dtype.kind in "biuc" else array.astype(np.int64)


def assert_same(actual: Any, expected: Any) -> None:
    """Equal trees: types, shapes and bits."""
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    for ours, theirs in pairs:
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(bits(ours), bits(theirs))


# XLA's kernels abort the process on packed numbers (`jnp.concatenate([x, x])` of int4), so JAX is
# asked about numbers of a byte that hold the same values.
_UNPACKED = {
    "int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8",
    "float4_e2m1fn": "float8_e4m3fn",
}  # fmt: skip


def expected(program: Program, x: Array) -> Any:
    """What JAX gives for a program that moves the elements of `x`."""
    wide = _UNPACKED.get(str(x.dtype))
    if wide is None:
        return jax.jit(program)(x)

    def packed(y: Array) -> Array:
        if str(y.dtype) != wide:
            return y
        if wide.startswith("float"):
            return y.astype(x.dtype)
        info: Any = ml_dtypes.iinfo(x.dtype)
        return jnp.clip(y, info.min, info.max).astype(
            x.dtype
        )  # what fills is the least or greatest

    return jax.tree.map(packed, jax.jit(program)(x.astype(wide)))


# -- movements ------------------------------------------------------------------------------------


def _axis(x: Array, rng: np.random.Generator) -> int:
    return int(rng.integers(x.ndim))


def _transpose(x: Array, rng: np.random.Generator) -> Array:
    return x.transpose(rng.permutation(x.ndim).tolist())


def _reverse(x: Array, rng: np.random.Generator) -> Array:
    return lax.rev(x, (_axis(x, rng),))


def _slice(x: Array, rng: np.random.Generator) -> Array:
    start, step = int(rng.integers(0, 2)), int(rng.integers(1, 3))
    axis = _axis(x, rng)
    return lax.slice_in_dim(x, min(start, x.shape[axis]), x.shape[axis], step, axis)


def _flatten(x: Array, rng: np.random.Generator) -> Array:
    return x.reshape(-1)


def _fold(x: Array, rng: np.random.Generator) -> Array:
    return x.reshape(2, -1) if x.size % 2 == 0 else x.reshape(1, *x.shape)


def _broadcast(x: Array, rng: np.random.Generator) -> Array:
    return jnp.broadcast_to(jnp.expand_dims(x, 1), (x.shape[0], 2, *x.shape[1:]))


def _repeat(x: Array, rng: np.random.Generator) -> Array:
    return lax.concatenate([x, x], _axis(x, rng))


def _stack(x: Array, rng: np.random.Generator) -> Array:
    return jnp.stack([x, x[::-1]], _axis(x, rng))


def _row(x: Array, rng: np.random.Generator) -> Array:
    return lax.dynamic_index_in_dim(x, jnp.int32(rng.integers(-3, 4)), 0) if x.shape[0] else x


def _update(x: Array, rng: np.random.Generator) -> Array:
    where = jnp.int32(rng.integers(-2, 5))
    return lax.dynamic_update_index_in_dim(x, x[-1], where, 0) if x.shape[0] else x


def _take(x: Array, rng: np.random.Generator) -> Array:
    rows = rng.integers(-1, x.shape[0] + 2, 3)
    mode = rng.choice(["fill", "clip"])
    return x.at[rows].get(mode=mode) if x.shape[0] else x


def _set(x: Array, rng: np.random.Generator) -> Array:
    rows = rng.permutation(x.shape[0] + 1)[:2]
    return x.at[rows].set(x[:1]) if x.shape[0] else x


def _choose(x: Array, rng: np.random.Generator) -> Array:
    mask = rng.random(x.shape[0]) < 0.5
    return jnp.where(mask.reshape(-1, *(1,) * (x.ndim - 1)), x, x[::-1])


def _fence(x: Array, rng: np.random.Generator) -> Array:
    held, _ = lax.optimization_barrier((x, jnp.float32(1)))
    return held


MOVEMENTS = (
    _transpose, _reverse, _slice, _flatten, _fold, _broadcast, _repeat, _stack, _row, _update,
    _take, _set, _choose, _fence,
)  # fmt: skip


def chain(seed: int, length: int) -> Program:
    """`length` random movements, one after the other."""

    def move(x: Array) -> Array:
        rng = np.random.default_rng(seed)
        for _ in range(length):
            moved = MOVEMENTS[int(rng.integers(len(MOVEMENTS)))](x, rng)
            x = moved if 0 < moved.size < 500 and moved.ndim < 6 else x
        return x

    return move


def wrapped(move: Program, around: str) -> Program:
    """`move` inside of something. It may change the shape, so loops apply it to what is read."""
    match around:
        case "jit":
            return lambda x: jax.jit(move)(x)
        case "vmap":
            return lambda x: jax.vmap(lambda row: move(row[None]))(x)
        case "scan":
            return lambda x: lax.scan(lambda c, row: (row, (move(row[None]), c)), x[0], x)
        case "while":
            return lambda x: lax.while_loop(
                lambda c: c[0] < 3, lambda c: (c[0] + 1, x, move(c[1])), (0, x, move(x))
            )
        case "cond":
            return lambda x: [
                lax.cond(flag, move, lambda x: move(x[::-1]), x) for flag in jnp.arange(2) > 0
            ]
        case "fori of delegated":  # a loop that stays with XLA, whose body is ours
            return lambda x: lax.fori_loop(
                0, 3, lambda i, c: (x, move(c[0]), left(c[2]) + i),
                (x, move(x), jnp.arange(3.0)),
            )  # fmt: skip
        case "checkpoint":
            return lambda x: jax.checkpoint(move)(x)
    return move


AROUND = (
    "nothing", "jit", "vmap", "scan", "while", "cond", "fori of delegated", "checkpoint",
)  # fmt: skip
