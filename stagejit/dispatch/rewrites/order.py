"""Which ops of a graph of dispatches come before which, and making it so.

Input: a graph of dispatches. Output: what its edges say of the order in which ops run. Invariant:
each op has a higher place than those that it uses, while ops are replaced and edges added.

Places are a topological order that is mended where an edge goes against it: only ops between the
two ends move (Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs",
2007). A search looks only at ops whose places lie between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build

_APART = 1 << 64  # of the places of two ops at first, so that others find room between


_FEW = 8  # so many are compared, so that nobody waits for who comes before another one


class Order:
    """`_apart`: for the op that somebody asked for last, those that it is known not to precede."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._place: dict[Op, int] = {}
        self._renumber(graph.ops())
        self._apart: tuple[Op, set[Op]] | None = None
        self._made = 0  # ops that nobody uses yet

    def comes_before(self, first: Op, second: Op) -> bool:
        """Whether `first` has run when `second` begins, in any order that the edges allow."""
        if self._apart is None or self._apart[0] is not first:
            self._apart = first, set()
        apart, least, pending = self._apart[1], self._at(first), [second]
        seen: set[Op] = set()  # those behind `first` too, until the search ends
        while pending:
            op = pending.pop()
            for earlier in self.graph.nx.predecessors(op):
                if earlier is first:
                    self._apart = None  # who was found on the way may be behind it
                    return True
                if self._at(earlier) > least and earlier not in apart and earlier not in seen:
                    seen.add(earlier)
                    pending.append(earlier)
        apart |= seen
        return False

    def put_first(self, readers: Iterable[Op], update: Value) -> None:
        """From now on the ops `readers`, none of which is behind `update`, come before it."""
        op = update.op
        waited = [one for one in dict.fromkeys(readers) if not self.comes_before(one, op)]
        if not waited:
            return
        after = wait(self.graph, self._last(waited), update)
        for one in waited:
            self._put_before(one, op)
        self._place[after] = self._room_for(after, op)
        self._apart = None

    def after(self, value: Value, first: Sequence[Op]) -> Value:
        """What is `value` when the ops `first` have run, for an op to be."""
        if not first:
            return value
        waited = [op.results[0] for op in self._last(first)]
        after = build(self.graph, "after", [value, *waited], value.op.loc)
        self._made += 1
        self._place[after.op] = max(self._at(v.op) for v in after.op.operands) + self._made
        return after

    def _last(self, ops: Sequence[Op]) -> Sequence[Op]:
        """Those, of few, that come before none of the others."""
        if len(ops) > _FEW:
            return ops
        return [op for op in ops if not any(self.comes_before(op, other) for other in ops)]

    def replace(self, old: Op, new: Op) -> None:
        """`new` is what `old` was; nobody uses that any more."""
        self._place[new] = self._place[old]
        self.look_at(new)

    def look_at(self, op: Op) -> None:
        """Has an op come after its operands as they are now."""
        self._apart = None
        if op is self.graph.return_op:
            return  # nobody asks what comes before that
        for operand in op.operands:
            self._put_before(operand.op, op)

    def _put_before(self, first: Op, second: Op) -> None:
        """Moves what has to move so that `first` has a lower place; it is not behind `second`."""
        low, high = self._at(second), self._at(first)
        if high < low:
            return
        behind = self._reached(second, low, high, self.graph.nx.successors)
        before = self._reached(first, low, high, self.graph.nx.predecessors)
        ops = [*sorted(before, key=self._place.__getitem__),
               *sorted(behind, key=self._place.__getitem__)]  # fmt: skip
        places = sorted(self._place[op] for op in ops)
        self._place.update(zip(ops, places, strict=True))

    def _reached(self, op: Op, low: int, high: int, near: Callable[[Op], Iterable[Op]]) -> set[Op]:
        """The op, and who is reached from it, of those with a place in that range."""
        found, pending = {op}, [op]
        while pending:
            for other in near(pending.pop()):
                place = self._place.get(other)
                if place is not None and low <= place <= high and other not in found:
                    found.add(other)
                    pending.append(other)
        return found

    def _room_for(self, op: Op, user: Op) -> int:
        """A place that nobody has, behind the operands of an op and before that of its only
        user."""
        place = self._last_of(op)
        while True:
            if self._place[user] - place < 2:
                self._renumber(sorted(self._place, key=self._place.__getitem__))
                place = self._last_of(op)
            place = (place + self._place[user]) // 2
            if place not in self._taken:
                self._taken.add(place)
                return place

    def _last_of(self, op: Op) -> int:
        return max(self._at(operand.op) for operand in op.operands)

    def _at(self, op: Op) -> int:
        return self._place.get(op, -1)  # inputs, and what needs nothing

    def _renumber(self, ops: Iterable[Op]) -> None:
        self._place = {op: number * _APART for number, op in enumerate(ops)}
        self._taken = set(self._place.values())


def wait(graph: Graph, readers: Iterable[Op], update: Value) -> Op:
    """Adds the op that has an update come after `readers`, none of which is behind it."""
    op = update.op
    at = op.definition.tied_operand(op, update.index)
    assert at is not None
    after = build(graph, "after", [op.operands[at], *(one.results[0] for one in readers)], op.loc)
    graph.put_at(op, after.op)
    graph.set_operand(op, at, after)
    return after.op
