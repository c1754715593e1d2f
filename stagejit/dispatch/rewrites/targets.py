"""Where in the chain of versions of a buffer an update goes, if certain dispatches make it.

Input: a dispatch that places a value, and those that are to place it instead. Output: the version
that they update, or why there is none. Invariant: that version does not depend on them, and who
reads of an older one what is overwritten comes first.

Note [Disjoint updates]: versions of a buffer are a chain, although updates of different elements
need no order. Where what is updated before depends on who computes the value, as in `concatenate([f
(x), x])`, the update moves in front of those that write other elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stagejit.dispatch.operands import read_by
from stagejit.dispatch.rewrites.views import Views, users_of
from stagejit.graph.ir import Op, Use, Value
from stagejit.graph.ops.control import destination_of
from stagejit.graph.ops.moving.views import is_alias
from stagejit.index.box import Box

_FARTHEST = 64  # updates that one moves in front of, and that are looked at for readers
DEPENDS = "the destination depends on the producer"


@dataclass(frozen=True)
class Target:
    """Where an update starts from: a version, and who has to come first. moved: whether other
    updates come after it that came before."""

    version: Value
    waits: tuple[Op, ...]
    moved: bool

    def start(self, views: Views, update: Value, waits: Sequence[Op]) -> None:
        """Has an update start there, when `waits` have run."""
        updating = views.updating(self.version) if self.moved else []
        if self.moved:
            views.graph.replace_uses(update, behind_after(updated(update))[0])
        at = update.op.definition.tied_operand(update.op, update.index)
        assert at is not None
        before = updated(update).op
        views.use(views.order.after(self.version, waits), [Use(update.op, at)])
        views.use(update, updating)
        while is_after(before) and not views.graph.is_used(before):  # nobody waits with it any more
            views.graph.erase(before)
            before = before.operands[0].op


def find_target(
    views: Views, op: Op, source: Value, hosts: Sequence[Op], *, early: bool = False
) -> Target | str:
    """Where the update that `op` makes of `source` starts from if all `hosts` make it, such as from
    what one of them makes of the buffer already. early: as early as possible, so that others need
    not wait for it; then no host may update the buffer already."""
    order = views.order

    def needs(other: Op) -> bool:
        return any(_follows(views, other, host) for host in hosts)

    (box,) = views.boxes_of(op.result)
    version, waits = behind_after(updated(op.result))
    starts = [value.op for value in read_by(op) if value is not source]
    steps, passed = 0, None  # the first of the updates that come after this one then
    while early or (needs(version.op) and order.home(version.op) not in hosts):
        earlier = _before(views, version, box) if steps < _FARTHEST else None
        first = (*hosts, *waits, *starts) if early else (*waits, *starts)
        if earlier is None or any(_follows(views, one, version.op) for one in first):
            break
        version, passed, steps = earlier, version.op, steps + 1
    if order.home(version.op) in hosts:
        if any(map(box.overlaps, _written_by(views, order.home(version.op), version))):
            return "the producer writes the same place of the destination before"
        if early:
            return DEPENDS
    elif needs(version.op):
        return DEPENDS
    if early or passed is not None:  # who reads may come first by what only one host makes
        found = _readers(views, version, box)
        if found is None or any(passed and _follows(views, one, passed) for one in found):
            return DEPENDS
        waits += found
    waits = [other for other in dict.fromkeys(waits) if order.home(other) not in hosts]
    if any(map(needs, (*waits, *starts))):
        return DEPENDS
    return Target(version, tuple(waits), passed is not None)


def _follows(views: Views, op: Op, first: Op) -> bool:
    order = views.order
    return order.home(op) is order.home(first) or order.comes_before(first, op)


def _written_by(views: Views, host: Op, version: Value) -> Iterator[Box]:
    """What `host` writes of a buffer, up to a version."""
    earlier: Value | None = version
    while earlier is not None and views.order.home(earlier.op) is host:
        yield from views.boxes_of(earlier)
        earlier = version_before(earlier)


def _before(views: Views, version: Value, box: Box) -> Value | None:
    """The version before this one, if an update of `box` may as well start from that."""
    earlier = version_before(version)
    if earlier is None or not version.op.definition.is_dispatch:
        return None
    if any(map(box.overlaps, views.boxes_of(version))):
        return None
    if views.read_of(users_of(views.graph, version), box):
        return None
    return earlier


def _readers(views: Views, version: Value, box: Box) -> list[Op] | None:
    """Who reads `box` in a version or an earlier one; None if there are too many to look at."""
    found: list[Op] = []
    for _ in range(_FARTHEST):
        users = users_of(views.graph, version)
        if users.passed:
            return None
        found += [op for op, read in views.readers(users) if read.overlaps(box)]
        earlier = version_before(version)
        if earlier is None:
            return found
        version = earlier
    return None


def is_after(op: Op) -> bool:
    """Whether it is an `after`: what it passes on it waits with."""
    return is_alias(op) and len(op.operands) > 1


def updated(result: Value) -> Value:
    """The operand that a result is an update of."""
    into = destination_of(result)
    assert into is not None
    return into


def version_before(version: Value) -> Value | None:
    """What a version is an update of; None for the first one of a buffer."""
    into = destination_of(version)
    return None if into is None else behind_after(into)[0]


def behind_after(value: Value) -> tuple[Value, list[Op]]:
    """The version that a value is, in the same shape, and whom it waits for."""
    waits: list[Op] = []
    while is_after(value.op):
        waits += [operand.op for operand in value.op.operands[1:]]
        value = value.op.operands[0]
    return value, waits
