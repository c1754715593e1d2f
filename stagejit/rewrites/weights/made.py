"""What is made of weights: values that are computed once, before any call.

Input: a value that weights determine. Output: `Made`, a graph of its own, whose result lies in a
layout and may be a view of what is computed. Invariant: whether two are the same is decided by
their texts and the arrays, whatever the programs are that read them.

Note [One arrangement]: a view of all elements, in another order, is a copy in memory where it is
made. So of all such views of one value only one is made, which the first program chooses, and the
others read that against its order: a program looks at what others keep before it makes its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from stagejit.compat import type_of
from stagejit.graph.ir import Graph, Value
from stagejit.graph.ops import build
from stagejit.graph.text.printer import as_text
from stagejit.index.layout import ROW_MAJOR, Layout
from stagejit.trace.weights import Weight, readers_of
from stagejit.types import TensorType

Views = tuple[tuple[str, Mapping[str, Any]], ...]  # kinds and attributes, the first one first


class Made:
    """A value that is computed once. graph: of inputs for `weights`, with one output; its `type`
    says how that lies, in the end.

    text: what is computed of the weights, whatever they are called; plain: without the layout;
    base: without `views`, which are the last ops. flops: how much that is.
    """

    def __init__(
        self,
        graph: Graph,
        weights: tuple[Weight, ...],
        layout: Layout = ROW_MAJOR,
        base: str | None = None,
        views: Views = (),
    ) -> None:
        self.graph, self.weights = graph, weights
        (value,) = graph.outputs
        self.type = replace(value.type, layout=layout)
        self.plain = as_text(graph)
        self.base, self.views = base or self.plain, views
        self.text = f"{self.plain}{layout}"
        self.flops = float(sum(op.definition.flops(op) for op in graph.ops()))

    def of(self, weights: tuple[Weight, ...]) -> Made:
        """The same of other weights."""
        made = copy(self)
        made.weights = weights
        return made

    @property
    def is_packed(self) -> bool:
        """Whether it is a weight as it is, but for where its elements lie."""
        return not len(self.graph)

    @property
    def is_view(self) -> bool:
        """Whether nothing is computed: it may be some of the elements of a weight."""
        kinds = [op.definition for op in self.graph.ops()]
        return all(kind.is_input or kind.is_view for kind in kinds)

    def within(self, array: Any) -> Any:
        """Where the elements of a part are in an array of the weight: a view of that. None for
        what is not some of its elements, in some order."""
        (at,), view = self.graph.inputs, array
        for op in self.graph.ops():
            known = op.definition
            if known.is_input:
                continue
            if not known.is_view or list(op.operands) != [at]:
                return None
            (at,), view = op.results, known.interpret(None, op, view)
        is_part = at is self.graph.outputs[0] and np.shares_memory(view, array)
        return view if is_part else None

    def __repr__(self) -> str:
        return f"{self.type} of {', '.join(weight.name for weight in self.weights)}"


Source = Weight | Made


def packed(source: Source, layout: Layout) -> Made:
    """The same in memory of that layout."""
    if isinstance(source, Made):
        return Made(source.graph, source.weights, layout, source.base, source.views)
    graph = Graph("packed")
    graph.set_outputs([graph.add_input("w0", type_of(source.aval))])
    return Made(graph, (source,), layout)


def made_as(graph: Graph, value: Value, views: Views, weights: tuple[Weight, ...]) -> Made:
    """Views of a value of `graph`, which has nothing else."""
    graph.set_outputs([value])
    base = as_text(graph) if views else None
    graph.set_outputs([applied(graph, value, views)])
    return Made(graph, weights, base=base, views=views)


# -- arrangements ---------------------------------------------------------------------------------


def base_of(value: Value) -> Value:
    """What a value has all elements of, in another order."""
    while value.op.definition.undone is not None:
        value = value.op.operands[0]
    return value


def views_of(value: Value, base: Value | None = None) -> Views:
    """Those that lead from a base, by default `base_of` it, to a value."""
    found = []
    while value is not base and value.op.definition.undone is not None:
        found.append((value.op.kind, value.op.attrs))
        value = value.op.operands[0]
    return tuple(reversed(found))


def applied(graph: Graph, value: Value, views: Views) -> Value:
    for kind, attrs in views:
        value = build(graph, kind, [value], **attrs)
    return value


def undone(graph: Graph, value: Value, views: Views, type: TensorType) -> Value:
    """The base, of type `type`, of which `value` is these views."""
    scratch = Graph("views")
    at = applied(scratch, scratch.add_input("base", type), views)
    while at.op.definition.undone is not None:
        kind, attrs = at.op.definition.undone(at.op)
        value = build(graph, kind, [value], **attrs)
        at = at.op.operands[0]
    return value


# -- what other programs keep ---------------------------------------------------------------------


def _kept(weights: Sequence[Weight]) -> Iterator[Source]:
    """What programs read of the arrays that these weights are now."""
    contents = [weight.content for weight in weights]
    for table, weight in readers_of(contents[0]):
        for source in table.sources_of(weight):
            of = source.weights if isinstance(source, Made) else (source,)
            if [weight.content for weight in of] == contents:
                yield source


def views_kept(made: Made) -> Views | None:
    """As which views of it other programs keep something; None if none do."""
    kept = (other for other in _kept(made.weights) if isinstance(other, Made))
    found = {other.plain: other for other in kept if other.base == made.base}
    return found[min(found)].views if found else None


def layouts_kept(source: Source) -> frozenset[Layout]:
    """How other programs keep what a source is."""
    if isinstance(source, Weight):
        return frozenset(
            kept.type.layout if isinstance(kept, Made) else ROW_MAJOR
            for kept in _kept((source,))
            if not isinstance(kept, Made) or kept.is_packed
        )
    found = (kept for kept in _kept(source.weights) if isinstance(kept, Made))
    return frozenset(kept.type.layout for kept in found if kept.plain == source.plain)
