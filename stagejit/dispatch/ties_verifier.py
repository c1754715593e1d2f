"""Checks who may overwrite what, in a graph of dispatches.

Input: a graph of dispatches. Output: nothing, or a VerificationError. Invariants: each value is
updated at most once, and only what nobody outside counts on; returned values have memory of their
own; until somebody has read a version of a buffer, nobody overwrites the elements that are read,
in whatever order that the edges allow; parts of one dispatch, which run at once, do not read what
another one writes; only dispatches touch memory that is not row-major, also in bodies, to which
loops and branches hand it on. What one kernel writes over its own operands is the matter of
`in_place.py`.

A tie is an op whose result is an update: it overwrites boxes of the memory of its destination. A
version is made from a tie if it is that tie's result, or an update of a version that is.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from stagejit.base.records import record
from stagejit.dispatch.in_place import refuse_updates
from stagejit.dispatch.ranges.accesses import Touch, reads_of, writes_of
from stagejit.dispatch.ranges.updates import updated_boxes
from stagejit.dispatch.regions import Region
from stagejit.errors import VerificationError
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import (
    before,
    carried_inputs,
    destination_of,
    given,
    memory_of,
)
from stagejit.index.box_index import BoxIndex


def verify_ties(
    graph: Graph,
    regions: Sequence[Region],
    carried: Mapping[int, int] | None = None,
    handed_on: Container[Value] = (),
) -> None:
    """Raises VerificationError for the first fault. regions: those of the graph; carried: of a
    body, the input that has to hold an output; handed_on: its inputs that are operands of the
    loop or branch."""
    _Check(graph, regions).run(handed_on)
    _verify_outputs(graph, carried or {})
    for region in regions:
        for number, body in enumerate(region.bodies):
            assert region.anchor is not None
            inputs = {inner for each in given(region.anchor).values() for _, inner in each}
            carried = carried_inputs(region.anchor, number)
            verify_ties(body.graph, body.regions, carried, inputs)


def _verify_outputs(graph: Graph, carried: Mapping[int, int]) -> None:
    taken: set[Value] = set()
    for number, value in enumerate(graph.outputs):
        _require_row_major(value, f"the return of {graph.name}")
        memory = memory_of(value)
        if not value.type.size:
            continue
        if memory in taken:
            raise VerificationError(f"{graph.name} returns {value}, whose memory is returned twice")
        taken.add(memory)
        of_caller = memory.op.definition.is_input and not graph.is_donated(memory)
        unchanged = number in carried and value is graph.inputs[carried[number]]
        if (of_caller or memory.op.definition.is_constant) and not unchanged:
            raise VerificationError(f"{graph.name} returns {value}, which lies in {memory}")


def _require_row_major(value: Value, who: str) -> None:
    """Who hands memory on, or looks at it in another shape, knows no other layout."""
    if not value.type.is_plain:
        raise VerificationError(f"{who} takes {value} for row-major", loc=value.op.loc)


@record
class _Tie:
    """A result that is an update, and who makes it; `part`: the number of the part that writes."""

    region: Region
    result: Value
    part: int


class _Check:
    """`after[op]`: bit set of the ids of those that come before it, itself included."""

    def __init__(self, graph: Graph, regions: Sequence[Region]) -> None:
        self.graph, self.regions = graph, regions
        self.after: dict[Op, int] = {}
        self.ties: dict[Value, BoxIndex[_Tie]] = {}  # by memory
        self.updated: dict[Value, Value] = {}  # what is an update of each value
        self._depths: dict[Value, int] = {}

    def run(self, handed_on: Container[Value]) -> None:
        for value in self.graph.inputs:
            if not self.graph.is_bound(value) and value not in handed_on:
                _require_row_major(value, f"the caller of {self.graph.name}")
        for op in self.graph.ops():
            self._look_at(op)
        for region in self.regions:
            self._note_ties(region)
        for region in self.regions:
            for number, part in enumerate(region.parts):
                for touch in reads_of(_alone(part)):
                    self._check_read(region, number, touch)

    def _look_at(self, op: Op) -> None:
        kind = op.definition
        if not (kind.stands_alone or kind.forwards or kind.is_constant or kind.is_empty):
            raise VerificationError(f"{op} is no dispatch", loc=op.loc)
        if not (kind.is_dispatch or kind.is_empty or kind.is_constant):
            handed_on = given(op) if kind.has_bodies else {}
            read = [value for at, value in enumerate(op.operands) if at not in handed_on]
            for value in (*read, *op.results):
                _require_row_major(value, f"{op}")
        known = 1 << op.id
        for operand in op.operands:
            known |= self.after.get(operand.op, 0)
        self.after[op] = known

    def _note_ties(self, region: Region) -> None:
        for number, part in enumerate(region.parts):
            for touch in writes_of(_alone(part)):
                destination = destination_of(touch.value)
                if destination is None or not destination.type.size:
                    continue  # fresh, or nothing that anybody could overwrite
                _check_base(self.graph, touch.value)
                index = self.ties.setdefault(memory_of(touch.value), BoxIndex())
                for box in [touch.box] if region.has_kernel else updated_boxes(touch.value):
                    index.add(box, _Tie(region, touch.value, number))
        for value in dict.fromkeys(region.results):
            self._check_updated_once(value)

    def _check_updated_once(self, value: Value) -> None:
        """Aliases and what barriers pass on are the same version."""
        destination = destination_of(value)
        while destination is not None and destination.op.definition.forwards:
            destination = before(destination)
        if destination is not None and destination.type.size:
            other = self.updated.setdefault(destination, value)
            if other is not value:
                raise VerificationError(
                    f"{value} and {other} are updates of one value, {destination}",
                    loc=value.op.loc,
                )

    def _check_read(self, region: Region, number: int, touch: Touch) -> None:
        index = self.ties.get(memory_of(touch.value))
        if index is None:
            return
        for tie in index.overlapping(touch.box):
            if tie.region is region:
                self._check_own(region, number, touch, tie)
            elif self._depth(tie.result) > self._depth(touch.value) and not self._comes_before(
                region, tie.region
            ):
                raise VerificationError(
                    f"{region.name} reads {touch.value}{touch.box}, which"
                    f" {tie.region.name} overwrites, and nothing puts it first",
                    loc=region.loc,
                )

    def _check_own(self, region: Region, number: int, touch: Touch, tie: _Tie) -> None:
        """What a dispatch reads of what it overwrites. A loop or branch has its own plan inside."""
        if not region.has_kernel:
            return
        fault = "another part writes there" if number != tie.part else ""
        if not fault:
            fault = refuse_updates(region.parts[number], [touch.value], tie.result)
        if fault:
            raise VerificationError(
                f"{region.name} overwrites {touch.value}{touch.box}, which it reads: {fault}",
                loc=region.loc,
            )

    def _comes_before(self, first: Region, second: Region) -> bool:
        return bool(self.after[second.op] >> first.op.id & 1)

    def _depth(self, value: Value) -> int:
        """How many ties a version is made from. Versions of one memory are a chain, so it is made
        from those of no greater depth."""
        passed = []
        while value not in self._depths and (earlier := before(value)) is not None:
            passed.append(value)
            value = earlier
        depth = self._depths.setdefault(value, 0)
        for later in reversed(passed):
            depth += destination_of(later) is not None
            self._depths[later] = depth
        return depth


def _check_base(graph: Graph, value: Value) -> None:
    base = memory_of(value)
    definition = base.op.definition
    if definition.is_constant or definition.is_call or definition.is_left:
        raise VerificationError(f"{value} overwrites {base}", loc=value.op.loc)
    if definition.is_input and not graph.is_donated(base):
        raise VerificationError(
            f"{value} overwrites {base}, an argument that is not donated", loc=value.op.loc
        )


def _alone(part: Region) -> Region:
    """A part without the borders beside it."""
    return replace(part, borders=())
