"""Which ops of a graph of dispatches come before which, and making it so.

Input: a graph of dispatches. Output: what its edges say of the order in which ops run. Invariant:
what is said stays true while ops are replaced and edges added.
"""

from __future__ import annotations

from collections.abc import Iterable

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build


class Order:
    """`_before`: for each op the bit set of those that come before it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._bit: dict[Op, int] = {}
        self._before: dict[Op, int] = {}
        for op in graph.ops():
            self._note(op)

    def comes_before(self, first: Op, second: Op) -> bool:
        """Whether `first` has run when `second` begins, in any order that the edges allow."""
        return bool(self._before.get(second, 0) & self._bit.get(first, 0))

    def put_first(self, readers: Iterable[Op], update: Value, *, always: bool = False) -> None:
        """From now on the ops `readers`, none of which is behind `update`, come before it. always:
        what is known of their order may not hold any longer."""
        op = update.op
        at = op.definition.tied_operand(op, update.index)
        assert at is not None
        readers = dict.fromkeys(readers)
        waited = [one.results[0] for one in readers if always or not self.comes_before(one, op)]
        if not waited:
            return
        after = build(self.graph, "after", [op.operands[at], *waited], op.loc)
        self.graph.put_at(op, after.op)
        self.graph.set_operand(op, at, after)
        self.look_at(after.op)

    def replace(self, old: Op, new: Op) -> None:
        """`new` is what `old` was; nobody uses that any more."""
        self._bit[new] = self._bit[old]
        self.look_at(new)

    def look_at(self, op: Op) -> None:
        """Notes what an op has to wait for by its operands as they are now."""
        self._note(op)
        self._spread(op)

    def _note(self, op: Op) -> None:
        self._bit.setdefault(op, 1 << len(self._bit))
        known = 0
        for operand in op.operands:
            known |= self._until(operand.op)
        self._before[op] = known

    def _until(self, op: Op) -> int:
        return self._before.get(op, 0) | self._bit.get(op, 0)

    def _spread(self, op: Op) -> None:
        """Tells those behind an op what comes before it."""
        pending = [op]
        while pending:
            op = pending.pop()
            known = self._until(op)
            for user in self.graph.nx.successors(op):
                if user in self._before and known & ~self._before[user]:
                    self._before[user] |= known
                    pending.append(user)
