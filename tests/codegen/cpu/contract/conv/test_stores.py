"""How kernels of conv regions store and pack: together, or scattered."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target
from tests.codegen.cpu.contract.conv.convolving import NHWC
from tests.codegen.cpu.contract.test_contract import array
from tests.codegen.regions import Runner


def lines(kernel: Kernel, pattern: str) -> list[str]:
    """The lines of the kernel in which the pattern is found."""
    return [line for line in kernel.function.as_text().splitlines() if re.search(pattern, line)]


def weight_gradient(taps: tuple[int, int]) -> Any:
    """Of an NCHW convolution by this many taps: they are what lies innermost in memory."""

    def fn(x: jax.Array, ct: jax.Array) -> jax.Array:
        def forward(w: jax.Array) -> jax.Array:
            return lax.conv(x, w, (1, 1), "VALID")

        w = jax.ShapeDtypeStruct((ct.shape[1], x.shape[1], *taps), x.dtype)
        return jax.linear_transpose(forward, w)(ct)[0]

    return fn


@pytest.mark.parametrize("taps", [(2, 2), (2, 3), (1, 8)])
def test_the_taps_of_a_gradient_are_stored_together(compile_kernel: Any, taps: Any) -> None:
    """Vectors along the channels, and the taps between them, become whole vectors of memory."""
    x, ct = array(2, 64, 9, 9), array(2, 72, 10 - taps[0], 10 - taps[1])
    kernel = Runner(compile_kernel, Target.avx2()).check(weight_gradient(taps), x, ct)
    assert not lines(kernel, "scatter")
    assert not lines(kernel, "gather .*@panel")


@pytest.mark.parametrize("taps", [(3, 3), (2, 2), (1, 5)])
@pytest.mark.parametrize("channels", [5, 16, 37])
def test_the_taps_of_any_gradient(runner: Runner, taps: tuple[int, int], channels: int) -> None:
    x, ct = array(2, channels, 9, 8), array(2, 19, 10 - taps[0], 9 - taps[1])
    runner.check(weight_gradient(taps), x, ct)

    def scaled(x: jax.Array, ct: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.maximum(weight_gradient(taps)(x, ct) * 2 + b[:, :, None, None], 0)

    runner.check(scaled, x, ct, array(19, channels))


def test_few_neighbours_in_memory_are_scattered(compile_kernel: Any) -> None:
    """Three columns of the image are too few for a vector; the batch is not."""
    x, w = array(16, 64, 3, 3), array(72, 64, 3, 3)
    kernel = Runner(compile_kernel, Target.avx2()).check(
        lambda x, w: lax.conv(x, w, (1, 1), "SAME"), x, w
    )
    assert lines(kernel, "scatter")
    assert not lines(kernel, "gather .*@panel")


@pytest.mark.parametrize("each", [2, 4, 7])
def test_groups_between_lanes_are_loaded_together(compile_kernel: Any, each: int) -> None:
    """Lanes run over the groups, whose few channels lie between them."""
    x, w = array(1, 12, 20, 32 * each), array(3, 3, each, 32 * each)
    for target in (Target.avx2(), Target.host()):
        kernel = Runner(compile_kernel, target).check(
            lambda x, w: lax.conv_general_dilated(
                x, w, (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=32
            ),
            x,
            w,
        )
    if each == 4:  # but for those with a mask
        assert not lines(kernel, r"gather %\d+ {")
