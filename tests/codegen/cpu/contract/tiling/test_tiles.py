"""Tilings: every element in exactly one group, tiles that fit the registers, blocks that fit
caches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from stagejit.codegen.cpu.contract import plan as planning
from stagejit.codegen.cpu.contract.tiles.blocks import choose
from stagejit.codegen.cpu.contract.tiles.search import Problem
from stagejit.codegen.cpu.contract.tiling import Split
from stagejit.codegen.target import Target
from stagejit.index.affine import Var
from tests.codegen.cpu.contract.tiling.plans import cpu_named, every_tiling, plan, transposed

TARGETS = {"host": Target.host, "avx2": Target.avx2, "sse2": Target.sse2}


@given(st.integers(1, 5000), st.sampled_from([1, 4, 8, 16]), st.integers(1, 14))
def test_groups_cover_an_axis_once(extent: int, unit: int, most: int) -> None:
    split = Split.of(Var(extent), unit, most)
    sizes = split.sizes()
    assert sum(size * count for size, count in sizes) == -(-extent // unit)
    assert split.most == max(size for size, _ in sizes) <= most
    assert max(size for size, _ in sizes) - min(size for size, _ in sizes) <= 1
    assert split.span >= extent


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    "shape", [(1024, 1024, 1024), (1, 4096, 4096), (123, 5000, 456), (8, 8, 8)]
)
def test_tiles_fit_the_registers(name: str, shape: tuple[int, int, int]) -> None:
    target = TARGETS[name]()
    m, k, n = shape
    tiling = plan(lambda a, b: a @ b, (m, k), (k, n), target=target).tiling
    rows, vectors = (
        next((s.most for s in tiling.splits if s.var.name == axis), 1) for axis in "mn"
    )
    if tiling.lane is not None and tiling.lane.name in "mn":
        assert rows * vectors + min(rows, vectors) + 1 <= target.vector_registers


def test_lanes_follow_memory() -> None:
    """Vectors run along what lies contiguous: pixels in NCHW, channels in NHWC."""
    host = Target.host()

    def conv(*numbers: str) -> Any:
        return lambda x, w: lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=numbers
        )

    nchw = plan(conv("NCHW", "OIHW", "NCHW"), (1, 64, 90, 62), (32, 64, 3, 3), target=host)
    assert nchw.tiling.lane is nchw.nest.axes[-1]
    assert nchw.tiling.pack == (True, False)
    nhwc = plan(conv("NHWC", "HWIO", "NHWC"), (1, 56, 56, 64), (3, 3, 64, 64), target=host)
    assert nhwc.tiling.lane is not None
    assert nhwc.tiling.lane.name == "o"


@pytest.mark.parametrize(
    ("fn", "shapes", "misses", "packed"),
    [
        pytest.param(transposed, ((4096, 768), (4096, 768)), 12, True, id="lines fill the cache"),
        pytest.param(transposed, ((4096, 768), (4096, 768)), 24, False, id="many on the way"),
        pytest.param(transposed, ((200, 768), (200, 768)), 12, False, id="few steps"),
        pytest.param(transposed, ((600, 520), (600, 48)), 12, False, id="few columns"),
        pytest.param(jnp.matmul, ((768, 4096), (4096, 768)), 12, False, id="steps share lines"),
    ],
)
def test_rows_whose_steps_crowd_the_first_cache_are_packed(
    fn: Any, shapes: Any, misses: int, packed: bool
) -> None:
    target = replace(Target.avx512(), l1_misses=misses, l1_nbytes=32 << 10)
    tiling = plan(fn, *shapes, target=target).tiling
    assert tiling.lane is not None
    assert tiling.pack["nm".index(tiling.lane.name)] == packed


def test_a_dot_product_runs_along_the_reduction() -> None:
    tiling = plan(lambda a, b: a @ b, (300, 500), (500,), target=Target.host()).tiling
    assert tiling.lane in tiling.reduce


def test_few_columns_are_packed_for_lanes_along_the_reduction() -> None:
    """More columns fill lanes of their own; a long reduction is what rows lie along."""
    made = plan(lambda a, b: a @ b, (2000, 2000), (2000, 3), target=Target.avx512())
    assert made.tiling.lane in made.nest.reduce
    assert made.tiling.pack == (False, True)
    for rows, steps, columns in ((2000, 2000, 24), (2000, 8, 3)):
        shapes = (rows, steps), (steps, columns)
        made = plan(lambda a, b: a @ b, *shapes, target=Target.avx512())
        assert made.tiling.lane not in made.nest.reduce, shapes
    made = plan(lambda a, b: a.T @ b, (2000, 2000), (2000, 3), target=Target.avx512())
    assert made.tiling.lane not in made.nest.reduce


def test_tiles_of_dot_products_read_rows_that_the_first_cache_holds() -> None:
    """Where it does not, rows are read once: a tile has all columns."""

    def columns(steps: int) -> int:
        made = plan(lambda a, b: a @ b, (4000, steps), (steps, 4), target=Target.avx512())
        assert made.tiling.lane in made.nest.reduce
        return max(s.most for s in made.tiling.splits if s.var is made.nest.axes[-1])

    assert columns(2000) == 4


def test_pointwise_convolutions_are_products() -> None:
    found = plan(lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        (2, 14, 14, 64), (1, 1, 64, 128), target=Target.host())  # fmt: skip
    assert [var.extent for var in found.nest.axes] == [2 * 14 * 14, 128]
    assert found.tiling.pack == (False, False)


def test_views_need_no_copies() -> None:
    found = plan(
        lambda q, k: jnp.einsum("bthd,bshd->bhts", *(x.reshape(2, 64, 4, 32) for x in (q, k))),
        (2, 64, 128), (2, 64, 128), target=Target.host())  # fmt: skip
    assert all(source.offset is not None for source in found.sources)


def test_blocks_fit_the_caches() -> None:
    target = Target.host()
    found = plan(lambda a, b: a @ b.T, (2000, 3000), (4000, 3000), target=target)
    tiling = found.tiling
    extents = {split.var: split.span for split in tiling.splits}
    assert tiling.blocked is not None
    extents[tiling.blocked] = tiling.k_block
    # What lies along the lanes stays in the second cache; the other operand passes by.
    (vector,) = (source for source in found.sources if tiling.lane in source.depends)
    assert tiling.pack[found.sources.index(vector)]
    assert vector.box(extents) * 4 <= target.l2_nbytes // 2
    assert tiling.items >= 2 * target.cores


@pytest.mark.parametrize(("steps", "few"), [(51234, True), (2048, False)])
def test_items_that_read_much_from_caches_of_all_cores_are_few(steps: int, few: bool) -> None:
    """Each reads all rows, which the second cache keeps or not."""
    target = replace(cpu_named("sapphirerapids"), cores=2, l2_nbytes=2 << 20)
    found = plan(lambda a, b: a @ b, (123, steps), (steps, 456), target=target)
    assert found.tiling.items >= target.cores
    assert (found.tiling.items <= 2 * target.cores) == few


def test_small_work_is_one_item() -> None:
    assert plan(lambda a, b: a @ b, (8, 8), (8, 8), target=Target.host()).tiling.items == 1


def test_equal_problems_get_equal_tilings() -> None:
    first, second = (plan(lambda a, b: a @ b, (300, 400), (400, 500), target=Target.avx2())
                     for _ in range(2))  # fmt: skip
    assert [(s.most, s.parts) for s in first.tiling.splits] == [
        (s.most, s.parts) for s in second.tiling.splits
    ]


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        pytest.param(jnp.matmul, ((1, 4096), (4096, 4096)), id="reads a matrix once"),
        pytest.param(jnp.matmul, ((300, 4000), (4000, 500)), id="in blocks"),
        pytest.param(transposed, ((4096, 768), (4096, 30)), id="lines fill the cache"),
    ],
)
def test_tiles_that_are_left_without_blocks_cost_more(
    name: str, fn: Any, shapes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = list[Problem]()

    def noted(problem: Problem) -> Any:
        problems.append(problem)
        return choose(problem)

    monkeypatch.setattr(planning, "choose", noted)
    found = plan(fn, *shapes, target=TARGETS[name]())
    (problem,) = problems
    best, *others = sorted(every_tiling(problem), key=lambda tiling: tiling.cycles)
    assert replace(found.tiling, panels=best.panels) == best
    (told,) = (choice.reason for choice in found.choices if choice.name == "tile")
    least = float(told.rpartition(" ")[2])
    assert all(other.cycles >= 0.995 * least for other in others)


def test_it_is_told_of_a_tile_whose_blocks_nobody_looked_for() -> None:
    found = plan(jnp.matmul, (1, 4096), (4096, 4096), target=Target.avx512())
    (told,) = (choice.reason for choice in found.choices if choice.name == "tile")
    assert ": at least " in told
