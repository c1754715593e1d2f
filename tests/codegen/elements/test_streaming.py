"""Streamed stores: which they are, and that their values arrive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target
from tests.codegen.regions import Runner

LINES = Target.host().vector_nbytes == 64  # narrower vectors are never streamed


def array(*shape: int) -> np.ndarray[Any, np.dtype[Any]]:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@pytest.fixture
def runner(compile_kernel: Any) -> Runner:
    """A machine without a last-level cache."""
    return Runner(compile_kernel, replace(Target.host(), l3_nbytes=0))


def streams(kernel: Kernel) -> bool:
    return any(op.attrs.get("nontemporal") for op in kernel.function.walk())


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], bool]] = {
    "map": (lambda x: x * 2, (7, 64), True),
    "masked end": (lambda x: x * 2, (16 * 9 + 5,), True),
    "transpose": (lambda x: x.T + 1, (32, 48), True),
    "softmax-like rows": (lambda x: x / x.max(1, keepdims=True), (5, 320), True),
    "softmax-like columns": (lambda x: x / x.max(0, keepdims=True), (30, 320), True),
    "cumulative": (lambda x: lax.cumsum(x, 1), (5, 320), True),
    "cumulative columns": (lambda x: lax.cumsum(x, 0), (30, 320), True),
    "rows that are not lines": (lambda x: x[:, 1:] * 2, (5, 320), False),
    "an odd place": (lambda x: lax.pad(x * 2, np.float32(0), ((0, 0, 0), (1, 15, 0))), (5, 320),
                     False),
    "narrow results": (lambda x: x > 0, (5, 320), False),
    "interleaved": (lambda x: jnp.transpose(x, (1, 0)), (3, 320), False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_whole_lines_are_streamed(runner: Runner, name: str) -> None:
    fn, shape, expected = CASES[name]
    kernel = runner.check(fn, array(*shape), rtol=1e-4)
    assert streams(kernel) == (expected and LINES)


def test_dont_stream_what_the_cache_keeps(compile_kernel: Any) -> None:
    kernel = Runner(compile_kernel, Target.host()).check(lambda x: x * 2, array(7, 64))
    assert not streams(kernel)


def test_dont_stream_small_results_of_large_reads(compile_kernel: Any) -> None:
    target = replace(Target.host(), l3_nbytes=7 * 64 * 4)
    kernel = Runner(compile_kernel, target).check(
        lambda x, i: x[i, :] * 2, array(700, 64), np.array([3], np.int32)
    )
    assert not streams(kernel)
