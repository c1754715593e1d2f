"""The dispatches that limit-operands makes of one, and how they take its place.

Input: what each stores. Output: dispatches in the graph. Invariant: they lie in program order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from stagejit.dispatch.operands import starts_of
from stagejit.dispatch.rewrites.launch import Inputs, Launch
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.dispatches import Written, kind_of, parts_of, placed
from stagejit.rewrites.cloning import appended


@dataclass(frozen=True, eq=False)
class Target:
    """A value to be stored. output: that of the part, None for what other pieces only read.
    `native`: the dispatch stored it, or it is the result of an anchor. `kept`: who needs it in
    other pieces reads it. `stores`: how often it will be stored."""

    made: Written
    output: int | None
    native: bool
    kept: bool = False
    stores: int = 1

    @property
    def needs(self) -> tuple[Value, ...]:
        return (self.made.value, *starts_of(self.made))


@dataclass(eq=False)
class Piece:
    """A dispatch to be. `inputs`: values that it reads from memory."""

    number: int
    ops: set[Op] = field(default_factory=set)
    inputs: set[Value] = field(default_factory=set)
    targets: list[Target] = field(default_factory=list)

    @property
    def is_anchored(self) -> bool:
        return any(not op.definition.is_pointwise for op in self.ops)

    def suits(self, target: Target, ops: Iterable[Op]) -> bool:
        """Whether a kernel can store the target, which takes `ops` more, beside the others."""
        if self.is_anchored:
            return target.native
        shape = self.targets[0].made.value.shape
        return target.made.value.shape == shape and all(op.definition.is_pointwise for op in ops)


class Pieces:
    """Puts the pieces of one dispatch in its place. `stored`: where values of its part lie;
    `order`: numbers of all values; `destinations`: of each output that is an update, the input
    that it is made of; `updated`: the latest version of its memory; `results`: for each output what
    is in its place."""

    def __init__(self, graph: Graph, op: Op, ops: Sequence[Op], pieces: Sequence[Piece]) -> None:
        self.graph, self.op, self.pieces = graph, op, pieces
        self.position = {op: at for at, op in enumerate(ops)}
        (part,) = parts_of(op)
        self.stored = dict(zip(part.inputs, op.operands, strict=True))
        computed = (value for op in ops for value in op.results)
        self.order = {value: at for at, value in enumerate((*part.inputs, *computed))}
        self.destinations: dict[int | None, Value] = {}
        for output, at in op.attrs["carried"]:
            self.destinations[output] = part.inputs[at]
        self.updated = {output: self.stored[own] for output, own in self.destinations.items()}
        self.results: dict[int | None, Value] = {}
        self.made: list[Op] = []

    def put(self) -> list[Value]:
        """Adds the new dispatches; returns what is in place of the results."""
        for piece in self.pieces:
            self._put(piece)
        return [self.results[value.index] for value in self.op.results]

    def _put(self, piece: Piece) -> None:
        # What each result is made of: the only target of a fresh one, all of one update.
        made_of: dict[object, list[Target]] = {}
        for target in piece.targets:
            key = target.output if target.output in self.updated else target
            made_of.setdefault(key, []).append(target)
        groups = list(made_of.values())
        inputs = sorted(piece.inputs, key=self.order.__getitem__)
        ops = sorted(piece.ops, key=self.position.__getitem__)
        launch = Launch()
        launch.reads = {self.stored[value]: None for value in inputs}
        launch.destinations = {
            self.updated[targets[0].output]: None
            for targets in groups
            if targets[0].output in self.updated
        }
        launch.parts = [(kind_of(ops), partial(self._part, inputs, ops, groups))]
        made = launch.put(self.graph, self.op)
        self.made.append(made)
        for (target, *_), result in zip(groups, made.results, strict=True):
            self.results[target.output] = result
            if target.kept:
                self.stored[target.made.value] = result
            if target.output in self.updated:
                self.updated[target.output] = result

    def _part(
        self,
        inputs: Sequence[Value],
        ops: Sequence[Op],
        groups: Sequence[Sequence[Target]],
        graph: Graph,
        reads: Inputs,
        into: Inputs,
    ) -> list[Value]:
        """The part of a piece. groups: what each of its outputs is made of."""
        known = {value: reads[self.stored[value]] for value in inputs}
        for target, *_ in groups:
            if target.output in self.updated:  # a scatter is given what it updates
                known[self.destinations[target.output]] = into[self.updated[target.output]]
        made = appended(graph, ops, known)
        outputs = []
        for targets in groups:
            value = made[targets[0].made.value]
            if targets[0].output in self.updated:
                value = into[self.updated[targets[0].output]]
                for target in targets:
                    value = placed(graph, made[target.made.value], target.made.inserts, value, made)
            outputs.append(value)
        return outputs
