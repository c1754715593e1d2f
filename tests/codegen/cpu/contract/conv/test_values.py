"""Kernels of conv regions against the interpreter, on every target that this machine can run.

As in `test_contract.py`, inputs are small integers, so that sums are exact in any order.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from tests.codegen.conftest import compile_kernel as compile_function
from tests.codegen.cpu.contract.conv.convolving import NCHW, NHWC, bordered, check
from tests.codegen.cpu.contract.test_contract import TARGETS, array
from tests.codegen.regions import Runner


@pytest.mark.parametrize("options", [
    {}, {"padding": "VALID"}, {"strides": (2, 2)}, {"strides": (3, 2), "rhs_dilation": (2, 3)},
    {"padding": ((0, 2), (3, 1))}, {"padding": ((-1, 2), (3, -2))}, {"padding": ((5, 5), (9, 0))},
    {"lhs_dilation": (2, 2), "padding": ((1, 2), (1, 2))}, {"lhs_dilation": (3, 2), "strides": (2,
    1), "padding": ((2, 2), (2, 1))}, {"lhs_dilation": (2, 3), "strides": (3, 2), "rhs_dilation":
    (2, 1), "padding": ((4, -3), (0, 7))},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_windows(runner: Runner, options: Any, layout: str) -> None:
    if layout == "NCHW":
        check(runner, array(2, 5, 13, 40), array(7, 5, 3, 3), **options)
    else:
        check(runner, array(2, 13, 40, 5), array(3, 3, 5, 23), NHWC, **options)


def test_holes_are_zeros(runner: Runner) -> None:
    """What a window meets of the holes of a dilated image adds +0, even if nothing is computed."""
    negative = [-np.ones((1, 1, 20), np.float32), np.zeros((1, 1, 2), np.float32)]
    for x, w in (negative, negative[::-1]):
        runner.check(
            lambda x, w: 1 / lax.conv_general_dilated(x, w, (1,), ((4, 20),), lhs_dilation=(4,)),
            x, w,
        )  # fmt: skip


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("kind", "groups"), [("feature", 2), ("feature", 6), ("batch", 2), ("batch", 4)]
)
def test_groups(runner: Runner, kind: str, groups: int, layout: str) -> None:
    channels = 6 // groups if kind == "feature" else 6
    x, w = array(4, 6, 9, 20), array(12, channels, 3, 3)
    numbers = NCHW
    if layout == "NHWC":
        x, w, numbers = x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), NHWC
    check(runner, x, w, numbers, **{f"{kind}_group_count": groups})


def test_depthwise(runner: Runner) -> None:
    check(runner, array(2, 15, 20, 30), array(3, 3, 1, 30), NHWC, feature_group_count=30)
    check(runner, array(2, 30, 15, 20), array(30, 1, 3, 3), feature_group_count=30)
    check(
        runner, array(1, 15, 20, 5), array(3, 3, 1, 10), NHWC, feature_group_count=5, strides=(2, 2)
    )


def test_pointwise(runner: Runner) -> None:
    check(runner, array(2, 5, 9, 20), array(7, 5, 1, 1))
    check(runner, array(2, 5, 9, 20), array(7, 5, 1, 1), strides=(2, 2))
    check(runner, array(2, 9, 20, 5), array(1, 1, 5, 40), NHWC)
    check(runner, array(2, 9, 20, 5), array(1, 1, 5, 40), NHWC, padding=((1, 0), (0, 2)))


def test_many_channels(host: Runner) -> None:
    """Blocks of the reduction, and small images whose weights are what is large."""
    check(host, array(1, 300, 7, 7), array(40, 300, 3, 3))
    check(host, array(1, 7, 7, 300), array(3, 3, 300, 40), NHWC)
    check(host, array(1, 100, 30, 62), array(40, 100, 3, 3))


def test_stem(runner: Runner) -> None:
    check(runner, array(1, 3, 30, 50), array(17, 3, 7, 7), strides=(2, 2), padding=((3, 3), (3, 3)))
    check(runner, array(1, 30, 50, 3), array(7, 7, 3, 32), NHWC, strides=(2, 2))


def test_other_ranks(runner: Runner) -> None:
    check(runner, array(2, 5, 40), array(7, 5, 3), ("NCH", "OIH", "NCH"), strides=(1,))
    check(
        runner,
        array(1, 1, 400),
        array(1, 1, 9),
        ("NCH", "OIH", "NCH"),
        strides=(5,),
        rhs_dilation=(2,),
    )
    check(
        runner,
        array(1, 3, 6, 7, 9),
        array(4, 3, 2, 3, 3),
        ("NCDHW", "OIDHW", "NCDHW"),
        strides=(1, 2, 1),
    )
    check(runner, array(3, 5), array(7, 5), ("NC", "OI", "NC"), strides=(), padding=())


@pytest.mark.parametrize(
    "dtype",
    [np.float64, np.int32, np.int8, np.uint16, np.float16, ml_dtypes.bfloat16],
    ids=lambda d: np.dtype(d).name,
)
def test_dtypes(runner: Runner, dtype: Any) -> None:
    check(runner, array(1, 3, 9, 20, dtype=dtype), array(5, 3, 3, 3, dtype=dtype))
    check(runner, array(1, 9, 20, 3, dtype=dtype), array(3, 3, 3, 20, dtype=dtype), NHWC)


def test_accumulates_in_preferred_type(runner: Runner) -> None:
    check(
        runner,
        array(1, 3, 9, 20, dtype=np.int8),
        array(5, 3, 3, 3, dtype=np.int8),
        preferred_element_type=np.int32,
    )


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
@pytest.mark.parametrize(
    ("numbers", "x", "w"),
    [
        (NCHW, array(2, 3, 14, 16), array(5, 3, 3, 3)),
        (NHWC, array(2, 14, 16, 3), array(3, 3, 3, 5)),
    ],
    ids=["NCHW", "NHWC"],
)
def test_gradients(host: Runner, numbers: Any, x: Any, w: Any, strides: Any) -> None:
    """What `jax.grad` makes of a convolution: transposed ones, and windows as large as the
    image."""

    def forward(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=numbers)

    ct = array(*jax.eval_shape(forward, x, w).shape)
    host.check(lambda w, ct: jax.linear_transpose(lambda x: forward(x, w), x)(ct)[0], w, ct)
    host.check(lambda x, ct: jax.linear_transpose(lambda w: forward(x, w), w)(ct)[0], x, ct)


# -------------------------------------------------------------------- what is fused


def test_prologue_and_epilogue(runner: Runner) -> None:
    def fn(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
        y = lax.conv_general_dilated(x * 2 + 1, w, (1, 1), "SAME", dimension_numbers=NCHW)
        return jnp.maximum(y + b[None, :, None, None], 0)

    runner.check(fn, array(1, 5, 9, 20), array(7, 5, 3, 3), array(7))


def test_layouts_change_inside(runner: Runner) -> None:
    """Transposes around a convolution are read and written in place."""

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        y = lax.conv_general_dilated(
            jnp.transpose(x, (0, 3, 1, 2)),
            jnp.transpose(w, (3, 2, 0, 1)),
            (1, 1),
            "SAME",
            dimension_numbers=NCHW,
        )
        return jnp.transpose(y, (0, 2, 3, 1))

    runner.check(fn, array(1, 9, 20, 5), array(3, 3, 5, 7))


def test_writes_a_range_of_channels(runner: Runner) -> None:
    def fn(d: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NCHW)
        return d.at[:, 4:11, 1:10, 1:21].set(jnp.maximum(y, 0))

    runner.check(fn, array(1, 15, 11, 22), array(1, 5, 9, 20), array(7, 5, 3, 3))


def test_reads_a_range_of_channels(runner: Runner) -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x[:, 2:7, 1:, 3:], w, (1, 1), "VALID", dimension_numbers=NCHW
        )

    runner.check(fn, array(1, 9, 10, 25), array(7, 5, 3, 3))


# -------------------------------------------------------------------- any configuration


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """Shapes and parameters of a convolution with one or two spatial dimensions."""
    rank = draw(st.integers(1, 2))
    small = st.integers(1, 3)
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    image = [draw(st.sampled_from([1, 2, 5, 9, 16, 21])) for _ in range(rank)]
    padding = [(draw(st.integers(-1, 4)), draw(st.integers(-1, 4))) for _ in range(rank)]
    feature_groups, batch_groups = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 2)]))
    batch, channels = draw(small) * batch_groups, draw(st.sampled_from([1, 2, 5])) * feature_groups
    features = draw(st.sampled_from([1, 3, 17])) * feature_groups * batch_groups
    letters = "HW"[:rank]
    lhs = "".join(draw(st.permutations("NC" + letters)))
    rhs = "".join(draw(st.permutations("OI" + letters)))
    out = "".join(draw(st.permutations("NC" + letters)))
    sizes = {"N": batch, "C": channels, "O": features, "I": channels // feature_groups}
    return {
        "lhs": tuple(sizes.get(c) or image[letters.index(c)] for c in lhs),
        "rhs": tuple(sizes.get(c) or kernel[letters.index(c)] for c in rhs),
        "window_strides": [draw(small) for _ in range(rank)],
        "padding": padding,
        "lhs_dilation": [draw(small) for _ in range(rank)],
        "rhs_dilation": [draw(small) for _ in range(rank)],
        "dimension_numbers": (lhs, rhs, out),
        "feature_group_count": feature_groups,
        "batch_group_count": batch_groups,
    }


@pytest.mark.fuzz
@given(
    convolutions(), st.sampled_from(sorted(TARGETS)), st.sampled_from([0, 0, 3.0, np.nan, -np.inf])
)
def test_any_configuration(case: dict[str, Any], target: str, border: float) -> None:
    case = dict(case)
    x, w = array(*case.pop("lhs")), array(*case.pop("rhs"))

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, w, **case)

    try:
        shape = jax.eval_shape(fn, x, w).shape
    except (ValueError, TypeError):
        return  # JAX refuses it, for instance because the output has a negative extent
    if 0 in shape:
        return
    change = bordered(border) if border != 0 else lambda graph: None
    Runner(compile_function, TARGETS[target]()).check(fn, x, w, change=change)


@pytest.mark.parametrize("kernel", [3, 4, 5, 6, 8])
def test_transposed_by_patches(runner: Runner, kernel: int) -> None:
    """Residues with equal windows share a nest."""
    for before, after in ((kernel - 1, kernel - 1), (0, 3), (5, 1)):
        check(
            runner,
            array(1, 7, 6, 5),
            array(kernel, 4, 5, 3),
            NHWC,
            lhs_dilation=(4, 4),
            padding=((before, after), (3, 3)),
        )
