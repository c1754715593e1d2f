"""Bufferization: values that are tied together share one buffer.

Input: a graph of dispatches, and which results lie in donated arguments. Output: for each value the
one that stands for its memory, and a `Buffer` for each of these. Invariant: nothing is decided
here; a buffer is what a chain of ties, barriers and aliases ends at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from stagejit.graph.ir import Graph, Value
from stagejit.graph.ops.control import before
from stagejit.schedule.names import Names
from stagejit.schedule.plan import Buffer


class Memory:
    """`root` of a value: the earliest that lay in its memory. `home`: the same, or the donated
    argument in which `reused` puts a root."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.reused: dict[Value, Value] = {}
        self._roots: dict[Value, Value] = {}
        self.outputs = {self.root(value): number for number, value in enumerate(graph.outputs)}

    def root(self, value: Value) -> Value:
        """As `memory_of`; walks are short, however long the chains of updates are."""
        known = self._roots.get(value)
        if known is not None:
            return known
        passed = [value]
        while (earlier := before(passed[-1])) is not None and earlier not in self._roots:
            passed.append(earlier)
        root = self._roots[earlier] if earlier is not None else passed[-1]
        self._roots.update(dict.fromkeys(passed, root))
        return root

    def home(self, value: Value) -> Value:
        root = self.root(value)
        return self.reused.get(root, root)

    def buffers(self, touched: Iterable[Value]) -> dict[Value, Buffer]:
        """By home: arguments, results, then constants and transients in the order of `touched`."""
        names = Names(self.graph.input_names)
        results = {self.home(root): number for root, number in self.outputs.items()}
        made: dict[Value, Buffer] = {}
        for value, name in zip(self.graph.inputs, names.given, strict=True):
            made[value] = Buffer(
                name,
                value.shape,
                value.type.dtype,
                "argument",
                value.op.attrs["index"],
                result=results.get(value),
            )
        for root, number in sorted(results.items(), key=lambda item: item[1]):
            if root not in made:
                made[root] = Buffer(names.new("r"), root.shape, root.type.dtype, "result", number)
        constants = 0
        for root in map(self.home, touched):
            if root in made:
                continue
            if root.op.definition.is_constant:
                made[root] = Buffer(
                    names.new("c"), root.shape, root.type.dtype, "constant", constants
                )
                constants += 1
            else:
                made[root] = Buffer(names.new("t"), root.shape, root.type.dtype, "transient")
        return made

    def buffer_of(self, names: Mapping[Value, str]) -> Iterator[tuple[Value, str]]:
        """For each value of the graph that has one the name of its buffer. names: by home."""
        results = (result for op in self.graph.ops() for result in op.results)
        for value in (*self.graph.inputs, *results):
            name = names.get(self.home(value))
            if name is not None:
                yield value, name
