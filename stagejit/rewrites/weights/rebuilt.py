"""A graph without what is made before any call: what was computed is read.

Input: a graph, values of it or of bodies in it that are at hand, as inputs of the new graph.
Output: the ops that are needed then, in the new graph. Invariant: a body reads what is made for it
as one more input, which every body around it has, too; so views of that are views inside of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from stagejit.base.records import record
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import bodies_of, unchanging
from stagejit.rewrites.weights.determined import Chosen
from stagejit.rewrites.weights.made import Views, applied, undone


@record
class Rebuilding:
    """chosen: what is at hand. views: those that it lies as, by the first of all equal ones; alike:
    values that it is as it lies, and what they are. needed: what is still computed, and the inputs
    of bodies that are read. replaced: bodies that are others now."""

    chosen: Chosen
    views: Mapping[Value, Views]
    alike: Mapping[Value, Value]
    needed: set[Value]
    replaced: list[Graph] = field(default_factory=list)

    @classmethod
    def of(cls, chosen: Chosen, views: Mapping[Value, Views], needed: set[Value]) -> Rebuilding:
        alike = {x: first for first in views for x in chosen.alike(first, views[first])}
        return cls(chosen, views, alike, needed)

    def append(
        self, graph: Graph, made: Graph, known: Mapping[Value, Value], given: Mapping[Value, Value]
    ) -> dict[Value, Value]:
        """The ops of `graph` in `made`. known: what its inputs are there; given: what is at hand,
        by the first of all equal ones."""
        values = dict(known)
        for value, first in self._read(graph).items():
            values[value] = self._as(made, value, given[first], first)
        for op in graph.ops():
            if not op.attrs.get("effects") and self.needed.isdisjoint(op.results):
                continue
            if op in self.chosen.of.entered and self._changes(op):
                clone = self._with_bodies(made, op, values, given)
            else:
                operands, types = [values[x] for x in op.operands], [x.type for x in op.results]
                clone = made.add(op.kind, operands, types, op.loc, **op.attrs)
            for value, result in zip(op.results, clone.results, strict=True):
                values.setdefault(value, result)
        return values

    def _as(self, made: Graph, value: Value, given: Value, first: Value) -> Value:
        """A value, or a view of it, where `given` is what was made of all that are equal to it."""
        of = self.chosen.of
        if of.source(value) in self.alike:
            return given
        base, views = of.arranged(value)
        return applied(made, undone(made, given, self.views[first], base.type), views)

    def _read(self, graph: Graph) -> dict[Value, Value]:
        """Values of a graph that are at hand, or views of what is, and what they are."""
        own = [x for op in graph.ops() for x in op.results if x in self.chosen or x in self.alike]
        found = {x: self.alike.get(x) or self.chosen[x] for x in own}
        return found | {x: first for x in graph.inputs if (first := self._handed(x)) is not None}

    def _handed(self, inner: Value) -> Value | None:
        """What an input of a body is, or is a view of, if that is at hand."""
        of = self.chosen.of
        if inner not in self.needed or inner not in of.outside:
            return None
        outside = of.source(inner)
        return self.alike.get(outside) or self.chosen.get(of.base_of(outside))

    def _changes(self, op: Op) -> bool:
        kept = self._kept(op)
        return len(kept) < len(op.operands) or any(map(self._inside, bodies_of(op)))

    def _kept(self, op: Op) -> list[int]:
        """Numbers of the operands that somebody reads."""
        handed = unchanging(op)
        return [
            at
            for at in range(len(op.operands))
            if at not in handed
            or any(x in self.needed and self._handed(x) is None for _, x in handed[at])
        ]

    def _inside(self, body: Graph) -> list[Value]:
        """What bodies in it, or the body itself, read of what is made."""
        found = list(self._read(body).values())
        for op in body.ops():
            if op in self.chosen.of.entered:
                found += [x for inner in bodies_of(op) for x in self._inside(inner)]
        return list(dict.fromkeys(found))

    def _with_bodies(
        self, made: Graph, op: Op, values: Mapping[Value, Value], given: Mapping[Value, Value]
    ) -> Op:
        kept, bodies = self._kept(op), bodies_of(op)
        self.replaced.extend(bodies)
        more = [self._inside(body) for body in bodies]
        attrs = dict(op.attrs)
        if op.definition.is_branch:
            everything = list(dict.fromkeys(value for each in more for value in each))
            numbers = [at - 1 for at in kept[1:]]
            new = [self._body(body, numbers, everything, given) for body in bodies]
            attrs["carried"] = tuple((r, numbers.index(at)) for r, at in op.attrs["carried"])
            operands = [*(values[op.operands[at]] for at in kept), *(given[x] for x in everything)]
        else:
            end, carries = len(bodies[0].inputs), op.attrs["carries"]
            of_body = [at for at in kept if at < end]
            of_condition = [at for at in kept if at >= end]
            new = [self._body(bodies[0], of_body, more[0], given)]
            operands = [values[op.operands[at]] for at in of_body]
            operands += [given[x] for x in more[0]]
            if len(bodies) > 1:
                numbers = [*range(carries), *(at - end + carries for at in of_condition)]
                new.append(self._body(bodies[1], numbers, more[1], given))
                operands += [values[op.operands[at]] for at in of_condition]
                operands += [given[x] for x in more[1]]
        attrs |= op.definition.with_bodies(new) if op.definition.with_bodies else {}
        types = [result.type for result in op.results]
        return made.add(op.kind, operands, types, op.loc, **attrs)

    def _body(
        self, body: Graph, inputs: Sequence[int], more: Sequence[Value], at: Mapping[Value, Value]
    ) -> Graph:
        made, values = Graph(body.name), dict[Value, Value]()
        for number in inputs:
            value = body.inputs[number]
            donated = body.is_donated(value)
            values[value] = made.add_input(body.input_names[number], value.type, donated=donated)
        given = {
            first: made.add_input(f"made{number}", at[first].type)
            for number, first in enumerate(more)
        }
        values = self.append(body, made, values, given)
        made.set_outputs([values[value] for value in body.outputs])
        made.eliminate_dead()
        return made
