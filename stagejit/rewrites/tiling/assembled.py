"""Which ops go over large values in steps, each of which puts its results together: a `Cluster`.

Input: a graph, a value that is written in parts, and one of its axes. Output: the ops that make
such values of each other, place by place of that axis, or a reason why there are none. Invariant:
nothing that they read is computed from what they make.

Note [Steps]: what is written in parts lies in memory, so that each step of a Fourier transform, or
of a running sum by doubling, passes over all of it. Places of an axis that all steps keep apart go
through all steps before the next ones do: what a step makes, the next one finds nearby. From the
value on, all who may evaluate such places are followed; then, back from these, who makes what
nobody else reads. What is evaluated after the last step stays outside, where its readers evaluate
it, but if it is a result.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.axes import Axes, separate
from stagejit.rewrites.driving.driver import describe
from stagejit.rewrites.tiling.clusters import Cluster, outputs_of
from stagejit.rewrites.tiling.surroundings import Surroundings

_PASSED = 64  # ops outside that are looked at, on the way to those that may be inside
_Place = tuple[tuple[int, ...], int, Op]


def is_assembled(graph: Graph, op: Op) -> bool:
    """Whether a result is a value, of several parts, with all of them in their places."""
    if not op.definition.is_insert or not op.operands[1].op.definition.is_insert:
        return False
    readers = graph.users(op.result)
    return not any(x.definition.is_insert and x.operands[1] is op.result for x in readers)


def steps_along(graph: Graph, surroundings: Surroundings, seed: Op, axis: int) -> Cluster | str:
    """The ops around the value of an op, which `is_assembled`, that keep places of `axis` apart."""
    if separate(seed, axis) is None:
        return f"{describe(seed)} does not keep places apart"
    walk = _Walk(graph, surroundings, seed, axis)
    walk.follow()
    if not any(op.definition.is_insert and op is not seed for op in walk.inside):
        return f"nothing that reads {describe(seed)} puts something together again"
    walk.add_makers()
    ops = tuple(sorted(walk.kept(), key=surroundings.place))
    outputs = outputs_of(graph, ops)
    assembled = (op.result for op in ops if is_assembled(graph, op))
    stored = tuple(value for value in assembled if value not in outputs)
    if not stored:
        return f"others read {describe(seed)}, too"
    return Cluster(seed, ops, outputs, surroundings, stored)


class _Walk:
    """inside: the ops found so far, and along which axes their results, and their operands, keep
    places apart."""

    def __init__(self, graph: Graph, surroundings: Surroundings, seed: Op, axis: int) -> None:
        self.graph, self.place, self.seed = graph, surroundings.place, seed
        self.extent = seed.result.shape[axis]
        self.axes = {seed.result: axis}
        along = separate(seed, axis)
        assert along is not None
        self.inside: dict[Op, Axes] = {seed: along}
        self._grounds: dict[Op, bool] = {}

    def follow(self) -> None:
        """From the seed on, in the order of the graph. An op that needs something of which others,
        outside, made something else, stays outside, and so do all who come after many of those."""
        outside, pending, seen = set[Op](), list[_Place](), set[Op]()
        hopeful = set[Op]()  # of those that are pending: who reads what is inside

        def push(users: Iterable[Op]) -> None:
            for user in users:
                if user not in seen and user.definition.is_step:
                    seen.add(user)
                    heapq.heappush(pending, (self.place(user), user.id, user))

        op, joins = self.seed, True
        while len(outside) <= _PASSED + len(self.inside):
            users = [user for result in op.results for user in self.graph.users(result)]
            push(users)
            if joins:
                hopeful.update(user for user in users if user.definition.is_step)
            if not hopeful:
                break
            op = heapq.heappop(pending)[-1]
            hopeful.discard(op)
            apart = any(x.op in outside for x in op.operands) or not self._may_join(op)
            joins = not apart and self._follows(op)
            if not joins:
                outside.add(op)

    def add_makers(self) -> None:
        """Those whose results nobody else reads."""
        pending, seen = list[_Place](), set[Op]()

        def push(reader: Op) -> None:
            for maker in (x.op for x in reader.operands):
                if maker not in seen and maker not in self.inside and maker.definition.is_step:
                    seen.add(maker)
                    last_first = tuple(-at for at in self.place(maker))
                    heapq.heappush(pending, (last_first, -maker.id, maker))

        for op in self.inside:
            push(op)
        while pending:
            op = heapq.heappop(pending)[-1]
            if not self._may_join(op) or op.definition.repeats:
                continue
            axes = {self._operand_axis(user, op.result) for user in self.graph.users(op.result)}
            if len(axes) == 1 and (axis := axes.pop()) is not None and self._add(op, axis):
                push(op)

    def kept(self) -> set[Op]:
        """Those inside that are parts of what is put together, or of a result."""
        found = set[Op]()
        for op in sorted(self.inside, key=self.place, reverse=True):
            wanted = op.definition.is_insert or any(
                user in found or user.definition.is_return for user in self.graph.users(op.result)
            )
            if wanted:
                found.add(op)
        return found

    def _add(self, op: Op, axis: int) -> bool:
        along = separate(op, axis)
        if along:
            self.inside[op] = along
            self.axes[op.result] = axis
        return bool(along)

    def _operand_axis(self, user: Op, value: Value) -> int | None:
        """The axis of an operand of which a user inside needs a place."""
        along = self.inside.get(user)
        if along is None:
            return None
        found = {own for x, own in zip(user.operands, along, strict=True) if x is value}
        return found.pop() if len(found) == 1 else None

    def _follows(self, op: Op) -> bool:
        """Adds an op along the axis of its result that goes with those of its operands inside, if
        there is one."""
        for axis, extent in enumerate(op.result.shape):
            if extent != self.extent:
                continue
            along = separate(op, axis)
            if along is not None and all(
                self.axes.get(x, own) == own for x, own in zip(op.operands, along, strict=True)
            ):
                return self._add(op, axis)
        return False

    def _may_join(self, op: Op) -> bool:
        """Whether it may be evaluated place by place, as far as its kind tells."""
        known = op.definition
        if len(op.results) != 1 or known.applies or not op.result.type.has_numbers:
            return False
        if known.is_insert:
            return self._is_grounded(op)
        return known.is_elementwise or (known.is_view and not known.splits)

    def _is_grounded(self, insert: Op) -> bool:
        """Whether its parts, at known places, are put into memory that nobody else has."""
        chain: list[Op] = []
        op = insert
        while op.definition.is_insert and op not in self._grounds:
            chain.append(op)
            op = op.operands[1].op
        known = op.definition
        grounded = self._grounds.get(op, known.is_empty or known.is_splat)
        for op in reversed(chain):
            grounded = grounded and None not in op.attrs["offsets"]
            self._grounds[op] = grounded
        return self._grounds[insert]
