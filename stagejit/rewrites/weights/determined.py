"""What weights alone determine, in a graph and in the bodies of its loops and branches.

Input: a graph, what its bound inputs are. Output: of each value that they determine, which ones;
what a call reads. Invariant: an input of a body is the operand that it stands for, where that is
the same in every iteration; a weight that is carried is not. A loop that goes on by a condition is
determined where each call runs it: in an untaken branch one may be that would never end.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.memo import OverOperands
from stagejit.graph.ops.control import bodies_of, unchanging
from stagejit.rewrites.cloning import own_attributes
from stagejit.rewrites.subexpressions import computed_by
from stagejit.rewrites.weights.behind import SourceOf, is_pure, itself
from stagejit.rewrites.weights.made import Views


@dataclass
class Determined:
    """leaves: the weights that a value depends on, where on nothing else but constants. outside:
    what inputs of bodies stand for. entered: loops and branches whose bodies are looked into.
    multiplied: what products read, wherever they are."""

    graph: Graph
    leaves: dict[Value, frozenset[Value]] = field(default_factory=dict)
    outside: dict[Value, Value] = field(default_factory=dict)
    entered: set[Op] = field(default_factory=set)
    multiplied: set[Value] = field(default_factory=set)

    @classmethod
    def of(cls, graph: Graph, weights: Iterable[Value]) -> Determined:
        found = cls(graph, {value: frozenset({value}) for value in weights})
        found._look(graph)
        return found

    def _look(self, graph: Graph, runs: bool = True) -> None:
        """runs: each call runs it."""
        for op in graph.ops():
            if op.definition.is_product:
                self.multiplied.update(map(self.source, op.operands))
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

    def leaves_in_order(self, value: Value) -> list[Value]:
        """The weights that a value is computed from, in the order in which its computation reads
        them: the same in every program, whatever the order of its inputs is."""
        found, seen, pending = dict[Value, None](), set[Value](), [value]
        while pending:
            at = self.source(pending.pop())
            if at in seen:
                continue
            seen.add(at)
            if at in self.leaves[at]:
                found[at] = None
            else:
                pending += reversed(at.op.operands)
        return list(found)

    def base_of(self, value: Value) -> Value:
        """What a value has all elements of, in another order, whichever bodies they are in."""
        return self.arranged(value)[0]

    def arranged(self, value: Value) -> tuple[Value, Views]:
        """The base of a value, and the views that lead from it to the value."""
        found, value = [], self.source(value)
        while value.op.definition.undone is not None:
            found.append((value.op.kind, value.op.attrs))
            value = self.source(value.op.operands[0])
        return value, tuple(reversed(found))

    def is_arranged(self, value: Value, whole: Container[Value]) -> bool:
        """Whether a view has all elements, in another order, of what is made anyway. whole: what
        is read as it lies."""
        base = value
        while base.op.definition.is_view:
            base = self.source(base.op.operands[0])
        same = base.type.nbytes == value.type.nbytes
        return same and base not in whole and not base.op.definition.is_constant

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


class Chosen(dict[Value, Value]):
    """Values that are made, and the first one of those that are equal to each, which several bodies
    may have. A value stands for all that has its elements in another order: see Note [One
    arrangement] of `made.py`. readers: such views of each that are read; equal: those of the first.
    """

    def __init__(self, of: Determined) -> None:
        super().__init__()
        self.of = of
        self.readers: dict[Value, list[Value]] = {}
        self.equal: dict[Value, list[Value]] = {}

    def read(self, value: Value) -> None:
        base = self.of.base_of(value)
        self[base] = base
        self.readers.setdefault(base, []).append(value)

    def share(self) -> None:
        """One for all that are equal."""
        first, number = dict[int, Value](), _Structure(self.of)
        for value in self:
            self[value] = same = first.setdefault(number[value], value)
            self.equal.setdefault(same, []).append(value)

    def forget(self, first: Value) -> list[Value]:
        """The values that are not made now."""
        for value in (forgotten := self.equal.pop(first)):
            del self[value]
        return forgotten

    def views_read(self, first: Value) -> Views:
        """As which views of it a value is best made: as a product reads it, if one does, and as it
        is if one reads that, so that a program and its gradient agree; else as the first reader
        does, but for axes of one element and the like, which are others where a batch has more
        rows. Other views are read against its order."""
        found = [
            (x, self.of.arranged(x)[1]) for base in self.equal[first] for x in self.readers[base]
        ]
        products = [views for x, views in found if x in self.of.multiplied]
        if products:
            return () if () in products else products[0]
        return self._in_order(*found[0])

    def _in_order(self, value: Value, views: Views) -> Views:
        """Without the last ones that leave elements where they are."""
        while views and value.op.definition.keeps_order:
            value, views = self.of.source(value.op.operands[0]), views[:-1]
        return views

    def alike(self, first: Value, views: Views) -> Iterator[Value]:
        """Where these views of it are on the way to who reads it."""
        for base in self.equal[first]:
            for reader in self.readers[base]:
                value, found = self.of.source(reader), self.of.arranged(reader)[1]
                while found and found != views:
                    value, found = self.of.source(value.op.operands[0]), found[:-1]
                if found == views:
                    yield value


class _Structure(OverOperands[int]):
    """Equal numbers for values that are computed in the same way of the same leaves."""

    def __init__(self, of: Determined) -> None:
        super().__init__()
        self.of, self.known = of, dict[Hashable, int]()

    def behind(self, value: Value) -> Sequence[Value]:
        is_leaf = value in self.of.leaves.get(value, ())
        return () if is_leaf else [self.of.source(x) for x in value.op.operands]

    def found(self, value: Value) -> int:
        behind = self.behind(value)
        is_leaf = value in self.of.leaves.get(value, ())
        own = value if is_leaf else (computed_by(value.op), value.index)
        return self.known.setdefault((own, *(self[x] for x in behind)), len(self.known))


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
