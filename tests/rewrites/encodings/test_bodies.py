"""Weights and constants that bodies multiply by are tiled outside of them, once for all calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

import stagejit
from stagejit import Options, extending
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.index.layout import Layout
from stagejit.rewrites.encodings import encode_graph
from tests.rewrites.encodings.test_propagate import DIMS

ENCODED = "f32[24,24]{rhs:kn:f32:f32:f32:n}"


def array(*shape: int, seed: int = 0) -> Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def encoded(text: str, **options: Any) -> tuple[str, str]:
    graph = parse(text)
    decisions = encode_graph(graph, Options(verify=True, **options))
    return as_text(graph), "\n".join(d.reason for d in decisions)


def loop(weight: str = "%w: f32[24,24] bound", after: str = "", result: str = "%0") -> str:
    head, operand = (f", {weight}", "%w") if weight.startswith("%w") else ("", "%c")
    constant = "" if head else f"%c: f32[24,24] = const {weight}"
    return f"""graph @f(%x: f32[16,24]{head}) {{
      {constant}
      %0: f32[16,24] = loop %x, {operand} carries=1 reverse=false trip=3 xs=0
        graph @body(%c0: f32[16,24] donated, %v: f32[24,24]) {{
          %0: f32[16,24] = contract %c0, %v {DIMS}
          return %0
        }}
      {after}
      return {result}
    }}"""


def test_a_weight_is_tiled_before_the_loop() -> None:
    text, reasons = encoded(loop())
    assert f"%0: {ENCODED} = set_encoding %w" in text
    assert f"%v: {ENCODED})" in text
    assert text.count("set_encoding") == 1
    assert "operand 1 is tiled before it, as its bodies want it" in reasons


def test_a_constant_is_tiled_before_the_loop() -> None:
    text, _ = encoded(loop("splat(0.5)"))
    assert f"{ENCODED} = set_encoding %" in text
    assert f"%v: {ENCODED})" in text


def test_dont_tile_an_argument() -> None:
    text, reasons = encoded(loop("%w: f32[24,24]"))
    assert "encoding" not in text
    assert "not known before a call" in reasons


def test_dont_tile_what_is_read_as_it_lies_outside() -> None:
    after = "%1: f32[24,24] = map exp %w"
    text, reasons = encoded(loop(after=after, result="%0, %1"))
    assert "set_encoding" not in text
    assert "%v: f32[24,24])" in text
    assert "read by map as it lies, too" in reasons


def test_dont_tile_what_a_body_reads_as_it_lies() -> None:
    text, reasons = encoded(
        loop().replace(
            "return %0\n        }",
            "%1: f32[16,24] = extract_slice %v at (0, 0)\n"
            "          %2: f32[16,24] = map add %0, %1\n          return %2\n        }",
            1,
        )
    )
    assert "set_encoding" not in text
    assert "read by extract_slice as it lies, too" in reasons


def test_one_tiling_for_a_loop_and_what_comes_after_it() -> None:
    text, reasons = encoded(loop(after=f"%1: f32[16,24] = contract %0, %w {DIMS}", result="%1"))
    assert text.count("set_encoding") == 1
    assert "wanted so twice" in reasons


def test_switched_off_each_iteration_reads_it_as_it_lies() -> None:
    text, _ = encoded(loop(), disable=("data-tiling",))
    assert "encoding" not in text


def branches(*bodies: str) -> str:
    texts = "\n".join(
        f"graph @case{at}(%c0: f32[16,24], %v: f32[24,24]) {{\n{body}\n}}"
        for at, body in enumerate(bodies)
    )
    return f"""graph @f(%i: i32[], %x: f32[16,24], %w: f32[24,24] bound) {{
      %0: f32[16,24] = branch %i, %x, %w carried=()
        {texts}
      return %0
    }}"""


PRODUCT = f"%0: f32[16,24] = contract %c0, %v {DIMS}\nreturn %0"
TRANSPOSED = f"""%0: f32[24,24] = transpose %v permutation=(1, 0)
%1: f32[16,24] = contract %c0, %0 {DIMS}
return %1"""
NONE = "%0: f32[16,24] = map exp %c0\nreturn %0"
AS_IT_LIES = """%0: f32[16,24] = extract_slice %v at (0, 0)
%1: f32[16,24] = map add %c0, %0
return %1"""


@pytest.mark.parametrize("other", [PRODUCT, NONE], ids=["the same", "none"])
def test_branches_that_want_one_tiling(other: str) -> None:
    text, _ = encoded(branches(PRODUCT, other))
    assert text.count("set_encoding") == 1
    assert text.count(f"%v: {ENCODED})") == 2


def test_dont_tile_for_branches_that_want_several() -> None:
    text, reasons = encoded(branches(PRODUCT, TRANSPOSED))
    assert "its bodies want a weight in several tiles" in reasons
    assert text.count("%v: f32[24,24])") == 2


def test_dont_tile_for_one_branch_what_another_reads_as_it_lies() -> None:
    text, _ = encoded(branches(PRODUCT, AS_IT_LIES))
    assert text.count("%v: f32[24,24])") == 2


def layers(weight: str = "%w: f32[3,24,24] bound", body: str = "return %0") -> str:
    return f"""graph @f(%x: f32[16,24], {weight}) {{
      %0: f32[16,24] = loop %x, %w carries=1 reverse=false trip=3 xs=1
        graph @body(%c0: f32[16,24] donated, %v: f32[24,24]) {{
          %0: f32[16,24] = contract %c0, %v {DIMS}
          {body}
        }}
      return %0
    }}"""


def test_layers_are_tiled_before_the_loop_each_by_itself() -> None:
    text, reasons = encoded(layers())
    assert "%0: f32[3,24,24]{rhs:bkn:f32:f32:f32:n} = set_encoding %w" in text
    assert f"%v: {ENCODED})" in text
    assert text.count("set_encoding") == 1
    assert "operand 1 is tiled before it, as its bodies want it" in reasons


def test_dont_tile_layers_that_are_arguments() -> None:
    text, _ = encoded(layers("%w: f32[3,24,24]"))
    assert "encoding" not in text


def test_dont_tile_layers_that_a_body_reads_as_they_lie() -> None:
    body = """%1: f32[16,24] = extract_slice %v at (0, 0)
          %2: f32[16,24] = map add %0, %1
          return %2"""
    text, reasons = encoded(layers(body=body))
    assert "set_encoding" not in text
    assert "%v: f32[24,24])" in text
    assert "read by extract_slice as it lies, too" in reasons


# -- whole programs -------------------------------------------------------------------------------


def in_scan(w: Any, x: Array) -> Any:
    return lax.scan(lambda c, _: (jnp.tanh(c @ w), c.sum()), x, length=4)


def nested(w: Any, x: Array) -> Any:
    def inner(j: Any, c: Array) -> Array:
        return lax.cond(j > 1, lambda c: jnp.tanh(c @ w), lambda c: jnp.sin(c @ w), c)

    c = lax.fori_loop(0, 2, lambda i, c: lax.fori_loop(0, 3, inner, c), x)
    return c @ w


def several_tiles(w: Any, x: Array) -> Any:
    def one(i: Any, c: Array) -> Array:
        return lax.switch(i, [lambda c: c @ w, lambda c: c @ w.T, lambda c: c + w[:16]], c)

    return lax.fori_loop(0, 3, one, x)


def with_condition(w: Any, x: Array) -> Any:
    def goes_on(state: Any) -> Array:
        return (state[0] < 3) & ((state[1] @ w).max() < 1e6)

    return lax.while_loop(goes_on, lambda s: (s[0] + 1, jnp.tanh(s[1] @ w)), (0, x))


def carried(w: Any, x: Array) -> Any:
    def one(i: Any, state: Any) -> Any:
        return state[0] * 0.5, jnp.tanh(state[1] @ state[0])

    return lax.fori_loop(0, 3, one, (w, x))[1]


def over_layers(w: Any, x: Array) -> Any:
    return lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), x, w)


def over_layers_there_and_back(w: Any, x: Array) -> Any:
    def back(c: Array, w: Any) -> Any:
        return lax.fori_loop(0, 2, lambda i, c: jnp.tanh(c @ w.T), c), None

    return lax.scan(back, over_layers(w, x)[0], w, reverse=True)[0]


LAYERED: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (over_layers, over_layers_there_and_back)
}
PROGRAMS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (in_scan, nested, several_tiles, with_condition, carried)
}
SWITCHES = ("data-tiling", "propagate-encodings", "elide-packs", "evaluate-weights")


def assert_close(found: Any, wanted: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), found, wanted)


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_packs(name: str, rows: int) -> None:
    if rows == 1 and name == "several_tiles":
        return  # which adds rows
    f, w, x = PROGRAMS[name], array(128, 128, seed=1) / 11, array(rows, 128)
    bound = stagejit.bind(f, w, options=Options(verify=True, delegate=False))
    plan = bound.plan(x)
    assert_close(bound(x), f(w, x))
    (weight,) = [buffer for buffer in plan.buffers if buffer.kind == "weight"]
    tiled = name not in ("several_tiles", "carried")
    assert weight.layout.is_row_major != tiled
    if tiled:
        assert not [pack for pack in plan.packs if pack.encoding.startswith("{rhs")]
        assert bound.memory_analysis()["kept_nbytes"] == w.nbytes
    other = array(128, 128, seed=2) / 11
    bound.update(other)
    assert_close(bound(x), f(other, x))


@pytest.mark.some(2)
@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("name", LAYERED)
def test_layers_are_packed_once(name: str, rows: int) -> None:
    f, w, x = LAYERED[name], array(3, 128, 128, seed=1) / 11, array(rows, 128)
    bound = stagejit.bind(f, w, options=Options(verify=True, delegate=False))
    assert_close(bound(x), f(w, x))
    (weight,) = [buffer for buffer in bound.plan(x).buffers if buffer.kind == "weight"]
    assert weight.layout.tiles  # as the loop wants it that works most
    assert weight.layout.has_slices
    assert name != "over_layers" or not bound.plan(x).packs
    assert bound.memory_analysis()["kept_nbytes"] == w.nbytes
    bound.update(w[::-1])
    assert_close(bound(x), f(w[::-1], x))


@pytest.mark.parametrize("columns", [100, 130])
def test_layers_whose_last_panel_is_filled_up(columns: int) -> None:
    def f(w: Any, x: Array) -> Any:
        return lax.scan(lambda c, w: (c + (c @ w).mean(), c @ w), x, w)

    w, x = array(3, 128, columns, seed=1) / 11, array(16, 128)
    bound = stagejit.bind(f, w, options=Options(verify=True, delegate=False))
    assert_close(bound(x), f(w, x))


def test_dont_tile_layers_so_that_each_lies_in_pieces() -> None:
    @extending.resolver("interleaved")
    def interleaved(encoding: Any, type: Any, target: Any) -> Any:
        """Slices lie innermost."""
        return Layout((1, 2, 0)) if encoding.axes == "bkn" else None

    w, x = array(3, 128, 128, seed=1) / 11, array(16, 128)
    options = Options(verify=True, delegate=False, extensions=(interleaved,))
    bound = stagejit.bind(over_layers, w, options=options)
    assert_close(bound(x), over_layers(w, x))
    reasons = [decision.reason for decision in bound.plan(x).decisions]
    assert "in {1,2,0} the slices that a loop reads lie apart" in reasons


@pytest.mark.some(2)
@pytest.mark.parametrize("off", SWITCHES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_switched_off_values_are_the_same(name: str, off: str) -> None:
    f, w, x = PROGRAMS[name], array(128, 128, seed=1) / 11, array(16, 128)
    options = Options(verify=True, delegate=False, disable=(off,))
    assert_close(stagejit.bind(f, w, options=options)(x), f(w, x))


def test_constants_of_a_loop_are_packed_at_compile_time() -> None:
    w, x = np.asarray(array(128, 128, seed=1) / 11), array(16, 128)
    staged = stagejit.jit(lambda x: in_scan(w, x), options=Options(verify=True, delegate=False))
    assert not [pack for pack in staged.plan(x).packs if pack.encoding.startswith("{rhs")]
    assert_close(staged(x), in_scan(w, x))


@pytest.mark.parametrize("name", ["in_scan", "nested"])
def test_a_target_without_tiles_reads_it_as_it_lies(name: str) -> None:
    f, w, x = PROGRAMS[name], array(128, 128, seed=1) / 11, array(16, 128)
    assert_close(stagejit.bind(f, w, backend="cuda-emulated")(x), f(w, x))
