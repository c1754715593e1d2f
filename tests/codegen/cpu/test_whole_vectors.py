"""Rows shorter than vectors, stored in whole ones: against the interpreter, on every target, from
arrays that end where memory does."""

from __future__ import annotations

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
from stagejit.rewrites.moving.overlays import rows as overlays
from tests.codegen.cpu.test_lookups import TABLES, AtTheEnd, elements
from tests.codegen.cpu.test_lookups import _at_end as at_end_fixture
from tests.randomness import RNG

at_end = at_end_fixture
STEP = GraphStep(overlays.NAME, overlays.overlay_rows)


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlays, "_SMALL_NBYTES", 0)
    monkeypatch.setattr(overlays, "_LEAST_GAIN", 0.0)
    monkeypatch.setattr(overlays, "_MOST_SHUFFLE", 100.0)


class TooLong(Exception):
    """What is put together is placed after all."""


def as_values(at_end: AtTheEnd) -> Callable[[Graph], None]:
    def change(graph: Graph) -> None:
        run_steps(graph, [STEP], Options(), at_end.target)
        stays = [op for op in graph.ops() if op.kind == "insert_slice"]
        if any(use.user.kind != "return" for op in stays for use in graph.uses(op.result)):
            raise TooLong

    return change


def drawn(dtype: Any) -> tuple[Callable[..., Any], Any]:
    """A function of images or rows, and some of them."""
    rank = int(RNG.integers(1, 4))
    shape = tuple(int(n) for n in RNG.integers(1, 12, rank))
    x = elements(dtype, *(int(n) for n in RNG.integers(1, 7, RNG.integers(0, 3))), *shape)
    axes = RNG.permutation(np.arange(x.ndim - rank, x.ndim))
    axis, first = int(axes[0]), int(RNG.integers(0, x.shape[axes[0]]))
    low, high = RNG.integers(0, 4, 2)

    def padded(x: Any) -> Any:
        widths = [(0, 0, 0)] * x.ndim
        for each in axes[: RNG.integers(1, rank + 1)]:
            widths[each] = (int(low), int(high), int(RNG.integers(0, 3)))
        return lax.pad(x, jnp.ones((), x.dtype), widths)

    def turned(x: Any) -> Any:
        return jnp.transpose(x, (*range(x.ndim - rank), *axes))

    ways: list[Callable[[Any], Any]] = [
        padded, turned,
        lambda x: jnp.roll(x, first, axis),
        lambda x: jnp.flip(x, axis),
        lambda x: lax.slice_in_dim(x, min(first, x.shape[axis] - 1), None, axis=axis),
        lambda x: jnp.concatenate([x, jnp.flip(x, axis)], axis),
        lambda x: jnp.stack([x, jnp.flip(x, axis)], axis),
        lambda x: x.reshape(-1) if x.ndim > 1 else x[None],
    ]  # fmt: skip
    chosen = [ways[at] for at in RNG.integers(0, 5, RNG.integers(1, 4))]
    chosen.append(ways[RNG.integers(0, len(ways))])

    def function(x: Any) -> Any:
        for way in chosen:
            before = x.ndim
            x = way(x) if x.ndim == before else x
        return x

    return function, x


@pytest.mark.parametrize("dtype", TABLES, ids=lambda d: np.dtype(d).name)
def test_what_is_put_together_of_rows(at_end: AtTheEnd, dtype: Any) -> None:
    for _ in range(4):
        function, x = drawn(dtype)
        with suppress(TooLong):
            at_end.check(function, x, change=as_values(at_end))
