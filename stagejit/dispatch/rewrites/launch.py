"""A dispatch put together again: with other operands, and with parts beside its own.

Input: dispatches of a graph of dispatches. Output: a new one, at the place of an old one.
Invariant: what a dispatch reads comes first among its operands, then what it updates; all of its
parts take all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stagejit.dispatch.operands import read_by, updated_by
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.dispatches import add_dispatch, parts_of
from stagejit.rewrites.cloning import appended, cloned

# By operands of the dispatch the inputs of a part: what it reads, and what it updates.
Inputs = Mapping[Value, Value]
Build = Callable[[Graph, Inputs, Inputs], Sequence[Value]]


class Launch:
    """A dispatch to be. `reads`, `destinations`: its operands, each once; `parts`: names, and how
    the ops and the outputs of each part are made of its inputs."""

    def __init__(self, *like: Op) -> None:
        """like: dispatches that it takes the operands of."""
        self.reads: dict[Value, None] = {}
        self.destinations: dict[Value, None] = {}
        self.parts: list[tuple[str, Build]] = []
        for op in like:
            self.reads.update(dict.fromkeys(read_by(op)))
            self.destinations.update(dict.fromkeys(updated_by(op)))

    def put(self, graph: Graph, old: Op) -> Op:
        """Appends the dispatch to `graph`, at the place of `old`."""
        parts = [self._part(name, build) for name, build in self.parts]
        made = add_dispatch(graph, [*self.reads, *self.destinations], parts)
        graph.put_at(old, made)
        return made

    def _part(self, name: str, build: Build) -> Graph:
        part = Graph(name)
        reads = {value: part.add_input(f"a{at}", value.type) for at, value in enumerate(self.reads)}
        into = {
            value: part.add_input(f"d{at}", value.type, donated=True)
            for at, value in enumerate(self.destinations)
        }
        part.set_outputs(build(part, reads, into))
        return part


def without_output(op: Op, output: int) -> Launch:
    """The dispatch without one of its fresh results."""
    first, *borders = parts_of(op)

    def build(graph: Graph, reads: Inputs, into: Inputs) -> list[Value]:
        wanted = [value for at, value in enumerate(first.outputs) if at != output]
        made = cloned(graph, wanted, inputs_of(op, first, reads, into))
        return [made[value] for value in wanted]

    launch = Launch(op)
    launch.parts = [(first.name, build), *((border.name, same(op, border)) for border in borders)]
    return launch


def inputs_of(op: Op, part: Graph, reads: Inputs, into: Inputs) -> dict[Value, Value]:
    """What stands in a new part for each input of `part`, a part of `op`."""
    return {
        own: (into if part.is_donated(own) else reads)[operand]
        for own, operand in zip(part.inputs, op.operands, strict=True)
        if operand in (into if part.is_donated(own) else reads)
    }


def same(op: Op, part: Graph) -> Build:
    """Makes a part as `part` of `op` is."""

    def build(graph: Graph, reads: Inputs, into: Inputs) -> list[Value]:
        made = appended(graph, part.ops(), inputs_of(op, part, reads, into))
        return [made[value] for value in part.outputs]

    return build
