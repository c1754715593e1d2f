"""One rewrite of dispatches alone: text in, text out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from textwrap import dedent
from typing import Any

import numpy as np

from stagejit.dispatch.ranges.scalars import known_arguments
from stagejit.dispatch.regions import regions_of
from stagejit.dispatch.rewrites.views import Views
from stagejit.dispatch.ties_verifier import verify_ties
from stagejit.graph.ir import Graph
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.options import Options
from stagejit.rewrites.driving.driver import Log
from stagejit.types import TensorType

Rewrite = Callable[[Log, Views], None]


def rewritten(
    text: str,
    rewrite: Rewrite,
    options: Options | None = None,
    carried: Mapping[int, int] | None = None,
) -> tuple[str, list[str]]:
    """What a rewrite makes of a graph of dispatches, verified before and after, and what it says:
    a `+` for applied, a `-` for declined, and the reason. The values are those of before, where
    all sizes are numbers. carried: see `Views`."""
    options = options or Options()
    graph = parse(dedent(text))
    types = [value.type for value in graph.inputs]
    has_values = all(isinstance(size, int) for type in types for size in type.shape)
    arguments = [_argument(type) for type in types] if has_values else []
    _verify(graph)
    expected = interpret(graph, arguments) if has_values else []
    log = Log(graph, options)
    rewrite(log, Views(graph, options, known_arguments(graph), carried))
    graph.eliminate_dead()
    _verify(graph)
    for a, b in zip(interpret(graph, arguments) if has_values else (), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    return as_text(graph), [f"{'+' if d.applied else '-'} {d.reason}" for d in log.decisions]


def expanded(text: str, **parts: str) -> str:
    """A graph of dispatches, in whose text the parts of a dispatch stand behind `:`, by name."""
    lines = []
    for line in plain(text).splitlines():
        head, *names = line.split(" : ")
        lines.append(head)
        for name in names[0].split() if names else ():
            lines += [f"    {inner}" for inner in parts[name].splitlines()]
    return "\n".join(lines)


def outline(text: str) -> str:
    """The same without parts: each line says what they read, and what they write."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def plain(text: str) -> str:
    """A text as it stands in the code of a test."""
    return dedent(text).strip()


def part(*lines: str, **inputs: str) -> str:
    """The text of a part; inputs: their types, destinations are those named `d`."""
    given = (f"%{name}: {type}{' donated' * (name[0] == 'd')}" for name, type in inputs.items())
    *inner, results = lines
    body = [*(f"%{at}: {line}" for at, line in enumerate(inner)), f"return {results}"]
    return "\n".join([f"graph @p({', '.join(given)}) {{", *(f"  {line}" for line in body), "}"])


def _verify(graph: Graph) -> None:
    verify(graph)
    verify_ties(graph, regions_of(graph))


def _argument(type: TensorType) -> Any:
    return (np.arange(type.size) % 7 - 2).astype(type.dtype.numpy).reshape(type.shape)
