"""Rows of about as many elements as there are registers: values on every target, and when a row
lies along the lanes, and when in one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from stagejit.codegen.generate import kernel_of
from stagejit.codegen.target import Target
from stagejit.graph.ir import Graph
from stagejit.trace.translate import graph_of
from tests.codegen.regions import Runner, region_of
from tests.randomness import RNG

LENGTHS = (9, 16, 17, 24, 31, 32, 33)

Function = Callable[[Any], Any]


def sums(x: Any) -> Any:
    return x.sum(-1)


def log_sums(x: Any) -> Any:
    greatest = x.max(-1)
    return jnp.log(jnp.exp(x - greatest[:, None]).sum(-1)) + greatest


def softmax(x: Any) -> Any:
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def places(x: Any) -> Any:
    return jnp.argmax(x, -1)


def rows(length: int, dtype: Any = np.float32, count: int = 37) -> np.ndarray[Any, Any]:
    return np.asarray(RNG.standard_normal((count, length))).astype(dtype)


@pytest.mark.parametrize("fn", [sums, log_sums, softmax, places])
@pytest.mark.parametrize("length", LENGTHS)
def test_values(runner: Runner, length: int, fn: Function) -> None:
    runner.check(fn, rows(length))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("length", LENGTHS)
def test_other_types(runner: Runner, length: int, dtype: Any) -> None:
    runner.check(softmax, rows(length, dtype))


@pytest.mark.parametrize("length", [17, 32])
def test_some_of_a_row_alone(runner: Runner, length: int) -> None:
    """Others between the same lanes are not wanted, or are those of another row."""
    runner.check(lambda x: x[:, 1:].max(-1), rows(length + 1))
    runner.check(lambda x: (x[1:] * x[:-1]).sum(-1), rows(length))
    runner.check(lambda x: x[:, ::-1].argmax(-1), rows(length))


def how(fn: Function, length: int, target: Target) -> str:
    graph: Graph = graph_of(fn, rows(length, count=5000))
    (choice,) = (c for c in kernel_of(region_of(graph), target).choices if c.name == "rows")
    return choice.reason


@pytest.mark.parametrize(
    ("fn", "length", "across"),
    [
        (
            log_sums,
            17,
            True,
        ),  # two vectors, half of them empty, and a logarithm of each row
        (log_sums, 32, True),
        (places, 17, True),
        (softmax, 17, True),
        (sums, 300, False),
        (softmax, 300, False),
        (log_sums, 1000, False),
    ],
)
def test_what_a_row_takes_besides_memory_decides(fn: Function, length: int, across: bool) -> None:
    lie = "each lane is a row" if across else "rows lie along the lanes"
    assert how(fn, length, Target.avx512()).startswith(lie)
