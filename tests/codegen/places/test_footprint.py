"""The dry run: what a region's evaluation reads, and where its stores go."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.codegen.closed import closed
from stagejit.codegen.places.accesses import lanes_of, read_cost, vector_cost, write_cost
from stagejit.codegen.places.footprint import Footprint
from stagejit.codegen.places.loops import loops_of_stores
from stagejit.codegen.places.space import Space
from stagejit.codegen.target import Target
from stagejit.graph.text.parser import parse
from stagejit.index.affine import Affine, Var
from stagejit.trace.translate import graph_of
from tests.codegen.regions import region_of


def footprint_of(fn: Any, *args: Any) -> tuple[Footprint, Space, list[Affine]]:
    region = region_of(graph_of(fn, *args))
    footprint = Footprint(region)
    space = Space(region.stores[0].value.shape)
    offsets = [footprint.write(store, space.index) for store in region.stores]
    return footprint, space, offsets


def zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


def test_reads_through_views() -> None:
    footprint, space, _ = footprint_of(lambda x: x[2:, ::3].T + 1, zeros(10, 20))
    (read,) = footprint.reads
    column, row = space.loops()
    assert (read[1].coeff(row), read[1].coeff(column), read[1].const) == (20, 3, 40)


def test_each_read_once() -> None:
    footprint, *_ = footprint_of(lambda x: x * x + x, zeros(10, 20))
    assert len(footprint.reads) == 1


def test_broadcasts_have_no_coefficient() -> None:
    footprint, space, _ = footprint_of(lambda x, b: x + b, zeros(10, 20), zeros(20))
    bias = footprint.reads[1][1]
    assert bias.coeff(space.loops()[0]) == 0
    assert bias.coeff(space.loops()[1]) == 1


def test_numbers_of_an_iota() -> None:
    footprint, space, _ = footprint_of(lambda: lax.broadcasted_iota(np.int32, (3, 5), 1))
    assert Affine.of(space.loops()[1]) in footprint.numbers


def test_store_offsets() -> None:
    _, space, (offset,) = footprint_of(
        lambda x, y: x.at[1:5, 3:7].set(y * 2), zeros(10, 20), zeros(4, 4)
    )
    assert offset.const == 23
    assert [offset.coeff(var) for var in space.loops()] == [20, 1]


def test_dynamic_starts_are_bounded() -> None:
    _, _, (offset,) = footprint_of(
        lambda x, y, i: lax.dynamic_update_slice(x, y * 2, (i, 0)),
        zeros(10, 20),
        zeros(4, 20),
        np.int32(0),
    )
    assert offset.range() == (0, 199)


def test_a_gather_reads_its_indices_and_every_place() -> None:
    footprint, *_ = footprint_of(
        lambda x, i: jnp.take(x, i, axis=0, mode="clip") + 1, zeros(10, 20), np.zeros(3, np.int32)
    )
    ranges = sorted(form.range() for _, form in footprint.reads)
    assert ranges == [(0, 2), (0, 199)]


def test_costs_rank_accesses() -> None:
    u, v = Var(100, "u"), Var(64, "v")
    form = Affine.of(u) * 64 + Affine.of(v)
    assert read_cost(form, v, 16) < read_cost(form, u, 16)
    assert read_cost(Affine.of(u), v, 16) < read_cost(form, v, 16)
    pairs = Affine.of(v) * 2
    assert read_cost(form, v, 16) < read_cost(pairs, v, 16) < read_cost(form, u, 16)
    assert write_cost(pairs, v, 16) == 16, "the other half is not there"
    assert write_cost(pairs, v, 16, neighbours=2) == 2
    assert vector_cost([form], [form], v, 16) < vector_cost([form], [form], u, 16)


def test_unused_lanes_cost() -> None:
    short, long = Var(3, "s"), Var(64, "l")
    assert vector_cost([Affine.of(short)], [], short, 16) > vector_cost(
        [Affine.of(long)], [], long, 16
    )


def test_a_computed_place_follows_the_loops_of_what_it_is_computed_from() -> None:
    """Rows of a table: a lane for each index reads line by line, lanes along a row do not."""
    footprint, space, _ = footprint_of(
        lambda x, i, k: jnp.take(x, i * k, axis=0, mode="clip"),
        zeros(10, 8), np.zeros(50, np.int32), np.int32(2),
    )  # fmt: skip
    which, along = space.loops()
    (row,) = (form for value, form in footprint.reads if value.shape == (10, 8))
    assert row.loop_vars() == {which, along}
    assert read_cost(row, which, 8) > 8
    assert read_cost(row, along, 8) == 1


def test_what_joined_loops_become_is_followed() -> None:
    u, v, joint = Var(4, "u"), Var(5, "v"), Var(20, "j")
    place = Affine.of(Var(9, "s", "dynamic", follows=frozenset({u, v})))
    step = {u: Affine(), v: Affine.of(joint)}
    moved = place.substitute(step)
    assert moved.loop_vars() == {joint}
    assert (moved * 3 + 1).range() == (1, 25)
    assert place.substitute(step) == moved, "one variable for all forms"
    assert place.substitute({Var(3): Affine()}) == place
    alone = Affine.of(Var(9, "s", "dynamic"))
    assert alone.substitute(step) == alone


def test_short_rows_have_short_vectors() -> None:
    for extent, lanes in ((1, 2), (2, 2), (3, 4), (4, 4), (5, 8), (9, 16), (16, 16), (90, 16)):
        var = Var(extent, "v")
        assert lanes_of([Affine.of(var)], [Affine.of(var)], var, 16) == lanes
    far = Var(4, "v")
    assert lanes_of([Affine.of(far) * 9], [], far, 16) == 16, "squares have all lanes"
    assert lanes_of([], [], None, 16) == 0


@pytest.mark.parametrize("above", ["f32[]", "f32[4]", "f32[4,4]"])
def test_loops_over_what_is_known_to_lie_in_a_part_stay_apart(above: str) -> None:
    """Kernels find out where it lies of the same index: not of that of loops that became one."""
    whole = f"broadcast %x axes={'(0)' if above == 'f32[4]' else '()'}"
    part = "%x" if above == "f32[4,4]" else "%2"
    text = f"""graph @f(%x: {above}) {{
      %0: f32[] = const 0.0
      %1: f32[5,5] = fill %0
      {"" if part == "%x" else f"%2: f32[4,4] = {whole}"}
      %3: f32[5,5] = overlay {part} into %1 at (0, 0)
      %4: f32[4,2] = extract_slice %3 at (0, 1) strides (1, 2)
      return %4
    }}"""
    loops = loops_of_stores(closed(region_of(parse(dedent(text)))), Target.avx2())
    assert [[var.extent for var in group] for group in loops.groups] == [[4, 2]]
