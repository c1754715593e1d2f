"""share-pads: pads of one value, each guard, values of stencils and of their gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stagejit
from stagejit.options import Options
from stagejit.rewrites.driving.driver import GraphStep
from stagejit.rewrites.moving import shared_pads
from stagejit.rewrites.moving.overlays import parts as overlay_parts
from tests.rewrites.text_in_out import reasons, rewritten, unchanged

STEP = GraphStep(shared_pads.NAME, lambda log: void(shared_pads.share_pads(log)))


def void(_: bool) -> None:
    """What a step returns."""


def program(*lines: str) -> str:
    start = "graph @f(%x: f32[4,16], %y: f32[4,16], %s: f32[]) {\n%v: f32[] = const 0.0\n"
    return start + "\n".join(lines) + "\n}"


PAD = (
    "%f{n}: f32[{shape}] = fill {border}\n%p{n}: f32[{shape}] = insert_slice %x into %f{n} at {at}"
)


def pad(n: int, at: str, shape: str = "6,16", border: str = "%v") -> str:
    return PAD.format(n=n, at=at, shape=shape, border=border)


def test_two_pads_are_boxes_of_one() -> None:
    last = "%r: f32[6,16] = map add %p0, %p1\nreturn %r"
    text = rewritten(STEP, program(pad(0, "(0, 0)"), pad(1, "(2, 0)"), last))
    assert text == "\n".join([
        "%0: f32[] = const 0.0",
        "%1: f32[8,16] = fill %0",
        "%2: f32[8,16] = insert_slice %x into %1 at (2, 0)",
        "%3: f32[6,16] = extract_slice %2 at (2, 0)",
        "%4: f32[6,16] = extract_slice %2 at (0, 0)",
        "%5: f32[6,16] = map add %3, %4",
        "return %5",
    ])  # fmt: skip


APART = "%a: f32[{}] = map neg %p0\n%b: f32[{}] = map neg %p1\nreturn %a, %b"


@pytest.mark.parametrize(("first", "second", "whole"), [
    (("(1, 1)", "6,18"), ("(3, 0)", "7,16"), "8,18"),
    (("(0, 0)", "99,16"), ("(95, 0)", "99,16"), "194,16"),
])  # fmt: skip
def test_their_shapes_may_differ(
    first: tuple[str, str], second: tuple[str, str], whole: str
) -> None:
    last = APART.format(first[1], second[1])
    text = rewritten(STEP, program(pad(0, *first), pad(1, *second), last))
    assert f"f32[{whole}] = insert_slice %x into" in text
    assert text.count("insert_slice") == 1


@pytest.mark.parametrize("second", [pad(1, "(2, 0)", border="%s"),
                                    pad(1, "(2, 0)").replace("%x", "%y")])  # fmt: skip
def test_dont_share_what_differs(second: str) -> None:
    assert unchanged(STEP, program(pad(0, "(0, 0)"), second, APART.format("6,16", "6,16")))


def test_dont_share_what_has_gaps() -> None:
    gaps = pad(1, "(0, 0) strides (2, 1)", "7,16")
    text = program(pad(0, "(0, 0)"), gaps, APART.format("6,16", "7,16"))
    assert reasons(STEP, text) == ["there is something between its elements"]


def test_dont_share_what_is_wanted_in_memory() -> None:
    text = program(pad(0, "(0, 0)"), pad(1, "(2, 0)"), "return %p0, %p1")
    assert reasons(STEP, text) == ["who reads it wants it in memory of its own"] * 2


def test_dont_share_what_lies_far_apart() -> None:
    far = pad(0, "(0, 300)", "4,316"), pad(1, "(300, 0)", "304,16")
    text = program(*far, APART.format("4,316", "304,16"))
    assert reasons(STEP, text) == ["one pad around all of them is larger than they are"]


def laplacian(u: Any) -> Any:
    p = jnp.pad(u, 1)
    return p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u


def test_the_gradient_of_a_stencil_stores_one_pad() -> None:
    gradient = jax.grad(lambda u: (laplacian(u) ** 2).sum())
    u = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    stored = overlay_parts.NAME  # else no pad is
    on = stagejit.jit(gradient, options=Options(disable=(stored,))).plan(u)
    off = stagejit.jit(gradient, options=Options(disable=(stored, shared_pads.NAME))).plan(u)
    assert on.transient_nbytes < 0.5 * off.transient_nbytes


@st.composite
def stencils(draw: st.DrawFn) -> tuple[Any, np.ndarray[Any, Any]]:
    """Sums of a value moved by steps, over borders of one or several values."""
    rank = draw(st.integers(1, 3))
    shape = [draw(st.sampled_from((1, 3, 16, 33))) for _ in range(rank)]
    count = draw(st.integers(2, 5))
    widths = [[(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in shape]
              for _ in range(count)]  # fmt: skip
    borders = [draw(st.sampled_from((0.0, 1.0))) for _ in range(count)]
    inner = draw(st.sampled_from((lambda x: x, jnp.sin, lambda x: jnp.cumsum(x, 0))))
    same = draw(st.booleans())
    size = [4 + extent for extent in shape]

    def fn(u: Any) -> Any:
        v = inner(u)
        total: Any = 0
        for n, (width, border) in enumerate(zip(widths, borders, strict=True)):
            if same:  # as the gradients of slices are
                places = zip(width, size, shape, strict=True)
                width = [(low, whole - extent - low) for (low, _), whole, extent in places]
            p = jnp.pad(v, width, constant_values=border)
            total = total + (p * (n + 1) if same else (p * p).sum())
        return total[tuple(slice(1, -1) for _ in shape)] if same else total

    values = np.random.default_rng(draw(st.integers(0, 99))).integers(-9, 9, shape) / 4
    return fn, values.astype(np.float32)


@given(stencils())
def test_values(made: tuple[Any, np.ndarray[Any, Any]]) -> None:
    fn, u = made
    for function in (fn, jax.grad(lambda v: (fn(v) ** 2).sum())):
        expected = jax.jit(function)(u)
        for disable in ((), (shared_pads.NAME,)):
            found = stagejit.jit(function, options=Options(verify=True, disable=disable))(u)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
