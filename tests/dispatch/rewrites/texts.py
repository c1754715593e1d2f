"""One rewrite of dispatches alone: text in, text out."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent
from typing import Any

import numpy as np

from stagejit.dispatch.regions import regions_of
from stagejit.dispatch.rewrites.views import Views
from stagejit.dispatch.scalars import known_arguments
from stagejit.dispatch.ties_verifier import verify_ties
from stagejit.graph.interpreter import interpret
from stagejit.graph.ir import Graph
from stagejit.graph.parser import parse
from stagejit.graph.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.options import Options
from stagejit.rewrites.driver import Log
from stagejit.types import TensorType

Rewrite = Callable[[Log, Views], None]


def rewritten(text: str, rewrite: Rewrite, options: Options | None = None) -> tuple[str, list[str]]:
    """What a rewrite makes of a graph of dispatches, verified before and after, and what it says:
    a `+` for applied, a `-` for declined, and the reason."""
    options = options or Options()
    graph = parse(dedent(text))
    arguments = [_argument(value.type) for value in graph.inputs]
    _verify(graph)
    expected = interpret(graph, arguments)
    log = Log(graph, options)
    rewrite(log, Views(graph, options, known_arguments(graph)))
    graph.eliminate_dead()
    _verify(graph)
    for a, b in zip(interpret(graph, arguments), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    return as_text(graph), [f"{'+' if d.applied else '-'} {d.reason}" for d in log.decisions]


def _verify(graph: Graph) -> None:
    verify(graph)
    verify_ties(graph, regions_of(graph))


def _argument(type: TensorType) -> Any:
    return (np.arange(type.size) % 7 - 2).astype(type.dtype.numpy).reshape(type.shape)
