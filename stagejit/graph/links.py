"""Who reads results of whom: the edges of a graph of ops.

Input: ops, as they come and go. Output: edges, from producer to reader, one for each operand, with
its number as the key. Invariant: they lie in the dictionaries of a `networkx.MultiDiGraph`, which
`nx` puts around them: whoever asks it sees the edges themselves, at any time.

Note [networkx is loaded late]: its import takes as long as the compilation of three small programs.
The compiler walks along edges by the dictionaries, and needs networkx for nothing; who asks for a
graph of its kind waits for it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from stagejit.base.threads.importing import importing

if TYPE_CHECKING:
    import networkx as nx

Op = Any
Edge = dict[str, int]  # `operand`, `result`: which operand of the reader is which result
Edges = dict[Op, dict[Op, dict[int, Edge]]]  # by both ends, which share what is between them


class Links:
    """Edges between ops, which may be found from either end."""

    def __init__(self, ops: Collection[Op] = ()) -> None:
        self.nodes: dict[Op, dict[str, Any]] = dict(zip(ops, iter(dict, None), strict=False))
        self.after: Edges = dict(zip(ops, iter(dict, None), strict=False))
        self.before: Edges = dict(zip(ops, iter(dict, None), strict=False))
        self._nx: nx.MultiDiGraph[Op] | None = None

    @property
    def nx(self) -> nx.MultiDiGraph[Op]:
        """The same edges, for networkx."""
        if self._nx is None:
            with importing:
                import networkx as nx  # see Note [networkx is loaded late]
            self._nx = nx.MultiDiGraph()
            self._nx._node, self._nx._pred = self.nodes, self.before
            self._nx._adj = self.after
        return self._nx

    def add(self, op: Op) -> None:
        """An op without edges."""
        self.nodes[op], self.after[op], self.before[op] = {}, {}, {}

    def link(self, producer: Op, reader: Op, operand: int, result: int) -> None:
        """Operand number `operand` of the reader is result number `result` of the producer."""
        if producer not in self.nodes:  # of another graph, a fault that a verifier finds
            self.add(producer)
        edges = self.after[producer].get(reader)
        if edges is None:
            edges = self.after[producer][reader] = self.before[reader][producer] = {}
        edges[operand] = {"operand": operand, "result": result}

    def unlink(self, producer: Op, reader: Op, operand: int) -> None:
        """It is no longer."""
        edges = self.after[producer][reader]
        del edges[operand]
        if not edges:
            del self.after[producer][reader], self.before[reader][producer]

    def remove(self, op: Op) -> None:
        """An op with all its edges."""
        for reader in self.after.pop(op):
            self.before[reader].pop(op, None)
        for producer in self.before.pop(op):
            self.after.get(producer, {}).pop(op, None)
        del self.nodes[op]

    def reads(self, op: Op) -> int:
        """How many operands are results of an op."""
        return sum(map(len, self.after[op].values()))

    def clear(self) -> None:
        """The end of it: networkx keeps views of a graph, which refer to it."""
        for edges in (self.nodes, self.after, self.before):
            edges.clear()
        if self._nx is not None:
            self._nx.clear()
            self._nx = None
