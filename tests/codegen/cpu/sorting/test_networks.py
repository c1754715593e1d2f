"""Sorting networks sort zeros and ones, so they sort everything (Knuth, TAOCP 3, 5.3.4, theorem
Z)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stagejit.codegen.sorting.networks import exchanges, merges


@pytest.mark.parametrize("count", range(1, 15))
def test_exchanges(count: int) -> None:
    rows = np.array(list(itertools.product((0, 1), repeat=count)))
    wanted = np.sort(rows, 1)
    for low, high in exchanges(count):
        assert 0 <= low < high < count
        pair = np.sort(rows[:, [low, high]], 1)
        rows[:, low], rows[:, high] = pair.T
    np.testing.assert_array_equal(rows, wanted)


def test_few_exchanges() -> None:
    assert [len(exchanges(count)) for count in (1, 2, 4, 8, 16, 32)] == [0, 1, 5, 19, 63, 191]


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_merges(count: int) -> None:
    rows = np.array(list(itertools.product((0, 1), repeat=count)))
    wanted = np.sort(rows, 1)
    for mask, _ in merges(count):
        partners = np.arange(count) ^ mask
        low, high = np.minimum(rows, rows[:, partners]), np.maximum(rows, rows[:, partners])
        rows = np.where(np.arange(count) < partners, low, high)
    np.testing.assert_array_equal(rows, wanted)
