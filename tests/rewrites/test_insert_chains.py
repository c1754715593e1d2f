"""Reads pass the updates before them that leave their box alone: the same elements as before, in
steps that do not grow with the number of updates."""

from __future__ import annotations

import random
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.graph.interpreter import interpret
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph, views
from stagejit.trace.translate import graph_of

SHAPE = (12, 10)


def random_chain(seed: int) -> Any:
    """Updates of boxes and reads of boxes of one buffer, by turns, some with strides."""

    def f(x: Any) -> Any:
        rng = random.Random(seed)
        results = []
        for _ in range(40):
            parts = []
            for size in SHAPE:
                first = rng.randrange(size)
                stop = min(size, first + rng.choice((1, 1, 2, 4)) * (step := rng.choice((1, 1, 2))))
                parts.append(slice(first, stop, step))
            box = tuple(parts)
            if rng.random() < 0.5:
                x = x.at[box].set(rng.random())
            else:
                results.append(jnp.sum(x[box] * rng.random()))
                x = x.at[box].mul(2.0) if rng.random() < 0.2 else x
        return x, jnp.stack(results or [jnp.zeros(())])

    return f


@pytest.mark.parametrize("seed", range(12))
def test_rewrites_keep_what_is_read(seed: int) -> None:
    x = np.arange(120, dtype=np.float32).reshape(SHAPE)
    graph = graph_of(random_chain(seed), x)
    before = interpret(graph, [x])
    rewrite_graph(graph, Options())
    for a, b in zip(before, interpret(graph, [x]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("distance", [1, 300])
def test_a_read_looks_at_few_updates(distance: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    disjoint = views._disjoint

    def counted(*args: Any) -> bool:
        nonlocal looked
        looked += 1
        return disjoint(*args)

    monkeypatch.setattr(views, "_disjoint", counted)
    updates = 300

    def f(x: Any) -> Any:
        for i in range(updates):
            x = x.at[i].set(x[i + distance] * 2)
        return x

    graph = graph_of(f, np.ones(updates + distance + 1, np.float32))
    rewrite_graph(graph, Options())
    assert looked < 4 * updates
    reads = [op for op in graph.ops() if op.kind == "extract_slice"]
    assert all(read.operands[0].op.kind == "input" for read in reads)
