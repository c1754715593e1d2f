"""Stencils, of what is shifted, padded, rolled and put together: against the interpreter, on every
target, from arrays that end where memory does."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.graph.ir import Graph
from stagejit.options import Options
from stagejit.rewrites.driving.driver import GraphStep, run_steps
from stagejit.rewrites.moving.overlays import parts
from tests.codegen.cpu.test_lookups import AtTheEnd
from tests.codegen.cpu.test_lookups import _at_end as at_end_fixture
from tests.randomness import RNG

at_end = at_end_fixture
STEP = GraphStep(parts.NAME, parts.overlay_parts)
DTYPES = (np.float32, np.float64, np.int32, np.uint8, np.int16, jnp.bfloat16)


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_SMALL_NBYTES", 0)
    monkeypatch.setattr(parts, "_LARGEST", 0.4)


class InSeveral(Exception):
    """What is put together is placed after all."""


def as_values(at_end: AtTheEnd) -> Callable[[Graph], None]:
    def change(graph: Graph) -> None:
        run_steps(graph, [STEP], Options(), at_end.target)
        if any(op.kind == "insert_slice" for op in graph.ops()):
            raise InSeveral

    return change


def moved(x: Any) -> Any:
    """The same shape, of what lies beside it along some axis, and a border."""
    axis = int(RNG.integers(0, x.ndim))
    extent = x.shape[axis]
    if extent < 2:
        return x + 1
    by = int(RNG.integers(1, min(extent, 4)))
    cut = lax.slice_in_dim(x, by, None, axis=axis), lax.slice_in_dim(x, 0, -by, axis=axis)
    widths = [(by * (each == axis), 0, 0) for each in range(x.ndim)]
    border = jnp.full_like(lax.slice_in_dim(x, 0, by, axis=axis), int(RNG.integers(0, 3)))
    inner = (slice(None),) * axis + (slice(by, -by if extent > 2 * by else None),)
    ways = [
        lambda: jnp.roll(x, int(RNG.integers(-by, extent)), axis),
        lambda: jnp.concatenate([cut[0] - cut[1], border], axis),
        lambda: jnp.concatenate([border, cut[0] * cut[1]], axis),
        lambda: jnp.concatenate([lax.slice_in_dim(x, 0, by, axis=axis) * 2, cut[1]], axis),
        lambda: lax.pad(cut[1], jnp.ones((), x.dtype), widths),
        lambda: x.at[inner].set(x[inner] + 1),
        lambda: (x * 2).at[(slice(None),) * axis + (0,)].set(1),
        lambda: jnp.flip(jnp.roll(x, by, axis), int(RNG.integers(0, x.ndim))),
        lambda: jnp.swapaxes(jnp.roll(jnp.swapaxes(x, 0, axis), by, 0), 0, axis),
    ]
    return ways[RNG.integers(0, len(ways))]()


def drawn(dtype: Any) -> tuple[Callable[..., Any], Any]:
    """A function of a field, which has one to three results, and a field."""
    rank = int(RNG.integers(1, 4))
    long = int(RNG.integers(2, 100))
    shape = [int(n) for n in RNG.integers(1, 8, rank)]
    shape[RNG.integers(0, rank) if RNG.random() < 0.3 else -1] = long
    x = np.array(RNG.integers(0, 5, shape)).astype(dtype)
    reduced = (
        tuple(axis for axis in range(rank) if RNG.random() < 0.7) if RNG.random() < 0.3 else ()
    )
    steps, count = int(RNG.integers(1, 6)), int(RNG.integers(1, 4))

    def function(x: Any) -> Any:
        found = [x]
        for _ in range(steps):
            new = moved(found[RNG.integers(0, len(found))])
            if RNG.random() < 0.6:
                how = (operator.add, operator.sub, jnp.maximum)[RNG.integers(0, 3)]
                new = how(new, moved(found[RNG.integers(0, len(found))]))
            found.append(new)
        if reduced:
            return jnp.sum(found[-1], reduced), jnp.max(found[-1], reduced)
        return found[-count:]

    return function, x


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_stencils_of_parts(at_end: AtTheEnd, dtype: Any) -> None:
    for _ in range(4):
        function, x = drawn(dtype)
        with suppress(InSeveral):
            at_end.check(function, x, change=as_values(at_end))
