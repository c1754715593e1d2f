"""What weights alone determine, in a graph and in the bodies of its loops and branches.

Input: a graph, what its bound inputs are. Output: of each value that they determine, which ones;
what a call reads. Invariant: an input of a body is the operand that it stands for, where that is
the same in every iteration; a weight that is carried is not. A loop that goes on by a condition is
determined where each call runs it: in an untaken branch one may be that would never end.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import bodies_of, unchanging
from stagejit.rewrites.cloning import own_attributes
from stagejit.rewrites.weights.behind import SourceOf, is_pure, itself


@dataclass
class Determined:
    """leaves: the weights that a value depends on, where on nothing else but constants. outside:
    what inputs of bodies stand for. entered: loops and branches whose bodies are looked into."""

    graph: Graph
    leaves: dict[Value, frozenset[Value]] = field(default_factory=dict)
    outside: dict[Value, Value] = field(default_factory=dict)
    entered: set[Op] = field(default_factory=set)

    @classmethod
    def of(cls, graph: Graph, weights: Iterable[Value]) -> Determined:
        found = cls(graph, {value: frozenset({value}) for value in weights})
        found._look(graph)
        return found

    def _look(self, graph: Graph, runs: bool = True) -> None:
        """runs: each call runs it."""
        for op in graph.ops():
            is_determined = (runs or _ends(op)) and add_determined(op, self.leaves)
            if not is_determined and op.definition.has_bodies:
                self.entered.add(op)
                for at, inputs in unchanging(op).items():
                    operand = op.operands[at]
                    for _, inner in inputs if operand in self.leaves else ():
                        self.leaves[inner] = self.leaves[operand]
                        self.outside[inner] = operand
                for body in bodies_of(op):
                    self._look(body, runs and _runs_bodies(op))

    def source(self, value: Value) -> Value:
        """What it is outside of all bodies to which it is handed."""
        while value in self.outside:
            value = self.outside[value]
        return value

    def read_by_calls(self) -> Iterator[Value]:
        """What is read by anything that is not determined, in the order of the program."""
        yield from self._read_in(self.graph)

    def _read_in(self, graph: Graph) -> Iterator[Value]:
        for user in (*graph.ops(), graph.return_op):
            if user in self.entered:
                yield from self._not_handed_on(user)
                for body in bodies_of(user):
                    yield from self._read_in(body)
            elif user.definition.is_return or not all(x in self.leaves for x in user.results):
                yield from user.operands

    def _not_handed_on(self, op: Op) -> Iterator[Value]:
        handed = unchanging(op)
        for at, value in enumerate(op.operands):
            if at not in handed or value not in self.leaves:
                yield value

    def behind(self, values: Iterable[Value], known: Container[Value] = ()) -> set[Value]:
        """`values` and what they are computed from, inside of bodies too, where `known` are at
        hand; inputs of bodies that are read, with what they stand for."""
        found, pending = set[Value](), list(values)
        while pending:
            value = pending.pop()
            if value in found or value in known:
                continue
            found.add(value)
            if value in self.outside:
                pending.append(self.outside[value])
            elif value.op in self.entered:
                pending += self._not_handed_on(value.op)
                for body in bodies_of(value.op):
                    pending += roots_of(body)
            else:
                pending += value.op.operands
        return found


def roots_of(graph: Graph) -> list[Value]:
    """What a graph returns, and what its effects are computed from."""
    effects = [op for op in graph.ops() if op.attrs.get("effects")]
    return [*graph.outputs, *(x for op in effects for x in (*op.results, *op.operands))]


def cloned_out(graph: Graph, value: Value, known: Mapping[Value, Value], of: Determined) -> Value:
    """Appends a determined value to `graph`, wherever it is computed. known: its leaves there."""
    made = dict(known)
    pending = [value]
    while pending:
        at = pending[-1]
        source = of.source(at)
        missing = [x for x in source.op.operands if of.source(x) not in made]
        if source in made:
            pending.pop()
        elif missing:
            pending += missing
        else:
            op = source.op
            operands = [made[of.source(x)] for x in op.operands]
            types = [result.type for result in op.results]
            clone = graph.add(op.kind, operands, types, op.loc, **own_attributes(op))
            made.update(zip(op.results, clone.results, strict=True))
            pending.pop()
    return made[of.source(value)]


def add_determined(op: Op, leaves: dict[Value, frozenset[Value]]) -> bool:
    """Whether an op makes something that such values determine, which is then one of them. leaves:
    for each, which of the first of them it is computed from."""
    if not is_pure(op) or not all(operand in leaves for operand in op.operands):
        return False
    of = frozenset[Value]().union(*(leaves[x] for x in op.operands))
    leaves.update(dict.fromkeys(op.results, of))
    return True


def _ends(op: Op) -> bool:
    """Whether no loop in it, nor itself, is one that goes on by a condition."""
    inside = (inner for body in bodies_of(op) for inner in body.ops())
    return not _has_condition(op) and all(map(_ends, inside))


def _runs_bodies(op: Op) -> bool:
    return op.definition.is_loop and not _has_condition(op)  # at least once


def _has_condition(op: Op) -> bool:
    return op.definition.is_loop and op.attrs["condition"] is not None


def settle(
    values: Iterable[Value], behind: Callable[[Value], Sequence[Value]], source: SourceOf = itself
) -> None:
    """Asks of each value, once, what to look at behind it, which comes next. source: what stands
    for a value."""
    seen = set[Value]()
    for first in values:
        pending = [first]
        while pending:
            value = source(pending.pop())
            if value not in seen:
                seen.add(value)
                pending += reversed(behind(value))
