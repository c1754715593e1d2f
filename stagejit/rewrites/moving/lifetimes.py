"""How much memory a graph would take, as far as rewrites can know: `Lifetimes`.

Input: a graph and the buffers that inserts fill. Output: bytes that live at the same time, for
this choice of buffers and for another. Invariant: a model; it ranks choices and needs no dispatch.

Note [Modelled memory]: time is the place of an op in the program. A value takes memory from its op
to its last reader if it is the result of an op that dispatches are made around, or has several
readers; elementwise ops are taken to be fused with what they read. What a dispatch computes lies
in a buffer of inserts from then on; an argument is copied there by its insert. Arguments and
results belong to the caller and count nothing. Dispatches that wait for nothing may run earlier,
and then more memory is alive than the model says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stagejit.base.records import record
from stagejit.graph.ir import Graph, Op, Value
from stagejit.rewrites.moving.chains import Chain, Part


@record
class Life:
    """Of one buffer: from op `birth` to op `death`, inclusive."""

    birth: int
    death: int
    nbytes: int

    def joined(self, other: Life) -> Life:
        """Of this buffer, if it holds the contents of `other`, too."""
        return Life(min(self.birth, other.birth), max(self.death, other.death), self.nbytes)


class Lifetimes:
    """`life`: by chain; `bytes_at`: live bytes at each op; `moved`: bytes that the chains take."""

    def __init__(self, graph: Graph, ops: Sequence[Op], chains: Mapping[Value, Chain]) -> None:
        self.graph = graph
        self.rank = {op: at for at, op in enumerate(ops)}
        self.end = len(ops)
        self.last: dict[Value, int] = {}
        for op in reversed(ops):
            for value in op.results:
                self.last[value] = self._last_reader(value)
        self.life = {chain: self._life_of(chain) for chain in chains.values()}
        steps = np.zeros(self.end + 2, np.int64)
        for life in (*self._values(ops), *self.life.values()):
            steps[life.birth] += life.nbytes
            steps[life.death + 1] -= life.nbytes
        self.bytes_at = np.cumsum(steps)
        self.moved = sum(chain.result.type.nbytes for chain in self.life)

    def stored_at(self, part: Part) -> int:
        """When the part is in its place."""
        copied = _lies_elsewhere(part.source.op)
        return self.rank[part.insert if copied else part.source.op]

    def peaks(self, chain: Chain, whole: Chain) -> tuple[int, int]:
        """Most bytes at once, while either lives: if `whole` holds `chain`, and if both have a
        buffer."""
        one, other = self.life[chain], self.life[whole]
        both = other.joined(one)
        span = slice(both.birth, both.death + 1)
        apart = self.bytes_at[span]
        shared = apart.copy()
        for life, sign in ((one, -1), (other, -1), (both, 1)):
            shared[life.birth - both.birth : life.death + 1 - both.birth] += sign * life.nbytes
        return int(shared.max()), int(apart.max())

    def share(self, chain: Chain, whole: Chain) -> None:
        """From now on `whole` holds `chain`."""
        one, other = self.life.pop(chain), self.life[whole]
        both = self.life[whole] = other.joined(one)
        for life, sign in ((one, -1), (other, -1), (both, 1)):
            self.bytes_at[life.birth : life.death + 1] += sign * life.nbytes
        self.moved -= chain.result.type.nbytes

    def _life_of(self, chain: Chain) -> Life:
        birth = min(self.stored_at(part) for part in chain.parts)
        death = self.last[chain.result]
        transient = death < self.end
        return Life(birth, max(birth, min(death, self.end)), chain.result.type.nbytes * transient)

    def _values(self, ops: Sequence[Op]) -> list[Life]:
        found = []
        for op in ops:
            for value in op.results:
                users = [u for u in self.graph.users(value) if not u.definition.is_elementwise]
                if not _lies_elsewhere(op):
                    users = [user for user in users if not user.definition.is_insert]
                shared = op.definition.is_elementwise and len(users) > 1
                if users and (_is_anchor(op) or shared):
                    death = self.last[value]
                    nbytes = value.type.nbytes * (death < self.end)
                    found.append(Life(self.rank[op], min(death, self.end), nbytes))
        return found

    def _last_reader(self, value: Value) -> int:
        """The last op that reads the value, through views; the end if it is a result."""
        last = self.rank[value.op]
        for user in self.graph.users(value):
            if user is self.graph.return_op:
                return self.end
            grown = user.definition.is_insert and user.operands[1] is value
            viewed = grown or user.definition.is_view
            last = max(last, self.last[user.result] if viewed else self.rank[user])
        return last


def _is_anchor(op: Op) -> bool:
    """Whether a dispatch is made for it."""
    known = op.definition
    return known.accumulates or known.is_indexed or known.stands_alone


def _lies_elsewhere(op: Op) -> bool:
    """Whether a copy has to bring a result to its place: no dispatch of ours computes it."""
    known = op.definition
    return known.is_input or known.is_constant or known.stands_alone
