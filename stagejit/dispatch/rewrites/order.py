"""Which ops of a graph of dispatches come before which, and making it so.

Input: a graph of dispatches. Output: what its edges say of the order in which ops run. Invariant:
each op that runs has a higher place than those that it waits for, while ops are replaced and joined
and edges added.

Places are a topological order that is mended where an edge goes against it: only ops between the
two ends move (Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs",
2007). A search looks only at ops whose places lie between, and through those that only pass values
on, which have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build

Near = Callable[[Op], Iterable[Op]]

_FEW = 8  # so many are compared, so that nobody waits for who comes before another one


class Order:
    """`_home`: the op that another one will be a part of, see `join`; `_parts`: these by homes.
    `_apart`: for the op that somebody asked for last, those that it is known not to precede."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        runs = (op for op in graph.ops() if not op.definition.forwards)
        self._place = {op: number for number, op in enumerate(runs)}
        self._home: dict[Op, Op] = {}
        self._parts: dict[Op, list[Op]] = {}
        self._apart: tuple[Op, set[Op]] | None = None

    def home(self, op: Op) -> Op:
        """The op that `op` will be a part of, itself by default."""
        return self._home.get(op, op)

    def comes_before(self, first: Op, second: Op) -> bool:
        """Whether `first` has run when `second` begins, in any order that the edges allow."""
        first, second = self.home(first), self.home(second)
        if self._apart is None or self._apart[0] is not first:
            self._apart = first, set()
        apart, least = self._apart[1], self._place.get(first, -1)
        seen: set[Op] = set()  # those behind `first` too, until the search ends
        pending = [second]
        while pending:
            for earlier in self._next(pending.pop(), self.graph.nx.predecessors):
                if earlier is first:
                    self._apart = None  # who was found on the way may be behind it
                    return True
                if earlier in seen or earlier in apart or self._place.get(earlier, least) < least:
                    continue
                seen.add(earlier)
                pending.append(earlier)
        apart |= seen
        return False

    def put_first(self, readers: Iterable[Op], update: Value) -> None:
        """From now on the ops `readers`, none of which is behind `update`, come before it."""
        op = update.op
        waited = [one for one in dict.fromkeys(readers) if not self.comes_before(one, op)]
        if waited:
            wait(self.graph, self._last(waited), update)
            self._put_before(waited, op)

    def after(self, value: Value, first: Sequence[Op]) -> Value:
        """What is `value` when the ops `first` have run, for an op to be."""
        if not first:
            return value
        waited = [op.results[0] for op in self._last(first)]
        return build(self.graph, "after", [value, *waited], value.op.loc)

    def _last(self, ops: Sequence[Op]) -> Sequence[Op]:
        """Those, of few, that come before none of the others."""
        if len(ops) > _FEW:
            return ops
        return [op for op in ops if not any(self.comes_before(op, other) for other in ops)]

    def join(self, op: Op, home: Op) -> None:
        """From now on `op` runs when `home` does; neither of them waits for what waits for the
        other."""
        self._home[op] = home
        self._parts.setdefault(home, []).append(op)
        self._place.pop(op, None)
        self.look_at(op)
        for user in self.graph.nx.successors(op):
            self._put_before([home], user)

    def replace(self, old: Op, new: Op) -> None:
        """`new` is what `old` was, and what was joined with it; nobody uses these any more."""
        self._place[new] = self._place[old]
        for op in self._parts.pop(old, ()):
            del self._home[op]
        self.look_at(new)

    def look_at(self, op: Op) -> None:
        """Has an op come after its operands as they are now."""
        self._put_before([operand.op for operand in op.operands], op)

    def _put_before(self, firsts: Iterable[Op], second: Op) -> None:
        """Moves what has to move so that those, who are not behind `second`, have lower places."""
        self._apart = None
        seconds = list(self._placed([second], self.graph.nx.successors))
        for first in self._placed(firsts, self.graph.nx.predecessors) if seconds else ():
            for op in seconds:
                if self._place[first] > self._place[op]:
                    self._swap(first, op)

    def _swap(self, first: Op, second: Op) -> None:
        low, high = self._place[second], self._place[first]
        behind = self._reached(second, low, high, self.graph.nx.successors)
        before = self._reached(first, low, high, self.graph.nx.predecessors)
        ops = [*before, *behind]
        self._place.update(zip(ops, sorted(map(self._place.__getitem__, ops)), strict=True))

    def _reached(self, op: Op, low: int, high: int, near: Near) -> list[Op]:
        """The op, and who is reached from it, of those with a place in that range, in order."""
        found, pending = {op}, [op]
        while pending:
            for other in self._next(pending.pop(), near):
                if other not in found and low <= self._place.get(other, low) <= high:
                    found.add(other)
                    pending.append(other)
        return sorted(found & self._place.keys(), key=self._place.__getitem__)

    def _next(self, op: Op, near: Near) -> Iterator[Op]:
        """Who is right before or right behind an op, or what is joined with it."""
        for part in (op, *self._parts.get(op, ())):
            for other in near(part):
                other = self._home.get(other, other)
                if other is not op:
                    yield other

    def _placed(self, ops: Iterable[Op], near: Near) -> Iterator[Op]:
        """The ops that have a place, and the first ones behind those that only pass values on."""
        pending = list(ops)
        while pending:
            op = self.home(pending.pop())
            if op.definition.forwards:
                pending += near(op)
            elif op in self._place:
                yield op


def wait(graph: Graph, readers: Iterable[Op], update: Value) -> None:
    """Adds the op that has an update come after `readers`, none of which is behind it."""
    op = update.op
    at = op.definition.tied_operand(op, update.index)
    assert at is not None
    after = build(graph, "after", [op.operands[at], *(one.results[0] for one in readers)], op.loc)
    graph.put_at(op, after.op)
    graph.set_operand(op, at, after)
