"""Tilings: every element in exactly one group, tiles that fit the registers, blocks that fit
caches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from stagejit.codegen.closed import closed
from stagejit.codegen.contraction.conv_nest import conv_nests
from stagejit.codegen.contraction.nest import contract_nest
from stagejit.codegen.contraction.walk import settled
from stagejit.codegen.cpu.contract.packing import layout, panel_split
from stagejit.codegen.cpu.contract.plan import ContractPlan, make_plan
from stagejit.codegen.cpu.contract.tiling import Split
from stagejit.codegen.target import Target, _make
from stagejit.index.affine import Var
from stagejit.trace.translate import graph_of
from tests.codegen.regions import region_of

TARGETS = {"host": Target.host, "avx2": Target.avx2, "sse2": Target.sse2}


def plan(
    fn: Any, *shapes: tuple[int, ...], target: Target, dtype: Any = np.float32
) -> ContractPlan:
    graph = graph_of(fn, *(np.zeros(shape, dtype) for shape in shapes))
    region = closed(region_of(graph))
    anchor = region.anchor_op
    nest = contract_nest(anchor) if region.kind == "contract" else conv_nests(anchor)[0]
    return make_plan(region, settled(region, nest), target)


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


def transposed(a: Any, b: Any) -> Any:
    return a.T @ b


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


@pytest.mark.parametrize(("m", "k", "n", "fetches"), [
    (123, 51234, 456, True), (16, 60000, 768, True), (300, 4096, 4096, True),
    (2, 30000, 1500, True), (64, 2048, 2048, True), (512, 2048, 2048, False),
    (2, 2048, 2048, False), (64, 512, 256, False),
])  # fmt: skip
def test_what_comes_from_afar_is_fetched_a_block_ahead(
    m: int, k: int, n: int, fetches: bool
) -> None:
    """From memory always; from the last cache if some rows use it, and they are few. The block
    that tiles read and the next one fill half of the second cache at most."""
    target = replace(Target.avx512(), cores=2)
    found = plan(lambda a, b: a @ b, (m, k), (k, n), target=target)
    tiling, (_, vector) = found.tiling, found.sources
    assert tiling.ahead == fetches
    if fetches:
        assert tiling.lane in vector.depends
        assert 2 * vector.box(tiling.extents) * 4 <= target.l2_nbytes // 2


def _cpu(name: str) -> Target:
    caches = {1: 32 << 10, 2: 1 << 20, 3: 32 << 20}
    target = Target.avx512()
    return _make(name, target.triple, name, target.features, caches, cores=2)


def test_short_steps_fetch_what_follows_in_the_second_cache() -> None:
    """Where a step takes as long as a line, where vectors are in the first cache, where they do not
    follow each other, and where few rows use them, nothing is fetched."""

    def near(cpu: str, m: int, k: int, n: int) -> int:
        return plan(lambda a, b: a @ b, (m, k), (k, n), target=_cpu(cpu)).tiling.near

    assert near("znver5", 1024, 1024, 1024) == 8  # steps of 12 cycles
    assert near("cascadelake", 1024, 1024, 1024) == 8
    assert near("znver4", 1024, 1024, 1024) == 0
    assert near("znver5", 1024, 64, 64) == 0
    assert near("znver5", 96, 256, 256) == 0
    assert near("znver5", 64, 9216, 48) == 8
    assert near("znver5", 8, 9216, 48) == 0


def _panels(w: Any, x: Any) -> Any:
    """Panels of bytes, of which each step reads the next row."""
    return jnp.einsum("bk,pkn->bpn", x, w.astype(jnp.float32))


@pytest.mark.parametrize(("rows", "width", "dtype", "cpu", "steps"), [
    (1, 128, np.int8, "cascadelake", 64), (1, 128, jnp.bfloat16, "cascadelake", 32),
    (1, 64, np.float32, "cascadelake", 32), (4, 64, np.int8, "cascadelake", 128),
    (1, 128, np.int8, "znver4", 0),
    (8, 48, np.int8, "cascadelake", 0),  # short blocks: what follows is read much later
    (1, 48, np.int8, "cascadelake", 171), (4, 128, np.int8, "cascadelake", 0),  # half of a panel
])  # fmt: skip
def test_what_is_used_once_is_asked_for_two_pages_ahead(
    rows: int, width: int, dtype: Any, cpu: str, steps: int
) -> None:
    """Where it lies in the order of the steps, on cores that have to ask."""
    found = _panels_plan((2304 // width, 768, width), rows, dtype, cpu)
    assert found.tiling.near == steps
    assert found.tiling.near_cache == (2 if steps else 1)
    assert ("fetch" in [choice.name for choice in found.choices]) == (steps > 0)


def test_what_many_rows_use_or_a_cache_holds_is_not_asked_for_from_afar() -> None:
    assert _panels_plan((18, 768, 128), 64, np.int8, "cascadelake").tiling.near_cache == 1
    assert _panels_plan((2, 256, 128), 1, np.int8, "cascadelake").tiling.near_cache == 1


@pytest.mark.parametrize("equation", ["hd,htd->ht", "ht,htd->hd"])
def test_who_waits_for_memory_is_shared_out(equation: str) -> None:
    """A product of few multiplications takes as long as its operands take to come."""

    def items(heads: int) -> int:
        short = (heads, 64) if equation == "hd,htd->ht" else (heads, 256)
        long = heads, 256, 64
        found = plan(partial(jnp.einsum, equation), short, long, target=_cpu("znver4"))
        return found.tiling.items

    assert items(12) >= 4
    assert items(1) == 1


@pytest.mark.parametrize(("width", "dtype", "most"), [
    (128, np.int8, 1), (128, jnp.bfloat16, 1), (64, np.float32, 4),
    (16, np.int8, 12),  # one panel of a vector would wait for its own sums
])  # fmt: skip
def test_what_is_widened_is_read_one_panel_at_a_time(width: int, dtype: Any, most: int) -> None:
    found = _panels_plan((24, 768, width), 1, dtype, "cascadelake")
    (panels,) = (split for split in found.tiling.splits if split.var.extent == 24)
    assert panels.most == most


def _halves(q: Any, x: Any) -> Any:
    """Panels of bytes, each half a number."""
    half = (q[:, :, None, :] >> (jnp.arange(2, dtype=jnp.uint8)[:, None] * np.uint8(4))) & 15
    return jnp.einsum("bk,pkhn->bphn", x, half.astype(jnp.float32) - 8)


@pytest.mark.parametrize(("rows", "packs"), [(1, False), (8, False), (256, True)])
@pytest.mark.parametrize("name", ["cascadelake", "znver4"])
def test_tiles_evaluate_what_few_rows_use(name: str, rows: int, packs: bool) -> None:
    """Both halves of a byte in one tile, which reads it once; many rows find them in scratch."""
    graph = graph_of(_halves, np.zeros((18, 768, 64), np.uint8), np.zeros((rows, 768), np.float32))
    region = closed(region_of(graph))
    found = make_plan(region, settled(region, contract_nest(region.anchor_op)), _cpu(name))
    number = next(at for at, source in enumerate(found.sources) if source.operations)
    assert found.sources[number].operations == 3
    assert found.tiling.pack[number] == packs
    told = [choice.reason for choice in found.choices if choice.name == "pack"]
    side = ("left", "right")[number]
    why = "of u8, by a conversion and 3 operations"
    assert told == ([] if packs else [f"not the {side} operand: each tile makes it {why}"])
    halves = [split for split in found.tiling.splits if not found.sources[number].stride(split.var)]
    halves = [split for split in halves if split.var in found.sources[number].depends]
    assert packs or [split.most for split in halves] == [2]
    if rows == 1:
        sizes = sorted(split.most for split in found.tiling.splits if split.most > 1)
        assert sizes == [2, 4]  # one panel at a time


@pytest.mark.parametrize("made", [
    lambda w: w * 2,  # as many bits
    lambda w: w.astype(jnp.bfloat16).astype(jnp.float32) * w,
    lambda w: jnp.exp(w.astype(jnp.int8).astype(jnp.float32)),
])  # fmt: skip
def test_what_saves_no_bytes_or_takes_long_is_packed(made: Any) -> None:
    found = plan(lambda x, w: x @ made(w), (1, 768), (768, 2304), target=_cpu("cascadelake"))
    assert found.sources[1].operations == 0
    assert found.tiling.pack[1]


@pytest.mark.parametrize("shapes", [((1, 12, 64), (64, 12, 768)), ((768,), (2304, 768))])
def test_what_is_summed_over_several_axes_or_along_lanes_is_packed(
    shapes: tuple[tuple[int, ...], ...],
) -> None:
    """A tile would not know where it stands."""

    def product(x: Any, q: Any) -> Any:
        wide = q.astype(jnp.float32) - 8
        form = "bhk,khn->bn" if x.ndim == 3 else "k,nk->n"
        return jnp.einsum(form, x, wide)

    x, q = (
        np.zeros(shape, dtype) for shape, dtype in zip(shapes, (np.float32, np.uint8), strict=True)
    )
    region = closed(region_of(graph_of(product, x, q)))
    nest = settled(region, contract_nest(region.anchor_op))
    found = make_plan(region, nest, _cpu("cascadelake"))
    number = next(at for at, source in enumerate(found.sources) if source.operations)
    assert (len(found.nest.reduce) == 2) == (x.ndim == 3)
    assert found.tiling.pack[number]


def _panels_plan(shape: tuple[int, ...], rows: int, dtype: Any, cpu: str) -> ContractPlan:
    graph = graph_of(_panels, np.zeros(shape, dtype), np.zeros((rows, shape[1]), np.float32))
    region = closed(region_of(graph))
    return make_plan(region, settled(region, contract_nest(region.anchor_op)), _cpu(cpu))


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
    found = plan(scores, *shapes, target=_cpu(cpu))
    if columns == 64:
        assert found.tiling.lane in found.tiling.reduce
    number, along = found.tiling.next_tile or (None, None)
    assert (number == 1) == asks
    assert along is None or along.extent == 256  # rows, not the next head of the same rows
    assert ("fetch" in [choice.name for choice in found.choices]) == asks


def test_each_group_of_tiles_has_a_panel_of_what_is_packed() -> None:
    """It holds whole rows of the largest tile, and nothing else."""
    found = plan(lambda a, b: a @ b, (1024, 300), (300, 1000), target=_cpu("znver5"))
    source, tiling = found.sources[1], found.tiling
    split = panel_split(source, tiling)
    assert split is not None
    assert split.var is tiling.lane
    *_, row = layout(source, tiling, source.dtype)[0]
    assert row.length == tiling.row == split.most * 16
    assert layout(source, tiling, source.dtype)[1] == 300 * row.length
    assert panel_split(found.sources[0], tiling) is None
    assert panel_split(source, replace(tiling, panels=False)) is None


FEW_LINES = replace(Target.avx512(), l1_misses=12, l1_nbytes=32 << 10)


@pytest.mark.parametrize(
    ("fn", "shapes", "rows"),
    [
        pytest.param(transposed, ((4096, 768), (4096, 768)), 8, id="side by side"),
        pytest.param(
            lambda a, b: jnp.einsum("bkm,bkn->bmn", a, b), ((2, 2048, 256), (2, 2048, 256)), 8,
            id="of each batch",
        ),
        pytest.param(jnp.matmul, ((64, 1024), (1024, 512)), 0, id="read as they lie"),
        pytest.param(
            lambda a, b: (a[::2]).T @ b, ((8192, 768), (4096, 768)), 8, id="every second step"
        ),
        pytest.param(
            lambda a, b: a[:, ::2].T @ b, ((4096, 1536), (4096, 768)), 0, id="not side by side"
        ),
    ],
)  # fmt: skip
def test_rows_side_by_side_have_panels(fn: Any, shapes: Any, rows: int) -> None:
    """A power of two of them, which one store packs."""
    found = plan(fn, *shapes, target=FEW_LINES)
    lane = found.tiling.lane
    (left,) = (source for source in found.sources if lane not in source.depends)
    packs = found.tiling.pack[found.sources.index(left)]
    split = panel_split(left, found.tiling) if packs else None
    assert (split.most if split is not None else 0) == rows
    if split is not None:
        dims, size = layout(left, found.tiling, left.dtype)
        assert (dims[-1].stride, dims[-2].stride) == (1, rows)
        assert (size // 16) % 2 == 1, "panels that are filled together begin on different sets"


@pytest.mark.parametrize("fn", [transposed, jnp.matmul])
def test_items_that_pack_both_operands_are_few(fn: Any) -> None:
    target = replace(_cpu("cascadelake"), cores=2)
    shapes = ((4096, 768) if fn is transposed else (768, 4096)), (4096, 768)
    tiling = plan(fn, *shapes, target=target).tiling
    assert all(tiling.pack) == (fn is transposed)
    assert tiling.items >= target.cores
    assert (tiling.items <= 2 * target.cores) == (fn is transposed)


def test_windows_have_no_panels() -> None:
    """What neighbouring groups share is there once."""
    found = plan(
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"),
        (1, 64, 90, 62), (32, 64, 3, 3), target=Target.host(),
    )  # fmt: skip
    assert found.tiling.pack == (True, False)
    assert panel_split(found.sources[0], found.tiling) is None


def test_small_work_is_one_item() -> None:
    assert plan(lambda a, b: a @ b, (8, 8), (8, 8), target=Target.host()).tiling.items == 1


def test_equal_problems_get_equal_tilings() -> None:
    first, second = (plan(lambda a, b: a @ b, (300, 400), (400, 500), target=Target.avx2())
                     for _ in range(2))  # fmt: skip
    assert [(s.most, s.parts) for s in first.tiling.splits] == [
        (s.most, s.parts) for s in second.tiling.splits
    ]


@pytest.mark.parametrize("line", [64, 128])
def test_packs_are_whole_lines_of_the_machine(line: int) -> None:
    target = replace(_cpu("znver5"), line_nbytes=line)
    found = plan(lambda a, b: a @ b, (1024, 300), (300, 1000), target=target)
    assert found.tiling.line_nbytes == line
    image, kernel = (1, 24, 61, 61), (32, 24, 3, 3)
    conv = plan(lambda x, w: lax.conv(x, w, (2, 2), "VALID"), image, kernel, target=target)
    for each in (found, conv):
        for source in each.sources:
            dims, size = layout(source, each.tiling, each.nest.dtype)
            assert size * 4 % line == 0
            phased = [dim for dim in dims if dim.modulus > 1]
            assert all(dim.plane * 4 % line == 0 for dim in phased if dim.stride == 1)
