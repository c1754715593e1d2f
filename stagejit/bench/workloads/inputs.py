"""Seeded arguments of the rows of the bench: each row has a generator of its own."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from numpy.typing import NDArray

from stagejit.bench.programs import Arguments

Normal = Callable[..., NDArray[np.float32]]


def seeded_normal() -> Normal:
    """f32 arrays of a shape, normal with deviation `scale`; the same ones each time it is made."""
    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 1.0) -> NDArray[np.float32]:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    return normal


def shapes_of(args: Callable[[Normal], Arguments]) -> Arguments:
    """Shapes and types of what `args` makes; nothing is drawn."""
    made = args(lambda *shape, scale=1.0: np.zeros(shape, np.float32))
    shapes: Arguments = jax.eval_shape(lambda: made)
    return shapes


def images(channels_last: bool) -> Callable[[Normal], Arguments]:
    """Eight images of 112 x 112 in 64 channels."""
    return lambda r: (r(*((8, 112, 112, 64) if channels_last else (8, 64, 112, 112))),)


def quantized(x: NDArray[np.float32]) -> NDArray[np.int8]:
    """Bytes that stand for normal numbers up to four deviations."""
    return np.clip(np.round(x * 32), -127, 127).astype(np.int8)


def complex_normal(*shape: int) -> Callable[[Normal], Arguments]:
    return lambda r: (r(*shape) + 1j * r(*shape),)
