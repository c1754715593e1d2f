"""Views of dispatches that share their parts."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import stagejit
from stagejit.dispatch.regions import Region, regions_of
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.text.printer import as_text
from stagejit.pipeline import Compilation


def padded() -> Graph:
    """Two rows that are padded alike, by dispatches with parts of their own."""

    def f(x: Any, y: Any) -> Any:
        return jnp.pad(jnp.exp(x), 1), jnp.pad(jnp.exp(y), 1)

    x = jnp.ones((4, 8))
    request = stagejit.jit(f).trace(x, x + 1).compilation.request
    return Compilation(request).run_until("place").dispatches


def seen(region: Region) -> list[tuple[Op, list[Value], list[Value]]]:
    return [(part.op, list(part.operands), list(part.results)) for part in region.parts]


def test_borders_of_dispatches_that_share_their_parts_are_their_own() -> None:
    graph = padded()
    first, second = (op for op in graph.ops() if op.definition.is_dispatch)
    parts = first.attrs["parts"]
    assert len(parts) > 1
    assert list(map(as_text, parts)) == list(map(as_text, second.attrs["parts"]))
    apart = regions_of(graph)
    assert all(region.alike is None for region in apart)
    second.attrs = {**second.attrs, "parts": parts}
    together = regions_of(graph)
    assert together[1].alike is together[0]
    assert [border.alike for border in together[1].borders] == list(together[0].borders)
    for one, other in zip(apart, together, strict=True):
        assert one.name == other.name
        assert [part.name for part in one.parts] == [part.name for part in other.parts]
        assert seen(one) == seen(other)
