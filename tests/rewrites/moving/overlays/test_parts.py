"""overlay-parts: what is nearly one part, each guard, and values of stencils."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.base.machine import Machine
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.options import Options
from stagejit.rewrites.driving.driver import GraphStep, run_steps
from stagejit.rewrites.moving.overlays import parts
from tests.randomness import RNG

STEP = GraphStep(parts.NAME, parts.overlay_parts)


@dataclass(frozen=True)
class Vectors(Machine):
    """Of 16 floats, which may be masked or not."""

    masks: bool = True

    @property
    def masks_lanes(self) -> bool:
        return self.masks

    def shuffle_cost(self, itemsize: int) -> float:
        return 2.0


def run(text: str, machine: Machine | None = None) -> tuple[list[str], list[str]]:
    """The kinds of ops after the step, and what was decided."""
    graph = parse(dedent(text))
    decisions = run_steps(graph, (STEP,), Options(verify=True), machine or Vectors())
    lines = [line.strip() for line in as_text(graph).splitlines()[1:-1]]
    return lines, [decision.reason for decision in decisions]


def shifted(made: str, read: str, n: int = 64, by: int = 1) -> str:
    """Rows that are moved on by some, behind zeros, and what is made of that."""
    return f"""
    graph @f(%x: f32[{n},64], %y: f32[{n},64]) {{
      %z: f32[] = const 0.0
      {made}
      %s: f32[{n - by},64] = extract_slice %m at (0, 0)
      %b: f32[{by},64] = fill %z
      %e: f32[{n},64] = empty
      %i: f32[{n},64] = insert_slice %b into %e at (0, 0)
      %p: f32[{n},64] = insert_slice %s into %i at ({by}, 0)
      {read}
    }}"""


MADE = "%m: f32[64,64] = map neg %x"
READ = "%r: f32[64,64] = map add %p, %y\n      return %r"
EVALUATED = "evaluated where it is read, which saves storing and reading it (32 KiB)"
NOT_READ = "who reads it does not store it element by element"
PLACED = "who makes a part does more than to read it, and places it"
STORED = "it is stored in any case, and rows of it are whole"


def test_what_is_shifted_is_evaluated_where_it_is_read() -> None:
    lines, why = run(shifted(MADE, READ))
    assert why == [EVALUATED]
    assert [line.split(" = ")[1] for line in lines[:-1]] == [
        "const 0.0", "map neg %x", "extract_slice %1 at (0, 0)", "fill %0", "const 0.0",
        "fill %4", "overlay %3 into %5 at (0, 0)", "overlay %2 into %6 at (1, 0)",
        "map add %7, %y",
    ]  # fmt: skip


@pytest.mark.parametrize(("made", "read", "why"), [
    ("%m: f32[64,64] = cumulative add %x axis=0 reverse=false", READ, [PLACED]),
    (MADE, "%c: f32[64,64] = cumulative add %p axis=0 reverse=false\n      return %c", [NOT_READ]),
    (MADE, "%c: f32[64,64] = cumulative add %y axis=0 reverse=false\n"
     "      %r: f32[64,64] = map add %p, %c\n      return %r", [NOT_READ]),
    (MADE, "return %p", [STORED]),
])  # fmt: skip
def test_dont_evaluate_what_is_stored_in_any_case(made: str, read: str, why: list[str]) -> None:
    lines, found = run(shifted(made, read))
    assert found == why
    assert not any("overlay" in line for line in lines)


def test_what_is_returned_may_be_read_in_any_way() -> None:
    read = "%c: f32[64,64] = cumulative add %r axis=0 reverse=false\n      return %r, %c"
    assert run(shifted(MADE, READ.replace("return %r", read)))[1] == [EVALUATED]


def test_sums_want_vectors_that_may_be_masked() -> None:
    text = shifted(MADE, "%c: f32[64] = reduce add %p axes=(1)\n      return %c")
    assert run(text)[1] == [EVALUATED]
    assert run(text, Vectors(masks=False))[1] == [NOT_READ]


@pytest.mark.parametrize("text", [
    shifted(MADE, READ, by=32), shifted(MADE, READ).replace("64,64", "6,64"),
])  # fmt: skip
def test_dont_look_at_halves_nor_at_what_is_small(text: str) -> None:
    text = text.replace("f32[63,64]", "f32[5,64]") if "f32[6,64]" in text else text
    assert run(text)[1] == []


def test_dont_choose_where_lanes_are_threads() -> None:
    assert run(shifted(MADE, READ), Machine())[1] == []


def test_halves_of_one_array_are_rolled() -> None:
    _, why = run("""
    graph @f(%x: f32[64,64]) {
      %a: f32[32,64] = extract_slice %x at (32, 0)
      %b: f32[32,64] = extract_slice %x at (0, 0)
      %e: f32[64,64] = empty
      %i: f32[64,64] = insert_slice %a into %e at (0, 0)
      %p: f32[64,64] = insert_slice %b into %i at (32, 0)
      %r: f32[64,64] = map add %p, %x
      return %r
    }""")
    assert why == [EVALUATED]


def updated(part: str, base: str = "%x", sizes: str = "63,64", strides: str = "") -> str:
    return f"""
    graph @f(%x: f32[64,64], %y: f32[{sizes}]) {{
      %n: f32[64,64] = map neg %x
      {part}
      %p: f32[64,64] = insert_slice %v into {base} at (0, 0){strides}
      %r: f32[64,64] = map neg %p
      return %r
    }}"""


NEIGHBOURS = """%s: f32[63,64] = extract_slice %x at (1, 0)
      %v: f32[63,64] = map add %s, %y"""
ROWS = "%v: f32[{0}] = map neg %y"


def test_what_is_made_of_its_neighbours_is_stored_anew() -> None:
    assert run(updated(NEIGHBOURS))[1] == [EVALUATED]


def test_a_border_of_what_is_computed() -> None:
    assert run(updated(ROWS.format("1,64"), "%n", "1,64"))[1] == [EVALUATED]


@pytest.mark.parametrize(("sizes", "base", "strides"), [
    ("63,64", "%x", ""), ("1,64", "%x", ""), ("32,64", "%n", ""),
    ("16,64", "%n", " strides (4, 1)"),
])  # fmt: skip
def test_dont_store_anew_what_is_updated_in_place(sizes: str, base: str, strides: str) -> None:
    assert run(updated(ROWS.format(sizes), base, sizes, strides))[1] == []


def d(x: Any, axis: int) -> Any:
    """Differences, and a border of zeros."""
    border = jnp.zeros_like(lax.slice_in_dim(x, 0, 1, axis=axis))
    return jnp.concatenate([jnp.diff(x, axis=axis), border], axis)


def curl(x: Any) -> Any:
    return jnp.stack([d(x[2], 1) - d(x[1], 2), d(x[0], 2) - d(x[2], 0), d(x[1], 0) - d(x[0], 1)])


def laplacian(x: Any) -> Any:
    p = jnp.pad(x, 1, mode="edge")
    return p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * x


def set_inside(x: Any) -> Any:
    inner = x[2:, 1:-1] + x[:-2, 1:-1]
    return x.at[1:-1, 1:-1].set(inner).at[:, 0].set(1.0)


STENCILS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "curl": (lambda x: x - 0.5 * curl(x), (3, 20, 21, 22)),
    "rolled twice": (lambda x: x + jnp.roll(x, (1, -2), (0, 1)), (80, 70)),
    "edges": (laplacian, (80, 70)),
    "inside": (set_inside, (80, 70)),
    "fields": (lambda x: (x + jnp.roll(x, 1, 0), d(x, 1) * d(x, 0)), (80, 70)),
    "sums": (lambda x: jnp.sum(jnp.abs(d(x, 0)) + d(x, 1) ** 2, 0), (80, 70)),
    "steps": (
        lambda x: lax.fori_loop(0, 3, lambda _, u: u + 0.25 * laplacian(u), x),
        (80, 70),
    ),
}


@pytest.mark.parametrize("name", STENCILS)
def test_stencils(name: str) -> None:
    function, shape = STENCILS[name]
    x = RNG.integers(-4, 4, shape).astype(np.float32)
    found = stagejit.jit(function, options=Options(verify=True))(x)
    off = stagejit.jit(function, options=Options(disable=(parts.NAME,)))(x)
    for a, b in zip(
        np.atleast_1d(*found) if isinstance(found, tuple) else [found],
        np.atleast_1d(*off) if isinstance(off, tuple) else [off],
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_a_curl_is_one_dispatch() -> None:
    plan = stagejit.jit(lambda x: x - 0.5 * curl(x)).plan(jnp.ones((3, 20, 21, 22)))
    assert len(plan.dispatches) == 1
    assert plan.transient_nbytes == 0
