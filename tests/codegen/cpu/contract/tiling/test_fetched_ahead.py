"""What products ask for before they read it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.codegen.target import Target
from tests.codegen.cpu.contract.tiling.plans import cpu_named, panels_plan, plan


@pytest.mark.parametrize(("m", "k", "n", "fetches"), [
    (123, 51234, 456, True), (16, 60000, 768, True), (300, 4096, 4096, True),
    (2, 30000, 1500, True), (64, 2048, 2048, True), (512, 2048, 2048, True),
    (512, 512, 512, False), (2, 2048, 2048, False), (64, 512, 256, False),
])  # fmt: skip
def test_what_comes_from_afar_is_fetched_a_block_ahead(
    m: int, k: int, n: int, fetches: bool
) -> None:
    """From memory always; from the last cache if some rows use it. The block that tiles read and
    the next one fill half of the second cache at most."""
    target = replace(Target.avx512(), cores=2)
    found = plan(lambda a, b: a @ b, (m, k), (k, n), target=target)
    tiling, (_, vector) = found.tiling, found.sources
    assert tiling.ahead == fetches
    if fetches:
        assert tiling.lane in vector.depends
        assert 2 * vector.box(tiling.extents) * 4 <= target.l2_nbytes // 2


@pytest.mark.parametrize(("cpu", "epilogue", "steps"), [
    ("znver4", False, 256), ("znver4", True, 0), ("znver5", False, 0), ("cascadelake", False, 0),
])  # fmt: skip
def test_many_rows_fetch_short_blocks_where_the_result_has_the_sums(
    cpu: str, epilogue: bool, steps: int
) -> None:
    """Where steps have the time, and lines are not few. Sums that wait for an epilogue had better
    not wait in scratch; where there are too many steps for one block, they do, and blocks fetch."""

    def product(a: Any, b: Any) -> Any:
        return jnp.tanh(a @ b) if epilogue else a @ b

    found = plan(product, (256, 768), (768, 3072), target=replace(cpu_named(cpu), cores=2))
    assert found.tiling.k_block == steps
    assert found.tiling.ahead == (steps > 0)
    long = plan(product, (256, 3072), (3072, 768), target=replace(cpu_named(cpu), cores=2)).tiling
    assert long.ahead == (cpu == "znver4")
    assert long.k_block == (256 if long.ahead else 512)


def test_short_steps_fetch_what_follows_in_the_second_cache() -> None:
    """Where a step takes as long as a line, where vectors are in the first cache, where they do not
    follow each other, and where few rows use them, nothing is fetched."""

    def near(cpu: str, m: int, k: int, n: int) -> int:
        return plan(lambda a, b: a @ b, (m, k), (k, n), target=cpu_named(cpu)).tiling.near

    assert near("znver5", 1024, 1024, 1024) == 8  # steps of 12 cycles
    assert near("cascadelake", 1024, 1024, 1024) == 8
    assert near("znver4", 1024, 1024, 1024) == 0
    assert near("znver5", 1024, 64, 64) == 0
    assert near("znver5", 96, 256, 256) == 0
    assert near("znver5", 64, 9216, 48) == 8
    assert near("znver5", 8, 9216, 48) == 0


@pytest.mark.parametrize(("rows", "width", "dtype", "cpu", "steps"), [
    (1, 128, np.int8, "cascadelake", 64), (1, 128, jnp.bfloat16, "cascadelake", 32),
    (1, 64, np.float32, "cascadelake", 32), (4, 64, np.int8, "cascadelake", 128),
    (1, 128, np.int8, "znver4", 0),
    (8, 48, np.int8, "cascadelake", 0),  # short blocks: what follows is read much later
    (1, 48, np.int8, "cascadelake", 43), (4, 128, np.int8, "cascadelake", 0),  # half of a panel
    (1, 128, np.int8, "graniterapids", 22), (1, 64, np.float32, "graniterapids", 32),
])  # fmt: skip
def test_what_is_used_once_is_asked_for_two_pages_ahead(
    rows: int, width: int, dtype: Any, cpu: str, steps: int
) -> None:
    """Where it lies in the order of the steps, on cores that have to ask: both pages of one panel,
    or a part of each of several that are widened."""
    found = panels_plan((2304 // width, 768, width), rows, dtype, cpu)
    assert found.tiling.near == steps
    assert found.tiling.near_cache == (2 if steps else 1)
    assert ("fetch" in [choice.name for choice in found.choices]) == (steps > 0)


def test_what_many_rows_use_or_a_cache_holds_is_not_asked_for_from_afar() -> None:
    assert panels_plan((18, 768, 128), 64, np.int8, "cascadelake").tiling.near_cache == 1
    assert panels_plan((2, 256, 128), 1, np.int8, "cascadelake").tiling.near_cache == 1


@pytest.mark.parametrize("equation", ["hd,htd->ht", "ht,htd->hd"])
def test_who_waits_for_memory_is_shared_out(equation: str) -> None:
    """A product of few multiplications takes as long as its operands take to come."""

    def items(heads: int) -> int:
        short = (heads, 64) if equation == "hd,htd->ht" else (heads, 256)
        long = heads, 256, 64
        found = plan(partial(jnp.einsum, equation), short, long, target=cpu_named("znver4"))
        return found.tiling.items

    assert items(12) >= 4
    assert items(1) == 1


@pytest.mark.parametrize(("cpu", "layers", "columns", "asks"), [
    ("cascadelake", 12, 64, True), ("znver4", 12, 64, False), ("cascadelake", 1, 64, False),
    ("cascadelake", 12, 1024, False),
])  # fmt: skip
def test_dot_products_with_rows_side_by_side_ask_for_the_next_tile(
    cpu: str, layers: int, columns: int, asks: bool
) -> None:
    """Of a part of what is large, too; not where the next tile is pages away."""

    def scores(q: Any, keys: Any) -> Any:
        return jnp.einsum("hd,htd->ht", q, keys[0])

    shapes = (12, columns), (layers, 12, 256 * 64 // columns, columns)
    found = plan(scores, *shapes, target=cpu_named(cpu))
    if columns == 64:
        assert found.tiling.lane in found.tiling.reduce
    asked = found.tiling.next_tile
    assert (asked is not None and asked.operand == 1) == asks
    assert asked is None or asked.along.extent == 256  # rows, not the next head of the same rows
    assert ("fetch" in [choice.name for choice in found.choices]) == asks
