"""Dot products with rows that share pages of memory read these one after the other."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.codegen.choices import BY_ROWS
from stagejit.codegen.generate import kernel_of
from stagejit.codegen.target import Target, _make
from stagejit.trace.translate import graph_of
from tests.codegen.cpu.contract.tiling.plans import cpu_named, plan
from tests.codegen.cpu.contract.tiling.test_asked_ahead import lines, traffic
from tests.codegen.regions import Compile, Runner, region_of
from tests.randomness import RNG

MEMORY, LAST_CACHE, SECOND_CACHE = 16 << 20, 2 << 20, 1 << 17  # elements; see `cpu_named`


def rows_of(vectors: Any, rows: Any) -> Any:
    return jnp.einsum("mk,nk->mn", vectors, rows)


def tile(elements: int, k: int, vectors: int = 1, cpu: str = "znver4") -> tuple[bool, int]:
    """Whether lanes run along the rows, and how many of these a tile has."""
    found = plan(rows_of, (vectors, k), (elements // k, k), target=cpu_named(cpu)).tiling
    return found.lane in found.reduce, max(s.most for s in found.splits if s.var.extent > vectors)


@pytest.mark.parametrize("k", [40, 64, 100, 256, 500, 1000])
@pytest.mark.parametrize("vectors", [1, 2])
def test_rows_that_share_a_page_of_memory_are_read_one_by_one(k: int, vectors: int) -> None:
    assert tile(MEMORY, k, vectors) == (True, 1)


@pytest.mark.parametrize("k", [1024, 2000, 4096])
def test_rows_of_pages_of_their_own_are_read_in_turn(k: int) -> None:
    along, rows = tile(MEMORY, k)
    assert along
    assert rows > 4


@pytest.mark.parametrize("k", [16, 32])
def test_rows_of_a_line_or_two_are_in_order_anyway(k: int) -> None:
    assert tile(MEMORY, k)[1] > 4


@pytest.mark.parametrize(("k", "vectors"), [(64, 1), (64, 4), (500, 2), (256, 8)])
def test_rows_that_a_core_has_near_are_read_in_turn(k: int, vectors: int) -> None:
    along, rows = tile(SECOND_CACHE, k, vectors)
    assert along
    assert rows > 1


def test_from_the_last_cache_it_depends_on_how_long_tiles_take() -> None:
    assert tile(LAST_CACHE, 64) == (True, 1)
    assert tile(LAST_CACHE, 500, vectors=8)[1] > 1


def test_a_part_of_what_is_large_comes_from_as_far() -> None:
    def scores(q: Any, keys: Any) -> Any:
        return jnp.einsum("hd,htd->ht", q, keys[3])

    found = plan(scores, (12, 64), (48, 12, 256, 64), target=cpu_named("znver4")).tiling
    assert {split.most for split in found.splits} == {1}


@pytest.mark.parametrize("cpu", ["cascadelake", "graniterapids"])
def test_cores_that_ask_a_page_ahead_read_in_turn(cpu: str) -> None:
    assert tile(MEMORY, 64, cpu=cpu)[1] > 4


@pytest.mark.parametrize("k", [64, 100])
def test_lines_are_read_in_the_order_of_memory(k: int) -> None:
    vector, rows = np.ones((1, k), np.float32), np.ones((300_000 // k, k), np.float32)
    read = lines(traffic(rows_of, vector, rows, of=1, cpu="znver4"), "load")
    assert len(set(read)) == -(-rows.size // 16)
    assert all(later >= line - 1 for line, later in itertools.pairwise(read))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 300, 100), (3, 257, 64), (2, 70, 500), (1, 33, 77)])
@pytest.mark.parametrize("masked", [False, True])
def test_values(compile_kernel: Compile, m: int, n: int, k: int, *, masked: bool) -> None:
    """On a machine whose caches are so small that all of this is far away."""
    host = Target.host()
    caches = {1: 1 << 10, 2: 2 << 10, 3: 4 << 10}
    target = _make(host.name, host.triple, "znver4", host.features, caches, cores=2)

    def products(x: Any, rows: Any) -> Any:
        found = jnp.einsum("mk,nk->mn", x, rows)
        return jnp.where(jnp.arange(n) % 7 < 3, found, 0) if masked else found

    x, rows = (RNG.standard_normal(shape, np.float32) for shape in ((m, k), (n, k)))
    kernel = Runner(compile_kernel, target).check(products, x, rows, rtol=2e-5, atol=2e-5)
    assert [choice.reason for choice in kernel.choices if choice.name == "order"] == [BY_ROWS]


def columns_of(rows: Any, w: Any) -> Any:
    return rows @ w


@pytest.mark.parametrize(("k", "n", "elements", "name", "asks"), [
    (100, 16, MEMORY, "znver4", True), (500, 16, MEMORY, "znver4", True),
    (64, 32, MEMORY, "znver4", True), (100, 64, MEMORY, "znver5", True),
    (100, 16, SECOND_CACHE, "znver4", False), (100, 128, MEMORY, "znver4", False),
    (1024, 16, MEMORY, "znver4", False), (32, 16, MEMORY, "znver4", False),
    (100, 16, MEMORY, "cascadelake", False), (100, 16, MEMORY, "graniterapids", False),
])  # fmt: skip
def test_tiles_of_all_columns_ask_for_the_rows_of_the_next_one(
    k: int, n: int, elements: int, name: str, *, asks: bool
) -> None:
    """Where several share a page, and each is read by one tile."""
    found = plan(columns_of, (elements // k, k), (k, n), target=cpu_named(name))
    asked = found.tiling.next_tile
    assert (asked is not None and asked.operand == 0) == asks
    assert asked is None or asked.along.extent == elements // k
    assert ("fetch" in [choice.name for choice in found.choices]) == asks


@pytest.mark.parametrize(("k", "n"), [(100, 16), (64, 20), (77, 33)])
def test_they_ask_in_the_order_of_memory(k: int, n: int) -> None:
    rows, w = np.ones(((1 << 16) // k, k), np.float32), np.ones((k, n), np.float32)
    noted = traffic(columns_of, rows, w, of=0, cpu="znver4")
    asked, read = lines(noted, "prefetch"), lines(noted, "load")
    in_order = sum(line <= later <= line + 1 for line, later in itertools.pairwise(asked))
    assert in_order > 0.98 * len(asked)
    # In time, but for the first tile of each item.
    first: dict[int, str] = {}
    for what, line in noted:
        first.setdefault(line, what)
    assert set(first) >= set(read)
    assert sum(first[line] == "load" for line in set(read)) < 0.2 * len(set(read))


@pytest.mark.parametrize(("k", "n"), [(1024, 16), (1024, 24), (2048, 12), (4096, 10), (3072, 16)])
@pytest.mark.parametrize("elements", [MEMORY, SECOND_CACHE])
def test_rows_at_the_same_place_of_pages_are_few(k: int, n: int, elements: int) -> None:
    """The first cache holds eight lines there, and one is of the other operand."""
    found = plan(columns_of, (elements // k, k), (k, n), target=cpu_named("znver4")).tiling
    rows = next(split.most for split in found.splits if split.var.extent == elements // k)
    assert found.lane in found.reduce or any(found.pack) or rows <= 7


@pytest.mark.parametrize("k", [1024, 2048])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.int8])
@pytest.mark.parametrize("rows", [14, 15, 16, 32, 48])
def test_rows_beside_converted_vectors_are_few_there_too(rows: int, dtype: Any, k: int) -> None:
    def widened(x: Any, w: Any) -> Any:
        return x @ w.astype(np.float32)

    args = jax.ShapeDtypeStruct((rows, k), np.float32), jax.ShapeDtypeStruct((k, k), dtype)
    made = kernel_of(region_of(graph_of(widened, *args)), cpu_named("znver4"))
    (tile,) = (choice.reason for choice in made.choices if choice.name == "tile")
    assert "left packed" in tile.split(":")[0] or int(tile.split()[0]) <= 8


@pytest.mark.parametrize("k", [1000, 1040, 1100])
def test_rows_elsewhere_are_many(k: int) -> None:
    found = plan(columns_of, (MEMORY // k, k), (k, 16), target=cpu_named("znver4")).tiling
    assert max(split.most for split in found.splits) > 7
