"""Which operands of products are packed, evaluated in tiles, or in panels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.codegen.closed import closed
from stagejit.codegen.contraction.nest import contract_nest
from stagejit.codegen.contraction.walk import settled
from stagejit.codegen.cpu.contract.packing import layout, panel_split
from stagejit.codegen.cpu.contract.plan import make_plan
from stagejit.codegen.target import Target
from stagejit.trace.translate import graph_of
from tests.codegen.cpu.contract.tiling.plans import cpu_named, panels_plan, plan, transposed
from tests.codegen.regions import region_of


@pytest.mark.parametrize(("width", "dtype", "most"), [
    (128, np.int8, 1), (128, jnp.bfloat16, 1), (64, np.float32, 4),
    (16, np.int8, 12),  # one panel of a vector would wait for its own sums
])  # fmt: skip
def test_what_is_widened_is_read_one_panel_at_a_time(width: int, dtype: Any, most: int) -> None:
    found = panels_plan((24, 768, width), 1, dtype, "cascadelake")
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
    found = make_plan(region, settled(region, contract_nest(region.anchor_op)), cpu_named(name))
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
    found = plan(lambda x, w: x @ made(w), (1, 768), (768, 2304), target=cpu_named("cascadelake"))
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
    found = make_plan(region, nest, cpu_named("cascadelake"))
    number = next(at for at, source in enumerate(found.sources) if source.operations)
    assert (len(found.nest.reduce) == 2) == (x.ndim == 3)
    assert found.tiling.pack[number]


def test_each_group_of_tiles_has_a_panel_of_what_is_packed() -> None:
    """It holds whole rows of the largest tile, and nothing else."""
    found = plan(lambda a, b: a @ b, (1024, 300), (300, 1000), target=cpu_named("znver5"))
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
    target = replace(cpu_named("cascadelake"), cores=2)
    shapes = ((200, 1024) if fn is transposed else (1024, 200)), (200, 1024)
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


@pytest.mark.parametrize("line", [64, 128])
def test_packs_are_whole_lines_of_the_machine(line: int) -> None:
    target = replace(cpu_named("znver5"), line_nbytes=line)
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
