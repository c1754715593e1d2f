"""Items: enough of them, no more, and every position exactly once in any chunks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stagejit.base.machine import Machine
from stagejit.codegen.elements.elements import Elements
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import I64
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.items import (
    LEAST_PANEL_NBYTES,
    NARROWEST_PANEL_NBYTES,
    block_of,
    cores_worth_having,
    in_items,
    panel_width,
)
from stagejit.codegen.nest.tree import Do, Loop
from stagejit.index.affine import Affine, Var


def visits(run_kernel: Any, loops: Sequence[tuple[Var, int]], chunks: int) -> np.ndarray[Any, Any]:
    """How often each position of the row-major space of the loops is visited."""
    builder = Builder()
    counts = builder.buffer("counts", I64)
    elements = Elements(builder, {})

    def body() -> None:
        at = Affine()
        for var, _ in loops:
            at = at * var.extent + Affine.of(var)
        index = elements.scalar_index(at)
        builder.store(builder.load(counts, index) + 1, counts, index)

    tree = in_items(loops, Do("count", body), 2)
    Emitter(elements).emit(tree)
    function = builder.finish()
    found = np.zeros([var.extent for var, _ in loops], np.int64)
    cuts = np.linspace(0, tree.items, chunks + 1).astype(int)
    for lo, hi in itertools.pairwise(cuts):
        if lo < hi:
            run_kernel(function, [found], (), int(lo), int(hi))
    return found


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize(
    "extents", [(), (5,), (100,), (3, 4), (7, 100), (2, 3, 4), (70, 2, 3)], ids=str
)
def test_every_position_once(run_kernel: Any, extents: tuple[int, ...], chunks: int) -> None:
    found = visits(run_kernel, [(Var(extent), 1) for extent in extents], chunks)
    np.testing.assert_array_equal(found, np.ones_like(found))


@pytest.mark.parametrize("extents", [(10,), (5, 10), (90, 10), (3, 5, 7)], ids=str)
def test_blocks(run_kernel: Any, extents: tuple[int, ...]) -> None:
    *outer, last = [Var(extent) for extent in extents]
    found = visits(run_kernel, [*((var, 1) for var in outer), (last, 4)], 2)
    expected = np.zeros_like(found)
    expected[..., ::4] = 1
    np.testing.assert_array_equal(found, expected)


def test_enough_items_and_no_more() -> None:
    a, b, c = Var(8), Var(8), Var(1000)
    tree = in_items([(a, 1), (b, 1), (c, 1)], (), 2)
    assert tree.items == 64
    assert tree.loops == ((a, 1), (b, 1))
    assert isinstance(tree.body, Loop)
    assert tree.body.var is c
    assert in_items([(Var(3), 1), (Var(2), 1)], (), 2).items == 6
    assert in_items([], (), 2).items == 1


def test_blocks_count_as_one_item_each() -> None:
    assert in_items([(Var(10), 4)], (), 2).items == 3
    assert in_items([(Var(8), 4)], (), 2).items == 2
    tree = in_items([(Var(64), 1), (Var(10), 4)], (), 2)
    assert isinstance(tree.body, Loop)
    assert tree.body.chunks[0].tail == "shorter"


@pytest.mark.parametrize("extent", [1, 15, 16, 17, 100, 1000, 100000])
@pytest.mark.parametrize("cores", [1, 2, 64])
def test_panels(extent: int, cores: int) -> None:
    width = panel_width([lane := Var(extent)], lane, 16, Machine(cores), 1e-3)
    assert width % 16 == 0
    assert width < extent + 16
    assert width >= min(LEAST_PANEL_NBYTES // 4, extent)
    short = panel_width([lane], lane, 16, Machine(cores), 1e-6)
    assert short >= min(NARROWEST_PANEL_NBYTES // 4, extent)  # one core takes them all


@pytest.mark.parametrize("extent", [1, 100, 515, 1000, 1030, 4100, 100000])
@pytest.mark.parametrize("others", [1, 3, 100])
@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_pieces_of_far_rows_are_longer_where_all_cores_have_some(
    extent: int, others: int, cores: int
) -> None:
    variables = [lane := Var(extent), Var(others)]
    near, far = (
        panel_width(variables, lane, 16, Machine(cores), 1e-3, far=far) for far in (False, True)
    )
    assert near <= far <= max(near, 256)
    if far > near:
        assert others * -(-extent // far) >= 2 * cores - 1


@pytest.mark.parametrize("cores", [1, 2, 8, 48, 64, 128])
@pytest.mark.parametrize("extent", [1, 4096, 16384, 16385, 100_000, 1 << 20, 1 << 26])
@pytest.mark.parametrize("others", [1, 3, 1000])
def test_blocks_leave_no_core_without_work(extent: int, others: int, cores: int) -> None:
    block = block_of(extent, others, 1 << 14, 1 << 12, cores)
    items = others * -(-extent // block)
    assert block <= 1 << 14
    assert block == extent or block % 64 == 0
    assert items >= 3.5 * cores or block <= 1 << 12 or cores == 1


def test_more_cores_have_more_items() -> None:
    loops = [(Var(8), 1), (Var(8), 1), (Var(1000), 1)]
    assert in_items(loops, (), 2).items == 64
    assert in_items(loops, (), 64).items == 64_000


@pytest.mark.parametrize("cores", range(2, 129, 3))
@pytest.mark.parametrize("extent", [1 << 20, 1_500_007, 1 << 21, 1 << 24])
@pytest.mark.parametrize("others", [1, 3, 5])
def test_all_cores_have_as_many_blocks(extent: int, others: int, cores: int) -> None:
    """Wherever pieces are not too small, the last round of items is as good as full."""
    block = block_of(extent, others, 1 << 14, 1 << 9, cores)
    width = panel_width([lane := Var(extent), Var(others)], lane, 16, Machine(cores), 1e-3)
    for items in (others * -(-extent // block), others * -(-extent // width)):
        assert items >= 3.5 * cores
        assert -(-items // cores) * cores < 1.1 * items


def test_what_is_soon_done_is_not_cut() -> None:
    assert cores_worth_having(5e-6, 64) == 1
    assert cores_worth_having(1e-3, 64) == 64
    assert block_of(100_000, 1, 1 << 14, 1 << 12, 1) == 1 << 14
