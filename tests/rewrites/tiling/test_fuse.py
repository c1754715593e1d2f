"""tile-and-fuse: what becomes a loop over tiles, what does not and why."""

from __future__ import annotations

import re
from dataclasses import replace

import jax
import numpy as np

from stagejit.options import Options
from stagejit.rewrites.driving.driver import GraphStep, Log, run_steps
from stagejit.rewrites.tiling import fuse
from stagejit.trace.translate import graph_of
from tests.rewrites.text_in_out import reasons, rewritten
from tests.rewrites.tiling.tiled import SMALL, attention, normal


def _tile(log: Log) -> None:
    """Once, without a look into the bodies."""
    fuse.tile_and_fuse(log)


STEP = GraphStep(fuse.NAME, _tile)


# ------------------------------------------------------------------ what it becomes


SCORES = """\
    graph @f(%q: f32[8,256,16], %k: f32[8,256,16], %v: f32[8,256,4]) {
      %0: f32[8,256,256] = contract %q, %k batch=((0), (0)) contracting=((2), (2))
      %1: f32[8,256] = reduce max %0 axes=(2)
      %2: f32[8,256,256] = broadcast %1 axes=(0, 1)
      %3: f32[8,256,256] = map sub %0, %2
      %4: f32[8,256,4] = contract %3, %v batch=((0), (0)) contracting=((2), (1))
      return %4
    }"""


def test_a_matrix_of_scores_by_batches() -> None:
    assert rewritten(STEP, SCORES) == "\n".join([
        "%0: f32[4,2,256,16] = reshape %q",
        "%1: f32[4,2,256,16] = reshape %k",
        "%2: f32[4,2,256,4] = reshape %v",
        "%3: f32[4,2,256,4] = loop %0, %1, %2 carries=0 reverse=false trip=4 xs=3",
        "graph @tile(%x0: f32[2,256,16], %x1: f32[2,256,16], %x2: f32[2,256,4]) {",
        "%0: f32[2,256,256] = contract %x0, %x1 batch=((0), (0)) contracting=((2), (2))",
        "%1: f32[2,256] = reduce max %0 axes=(2)",
        "%2: f32[2,256,256] = broadcast %1 axes=(0, 1)",
        "%3: f32[2,256,256] = map sub %0, %2",
        "%4: f32[2,256,4] = contract %3, %x2 batch=((0), (0)) contracting=((2), (1))",
        "return %4",
        "}",
        "%4: f32[8,256,4] = reshape %3",
        "return %4",
    ])  # fmt: skip


def test_rows_where_there_is_no_batch() -> None:
    text = rewritten(STEP, """\
        graph @f(%q: f32[2048,16], %k: f32[512,16], %v: f32[512,4]) {
          %0: f32[2048,512] = contract %q, %k batch=((), ()) contracting=((1), (1))
          %1: f32[2048,512] = map exp %0
          %2: f32[2048,4] = contract %1, %v batch=((), ()) contracting=((1), (0))
          return %2
        }""")  # fmt: skip
    assert "%0: f32[16,512] = transpose %k permutation=(1, 0)" in text  # once, for all tiles
    assert "loop %1, %0, %v carries=0" in text
    assert "(%x0: f32[256,16], %x1: f32[16,512], %x2: f32[512,4])" in text


def test_a_mask_is_made_from_the_place_of_the_tile() -> None:
    text = rewritten(STEP, """\
        graph @f(%q: f32[1024,16], %k: f32[1024,16], %v: f32[1024,4]) {
          %0: f32[1024,1024] = contract %q, %k batch=((), ()) contracting=((1), (1))
          %1: i32[1024,1024] = iota axis=0
          %2: i32[1024,1024] = iota axis=1
          %3: bool[1024,1024] = map ge %1, %2
          %4: f32[] = const 0.0
          %5: f32[1024,1024] = fill %4
          %6: f32[1024,1024] = map select %3, %0, %5
          %7: f32[1024,4] = contract %6, %v batch=((), ()) contracting=((1), (0))
          return %7
        }""")  # fmt: skip
    assert "%first1: i64[]" in text
    assert "bool[1024,1024]" not in text


def test_sums_over_tiles_are_carried_and_rounded_once() -> None:
    """The gradient of the keys sums over all rows."""
    text = rewritten(STEP, """\
        graph @f(%q: bf16[32768,16], %k: bf16[512,16]) {
          %0: bf16[32768,512] = contract %q, %k batch=((), ()) contracting=((1), (1))
          %1: bf16[32768,512] = map exp %0
          %2: bf16[512,16] = contract %1, %q batch=((), ()) contracting=((0), (0))
          %3: bf16[32768,16] = contract %1, %k batch=((), ()) contracting=((1), (0))
          return %2, %3
        }""")  # fmt: skip
    assert "%sum0: f32[32768,16] donated" in text
    assert "carries=1" in text
    assert "bf16[32768,16] = convert" in text


def test_a_prime_number_of_places_leaves_a_rest() -> None:
    """Masks, sums over tiles, and results: the last tile comes after the loop."""
    text = rewritten(STEP, """\
        graph @f(%q: f32[32749,16], %k: f32[509,16]) {
          %0: f32[32749,509] = contract %q, %k batch=((), ()) contracting=((1), (1))
          %1: f32[32749,509] = iota axis=1
          %2: f32[32749,509] = map add %0, %1
          %3: f32[32749,16] = contract %2, %k batch=((), ()) contracting=((1), (0))
          %4: f32[509,16] = contract %2, %q batch=((), ()) contracting=((0), (0))
          return %3, %4
        }""")  # fmt: skip
    assert "f32[480,16] = extract_slice %k at (0, 0)" in text
    assert "f32[29,16] = extract_slice %k at (480, 0)" in text
    assert "i64[] = const 480" in text  # the number of its first place
    (total,) = re.findall(r"(%\d+): f32\[32749,16\], %\d+: f32\[15,32,16\] = loop", text)
    assert re.search(rf"f32\[32749,16\] = map add {total}, %", text)
    assert "f32[509,16] = empty" in text


# ------------------------------------------------------------------ what stays whole


def declined(text: str) -> list[str]:
    return reasons(STEP, text)


def test_dont_tile_what_is_a_result() -> None:
    assert declined(SCORES.replace("return %4", "return %4, %3")) == ["it is a result"]


def test_dont_tile_what_is_sorted() -> None:
    assert "sort" in declined("""\
        graph @f(%q: f32[8,256,16], %k: f32[8,256,16]) {
          %0: f32[8,256,256] = contract %q, %k batch=((0), (0)) contracting=((2), (2))
          %1: f32[8,256,256] = sort %0 axis=2 keys=1 descending=false count=256 results=(0)
          %2: f32[8,256] = reduce max %1 axes=(2)
          return %2
        }""")[0]  # fmt: skip


def test_dont_tile_what_fits_into_a_cache() -> None:
    assert declined(SCORES.replace("256,256", "32,32").replace(",256", ",32")) == []


def test_dont_tile_what_is_smaller_than_its_operands() -> None:
    assert declined(SCORES.replace(",16]", ",512]")) == []


def test_dont_tile_across_what_is_computed_in_between() -> None:
    assert "computed in between" in declined("""\
        graph @f(%q: f32[8,256,16], %k: f32[8,256,16], %v: f32[8,256,4]) {
          %0: f32[8,256,256] = contract %q, %k batch=((0), (0)) contracting=((2), (2))
          %1: f32[8,256] = reduce max %0 axes=(2)
          %2: f32[8,256] = cumulative add %1 axis=0 reverse=false
          %3: f32[8,256,256] = broadcast %2 axes=(0, 1)
          %4: f32[8,256,256] = map sub %0, %3
          %5: f32[8,256,4] = contract %4, %v batch=((0), (0)) contracting=((2), (1))
          return %5
        }""")[0]  # fmt: skip


def test_dont_tile_where_no_axis_stays_apart() -> None:
    found = declined("""\
        graph @f(%q: f32[512,16], %k: f32[512,16], %v: f32[512,4]) {
          %0: f32[512,512] = contract %q, %k batch=((), ()) contracting=((1), (1))
          %1: f32[512,512] = transpose %0 permutation=(1, 0)
          %2: f32[512,512] = map add %0, %1
          %3: f32[512,4] = contract %2, %v batch=((), ()) contracting=((1), (0))
          return %3
        }""")  # fmt: skip
    assert all("two axes" in reason for reason in found)


def test_dont_tile_fewer_rows_than_two_tiles_have() -> None:
    assert "axis 0 of 61 has no tiles" in declined("""\
        graph @f(%q: f32[61,16], %k: f32[4099,16], %v: f32[4099,4]) {
          %0: f32[61,4099] = contract %q, %k batch=((), ()) contracting=((1), (1))
          %1: f32[61] = reduce max %0 axes=(1)
          %2: f32[61,4099] = broadcast %1 axes=(0)
          %3: f32[61,4099] = map sub %0, %2
          %4: f32[61,4] = contract %3, %v batch=((), ()) contracting=((1), (0))
          return %4
        }""")[0]  # fmt: skip


def test_dont_tile_across_sizes_that_nobody_knows() -> None:
    (n,) = jax.export.symbolic_shape("n")
    args = [jax.ShapeDtypeStruct((8, 256, size), np.float32) for size in (16, 16, n)]
    graph = graph_of(attention, *args)
    decisions = run_steps(graph, (STEP,), Options(), SMALL)
    assert not any(decision.applied for decision in decisions)


def test_dont_tile_for_fewer_tiles_than_cores() -> None:
    graph = graph_of(attention, *(normal(2, 4, 64, 8) for _ in range(3)))
    decisions = run_steps(graph, (STEP,), Options(), replace(SMALL, cores=64))
    assert "too few for 64 cores" in decisions[0].reason


def test_dont_tile_where_tiles_would_be_made_one_after_the_other() -> None:
    graph = graph_of(attention, *(normal(2, 4, 64, 8) for _ in range(3)))
    decisions = run_steps(graph, (STEP,), Options(), replace(SMALL, side_by_side=False))
    assert not decisions[0].applied
    assert decisions[0].reason == "tiles would be made one after the other"


def test_dont_tile_what_is_read_again_too_often() -> None:
    """Weights of 40 MB for each few rows, or results of 32 MB for each few columns."""
    assert "as a whole" in declined("""\
        graph @f(%x: f32[4096,512], %a: f32[512,4096], %b: f32[4096,2048]) {
          %0: f32[4096,4096] = contract %x, %a batch=((), ()) contracting=((1), (0))
          %1: f32[4096,4096] = map tanh %0
          %2: f32[4096,2048] = contract %1, %b batch=((), ()) contracting=((1), (0))
          return %2
        }""")[0]  # fmt: skip
