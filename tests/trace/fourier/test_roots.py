"""Roots of unity are exact to a rounding; factors give the length."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stagejit.trace.fourier.roots import factors, roots, smooth_above


@pytest.mark.parametrize("count", [1, 2, 3, 8, 12, 1000, 1 << 20, 999983])
def test_roots_are_exact(count: int) -> None:
    numbers = np.unique(np.random.default_rng(0).integers(-count, 2 * count, 1000))
    angle = -2 * np.pi * (numbers.astype(np.longdouble) % count) / count
    if np.finfo(np.longdouble).eps < np.finfo(np.float64).eps:
        angle = angle * (np.longdouble(math.pi) + np.longdouble(1.2246467991473532e-16)) / np.pi
    wanted = np.cos(angle) + 1j * np.sin(angle)
    assert np.abs(roots(numbers, count) - wanted).max() <= 2e-16


def test_quarters_are_whole() -> None:
    assert roots(np.arange(-4, 8), 4).tolist() == [1, -1j, -1, 1j] * 3


@pytest.mark.parametrize("count", [1, 2, 4, 7, 8, 35, 48, 101, 202, 1155, 1 << 20])
def test_factors(count: int) -> None:
    found = factors(count)
    assert math.prod(found) == count
    assert list(found) == sorted(found, key=lambda factor: (factor != 4, factor))


@pytest.mark.parametrize(
    ("count", "found"),
    [
        pytest.param(128, (8, 4, 4), id="a step less"),
        pytest.param(96, (8, 4, 3), id="threes"),
        pytest.param(1000, (8, 5, 5, 5), id="fives"),
        pytest.param(2048, (8, 4, 4, 4, 4), id="long"),
        pytest.param(256, (4, 4, 4, 4), id="no two is left"),
        pytest.param(32, (4, 4, 2), id="two steps"),
        pytest.param(40, (4, 2, 5), id="two steps with a prime"),
        pytest.param(30, (2, 3, 5), id="no four"),
        pytest.param(8192, (4, 4, 4, 4, 4, 4, 2), id="rows too far apart"),
    ],
)
def test_an_eight_is_a_step_less(count: int, found: tuple[int, ...]) -> None:
    assert factors(count, eight=True) == found
    assert 8 not in factors(count)


@pytest.mark.parametrize("count", range(1, 200, 7))
def test_smooth_lengths(count: int) -> None:
    length = smooth_above(count)
    assert count <= length < 2 * count
    assert max(factors(length), default=1) <= 5
