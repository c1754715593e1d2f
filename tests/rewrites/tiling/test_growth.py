"""Looking for clusters takes work near linear in the ops of a program: calls are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from stagejit.graph.ir import Graph
from stagejit.options import Options
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.tiling import fuse
from stagejit.trace.translate import graph_of
from tests.expected.calls import calls_of

Program = Callable[..., Any]
X = jax.ShapeDtypeStruct((8, 512, 16), jnp.float32)
W = jax.ShapeDtypeStruct((8, 16, 16), jnp.float32)
# As in tests/scaling: a little is bounded by something else than the program.
MOST_GROWTH = 1.3


def scores(x: Any, w: Any) -> Any:
    return jnp.einsum("htd,hsd->hts", x @ w, x)


def weighted(weights: Any, x: Any) -> Any:
    return jnp.einsum("hts,hsd->htd", weights, x)


def a_long_mask(x: Any, *ws: Any) -> Any:
    y = scores(x, ws[0])
    mask = lax.broadcasted_iota(jnp.float32, y.shape, 1)
    for _ in range(8 * len(ws)):
        mask = jnp.sin(mask)
        y = y + mask
    return weighted(y, x)


def clusters_side_by_side(x: Any, *ws: Any) -> Any:
    return [weighted(jax.nn.softmax(scores(x, w)), x) for w in ws]


def layers(x: Any, *ws: Any) -> Any:
    for w in ws:
        x = weighted(jax.nn.softmax(scores(x, w)), x)
    return x


def layers_with_a_sum_over_heads(x: Any, *ws: Any) -> Any:
    for w in ws:
        x = weighted(jax.nn.softmax(scores(x, w)), x).sum(0)[None] + x
    return x


def layers_with_something_in_between(x: Any, *ws: Any) -> Any:
    for w in ws:
        y = scores(x, w)
        x = weighted(y - lax.cumsum(y.max(-1), 0)[..., None], x)
    return x


def a_sum_with_something_in_between(x: Any, *ws: Any) -> Any:
    y: Any = sum(jnp.tanh(scores(x, w)) for w in ws)
    return weighted(y - lax.cumsum(y.max(-1), 0)[..., None], x)


def a_sum_that_is_sorted(x: Any, *ws: Any) -> Any:
    return lax.sort(sum(jnp.tanh(scores(x, w)) for w in ws))[0]


def gradient(x: Any, *ws: Any) -> Any:
    return jax.grad(lambda *args: jnp.sin(layers_with_a_sum_over_heads(*args)).sum())(x, *ws)


def calls_to_tile(program: Program, n: int) -> int:
    graph: Graph = graph_of(program, X, *[W] * n)
    return calls_of(lambda: fuse.tile_and_fuse(Log(graph, Options())))


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "program",
    [
        a_long_mask,
        clusters_side_by_side,
        layers,
        layers_with_a_sum_over_heads,
        layers_with_something_in_between,
        a_sum_with_something_in_between,
        a_sum_that_is_sorted,
        gradient,
    ],
)
def test_work_is_near_linear(program: Program) -> None:
    calls_to_tile(program, 2)  # what is made once a process
    short, long = (calls_to_tile(program, n) for n in (24, 96))
    assert long < 4 * MOST_GROWTH * short
