"""What clusters ask of the whole graph: where ops stand, and what is made up of numbers.

Input: a graph. Output: answers that stay right while loops take the place of clusters. Invariant:
an op stands after those it reads; each op is looked at once, however many clusters there are.

Note [Places of loops]: a loop takes the place of the first op of its cluster. What it reads may
stand after that, and what reads it before that: only those in between change places (as Pearce and
Kelly do, "A dynamic topological sort algorithm for directed acyclic graphs", 2006). A place is a
tuple, so that there is room for several new ops at that of an old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stagejit.graph.ir import Graph, Op, Value

Place = tuple[int, ...]


class Surroundings:
    """Of a graph that only `contracted` tells of changes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._places: dict[Op, Place] = {op: (at,) for at, op in enumerate(graph.ops())}
        self._made_up: dict[Op, bool] = {}

    def place(self, op: Op) -> Place:
        """Where an op stands in the graph; inputs stand first."""
        return self._places.get(op, ())

    def is_made_up(self, value: Value) -> bool:
        """A number, or what elementwise functions and views make of numbers and positions: a
        mask."""
        known, pending = self._made_up, [value.op]
        while pending:
            op = pending[-1]
            operands = [operand.op for operand in op.operands]
            if not _makes_up(op) or any(known.get(each) is False for each in operands):
                known[op] = False
            elif unknown := [each for each in operands if each not in known]:
                pending += unknown
                continue
            else:
                known[op] = True
            pending.pop()
        return known[value.op]

    def contracted(self, cluster: Sequence[Op], made: Sequence[Op]) -> None:
        """`made` stand for the ops of a cluster, the first of which comes first, from now on."""
        first = self.place(cluster[0])
        new = set(made)
        read = (value.op for op in made for value in op.operands)
        before = self._reached(
            (op for op in read if op not in new),
            lambda op: [value.op for value in op.operands],
            lambda op: self.place(op) > first,
        )
        after: list[Op] = []
        if before:
            last = self.place(before[-1])
            users = self.graph.links.after
            after = self._reached(
                (user for op in made for user in users[op] if user not in new),
                users.__getitem__,
                lambda op: op in self._places and self.place(op) < last,
            )
        places = sorted([first, *map(self.place, before), *map(self.place, after)])
        own = places.pop(len(before))
        self._places |= dict(zip([*before, *after], places, strict=True))
        self._places |= {op: (*own, at) for at, op in enumerate(made)}

    def _reached(
        self,
        starts: Iterable[Op],
        following: Callable[[Op], Iterable[Op]],
        lies_within: Callable[[Op], bool],
    ) -> list[Op]:
        """Ops within some places, from some on, as they stand."""
        found, pending = set[Op](), list(starts)
        while pending:
            op = pending.pop()
            if op not in found and lies_within(op):
                found.add(op)
                pending += following(op)
        return sorted(found, key=self.place)


def _makes_up(op: Op) -> bool:
    """Whether it is a number or positions, or makes such of such."""
    known = op.definition
    if known.is_constant:
        return op.result.type.size == 1 and op.result.type.dtype.is_native
    return known.counts or known.is_splat or known.is_elementwise or known.is_view
