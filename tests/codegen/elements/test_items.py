"""Items: every position exactly once, in any chunks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from stagejit.codegen.elements.elements import Elements
from stagejit.codegen.elements.items import ENOUGH_ITEMS, NARROWEST_PANEL, Items, Loop, panel_width
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import I64
from stagejit.index.affine import Affine, Var


def visits(run_kernel: Any, loops: list[Loop], chunks: int) -> np.ndarray[Any, Any]:
    """How often each position of the row-major space of the loops is visited."""
    builder = Builder()
    counts = builder.buffer("counts", I64)
    elements = Elements(builder, {})
    items = Items.over(loops)

    def body() -> None:
        at = Affine()
        for loop in loops:
            at = at * loop.var.extent + Affine.of(loop.var)
        index = elements.scalar_index(at)
        builder.store(builder.load(counts, index) + 1, counts, index)

    items.emit(elements, body)
    function = builder.finish()
    found = np.zeros([loop.var.extent for loop in loops], np.int64)
    cuts = np.linspace(0, items.total, chunks + 1).astype(int)
    for lo, hi in itertools.pairwise(cuts):
        if lo < hi:
            run_kernel(function, [found], (), int(lo), int(hi))
    return found


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize(
    "extents", [(), (5,), (100,), (3, 4), (7, 100), (2, 3, 4), (70, 2, 3)], ids=str
)
def test_every_position_once(run_kernel: Any, extents: tuple[int, ...], chunks: int) -> None:
    found = visits(run_kernel, [Loop(Var(extent)) for extent in extents], chunks)
    np.testing.assert_array_equal(found, np.ones_like(found))


@pytest.mark.parametrize("extents", [(10,), (5, 10), (90, 10), (3, 5, 7)], ids=str)
def test_steps(run_kernel: Any, extents: tuple[int, ...]) -> None:
    *outer, last = [Var(extent) for extent in extents]
    found = visits(run_kernel, [*(Loop(var) for var in outer), Loop(last, 4)], 2)
    expected = np.zeros_like(found)
    expected[..., ::4] = 1
    np.testing.assert_array_equal(found, expected)


def test_enough_items_and_no_more() -> None:
    loops = [Loop(Var(8)), Loop(Var(8)), Loop(Var(1000))]
    items = Items.over(loops)
    assert items.total == ENOUGH_ITEMS
    assert items.inner == (loops[2],)
    assert Items.over([Loop(Var(3)), Loop(Var(2))]).total == 6
    assert Items.over([]).total == 1


def test_trips_round_up() -> None:
    assert Loop(Var(10), 4).trips == 3
    assert Loop(Var(8), 4).trips == 2


@pytest.mark.parametrize("extent", [1, 15, 16, 17, 100, 1000, 100000])
@pytest.mark.parametrize("cores", [1, 2, 64])
def test_panels(extent: int, cores: int) -> None:
    width = panel_width(extent, 16, 1, cores)
    assert width % 16 == 0
    assert width < extent + 16
    assert width >= min(NARROWEST_PANEL, extent)
