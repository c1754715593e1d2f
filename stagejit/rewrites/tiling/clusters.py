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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from stagejit.base.records import record
from stagejit.graph.ir import Graph, Op, Value
from stagejit.rewrites.driving.driver import describe
from stagejit.rewrites.tiling.surroundings import Surroundings

_FOLLOWED = 64  # readers of small values
_ASKED = 4  # times that an op may be in a set that is no cluster: work stays linear


@record
class Cluster:
    """ops: operands before users. seed: the product that it was found from. outputs: what others
    read of it. assembled: what is put together of parts, and nobody else reads."""

    seed: Op
    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]
    surroundings: Surroundings
    assembled: tuple[Value, ...] = ()

    @property
    def large(self) -> int:
        """Elements of what is large."""
        return self.seed.result.type.size


class Clusters:
    """Finds the clusters of a graph, which may change as its surroundings are told."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.surroundings = graph, Surroundings(graph)
        self._escaping: dict[Op, str] = {}  # whose results somebody needs whole: who
        self._failed: dict[Op, list[str]] = {}  # why sets with an op in them are no clusters

    def around(self, seed: Op) -> Iterator[Cluster | str]:
        """Clusters around the result of `seed`, the largest first, or why there are none."""
        known: tuple[Op, ...] = ()
        for far in (True, False):
            found = self._around(seed, far=far)
            ops = () if isinstance(found, str) else found.ops
            if not ops or ops != known:
                yield found
            known = ops

    def _around(self, seed: Op, *, far: bool) -> Cluster | str:
        failed = self._failed.get(seed, [])
        if len(failed) >= _ASKED:
            return failed[-1]
        large = seed.result.type.size
        found = self._readers(seed, large, far=far)
        if isinstance(found, str):
            return found
        found = _leading_back(found, large)
        self._add_makers(found, large)
        ops = sorted(found, key=self.surroundings.place)
        between = self._between(found)
        if between is not None:
            why = f"{describe(between)} is computed in between"
            for op in found:
                self._failed.setdefault(op, []).append(why)
            return why
        return Cluster(seed, tuple(ops), outputs_of(self.graph, ops), self.surroundings)

    def _readers(self, seed: Op, large: int, *, far: bool) -> dict[Op, None] | str:
        """From `seed` on, all that large values are made into, and of small ones some functions;
        far: and products of small ones that are large again."""
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
                    back = far and known.is_product and user.result.type.size >= large
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
                if maker in found or value.type.size < large or repeats:
                    continue
                if self.surroundings.is_made_up(value):
                    continue
                if may_join(maker) and all(user in found for user in self.graph.users(value)):
                    found[maker] = None
                    pending.append(maker)

    def _between(self, found: Mapping[Op, None]) -> Op | None:
        """An op outside that is computed from those inside, and is needed inside."""
        place = self.surroundings.place
        first = min(map(place, found))
        seen = set[Op]()
        pending = [value.op for op in found for value in op.operands if value.op not in found]
        while pending:
            op = pending.pop()
            if op in seen or place(op) < first:
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
    return replace(cluster, ops=tuple(ops), outputs=outputs_of(graph, ops))


def _moves(op: Op) -> bool:
    known = op.definition
    return known.rearranges and not known.keeps_order and not known.repeats


def outputs_of(graph: Graph, ops: Sequence[Op]) -> tuple[Value, ...]:
    """What others read of some ops."""
    inside = set(ops)
    return tuple(op.result for op in ops if any(x not in inside for x in graph.users(op.result)))


def may_join(op: Op) -> bool:
    """Whether places of it may be computed apart, as far as its kind tells."""
    known = op.definition
    if len(op.results) != 1 or known.is_windowed or known.applies or not op.result.type.has_numbers:
        return False
    return known.is_product or known.is_reduce or known.is_elementwise or known.is_view


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
