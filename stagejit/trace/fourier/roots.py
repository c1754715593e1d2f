"""Roots of unity, and what a transform of given length is made of.

Input: lengths. Output: arrays in float64, and factors. Invariant: a root is exact to a rounding of
float64 whatever the length: only angles up to an eighth of a turn are given to sine and cosine.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Complex = NDArray[np.complex128]


def roots(numbers: Any, count: int) -> Complex:
    """exp(-2 pi i k / count) for each whole number k, up to 2^50."""
    fourfold = 4 * np.asarray(numbers, np.float64)
    quarter = np.rint(fourfold / count)
    angle = np.pi / 2 * ((fourfold - quarter * count) / count)
    turned: Complex = np.array([1, -1j, -1, 1j])[quarter.astype(np.int64) % 4]
    turned *= np.cos(angle) - 1j * np.sin(angle)
    return turned


# Elements of lines whose transform may begin with an eight. Its rows are many, and as far apart as
# those of longer lines, or of columns, they crowd the first cache.
_MOST_BY_EIGHT = 4096


@functools.cache
def factors(count: int, *, eight: bool = False) -> Sequence[int]:
    """Fours first, so that the runs of elements that stay together are soon a vector long; then
    primes. eight: in place of a four and a two one is first, which is a step less, where two more
    follow: moved at once, its results would be runs of eight. On Cascade Lake, 1024 lines of 128
    elements take 0.75 of the time, 64 of 96 0.8, 64 of 2048 0.9; in two steps, 1024 lines of 32
    would take 2.7 times as long, and along columns, 128x1024 1.2."""
    found, rest = [], count
    while rest % 4 == 0:
        found.append(4)
        rest //= 4
    if eight and rest % 2 == 0 and found and count <= _MOST_BY_EIGHT:
        others = (*found[1:], *factors(rest // 2))
        if len(others) >= 2:
            return 8, *others
    prime = 2
    while rest > 1:
        if prime * prime > rest:
            prime = rest
        if rest % prime:
            prime += 1
        else:
            found.append(prime)
            rest //= prime
    return tuple(found)


def smooth_above(count: int) -> int:
    """The least number from `count` on whose factors are short: 2^a, 3 * 2^a or 5 * 2^a."""
    return min(first << max(0, (-(-count // first) - 1).bit_length()) for first in (1, 3, 5))
