"""What the ops of a graph of dispatches touch, while it is rewritten; who reads, and who updates.

Input: a graph of dispatches, what the host knows of its inputs. Output: boxes, by operands and by
results. Invariant: what is said of an op is true of its operands as they are now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TypeGuard

from stagejit.base.records import record
from stagejit.base.symbolic import Int
from stagejit.dispatch.operands import read_by
from stagejit.dispatch.outputs import donations
from stagejit.dispatch.ranges.accesses import Touch, reads_of, write_of
from stagejit.dispatch.ranges.scalars import NOTHING, Scalars
from stagejit.dispatch.ranges.updates import updated_boxes
from stagejit.dispatch.regions import Region, view_of
from stagejit.dispatch.rewrites.launch import without_output
from stagejit.dispatch.rewrites.order import Order
from stagejit.graph.ir import Graph, Op, Use, Value
from stagejit.graph.ops.control import before, destination_of
from stagejit.graph.ops.dispatches import parts_of, written
from stagejit.graph.ops.moving.views import behind_aliases, is_alias
from stagejit.index.box import Box
from stagejit.index.box_index import BoxIndex
from stagejit.options import Options
from stagejit.rewrites.driving.driver import Log


class Views:
    """Made as somebody asks: most graphs have nothing to rewrite."""

    def __init__(
        self,
        graph: Graph,
        options: Options,
        known: Mapping[Value, Int],
        carried: Mapping[int, int] | None = None,
    ) -> None:
        """known: inputs that the host knows, see `Scalars`; carried: the input of a body whose
        memory has to hold a result, by results."""
        self.graph, self.options, self.carried = graph, options, carried
        self._known, self._seen = known, 0  # the id of the first op that `scalars` has not seen
        self._regions: dict[Op, tuple[Sequence[Value], Region]] = {}
        self._boxes: dict[Value, tuple[Region, list[Box]]] = {}  # of updates, see `boxes_of`
        self._chains: dict[Value, Chain] = {}
        self.replaced: dict[Op, Op] = {}
        self.divided: dict[Op, Sequence[Op]] = {}  # those that several were put in place of
        self._earlier: dict[Value, Value] = {}
        self._scalars: Scalars | None = None
        self._order: Order | None = None
        self._results: dict[Value, int] | None = None  # by arguments, which lies in their memory

    @property
    def scalars(self) -> Scalars:
        """What the host knows of the offsets in the graph."""
        if not self.options.enabled("host-offsets"):
            return NOTHING
        if self._scalars is None:
            self._seen = self.graph.next_id
            self._scalars = Scalars(self.graph.ops(), self._known)
        return self._scalars

    def region(self, op: Op) -> Region:
        """The view of a dispatch."""
        known = self._regions.get(op)
        if known is not None and known[0] == op.operands:
            return known[1]
        scalars = self.scalars
        if op.id >= self._seen and scalars is not NOTHING:
            scalars.look_at(op)
        region = view_of(op, op.id, scalars)
        self._regions[op] = list(op.operands), region
        return region

    def readers(self, users: Users) -> Iterator[tuple[Op, Box]]:
        """The readers of a version, each with what it reads of its memory."""
        values: dict[Op, set[Value]] = {}
        for op, value in users.readers:
            values.setdefault(op, set()).add(value)
        for op, read in values.items():
            for value, box in self.reads(op, read):
                yield op, reshaped(box, value, users.version)

    def reads(self, op: Op, values: Set[Value]) -> list[tuple[Value, Box]]:
        """What an op reads of some of its operands: all of them, if it is no dispatch."""
        if not op.definition.is_dispatch:
            return [(value, Box.whole(value.shape)) for value in values]
        touches = reads_of(self.region(op))
        return [(touch.value, touch.box) for touch in touches if touch.value in values]

    def read_of(self, users: Users, box: Box) -> list[Box]:
        """What the readers of a version read of its memory that may lie in `box`."""
        return [read for _, read in self.readers(users) if read.overlaps(box)]

    def read_in(self, op: Op, version: Value, boxes: Sequence[Box]) -> list[Value]:
        """The operands by which a dispatch reads some of the boxes of the memory of a version."""
        memory = self.memory(version)
        values = {value for value in read_by(op) if self.memory(value) is memory}
        if not values:
            return []
        return [
            value
            for value, box in self.reads(op, values)
            if any(map(box.reshaped(value.shape, version.shape)[0].overlaps, boxes))
        ]

    def writes_to(self, result: Value) -> list[Touch]:
        """What the first part of its dispatch writes of a result."""
        region = self.region(result.op)
        stores = zip(region.stores, region.results, strict=True)
        return [write_of(region, store, value) for store, value in stores if value is result]

    def boxes_of(self, update: Value) -> list[Box]:
        """What an update may overwrite: all, where it is no dispatch."""
        if not update.op.definition.is_dispatch:
            return updated_boxes(update)
        region = self.region(update.op)
        known = self._boxes.get(update)
        if known is None or known[0] is not region:
            boxes = [
                write_of(part, store, result).box
                for part in region.parts
                for store, result in zip(part.stores, part.results, strict=True)
                if result is update
            ]
            known = self._boxes[update] = region, boxes
        return known[1]

    def chain(self, value: Value) -> Chain:
        """The versions of the memory of `value`, one of them, since a barrier passed it on."""
        if value not in self._chains:
            first = value
            while not is_passed(first) and (earlier := before(first)) is not None:
                first = earlier
            chain = Chain(self, first)
            self._chains.update(dict.fromkeys(chain.number, chain))
        return self._chains[value]

    def memory(self, value: Value) -> Value:
        """The value that stands for the memory of `value`: the first that lay there."""
        passed = []
        while (earlier := self._earlier.get(value) or before(value)) is not None:
            passed.append(value)
            value = earlier
        self._earlier.update(dict.fromkeys(passed, value))
        return value

    def merge(self, value: Value, other: Value) -> None:
        """From now on `value`, the first in its memory, is `other`, the latest version in its."""
        chain, later = self.chain(behind_aliases(other)), self.chain(value)
        for version in later.versions[1:]:
            chain.append(version, self.boxes_of(version))
            self._chains[version] = chain
        self._earlier[value] = other

    def returned_in(self, argument: Value) -> Value | None:
        """The version that is returned in the memory of a donated argument."""
        if self._results is None:
            pairs = donations(self.graph) if self.carried is None else self.carried
            self._results = {self.graph.inputs[at]: result for result, at in pairs.items()}
        result = self._results.get(argument)
        return None if result is None else behind_aliases(self.graph.outputs[result])

    @property
    def order(self) -> Order:
        """Which ops come before which."""
        if self._order is None:
            self._order = Order(self.graph)
        return self._order

    def now(self, op: Op) -> Op:
        """What was put in place of `op`, itself by default."""
        while op in self.replaced:
            op = self.replaced[op]
        return op

    def updating(self, version: Value) -> list[Use]:
        """How the update of a version uses it."""
        return [
            use
            for use in self.graph.uses(version)
            if _tied(use.user, use.operand) is not None
            or (use.operand == 0 and use.user.definition.forwards)
        ]

    def take_over(self, op: Op, made: Op, result: Value) -> None:
        """`made` gives as `result` what `op` gave, which nobody uses any more."""
        self._chains.clear()
        if destination_of(op.result) is None:
            self._earlier[result] = op.result
        self.replaced[op] = made
        pending = [op]
        while pending:
            one = pending.pop()
            self.graph.erase(one)
            pending += [
                maker
                for maker in dict.fromkeys(value.op for value in one.operands)
                if not self.graph.is_used(maker) and not maker.definition.is_input
            ]

    def moved(self, value: Value) -> None:
        """From now on `value` lies where its destination lies, a memory of another chain."""
        self._chains.clear()
        self._earlier.pop(value, None)

    def drop(self, log: Log, result: Value) -> Op:
        """Puts a dispatch that gives all the others in place of one of several results, which
        nobody reads."""
        made = without_output(result.op, result.index).put(self.graph, result.op)
        self.wait_for(made.results[0], result)
        others = iter(made.results)
        kept = [None if value is result else next(others) for value in result.op.results]
        self.put(log, result.op, made, kept)
        return made

    def wait_for(self, value: Value, old: Value) -> None:
        """Who waits until `old` is there waits for `value` from now on."""
        self.use(value, [use for use in self.graph.uses(old) if waits(use)])

    def use(self, value: Value, uses: Iterable[Use]) -> None:
        """These are uses of `value` from now on."""
        for use in uses:
            self.graph.set_operand(use.user, use.operand, value)
            if self._order is not None:
                self._order.look_at(use.user)

    def absorb(self, version: Value, update: Value) -> None:
        """From now on `update`, a later version, overwrites what `version` did."""
        chain = self._chains.get(version)
        if chain is not None:
            chain.absorbed[chain.number[version]] = chain.number[update]

    def put(self, log: Log, op: Op, made: Op, values: Sequence[Value | None]) -> None:
        """Puts `made`, which overwrites the same, in place of `op`; values: for each result what is
        in its place, None for one without uses."""
        self.replaced[op] = made
        for old, new in zip(op.results, values, strict=True):
            if new is not None:
                self._earlier[new] = old
            chain = self._chains.get(old)
            if chain is not None and new is not None:
                self._chains[new] = chain
                chain.number[new] = chain.number[old]
                chain.versions[chain.number[new]] = new
        log.put(op, values)
        if self._order is not None:
            self._order.replace(op, made)


class Chain:
    """The versions of one buffer, from one that no barrier passes on. `number`: how many updates
    each is made from; `absorbed`: by numbers of versions that are gone the one whose op writes
    their elements; `is_passed`: whether a barrier passes one on, so that there may be more."""

    def __init__(self, views: Views, first: Value) -> None:
        self.number: dict[Value, int] = {}
        self.versions: list[Value] = []
        self.absorbed: dict[int, int] = {}
        self._written: BoxIndex[int] = BoxIndex()
        self.is_passed = False
        version: Value | None = first
        while version is not None:
            self.append(version, views.boxes_of(version) if self.versions else ())
            users = users_of(views.graph, version)
            version, self.is_passed = users.update, self.is_passed or users.passed

    def append(self, version: Value, boxes: Iterable[Box]) -> None:
        """A version after all others, which overwrites `boxes` of the last one."""
        number = self.number[version] = len(self.versions)
        self.versions.append(version)
        for box in boxes:
            self._written.add(box, number)

    def overwriting(self, version: Value, box: Box) -> list[Value]:
        """The updates later than `version` that may overwrite parts of `box`."""
        number = self.number[version]
        found = {self.absorbed.get(other, other) for other in self._written.overlapping(box)}
        return [self.versions[other] for other in sorted(found) if other > number]


@record
class Users:
    """Who uses the memory of one version of a buffer, in whatever shape.

    readers: ops that read it, with the operand. update: the result that overwrites parts of it, of
    which there is one at most. passed: whether it is passed on by a barrier, so that more of its
    users are behind that.
    """

    version: Value
    readers: tuple[tuple[Op, Value], ...]
    update: Value | None
    passed: bool


def users_of(graph: Graph, version: Value) -> Users:
    """Who uses a version, and what is passed on of it as it is."""
    readers: dict[tuple[Op, Value], None] = {}
    update, passed, pending = None, False, [version]
    while pending:
        value = pending.pop()
        for use in graph.uses(value):
            if waits(use):
                continue
            if use.user.definition.forwards:
                passed = passed or not use.user.definition.keeps_order
                pending += use.user.results if use.user.definition.keeps_order else ()
            elif (result := _tied(use.user, use.operand)) is not None:
                update = result
            else:
                readers[use.user, value] = None
    return Users(version, tuple(readers), update, passed)


def reshaped(box: Box, value: Value, memory: Value) -> Box:
    """A box of `value` as one of `memory`, which has the same elements, maybe in another shape."""
    return box if value.shape == memory.shape else box.reshaped(value.shape, memory.shape)[0]


def waits(use: Use) -> bool:
    """Whether nothing of a value is used but that it is there: an `after` names who comes first."""
    return use.operand > 0 and is_alias(use.user)


def places(update: Value | None) -> TypeGuard[Value]:
    """Whether it is a dispatch that overwrites boxes: no loop, no branch, no scatter."""
    if update is None or not update.op.definition.is_dispatch:
        return False
    return all(made.inserts for made in written(parts_of(update.op)[0], update.index))


def is_passed(value: Value) -> bool:
    """Whether it is what a barrier passes on."""
    definition = value.op.definition
    return definition.forwards and not definition.keeps_order


def _tied(op: Op, operand: int) -> Value | None:
    """The result that is an update of an operand."""
    if not op.definition.updates:
        return None
    found = (v for v in op.results if op.definition.tied_operand(op, v.index) == operand)
    return next(found, None)
