"""Sums of many elements, whatever the order of the axes that are summed and of those that are not:
rounding errors grow with the number of runs of runs, not of elements."""

from __future__ import annotations

import itertools
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from jax import numpy as jnp

import stagejit
from stagejit.codegen.generate import kernel_of
from stagejit.codegen.rows.runs import MOST_ADDED, runs_of
from stagejit.index.affine import Var
from stagejit.trace.translate import graph_of
from tests.codegen.regions import Runner, region_of
from tests.expected import rounding
from tests.randomness import RNG

LONG = 1 << 20  # elements of each sum
TOLERANCE = rounding.of_sum(LONG, np.float32)  # a tenth of what plain running sums are off by

REDUCERS: dict[str, tuple[Any, Any]] = {
    "mean": (lambda x, axes: x.mean(axes), lambda x, axes: x.mean(axes)),
    "variance": (lambda x, axes: x.var(axes), lambda x, axes: x.var(axes)),
    "exponentials": (
        lambda x, axes: jnp.exp(x - x.max(axes, keepdims=True)).sum(axes),
        lambda x, axes: np.exp(x - x.max(axes, keepdims=True)).sum(axes),
    ),
    "with a maximum": (
        lambda x, axes: x.sum(axes) * x.max(axes),
        lambda x, axes: x.sum(axes) * x.max(axes),
    ),
    "of products": (
        lambda x, axes: (x * jnp.sqrt(x)).sum(axes),
        lambda x, axes: (x * np.sqrt(x)).sum(axes),
    ),
}


def shapes() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Shapes with axes that are summed, of short, middle and long extents in every order."""
    found = []
    for reduced in itertools.permutations((3, 20, 0)), itertools.permutations((70, 5, 0)):
        for extents in reduced:
            rest = LONG // math.prod(filter(None, extents))
            summed = [extent or rest for extent in extents]
            found.append(((summed[0], 2, summed[1], 3, summed[2]), (0, 2, 4)))
            found.append(((summed[0], 2, summed[1], 3, summed[2], 5), (0, 2, 4)))
    for short in (1, 2, 3, 20, 100, 1000, 1030):
        found.append(((LONG // short, 2, short), (0, 2)))
        found.append(((short, 2, LONG // short), (0, 2)))
        found.append(((LONG // short, 2, short, 5), (0, 2)))
        found.append(((2, LONG // short, 3, short), (1, 3)))
    found += [((LONG, 3), (0,)), ((3, LONG), (1,)), ((LONG,), (0,)), ((1 << 24,), (0,))]
    return found


def worst(found: Any, wanted: Any) -> float:
    return float(np.abs(np.asarray(found, np.float64) / wanted - 1).max())


def test_plain_running_sums_are_further_off() -> None:
    rows = RNG.random((16, LONG), np.float32)
    plain = np.cumsum(rows, axis=1, dtype=np.float32)[:, -1]
    assert worst(plain, rows.sum(1, dtype=np.float64)) > 4 * TOLERANCE


@pytest.mark.parametrize(("shape", "axes"), shapes(), ids=str)
def test_long_sums_in_any_order(host: Runner, shape: tuple[int, ...], axes: Any) -> None:
    x = RNG.random(shape, np.float32)
    graph = graph_of(lambda x: x.sum(axes), x)
    region = region_of(graph)
    (found,) = host.run(graph, region, kernel_of(region, host.target), [x])
    assert worst(found, x.sum(axes, dtype=np.float64)) < TOLERANCE


@pytest.mark.parametrize("name", REDUCERS)
@pytest.mark.parametrize("shape", [(52429, 2, 20), (3, 2, 70, 3, 5000), (9000, 2, 117, 4)], ids=str)
def test_whatever_is_made_of_long_sums(name: str, shape: tuple[int, ...]) -> None:
    """In programs, whose sums are split, and fused with others."""
    ours, wanted = REDUCERS[name]
    x, axes = RNG.random(shape, np.float32), tuple(range(0, len(shape), 2))
    found = stagejit.jit(lambda x: ours(x, axes))(x)
    assert worst(found, wanted(x.astype(np.float64), axes)) < 2 * TOLERANCE


@pytest.mark.parametrize("extents", [(5,), (129,), (1 << 31,), (2, 1000, 3), (1 << 20, 1 << 20, 7)])
@pytest.mark.parametrize("added", [1, 1 / 8, 5, 200])
def test_few_are_added_to_one_accumulator(extents: tuple[int, ...], added: float) -> None:
    runs = runs_of([Var(extent) for extent in extents], added)
    for var, sizes in reversed(runs):
        counts = [-(-high // low) for high, low in pairwise((var.extent, *sizes, 1))]
        assert all(high % low == 0 for high, low in pairwise(sizes))
        assert sizes == sorted(set(sizes), reverse=True)
        assert added * counts[-1] <= max(MOST_ADDED, added)
        assert all(count <= MOST_ADDED for count in counts[:-1])
        added = counts[0] if sizes else added * counts[0]
