"""Reads and updates at computed places.

Input: arrays, and indices into them. Output: what is read there, or the array with updates.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from numpy.typing import NDArray

from stagejit.bench.programs import Arguments, Function
from stagejit.bench.workloads.inputs import Normal


def _below(limit: int, count: int, seed: int = 1) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, limit, count, np.int32)


def corners(image: jax.Array, y: jax.Array, x: jax.Array) -> jax.Array:
    """The mean of the four pixels around a place, which four reads at two indices each are."""
    rows = image[y, x] + image[y + 1, x], image[y, x + 1] + image[y + 1, x + 1]
    return (rows[0] + rows[1]) * 0.25


def rows_of_sums(x: jax.Array, segments: jax.Array) -> jax.Array:
    return jax.ops.segment_sum(x, segments, 100_000)


# name, program, arguments, what it is
ROWS: tuple[tuple[str, Function, Callable[[Normal], Arguments], str], ...] = (
    (
        "gather_300k_rows_of_4",
        lambda table, rows: table[rows],
        lambda r: (r(1000, 4), _below(1000, 300_000)),
        "rows of 4 out of a table that fits a cache",
    ),
    (
        "corners_500k",
        corners,
        lambda r: (r(512, 512), _below(511, 500_000), _below(511, 500_000, 2)),
        "means of four pixels at 500,000 places of an image",
    ),
    (
        "segment_sum_1M_rows_of_4",
        rows_of_sums,
        lambda r: (r(1_000_000, 4), _below(100_000, 1_000_000)),
        "1,000,000 rows of 4 into 100,000 segments",
    ),
)
