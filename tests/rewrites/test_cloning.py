"""Clones leave the original as it was, whatever becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stagejit.graph.ir import Graph
from stagejit.graph.ops.control import bodies_of
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.rewrites.cloning import copied
from stagejit.trace.translate import graph_of
from stagejit.types import TensorType, f32
from tests.loops.programs import CASES, IDS


def bodies(graph: Graph) -> list[Graph]:
    """All of them, those inside of others too."""
    found = [body for op in graph.ops() for body in bodies_of(op)]
    return [*found, *(inner for body in found for inner in bodies(body))]


@pytest.mark.parametrize(("f", "args"), CASES, ids=IDS)
def test_clones_have_bodies_of_their_own(f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    graph = graph_of(f, *args)
    before = as_text(graph)
    made = copied(graph, graph.inputs, graph.outputs, ())
    assert as_text(made) == before
    assert {*bodies(graph)}.isdisjoint(bodies(made))
    for body in bodies(made):
        body.add_input("more", TensorType(f32, ()))
    assert as_text(graph) == before
    verify(graph)
