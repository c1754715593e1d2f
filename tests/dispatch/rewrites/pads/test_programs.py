"""fuse-pad: who writes the border of a pad, and when it stays a fill."""

from __future__ import annotations

import random
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.dispatch.rewrites.pads import fuse_pads
from stagejit.graph.text.parser import parse
from stagejit.options import Options
from stagejit.schedule.plans.plan import Plan
from tests.dispatch.rewrites.texts import expanded, outline, part, plain, rewritten
from tests.schedule.planning import check, check_graph, regions_in

OFF = Options(disable=("fuse-pad",))


def f32(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def reasons(plan: Plan, applied: bool = False) -> list[str]:
    return [d.reason for d in plan.decisions if d.rewrite == "fuse-pad" and d.applied == applied]


def kinds(plan: Plan) -> list[str]:
    return [dispatch.kind for dispatch in plan.dispatches]


def test_the_producer_writes_the_border() -> None:
    plan = check(lambda x: jnp.pad(jnp.exp(x), ((1, 2), (3, 0)), constant_values=7.0), f32(5, 4))
    assert kinds(plan) == ["map"]
    assert [str(write) for write in plan.dispatches[0].writes] == ["r0[0:8, 0:7]"]
    assert reasons(plan, True) == ["the border is written where the interior is placed"]


def test_borders_are_disjoint_and_leave_the_interior_out() -> None:
    (region,) = regions_in(lambda x: jnp.pad(jnp.exp(x), 1), f32(5, 4))
    sizes = sorted(border.stores[0].value.type.size for border in region.borders)
    assert sum(sizes) == 7 * 6 - 5 * 4
    assert len(sizes) == 4
    assert [border.name for border in region.borders] == [
        f"{region.name}.border{number}" for number in range(4)
    ]


def test_off_brings_the_fill_back() -> None:
    plan = check(lambda x: jnp.pad(jnp.exp(x), 1), f32(5, 4), options=OFF)
    assert kinds(plan) == ["fill", "map"]
    assert reasons(plan) == []


@pytest.mark.parametrize("interior", [(0, 1), (2, 0), (1, 2), (3, 3)])
def test_interior_padding_is_strided_borders(interior: tuple[int, int]) -> None:
    config = tuple((1, 0, step) for step in interior)
    plan = check(lambda x: lax.pad(x * 2, np.float32(3), config), f32(4, 5))
    assert kinds(plan) == ["map"]


@pytest.mark.parametrize(("shape", "widths", "filled"), [
    ((512, 7, 7), ((0, 0), (1, 1), (1, 1)), True),  # images, channels first
    ((512, 7, 7), ((0, 0), (1, 1), (0, 0)), False),  # whole rows: one run an image
    ((16, 62, 62), ((0, 0), (1, 1), (1, 1)), False),  # larger images: few lines of each
    ((7, 7, 512), ((1, 1), (1, 1), (0, 0)), False),  # channels last
    ((8, 7, 7), ((0, 0), (1, 1), (1, 1)), False),  # near its core
])  # fmt: skip
def test_dont_write_a_border_in_short_runs(
    shape: tuple[int, ...], widths: tuple[tuple[int, int], ...], filled: bool
) -> None:
    plan = check(lambda x: jnp.pad(x * 2, widths), f32(*shape))
    assert kinds(plan) == (["fill", "map"] if filled else ["map"])
    short = "stores of the border touch more lines than all of the pad has"
    assert reasons(plan) == ([short] if filled else [])


def test_dont_write_a_border_in_many_pieces() -> None:
    plan = check(lambda x: lax.pad(x * 2, np.float32(3), ((0, 0, 8), (0, 0, 8))), f32(4, 5))
    assert kinds(plan) == ["fill", "map"]
    assert reasons(plan) == ["the border has more than 12 pieces"]


def test_nested_borders_of_different_values() -> None:
    def fn(x: Any) -> Any:
        inner = jnp.pad(jnp.exp(x), ((1, 0), (2, 1)), constant_values=2.0)
        return jnp.pad(inner, ((0, 3), (1, 1)), constant_values=5.0)

    plan = check(fn, f32(5, 4))
    assert kinds(plan) == ["map"]
    assert len(plan.dispatches[0].writes) == 1


def test_several_producers_share_a_border() -> None:
    def fn(a: Any, b: Any) -> Any:
        return jnp.pad(jnp.concatenate([a * 2, b + 1]), 1)

    plan = check(fn, f32(3, 4), f32(2, 4))
    assert kinds(plan) == ["map", "map"]
    assert plan.barriers == ()


def test_elements_that_nobody_places_are_in_the_border() -> None:
    def fn(a: Any, b: Any) -> Any:
        return jnp.zeros((9, 4)).at[1:3].set(a * 2).at[5:7].set(b + 1)

    plan = check(fn, f32(2, 4), f32(2, 4))
    assert kinds(plan) == ["map", "map"]


def test_what_a_later_insert_reads_is_in_the_border() -> None:
    def fn(a: Any) -> Any:
        d = jnp.full((8, 4), 3.0).at[0:4].set(jnp.exp(a))
        return d.at[2:6].set(lax.cumsum(d[2:6]))

    plan = check(fn, f32(4, 4))
    assert plan.fills == ()


def test_a_scatter_after_the_insert_sees_the_border() -> None:
    def fn(a: Any, i: Any) -> Any:
        return jnp.full((8, 4), 3.0).at[0:4].set(jnp.exp(a)).at[i].add(1.0)

    plan = check(fn, f32(4, 4), np.array([1, 6, 6], np.int32))
    assert kinds(plan) == ["map", "scatter"]


def test_dont_give_a_border_to_a_scatter() -> None:
    plan = check(lambda i: jnp.zeros((8, 4)).at[i].add(1.0), np.array([1, 6, 6], np.int32))
    assert kinds(plan) == ["fill", "scatter"]
    assert reasons(plan) == ["its elements are read before anything is placed"]


def test_dont_give_a_border_to_an_insert_at_a_dynamic_place() -> None:
    plan = check(
        lambda a, i: lax.dynamic_update_slice(jnp.zeros((8, 4)), a * 2, (i, 0)),
        f32(2, 4),
        np.int32(3),
    )
    assert kinds(plan) == ["fill", "map"]
    assert reasons(plan) == ["where the interior lies is known at run time only"]


def test_dont_move_the_border_of_a_pad_that_is_placed_dynamically() -> None:
    def fn(d: Any, a: Any, i: Any) -> Any:
        return lax.dynamic_update_slice(d, jnp.pad(jnp.exp(a), 1), (i, 0))

    plan = check(fn, f32(9, 6), f32(2, 4), np.int32(3), donated=[True, False, False])
    assert kinds(plan) == ["map", "map"]
    assert reasons(plan) == ["where the pad lies is known at run time only"]


def test_dont_fuse_a_pad_of_nothing() -> None:
    graph = parse("""
        graph @f(%x: f32[0,4]) {
          %0: f32[] = const 0.0
          %1: f32[3,4] = fill %0
          %2: f32[3,4] = insert_slice %x into %1 at (2, 0)
          return %2
        }""")
    plan = check_graph(graph, [np.zeros((0, 4), np.float32)])
    assert kinds(plan) == ["fill"]
    assert reasons(plan) == []


def test_a_border_value_from_memory_or_another_dispatch() -> None:
    plan = check(
        lambda a, v: lax.pad(jnp.exp(a), v, ((1, 1, 0), (0, 2, 0))), f32(3, 4), np.float32(4)
    )
    assert kinds(plan) == ["map"]
    plan = check(
        lambda a, v: lax.pad(jnp.exp(a), v * 2, ((1, 1, 0), (0, 2, 0))), f32(3, 4), np.float32(4)
    )
    assert kinds(plan) == ["map"]
    plan = check(
        lambda a, b: lax.pad(jnp.exp(a), b.sum(), ((1, 1, 0), (0, 2, 0))), f32(3, 4), f32(50)
    )
    assert plan.fills == ()


def test_a_fill_that_lies_in_memory_is_no_border() -> None:
    """It is a result, too: what is placed is a copy of it, that nobody can make in pieces."""

    def f(x: Any) -> Any:
        ones = jnp.ones(8, jnp.float32)
        return ones, jnp.concatenate([ones, x])

    plan = check(f, f32(6), options=Options(disable=("fuse-insert",)))
    assert kinds(plan) == ["fill", "copy", "copy"]
    assert kinds(check(f, f32(6))) == ["fill", "copy"]


def test_what_is_read_before_an_inner_fill_is_in_the_border() -> None:
    """The dispatch that takes the inner fill's border covers all of its box, but later."""

    def f(x: Any, y: Any, at: Any) -> Any:
        b = jnp.full((8, 8), 3.0).at[0:2].set(jnp.exp(x))
        read = lax.dynamic_slice(b, (at, 2), (2, 3))
        return b.at[2:8].set(5.0).at[4:6, 1:7].set(jnp.exp(y)), read

    plan = check(f, f32(2, 8), f32(2, 6), np.int32(4))
    assert kinds(plan) == ["map", "map", "map"]
    assert [str(write) for write in plan.dispatches[0].writes] == ["r0[0:8, 0:8]"]


def test_dont_delay_a_fill_of_what_is_overwritten() -> None:
    """The fill reads an element that the dispatch beside it would overwrite."""

    def f(x: Any) -> Any:
        first = x[:1] + 3
        spread = jnp.full((1,), x[1] + first[0])
        return x.at[:1].set(first).at[1:2].set(spread).at[:1].set(first + 3), x & 5

    plan = check(f, np.arange(4, dtype=np.int32))
    assert reasons(plan) == ["what it is filled with is overwritten before anything is placed"]


MADE = part("f32[] = const 5.0", "f32[8] = fill %0", "f32[8] = map add %1, %a0", "%2", a0="f32[8]")
PLACE = part("f32[2] = map exp %a0", "f32[8] = insert_slice %0 into %d0 at (1)", "%1", a0="f32[2]",
             d0="f32[8]")  # fmt: skip


def test_who_overwrites_what_a_fill_reads_waits_for_the_border() -> None:
    """%4 comes after the fill because it waits for %2."""
    before = expanded(
        """
        graph @f(%z: f32[] donated, %v: f32[], %w: f32[8], %x: f32[2]) {
          %0: f32[8] = dispatch map %w : MADE
          %1: f32[8] = dispatch fill %z into %0 [0:4] : fill
          %2: f32[2] = dispatch copy %1 : read
          %3: f32[] = after %z, %2
          %4: f32[] = dispatch copy %v into %3 [] : put
          %5: f32[8] = dispatch map %x into %1 [1:3] : PLACE
          return %5, %4, %2
        }""",
        MADE=MADE,
        PLACE=PLACE,
        fill=part("f32[4] = fill %a0", "f32[8] = insert_slice %0 into %d0 at (0)", "%1",
                  a0="f32[]", d0="f32[8]"),
        read=part("f32[2] = extract_slice %a0 at (5)", "%0", a0="f32[8]"),
        put=part("f32[] = insert_slice %a0 into %d0 at ()", "%0", a0="f32[]", d0="f32[]"),
    )  # fmt: skip
    after, _ = rewritten(before, fuse_pads)
    assert outline(after) == plain("""
        graph @f(%z: f32[] donated, %v: f32[], %w: f32[8], %x: f32[2]) {
          %0: f32[8] = dispatch map %w
          %1: f32[2] = dispatch copy %0
          %2: f32[] = after %z, %1
          %3: f32[8] = dispatch map %x, %z into %0 [1:3] [0:1] [3:4]
          %4: f32[] = after %2, %3
          %5: f32[] = dispatch copy %v into %4 []
          return %3, %5, %1
        }""")


def test_dont_fill_with_what_another_border_overwrites() -> None:
    before = expanded(
        """
        graph @f(%w: f32[8], %x: f32[2]) {
          %0: f32[8] = dispatch map %w : MADE
          %1: f32[8] = dispatch map %0 into %0 [0:3] : spread
          %2: f32[8] = dispatch fill into %1 [2:8] : fill
          %3: f32[8] = dispatch map %x into %2 [1:3] : PLACE
          return %3
        }""",
        MADE=MADE,
        PLACE=PLACE,
        spread=part("f32[1] = extract_slice %a0 at (5)", "f32[] = reshape %0", "f32[3] = fill %1",
                    "f32[8] = insert_slice %2 into %d0 at (0)", "%3", a0="f32[8]", d0="f32[8]"),
        fill=part("f32[] = const 7.0", "f32[6] = fill %0",
                  "f32[8] = insert_slice %1 into %d0 at (2)", "%2", d0="f32[8]"),
    )  # fmt: skip
    _, said = rewritten(before, fuse_pads)
    assert said == [
        "+ the border is written where the interior is placed",
        "- what it is filled with is overwritten before anything is placed",
    ]


def test_random_updates_are_read_as_they_were() -> None:
    """Boxes of one buffer that are filled, placed and read in any order."""
    for seed in (*range(90, 150), 8500):
        check(_updates(random.Random(seed)), np.arange(96).reshape(12, 8), orders=1)


def _updates(rng: random.Random) -> Any:
    kinds = ("fill", "spread", "place", "place", "again", "move", "every other", "read")
    steps = [
        (rng.choice(kinds), *_rows(rng), *_rows(rng), rng.randint(0, 11), rng.random() < 0.4)
        for _ in range(rng.randint(3, 7))
    ]

    def f(x: Any) -> Any:
        b, results, parts = jnp.full((12, 12), 3, x.dtype), [], []
        for number, (kind, low, high, left, right, at, single) in enumerate(steps):
            if single and kind == "place":
                high, right = low + 1, left + 1
            box = b.at[low:high, left:right]
            if kind == "fill":
                b = box.set(jnp.full((high - low, right - left), number, x.dtype))
            elif kind == "spread":  # with what was placed before, or lies somewhere
                scalar = parts[-1][0].ravel()[0] if parts else b[at, at]
                b = box.set(jnp.full((high - low, right - left), scalar + number))
            elif kind == "move":
                start = min(at, 12 - (high - low))
                b = box.set(b[start : start + high - low, left:right] + number)
            elif kind == "place":
                part = jnp.tile(x, 2)[12 - high : 12 - low, left:right]
                b = box.set(part * number)
                parts.append((part * number, low, left))
            elif kind == "again" and parts:
                part, row, column = parts[-1]
                b = lax.dynamic_update_slice(b, part + number, (row, column))
            elif kind == "every other":
                b = b.at[low:high:2, left:right].set(-number)
            else:
                results.append(b[low:high, left:right].sum())
        return b, *results

    return f


def _rows(rng: random.Random) -> tuple[int, int]:
    low = rng.randint(0, 10) * (rng.random() < 0.7)
    return low, 12 if rng.random() < 0.4 else rng.randint(low + 1, 12)
