"""Kernels of conv regions whose operand has a border, against the interpreter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from tests.codegen.cpu.contract.conv.convolving import NHWC, bordered, check
from tests.codegen.cpu.contract.test_contract import array
from tests.codegen.regions import Runner

BORDERED: list[dict[str, Any]] = [
    {"padding": ((1, 1), (2, 3))},
    {"padding": ((9, 20), (17, 60))},  # windows that meet nothing but the border
    {"padding": ((-1, 2), (3, -2))},
    {"padding": ((1, 2), (0, 3)), "strides": (2, 2)},
    {"padding": ((4, 2), (3, 3)), "strides": (3, 2), "rhs_dilation": (2, 3)},
    {"padding": ((3, 2), (1, 5)), "lhs_dilation": (2, 2)},
    {"padding": ((4, 3), (0, 7)), "lhs_dilation": (2, 3), "strides": (3, 2), "rhs_dilation":
        (2, 1)},
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "value"),
    [(options, 3.0) for options in BORDERED]
    + [(options, value) for options in BORDERED[3::2] for value in (np.nan, -np.inf)],
    ids=str,
)
def test_borders(runner: Runner, options: Any, value: float) -> None:
    check(runner, array(2, 3, 13, 37), array(4, 3, 3, 3), border=value, **options)
    check(runner, array(2, 13, 37, 3), array(3, 3, 3, 19), NHWC, border=value, **options)


def test_a_border_of_few_elements(runner: Runner) -> None:
    around = {"padding": ((2, 2), (3, 1)), "border": -2.0}
    check(runner, array(1, 5, 1, 1), array(7, 5, 3, 3), **around)
    check(runner, array(2, 1, 3, 5), array(3, 3, 5, 20), NHWC, **around)
    check(runner, array(1, 5, 6, 7), array(7, 5, 1, 1), **around)
    check(runner, array(3, 6, 7, 5), array(1, 1, 5, 40), NHWC, **around)


def test_a_border_of_other_ranks(runner: Runner) -> None:
    numbers = ("NCH", "OIH", "NCH")
    check(runner, array(2, 5, 40), array(7, 5, 3), numbers, strides=(1,), padding=((2, 1),),
          border=3.0)  # fmt: skip
    check(runner, array(1, 3, 6, 7, 9), array(4, 3, 2, 3, 3), ("NCDHW", "OIDHW", "NCDHW"),
          strides=(1, 2, 1), padding=((1, 0), (2, 2), (0, 3)), border=3.0)  # fmt: skip


@pytest.mark.parametrize(("kind", "groups"), [("feature", 2), ("feature", 6), ("batch", 2)])
def test_a_border_of_groups(runner: Runner, kind: str, groups: int) -> None:
    channels = 6 // groups if kind == "feature" else 6
    x, w = array(4, 6, 9, 20), array(12, channels, 3, 3)
    around = {f"{kind}_group_count": groups, "padding": ((1, 1), (2, 0)), "border": 2.0}
    check(runner, x, w, **around)
    check(runner, x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), NHWC, **around)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (np.float64, 0.1), (np.int32, -(2**31)), (np.int8, -7), (np.uint8, 255),
        (np.uint16, 65535), (np.uint32, 2**32 - 1), (np.int64, 2**62 + 1), (np.uint64, 2**64 - 1),
        (np.float16, -np.inf), (ml_dtypes.bfloat16, np.nan), (ml_dtypes.bfloat16, -0.5),
    ],
    ids=str,
)  # fmt: skip
def test_a_border_of_every_dtype(runner: Runner, dtype: Any, value: Any) -> None:
    around = {"padding": ((1, 1), (2, 3)), "border": value}
    check(runner, array(1, 3, 9, 20, dtype=dtype), array(5, 3, 3, 3, dtype=dtype), **around)
    check(runner, array(1, 9, 20, 3, dtype=dtype), array(3, 3, 3, 20, dtype=dtype), NHWC, **around)


def test_a_border_is_not_part_of_the_prologue(runner: Runner) -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(jnp.exp2(x) + 1, w, (1, 1), ((2, 1), (3, 1)))

    for value in (5.0, np.nan):
        runner.check(fn, array(1, 5, 9, 20), array(7, 5, 3, 3), change=bordered(value))


def test_a_border_of_a_view(runner: Runner) -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        part = jnp.transpose(x, (0, 3, 1, 2))[:, :, 1:-1, ::-1]
        return lax.conv_general_dilated(part, w, (1, 1), ((2, 1), (3, 1)))

    runner.check(fn, array(1, 9, 20, 5), array(7, 5, 3, 3), change=bordered(5.0))
