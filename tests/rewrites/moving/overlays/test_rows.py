"""overlay-rows: what is put together of short rows, each guard, values of images and boards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.base.machine import Machine
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.options import Options
from stagejit.rewrites.driving.driver import GraphStep, run_steps
from stagejit.rewrites.moving.overlays import rows as overlays
from tests.randomness import RNG

STEP = GraphStep(overlays.NAME, overlays.overlay_rows)


@dataclass(frozen=True)
class Shuffles(Machine):
    """Of vectors of 16 floats, whose lanes it picks at once."""

    def shuffle_cost(self, itemsize: int) -> float:
        return 2.0


def run(text: str, machine: Machine | None = None) -> tuple[list[str], list[str]]:
    """The body of the graph after the step, and what was decided."""
    graph = parse(dedent(text))
    decisions = run_steps(graph, (STEP,), Options(verify=True), machine or Shuffles())
    lines = [line.strip() for line in as_text(graph).splitlines()[1:-1]]
    return lines, [decision.reason for decision in decisions]


PAD = """
graph @f(%x: f32[{n},7,7], %y: f32[{n},9,9]) {{
  %v: f32[] = const 1.0
  %e: f32[{n},9,9] = fill %v
  %p: f32[{n},9,9] = insert_slice %x into %e at (0, 1, 1)
  {}
}}
"""
STORED = "short rows: it is stored in whole vectors"
PLACED = "who makes a part does more than to read it, and places it"
READ = "who reads it does not store it element by element"


def test_a_pad_of_short_rows_is_an_overlay() -> None:
    lines, why = run(PAD.format("return %p", n=128))
    assert why == [STORED]
    assert lines == [
        "%0: f32[] = const 1.0",
        "%1: f32[128,9,9] = fill %0",
        "%2: f32[128,9,9] = overlay %x into %1 at (0, 1, 1)",
        "return %2",
    ]


def test_columns_side_by_side_are_overlays_of_zeros() -> None:
    lines, why = run("""
    graph @f(%x: f32[2048,3], %y: f32[2048,4]) {
      %e: f32[2048,7] = empty
      %a: f32[2048,7] = insert_slice %x into %e at (0, 0)
      %b: f32[2048,7] = insert_slice %y into %a at (0, 3)
      %r: f32[2048,7] = map exp %b
      return %r
    }""")
    assert why == [STORED]
    assert [line.split(" = ")[1] for line in lines[:-1]] == [
        "const 0.0", "fill %0", "overlay %x into %1 at (0, 0)", "overlay %y into %2 at (0, 3)",
        "map exp %3",
    ]  # fmt: skip


@pytest.mark.parametrize(("last", "why"), [
    ("%s: f32[128] = reduce add %p axes=(1, 2)\nreturn %s", READ),
    ("%z: f32[128,9,9] = cumulative add %y axis=2 reverse=false\n"
     "%s: f32[128,9,9] = map add %p, %z\nreturn %s",
     READ),
    ("%s: f32[128,9,9] = map add %p, %y\n%t: f32[128] = reduce add %s axes=(1, 2)\nreturn %s, %t",
     READ),
])  # fmt: skip
def test_dont_evaluate_it_where_more_is_made_of_it(last: str, why: str) -> None:
    assert run(PAD.format(last, n=128))[1] == [why]


@pytest.mark.parametrize("made", ["cumulative add %x axis=2 reverse=false", "map exp %x"])
def test_dont_take_it_from_who_places_it(made: str) -> None:
    text = PAD.format("return %p", n=128).replace("insert_slice %x", "insert_slice %c")
    text = text.replace("%v: f32[]", f"%c: f32[128,7,7] = {made}\n  %v: f32[]", 1)
    assert run(text)[1] == [PLACED]


def test_dont_write_out_what_is_stored_between_lanes() -> None:
    lines, why = run("""
    graph @f(%x: f32[4096,1], %y: f32[4096,1]) {
      %0: f32[4096,2] = empty
      %1: f32[4096,2] = insert_slice %x into %0 at (0, 0)
      %2: f32[4096,2] = insert_slice %y into %1 at (0, 1)
      return %2
    }""")
    assert why == []
    assert "insert_slice" in lines[2]


def test_dont_look_at_what_takes_less_than_the_call() -> None:
    assert run(PAD.format("return %p", n=2))[1] == []


def test_dont_shuffle_where_lanes_are_threads() -> None:
    assert run(PAD.format("return %p", n=128), Machine())[1] == []


@pytest.mark.parametrize("shape", [(64, 126, 126), (8, 8, 1024), (64, 40, 40)])
def test_dont_write_out_long_rows_nor_large_images(shape: tuple[int, int, int]) -> None:
    n, rows, columns = shape
    text = f"""
    graph @f(%x: f32[{n},{rows},{columns}]) {{
      %v: f32[] = const 1.0
      %e: f32[{n},{rows + 2},{columns + 32}] = fill %v
      %p: f32[{n},{rows + 2},{columns + 32}] = insert_slice %x into %e at (0, 1, 16)
      return %p
    }}"""
    assert run(text)[1] == []


def board(*shape: int) -> Any:
    return RNG.random(shape) < 0.5


def life(x: Any) -> Any:
    moved = [jnp.roll(x.astype(jnp.uint8), (i, j), (1, 2)) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    around = sum(moved) - moved[4]
    return (around == 3) | (x & (around == 2))


PROGRAMS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "relu": (
        lambda x: jnp.pad(jnp.maximum(x, 0), ((0, 0), (1, 1), (2, 0))),
        RNG.standard_normal((300, 7, 7)).astype(np.float32),
    ),
    "edge": (
        lambda x: jnp.pad(x, ((0, 0), (1, 1), (1, 1)), mode="edge"),
        RNG.standard_normal((300, 7, 7)).astype(np.float32),
    ),
    "wrap": (
        lambda x: jnp.pad(x, ((0, 0), (2, 1), (1, 3)), mode="wrap") * 2,
        RNG.standard_normal((60, 14, 14)),
    ),
    "rolled": (lambda x: jnp.roll(x, (1, 2), (1, 2)) ^ x, board(120, 19, 19)),
    "life": (life, board(120, 19, 19)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_short_rows(name: str) -> None:
    function, x = PROGRAMS[name]
    found = stagejit.jit(function, options=Options(verify=True))(x)
    off = stagejit.jit(function, options=Options(disable=("overlay-rows",)))(x)
    np.testing.assert_array_equal(found, off)
