"""Which ops share a large intermediate value: a `Cluster`.

Input: a graph, and a product whose result is larger than what it is made of. Output: the ops that
make or read values of that size, or a reason why there is no such set. Invariant: every value of
that size which one of the ops makes is read by the others only; nothing that they read is computed
from what they make.

Note [What is in a cluster]: from the product on, all who read a value of that size, and what they
make of it, up to products and reductions, whose results are smaller. Small values stay inside as
far as they come back: the largest element of each row, which is subtracted from the row. They are
followed for some ops only, since most lead far away. Then, back from all of these, who makes other
values of that size that nobody else reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stagejit.graph.ir import Graph, Op, Value
from stagejit.rewrites.driver import describe

_FOLLOWED = 64  # readers of small values


@dataclass(frozen=True)
class Cluster:
    """ops: operands before users. seed: the product that it was found from. outputs: what others
    read of it. places: of all ops of the graph, operands before users."""

    seed: Op
    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]
    places: Mapping[Op, int]

    def place(self, op: Op) -> int:
        """Where an op stands in the graph; inputs stand first."""
        return self.places.get(op, -1)

    @property
    def large(self) -> int:
        """Elements of what is large."""
        return self.seed.result.type.size


class Clusters:
    """Finds the clusters of a graph, as long as that does not change. places: of all ops, in an
    order in which operands come first."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.places = {op: at for at, op in enumerate(graph.ops())}
        self._escaping: dict[Op, str] = {}  # whose results somebody needs whole: who

    def around(self, seed: Op) -> Cluster | str:
        """The cluster around the result of `seed`, or why there is none."""
        large = seed.result.type.size
        found = self._readers(seed, large)
        if isinstance(found, str):
            return found
        found = _leading_back(found, large)
        self._add_makers(found, large)
        ops = sorted(found, key=self.places.__getitem__)
        between = self._between(found)
        if between is not None:
            return f"{describe(between)} is computed in between"
        return Cluster(seed, tuple(ops), _outputs(self.graph, ops), self.places)

    def _readers(self, seed: Op, large: int) -> dict[Op, None] | str:
        """From `seed` on, all that large values are made into, and of small ones some functions."""
        found, pending, small = {seed: None}, deque([seed]), 0
        while pending:
            op = pending.popleft()
            is_large = op.result.type.size >= large
            for user in self.graph.users(op.result):
                if user in found:
                    continue
                known = user.definition
                if is_large:
                    if (whole := self._needs_whole(user)) is not None:
                        self._escape(found, op, whole, large)
                        return whole
                else:
                    back = known.is_product and user.result.type.size >= large
                    small += 1
                    if small > _FOLLOWED or not (may_join(user) and (known.is_pointwise or back)):
                        continue
                found[user] = None
                pending.append(user)
        return found

    def _needs_whole(self, user: Op) -> str | None:
        """Why a reader of a large value cannot be in a cluster."""
        if user in self._escaping:
            return self._escaping[user]
        if may_join(user):
            return None
        return f"{describe(user)} takes all of it" if user.definition.is_step else "it is a result"

    def _escape(self, found: Mapping[Op, None], op: Op, why: str, large: int) -> None:
        """Nobody needs to walk again from those that `op` is made of."""
        pending = [op]
        while pending:
            op = pending.pop()
            if op in found and op not in self._escaping and op.result.type.size >= large:
                self._escaping[op] = why
                pending += [value.op for value in op.operands]

    def _add_makers(self, found: dict[Op, None], large: int) -> None:
        """Adds those that make other large values, which nobody else reads."""
        pending = list(found)
        while pending:
            for value in pending.pop().operands:
                maker = value.op
                repeats = maker.definition.repeats or maker.definition.is_splat
                if maker in found or value.type.size < large or repeats or is_made_up(value):
                    continue
                if may_join(maker) and all(user in found for user in self.graph.users(value)):
                    found[maker] = None
                    pending.append(maker)

    def _between(self, found: Mapping[Op, None]) -> Op | None:
        """An op outside that is computed from those inside, and is needed inside."""
        first = min(map(self.places.__getitem__, found))
        seen = set[Op]()
        pending = [value.op for op in found for value in op.operands if value.op not in found]
        while pending:
            op = pending.pop()
            if op in seen or self.places.get(op, -1) < first:
                continue
            seen.add(op)
            for value in op.operands:
                if value.op in found:
                    return op
                pending.append(value.op)
        return None


def with_moves(graph: Graph, cluster: Cluster, outputs: Iterable[Value]) -> Cluster:
    """The cluster with those that only transpose what it gives: `outputs`, or some of them."""
    ops = [*cluster.ops]
    for value in outputs:
        while len(users := graph.users(value)) == 1 and _moves(users[0]):
            ops += users
            value = users[0].result
    return replace(cluster, ops=tuple(ops), outputs=_outputs(graph, ops))


def _moves(op: Op) -> bool:
    known = op.definition
    return known.rearranges and not known.keeps_order and not known.repeats


def _outputs(graph: Graph, ops: Sequence[Op]) -> tuple[Value, ...]:
    inside = set(ops)
    return tuple(op.result for op in ops if any(x not in inside for x in graph.users(op.result)))


def may_join(op: Op) -> bool:
    """Whether places of it may be computed apart, as far as its kind tells."""
    known = op.definition
    if len(op.results) != 1 or known.is_windowed or not op.result.type.has_numbers:
        return False
    return known.is_product or known.is_reduce or known.is_elementwise or known.is_view


def is_made_up(value: Value) -> bool:
    """A number, or what elementwise functions and views make of numbers and positions: a mask."""
    seen, pending = set[Op](), [value.op]
    while pending:
        op = pending.pop()
        known = op.definition
        if known.is_constant:
            if op.result.type.size != 1 or not op.result.type.dtype.is_native:
                return False
        elif not (known.counts or known.is_splat or known.is_elementwise or known.is_view):
            return False
        seen.add(op)
        pending += [operand.op for operand in op.operands if operand.op not in seen]
    return True


def _leading_back(found: Mapping[Op, None], large: int) -> dict[Op, None]:
    """Those that read or make what is large, and those that they need."""
    kept: dict[Op, None] = {}
    pending = [
        op for op in found if any(x.type.size >= large for x in (op.result, *op.operands))
    ]  # fmt: skip
    while pending:
        op = pending.pop()
        if op in found and op not in kept:
            kept[op] = None
            pending += [value.op for value in op.operands]
    return kept
