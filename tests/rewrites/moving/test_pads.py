"""fold-pads: both rules, each guard, values against jax, and the dispatches they save."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import stagejit
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.verifier import verify
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.rewrites.moving import pads
from stagejit.trace.translate import graph_of
from tests.rewrites.text_in_out import reasons, rewritten, unchanged


def nested(inner: str = "0.0", *, offsets: str = "(1, 1)", more: str = "") -> str:
    outputs = "%5, %3" if more else "%5"
    return f"""
    graph @f(%x: f32[4,4]) {{
      %0: f32[] = const {inner}
      %1: f32[] = const 0.0
      %2: f32[6,7] = fill %0
      %3: f32[6,7] = insert_slice %x into %2 at {offsets}
      %4: f32[10,10] = fill %1
      %5: f32[10,10] = insert_slice %3 into %4 at (2, 3)
      return {outputs}
    }}"""


def test_a_pad_joins_the_pad_around_it() -> None:
    assert rewritten(pads.pad_of_pad, nested()) == "\n".join([
        "%0: f32[] = const 0.0",
        "%1: f32[10,10] = fill %0",
        "%2: f32[10,10] = insert_slice %x into %1 at (3, 4)",
        "return %2",
    ])  # fmt: skip


def test_strides_multiply() -> None:
    text = """
    graph @f(%x: f32[3]) {
      %0: f32[] = const 0.0
      %1: f32[6] = fill %0
      %2: f32[6] = insert_slice %x into %1 at (1) strides (2)
      %3: f32[20] = fill %0
      %4: f32[20] = insert_slice %2 into %3 at (2) strides (3)
      return %4
    }"""
    assert "into %1 at (5) strides (6)" in rewritten(pads.pad_of_pad, text)


def test_dont_join_borders_of_different_values() -> None:
    assert reasons(pads.pad_of_pad, nested("1.0")) == ["the two borders have different values"]
    assert reasons(pads.pad_of_pad, nested("-0.0")) == ["the two borders have different values"]


def test_dont_join_a_pad_with_other_readers() -> None:
    assert reasons(pads.pad_of_pad, nested(more="yes")) == ["the inner pad has other readers"]


def added(places: tuple[str, str] = ("(0) strides (2)", "(1) strides (2)"), more: str = "") -> str:
    return f"""
    graph @f(%x: f32[3], %y: f32[3]) {{
      %0: f32[] = const 0.0
      %1: f32[6] = fill %0
      %2: f32[6] = insert_slice %x into %1 at {places[0]}
      %3: f32[6] = fill %0
      %4: f32[6] = insert_slice %y into %3 at {places[1]}
      %5: f32[6] = map add %2, %4
      return %5{more}
    }}"""


def test_pads_that_are_added_become_one() -> None:
    assert rewritten(pads.map_of_pads, added()) == "\n".join([
        "%0: f32[] = const 0.0",
        "%1: f32[] = map add %0, %0",
        "%2: f32[6] = fill %1",
        "%3: f32[3] = fill %0",
        "%4: f32[3] = map add %x, %3",
        "%5: f32[6] = insert_slice %4 into %2 at (0) strides (2)",
        "%6: f32[3] = fill %0",
        "%7: f32[3] = map add %6, %y",
        "%8: f32[6] = insert_slice %7 into %5 at (1) strides (2)",
        "return %8",
    ])  # fmt: skip


def test_parts_of_what_is_padded_go_where_it_goes() -> None:
    text = """
    graph @f(%x: f32[2], %y: f32[1], %z: f32[4]) {
      %0: f32[3] = empty
      %1: f32[3] = insert_slice %x into %0 at (1)
      %2: f32[3] = insert_slice %y into %1 at (0)
      %3: f32[] = const 1.0
      %4: f32[12] = fill %3
      %5: f32[12] = insert_slice %2 into %4 at (1) strides (3)
      %6: f32[12] = fill %3
      %7: f32[12] = insert_slice %z into %6 at (2) strides (3)
      %8: f32[12] = map mul %5, %7
      return %8
    }"""
    body = rewritten(pads.map_of_pads, text)
    places = [line.split(" at ")[1] for line in body.splitlines() if " at " in line]
    assert places == ["(4) strides (3)", "(1) strides (3)", "(2) strides (3)"]
    shared = text.replace("return %8", "return %8, %1")
    assert (
        rewritten(pads.map_of_pads, shared).count("insert_slice") == 4
    )  # two are read as they are
    computed = text.replace("%0: f32[3] = empty", "%0: f32[3] = map neg %n").replace(
        "%z: f32[4]", "%z: f32[4], %n: f32[3]"
    )
    assert "(1) strides (3)" in rewritten(pads.map_of_pads, computed)


def test_dont_join_pads_at_the_same_places() -> None:
    text = added(("(0) strides (2)", "(0) strides (1)"))
    assert reasons(pads.map_of_pads, text) == ["the pads have values at the same places"]


def test_dont_join_added_pads_with_other_readers() -> None:
    assert reasons(pads.map_of_pads, added(more=", %4")) == ["one of the pads has other readers"]


def test_dont_join_a_pad_and_another_value() -> None:
    text = added(more=", %4").replace("add %2, %4", "add %2, %1")
    assert unchanged(pads.map_of_pads, text)


FUNCTIONS = ("add", "sub", "mul", "div", "max", "pow", "atan2", "lt", "eq")


@pytest.mark.parametrize("seed", range(20))
def test_values_of_pads_apart(seed: int) -> None:
    """Zeros of both signs, infinities and NaN, borders of any value, in parts or not."""
    r = np.random.default_rng(seed)
    function = getattr(lax, FUNCTIONS[seed % len(FUNCTIONS)])
    kinds = np.float32([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -2.0])
    m, n, step = int(r.integers(1, 9)), int(r.integers(1, 9)), int(r.integers(2, 5))
    x, y, v, w = r.choice(kinds, m), r.choice(kinds, n), *r.choice(kinds, 2)
    first, second = (int(at) for at in r.choice(step, 2, replace=False))
    length = step * max(m, n) + 2

    def f(x: Any, y: Any) -> Any:
        parts = jnp.concatenate([x[:1], x[1:] * 2.0])
        a = lax.pad(parts, v, [(first, length - first - step * (m - 1) - 1, step - 1)])
        return function(
            a, lax.pad(y, w, [(second, length - second - step * (n - 1) - 1, step - 1)])
        )

    found = stagejit.jit(f, options=Options(verify=True, delegate=False))(x, y)
    wanted = np.asarray(jax.jit(f)(x, y))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    if seed % len(FUNCTIONS) < 4:
        signs = [np.signbit(each)[~np.isnan(wanted)] for each in (found, wanted)]
        np.testing.assert_array_equal(*signs)


def test_a_scan_over_pairs_puts_them_together_as_they_are_made() -> None:
    f = stagejit.jit(lambda x: lax.associative_scan(jnp.add, x))
    x = np.arange(5000, dtype=np.float32)
    np.testing.assert_array_equal(f(x[:1000]), np.cumsum(x[:1000]))
    graph = f.lower(x).graph
    whole = [op for op in graph.ops() if op.kind == "map" and op.result.shape == x.shape]
    assert not whole  # no pass over all that adds zeros


def test_gradients_of_slices_are_put_together() -> None:
    def f(x: Any) -> Any:
        return (jnp.sin(x[:, :40]) * jnp.exp(x[:, 40:])).sum()

    x = np.linspace(-1, 1, 3200, dtype=np.float32).reshape(40, 80)
    gradient = jax.grad(f)
    np.testing.assert_allclose(stagejit.jit(gradient)(x), jax.jit(gradient)(x), rtol=1e-5)
    ops = stagejit.jit(gradient).lower(x).graph.ops()
    whole = [op.operands[1].op.kind for op in ops if op.kind == "insert_slice"]
    assert whole == ["empty", "insert_slice"]


def convolution(border: str = "0.0", *, offsets: str = "(0, 0, 1, 2)", more: str = "",
                shape: str = "1,2,7,8", result: str = "1,3,5,6", own: str = "",
                padding: str = "((0, 0), (0, 0))", dilation: str = "(1, 1)") -> str:  # fmt: skip
    return f"""
    graph @f(%x: f32[1,2,5,5], %w: f32[3,2,3,3], %v: f32[]) {{
      %0: f32[] = {border if border.startswith("map") else f"const {border}"}
      %1: f32[{shape}] = fill %0
      %2: f32[{shape}] = insert_slice %x into %1 at {offsets}
      %3: f32[{result}] = conv %2, %w batch_groups=1{own} feature_groups=1 \
lhs_dilation={dilation} lhs_spec=(0, 1, 2, 3) out_spec=(0, 1, 2, 3) padding={padding} \
rhs_dilation=(1, 1) rhs_spec=(0, 1, 2, 3) strides=(1, 1)
      return %3{more}
    }}"""


def test_a_zero_pad_joins_the_window() -> None:
    body = rewritten(pads.pad_into_conv, convolution())
    assert "conv %x, %w" in body
    assert "padding=((1, 1), (2, 1))" in body
    assert "insert_slice" not in body
    assert "border" not in body


@pytest.mark.parametrize("border", ["1.0", "-0.1", "nan", "-inf"])
def test_a_pad_of_another_value_becomes_the_border(border: str) -> None:
    body = rewritten(pads.pad_into_conv, convolution(border))
    assert "conv %x, %w" in body
    assert "padding=((1, 1), (2, 1))" in body
    assert "insert_slice" not in body
    (line,) = (line for line in body.splitlines() if "conv" in line)
    number = float(line.split("border=")[1].split()[0])
    np.testing.assert_array_equal(number, float(np.float32(border)))


def test_a_border_goes_on_where_the_window_has_the_same() -> None:
    """Also with holes between the elements: the pad's elements are dilated with the others."""
    own = {"own": " border=2.0", "padding": "((1, 0), (0, 1))", "result": "1,3,12,14"}
    body = rewritten(pads.pad_into_conv, convolution("2.0", dilation="(2, 2)", **own))
    assert "border=2.0" in body
    assert "padding=((3, 2), (4, 3))" in body


def test_a_border_that_is_cropped_away_is_no_border() -> None:
    cropped = {"padding": "((0, -1), (-1, 0))", "result": "1,3,4,5"}
    body = rewritten(pads.pad_into_conv, convolution("2.0", **cropped))
    assert "border=2.0" in body
    assert "padding=((1, 0), (1, 1))" in body
    assert "border" not in rewritten(
        pads.pad_into_conv, convolution("0.0", own=" border=3.0", **cropped)
    )


@pytest.mark.parametrize(("border", "own"), [("1.0", ""), ("0.0", " border=1.0"),
                                             ("-2.0", " border=2.0")])  # fmt: skip
def test_dont_fold_beside_a_border_of_another_value(border: str, own: str) -> None:
    text = convolution(border, own=own, padding="((0, 1), (0, 0))", result="1,3,6,6")
    assert reasons(pads.pad_into_conv, text) == [
        "the window has a border of its own, of another value"
    ]


def test_dont_fold_elements_between_that_are_not_zero() -> None:
    strided = {"offsets": "(0, 0, 1, 2) strides (1, 1, 2, 1)", "shape": "1,2,11,8"}
    text = convolution("1.0", **strided, result="1,3,9,6")
    assert reasons(pads.pad_into_conv, text) == ["what is between the elements is not zero"]
    zero = rewritten(pads.pad_into_conv, text.replace("const 1.0", "const 0.0"))
    assert "lhs_dilation=(2, 1)" in zero


def test_nothing_is_between_the_elements_of_a_single_one() -> None:
    text = convolution("1.0", offsets="(0, 0, 1, 2) strides (1, 1, 2, 1)", shape="1,2,7,8")
    text = text.replace("%x: f32[1,2,5,5]", "%x: f32[1,2,1,5]")
    assert "padding=((1, 5), (2, 1))" in rewritten(pads.pad_into_conv, text)


def test_dont_fold_a_border_that_is_computed() -> None:
    assert reasons(pads.pad_into_conv, convolution("map exp %v")) == [
        "the border is known at run time only"
    ]


def test_dont_fold_a_pad_with_other_readers() -> None:
    assert reasons(pads.pad_into_conv, convolution(more=", %2")) == ["the pad has other readers"]


def test_dont_fold_a_pad_of_the_batch() -> None:
    text = convolution(offsets="(1, 0, 0, 0)", shape="2,2,5,5", result="2,3,3,3")
    assert reasons(pads.pad_into_conv, text) == ["the pad is not only around the window's axes"]


def test_dont_fold_a_computed_place() -> None:
    text = """
    graph @f(%x: f32[3], %i: i32[]) {
      %0: f32[] = const 0.0
      %1: f32[6] = fill %0
      %2: f32[6] = insert_slice %x into %1 at (%i)
      %3: f32[9] = fill %0
      %4: f32[9] = insert_slice %2 into %3 at (2)
      return %4
    }"""
    assert unchanged(pads.pad_of_pad, text)


def _conv(x: Any, w: Any, strides: tuple[int, int], dilation: tuple[int, int]) -> Any:
    none = ((0, 0), (0, 0))
    return lax.conv_general_dilated(x, w, strides, none, lhs_dilation=dilation)


@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3)])
@pytest.mark.parametrize("interior", [0, 1])
def test_values_and_dispatches(
    strides: tuple[int, int], dilation: tuple[int, int], interior: int
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 6, 7)).astype(np.float32)
    w = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    config = ((0, 0, 0), (0, 0, 0), (1, 2, interior), (0, 3, 0))

    def program(x: Any, w: Any) -> Any:
        return _conv(lax.pad(x, jnp.float32(0), config), w, strides, dilation)

    on = stagejit.jit(program, options=Options(cache_dir=""))
    off = stagejit.jit(program, options=Options(cache_dir="", disable=("fold-pads",)))
    assert len(on.plan(x, w).dispatches) == 1
    assert len(off.plan(x, w).dispatches) > 1
    expected = jax.jit(program)(x, w)
    np.testing.assert_allclose(on(x, w), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(off(x, w), expected, rtol=1e-4, atol=1e-4)


@st.composite
def padded_windows(draw: st.DrawFn) -> dict[str, Any]:
    """A pad of any value and the window that reads it, with one or two axes."""
    rank = draw(st.integers(1, 2))
    step, side = st.integers(1, 3), st.integers(-1, 3)

    def axes(of: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(of) for _ in range(rank))

    sides = st.tuples(side, side)
    value = draw(st.sampled_from([0.0, -0.0, 2.0, np.nan, np.inf, -np.inf]))
    return {
        "image": axes(st.integers(1, 6)),
        "kernel": axes(st.integers(1, 3)),
        "value": value,
        "pad": tuple((*pair, draw(st.sampled_from([0, 0, 1]))) for pair in axes(sides)),
        "window_strides": axes(step),
        "padding": axes(st.sampled_from([(0, 0), (0, 0), (-1, 0), (1, 2)])),
        "lhs_dilation": axes(step),
        "rhs_dilation": axes(step),
        "groups": draw(st.sampled_from([(1, 1), (2, 1), (1, 2)])),
    }


@pytest.mark.fuzz
@given(padded_windows())
def test_any_pad_before_any_window(case: dict[str, Any]) -> None:
    """The interpreter pads, then convolves; after the rewrite it finds the border itself."""
    rng = np.random.default_rng(0)
    features, batches = case["groups"]
    x = rng.integers(-4, 5, (2, 4, *case["image"])).astype(np.float32)
    w = rng.integers(-4, 5, (2, 4 // features, *case["kernel"])).astype(np.float32)

    def program(x: Any, w: Any) -> Any:
        padded = lax.pad(x, np.float32(case["value"]), ((0, 0, 0), (0, 0, 0), *case["pad"]))
        return lax.conv_general_dilated(
            padded, w, case["window_strides"], case["padding"], case["lhs_dilation"],
            case["rhs_dilation"], feature_group_count=features, batch_group_count=batches,
        )  # fmt: skip

    try:
        graph = graph_of(program, x, w)
    except (ValueError, TypeError):
        return  # JAX refuses it, for instance because a pad crops more than there is
    (expected,) = interpret(graph, [x, w])
    rewrite_graph(graph, Options())
    verify(graph)
    (actual,) = interpret(graph, [x, w])
    np.testing.assert_array_equal(actual, expected)
