"""Sorting networks sort zeros and ones, so they sort everything (Knuth, TAOCP 3, 5.3.4, theorem
Z)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import I32
from stagejit.codegen.sorting.networks import exchanges, merges, sort_along


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


def test_steps_of_long_rows_are_blocks_apart() -> None:
    """All in one block took LLVM twice as long for 16 vectors."""
    b = Builder()
    keys = b.buffer("keys", I32)
    row = sort_along(b, [b.load(keys, 16 * at, 16) for at in range(4)])
    for at, vector in enumerate(row):
        b.store(vector, keys, 16 * at)
    steps = [op for op in b.finish().walk() if op.opcode == "for"]
    assert len(steps) == len(list(merges(64)))
