"""A graph without what is made before any call: what was computed is read.

Input: a graph, values of it or of bodies in it that are at hand, as inputs of the new graph.
Output: the ops that are needed then, in the new graph. Invariant: a body reads what is made for it
as one more input, which every body around it has, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import bodies_of, unchanging
from stagejit.rewrites.weights.determined import Determined


@dataclass(frozen=True)
class Rebuilding:
    """chosen: for each value that is at hand the one that stands for all equal ones. needed: what
    is still computed, and the inputs of bodies that are read. replaced: bodies that are others now.
    """

    of: Determined
    chosen: Mapping[Value, Value]
    needed: set[Value]
    replaced: list[Graph] = field(default_factory=list)

    def append(self, graph: Graph, made: Graph, known: Mapping[Value, Value]) -> dict[Value, Value]:
        """The ops of `graph` in `made`. known: what its inputs, and those that stand for chosen
        values, are there."""
        values = dict(known)
        for value in self.chosen:
            if value.op in graph:
                values[value] = values[self.chosen[value]]
        for op in graph.ops():
            if not op.attrs.get("effects") and self.needed.isdisjoint(op.results):
                continue
            if op in self.of.entered and self._changes(op):
                clone = self._with_bodies(made, op, values)
            else:
                operands, types = [values[x] for x in op.operands], [x.type for x in op.results]
                clone = made.add(op.kind, operands, types, op.loc, **op.attrs)
            for value, result in zip(op.results, clone.results, strict=True):
                values.setdefault(value, result)
        return values

    def _changes(self, op: Op) -> bool:
        kept = self._kept(op)
        return len(kept) < len(op.operands) or any(map(self._inside, bodies_of(op)))

    def _kept(self, op: Op) -> list[int]:
        """Numbers of the operands that somebody reads."""
        handed = unchanging(op)
        return [
            at
            for at in range(len(op.operands))
            if at not in handed or any(x in self.needed for _, x in handed[at])
        ]

    def _inside(self, body: Graph) -> list[Value]:
        """What bodies in it, or the body itself, read of what is made."""
        found = [self.chosen[value] for value in self.chosen if value.op in body]
        for op in body.ops():
            if op in self.of.entered:
                found += [x for inner in bodies_of(op) for x in self._inside(inner)]
        return list(dict.fromkeys(found))

    def _with_bodies(self, made: Graph, op: Op, values: Mapping[Value, Value]) -> Op:
        kept, bodies = self._kept(op), bodies_of(op)
        self.replaced.extend(bodies)
        more = [self._inside(body) for body in bodies]
        attrs = dict(op.attrs)
        if op.definition.is_branch:
            everything = list(dict.fromkeys(value for each in more for value in each))
            numbers = [at - 1 for at in kept[1:]]
            new = [self._body(body, numbers, everything) for body in bodies]
            attrs["carried"] = tuple((r, numbers.index(at)) for r, at in op.attrs["carried"])
            operands = [*(op.operands[at] for at in kept), *everything]
        else:
            end, carries = len(bodies[0].inputs), op.attrs["carries"]
            of_body = [at for at in kept if at < end]
            of_condition = [at for at in kept if at >= end]
            new = [self._body(bodies[0], of_body, more[0])]
            operands = [*(op.operands[at] for at in of_body), *more[0]]
            if len(bodies) > 1:
                numbers = [*range(carries), *(at - end + carries for at in of_condition)]
                new.append(self._body(bodies[1], numbers, more[1]))
                operands += [*(op.operands[at] for at in of_condition), *more[1]]
        attrs |= op.definition.with_bodies(new) if op.definition.with_bodies else {}
        types = [result.type for result in op.results]
        return made.add(op.kind, [values[x] for x in operands], types, op.loc, **attrs)

    def _body(self, body: Graph, inputs: Sequence[int], more: Sequence[Value]) -> Graph:
        made, values = Graph(body.name), dict[Value, Value]()
        for at in inputs:
            value = body.inputs[at]
            donated = body.is_donated(value)
            values[value] = made.add_input(body.input_names[at], value.type, donated=donated)
        for number, value in enumerate(more):
            values[value] = made.add_input(f"made{number}", value.type)
        values = self.append(body, made, values)
        made.set_outputs([values[value] for value in body.outputs])
        return made
