"""What random programs of data movement are written in, once for JAX and once for NumPy.

A program is a function of a vocabulary and of arrays. `Jax` gives the operations that users write;
`Numpy` says what they mean: floats are float64 and never rounded, integers and booleans keep their
types.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

Array = np.ndarray[Any, np.dtype[Any]]
Body = Callable[..., Any]


class Jax:
    """The operations as a user of JAX writes them."""

    tanh, where, maximum = jnp.tanh, jnp.where, jnp.maximum
    clip, repeat, tile = jnp.clip, jnp.repeat, jnp.tile

    @staticmethod
    def pad(x: Any, value: Any, config: Any) -> Any:
        return lax.pad(x, jnp.asarray(value, x.dtype), config)

    @staticmethod
    def concat(parts: Sequence[Any], axis: int) -> Any:
        return jnp.concatenate(parts, axis)

    @staticmethod
    def stack(parts: Sequence[Any], axis: int) -> Any:
        return jnp.stack(parts, axis)

    @staticmethod
    def full(shape: tuple[int, ...], value: Any, dtype: str) -> Any:
        return jnp.full(shape, value, dtype)

    @staticmethod
    def window(x: Any, starts: Any, sizes: Any) -> Any:
        return lax.dynamic_slice(x, starts, sizes)

    @staticmethod
    def update(x: Any, part: Any, starts: Any) -> Any:
        return lax.dynamic_update_slice(x, part, starts)

    @staticmethod
    def put(x: Any, index: Any, part: Any) -> Any:
        return x.at[index].set(part)

    @staticmethod
    def add(x: Any, index: Any, part: Any) -> Any:
        return x.at[index].add(part)

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        return x.astype(dtype)

    @staticmethod
    def sum(x: Any, axes: Any) -> Any:
        return jnp.sum(x, axes, dtype=x.dtype)

    @staticmethod
    def max(x: Any, axes: Any) -> Any:
        return jnp.max(x, axes)

    @staticmethod
    def cumsum(x: Any, axis: int) -> Any:
        return lax.cumsum(x, axis)

    @staticmethod
    def dot(x: Any, y: Any) -> Any:
        return jnp.dot(x, y)

    @staticmethod
    def conv(x: Any, kernel: Any, padding: Any) -> Any:
        return lax.conv_general_dilated(x, kernel, (1,) * (x.ndim - 2), padding)

    @staticmethod
    def loop(count: Any, body: Body, start: Any) -> Any:
        return lax.fori_loop(0, count, body, start)

    @staticmethod
    def scan(body: Body, start: Any, rows: Any) -> Any:
        numbers = jnp.arange(rows.shape[0])
        return lax.scan(lambda c, row: body(c, row[0], row[1]), start, (rows, numbers))

    @staticmethod
    def cond(holds: Any, yes: Body, no: Body, x: Any) -> Any:
        return lax.cond(holds, yes, no, x)


class Numpy:
    """The same in NumPy: `dynamic` starts and single indices count from the end if negative; starts
    are clamped, and what lies outside is not written."""

    tanh, where, maximum, clip = np.tanh, np.where, np.maximum, np.clip
    concat, stack, max, dot = np.concatenate, np.stack, np.max, np.dot
    repeat, tile = np.repeat, np.tile

    @staticmethod
    def pad(x: Array, value: Any, config: Any) -> Array:
        for axis, (low, high, inner) in enumerate(config):
            size = x.shape[axis] + max(x.shape[axis] - 1, 0) * inner
            shape = list(x.shape)
            shape[axis] = size + max(low, 0) + max(high, 0)
            grown = np.full(shape, value, x.dtype)
            at = (slice(None),) * axis
            first = max(low, 0)
            grown[(*at, slice(first, first + size, inner + 1))] = x
            x = grown[(*at, slice(max(-low, 0), shape[axis] - max(-high, 0)))]
        return x

    @staticmethod
    def full(shape: tuple[int, ...], value: Any, dtype: str) -> Array:
        return np.full(shape, value, meant(dtype))

    @staticmethod
    def window(x: Array, starts: Any, sizes: Any) -> Array:
        return x[_box(x.shape, starts, sizes)]

    @staticmethod
    def update(x: Array, part: Array, starts: Any) -> Array:
        x = x.copy()
        x[_box(x.shape, starts, part.shape)] = part
        return x

    @staticmethod
    def put(x: Array, index: Any, part: Any) -> Array:
        x = x.copy()
        if _inside(x, index):
            x[index] = part
        return x

    @staticmethod
    def add(x: Array, index: Any, part: Any) -> Array:
        x = x.copy()
        if _inside(x, index):
            x[index] += np.asarray(part).astype(x.dtype)
        return x

    @staticmethod
    def cast(x: Array, dtype: str) -> Array:
        return np.asarray(x).astype(meant(dtype))

    @staticmethod
    def sum(x: Array, axes: Any) -> Array:
        return np.sum(x, axes, dtype=x.dtype)

    @staticmethod
    def cumsum(x: Array, axis: int) -> Array:
        return np.cumsum(x, axis, dtype=x.dtype)

    @staticmethod
    def conv(x: Array, kernel: Array, padding: Any) -> Array:
        x = np.pad(x, ((0, 0), (0, 0), *padding))
        space = kernel.shape[2:]
        sizes = [n - k + 1 for n, k in zip(x.shape[2:], space, strict=True)]
        out = np.zeros((x.shape[0], kernel.shape[0], *sizes))
        for at in itertools.product(*map(range, space)):
            box = (slice(a, a + n) for a, n in zip(at, sizes, strict=True))
            part = x[(slice(None), slice(None), *box)]
            weights = kernel[(slice(None), slice(None), *at)]
            out += np.moveaxis(np.tensordot(weights, part, (1, 1)), 0, 1)
        return out

    @staticmethod
    def loop(count: Any, body: Body, start: Any) -> Any:
        for i in range(int(count)):
            start = body(i, start)
        return start

    @staticmethod
    def scan(body: Body, start: Any, rows: Array) -> Any:
        made = []
        for i, row in enumerate(rows):
            start, out = body(start, np.asarray(row), i)
            made.append(out)
        return start, np.stack(made)

    @staticmethod
    def cond(holds: Any, yes: Body, no: Body, x: Any) -> Any:
        return yes(x) if holds else no(x)


def meant(dtype: Any) -> Any:
    """The type of the values that an element of `dtype` stands for."""
    return np.float64 if "float" in str(dtype) else np.dtype(dtype)


def _box(shape: Sequence[int], starts: Sequence[Any], sizes: Sequence[int]) -> tuple[slice, ...]:
    box = []
    for extent, start, size in zip(shape, map(int, starts), sizes, strict=True):
        start = min(max(start + extent if start < 0 else start, 0), extent - size)
        box.append(slice(start, start + size))
    return tuple(box)


def _inside(x: Array, index: Any) -> bool:
    first = index[0] if isinstance(index, tuple) else index
    return isinstance(first, slice) or -x.shape[0] <= int(first) < x.shape[0]
