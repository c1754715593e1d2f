"""fold-pads: both rules, each guard, values against jax, and the dispatches they save."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.options import Options
from stagejit.rewrites import pads
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


def convolution(border: str = "0.0", *, offsets: str = "(0, 0, 1, 2)", more: str = "",
                shape: str = "1,2,7,8", result: str = "1,3,5,6") -> str:  # fmt: skip
    return f"""
    graph @f(%x: f32[1,2,5,5], %w: f32[3,2,3,3]) {{
      %0: f32[] = const {border}
      %1: f32[{shape}] = fill %0
      %2: f32[{shape}] = insert_slice %x into %1 at {offsets}
      %3: f32[{result}] = conv %2, %w batch_groups=1 feature_groups=1 lhs_dilation=(1, 1) \
lhs_spec=(0, 1, 2, 3) out_spec=(0, 1, 2, 3) padding=((0, 0), (0, 0)) rhs_dilation=(1, 1) \
rhs_spec=(0, 1, 2, 3) strides=(1, 1)
      return %3{more}
    }}"""


def test_a_zero_pad_joins_the_window() -> None:
    body = rewritten(pads.pad_into_conv, convolution())
    assert "conv %x, %w" in body
    assert "padding=((1, 1), (2, 1))" in body
    assert "insert_slice" not in body


def test_dont_fold_a_border_that_is_not_zero() -> None:
    assert reasons(pads.pad_into_conv, convolution("1.0")) == ["the border is not zero"]
    assert reasons(pads.pad_into_conv, convolution("nan")) == ["the border is not zero"]


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
