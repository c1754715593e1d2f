"""fuse-pad: the dispatch that places the interior of a pad writes the border too, and only that.

Input: a graph of dispatches, in which a pad is a `fill` of a whole box followed by the dispatches
that write parts of it. Output: the same without those fills; the first dispatch that writes there
has borders. Invariant: an element that the fill wrote and that no later dispatch writes before it
is read is in exactly one border.

Note [Borders]: fills are looked at last to first. In a pad of a pad the inner fill goes first; the
dispatch that takes its border then covers the inner fill's whole box, and the outer fill is left
with the outer ring.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial

from stagejit.base.records import record
from stagejit.base.symbolic import Undecided
from stagejit.dispatch.operands import operands_of, read_by
from stagejit.dispatch.ranges.accesses import Touch, reads_of
from stagejit.dispatch.rewrites.launch import Inputs, Launch, inputs_of, same
from stagejit.dispatch.rewrites.views import Chain, Users, Views, places, users_of, waits
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.control import destination_of
from stagejit.graph.ops.dispatches import anchor_of, evaluated, parts_of, written
from stagejit.graph.ops.moving.views import behind_aliases
from stagejit.index.box import Box
from stagejit.index.box_index import BoxIndex
from stagejit.rewrites.cloning import appended
from stagejit.rewrites.driving.driver import Log

NAME = "fuse-pad"

# More pieces than these would be more launches than the fill saves bytes.
MOST_PIECES = 12
# A few kernels take less than the dispatch of a fill, where all of it stays near its core.
SHORT_FROM_NBYTES = 128 << 10
_LINE_NBYTES = 64


def fuse_pads(log: Log, views: Views) -> None:
    """%1 = fill into %0; %2 = place %x in %1  -->  %2 = place %x in %0, with borders"""
    _Pads(log, views).run()


@record
class _Piece:
    """A box that `fill` wrote, and result number `index` of another dispatch will."""

    fill: Op
    box: Box
    index: int


class _Pads:
    """`covered`: by results, boxes of fills whose borders their dispatch writes. `pieces`: of
    borders that dispatches are still to be given; each is made anew once, for all of them.
    `events`: what happens to each buffer."""

    def __init__(self, log: Log, views: Views) -> None:
        self.log, self.graph, self.views = log, log.graph, views
        self.covered: dict[Value, BoxIndex[Box]] = {}
        self.pieces: dict[Op, list[_Piece]] = {}
        self.events: dict[Chain, _Events] = {}

    def run(self) -> None:
        for op in reversed(self.graph.ops()):
            if not _is_fill(op):
                continue
            users = users_of(self.graph, op.result)
            placing = users.update is not None and users.update.op.definition.is_dispatch
            if not placing and destination_of(op.result) is None:
                continue  # no dispatch writes there, so it is no pad
            try:
                reason = self._fuse(op, users)
            except Undecided as undecided:
                reason = str(undecided)
            if reason:
                self.log.decline(NAME, op, reason)
        self._finish()

    def _fuse(self, fill: Op, users: Users) -> str:
        """Gives the border of a fill to the dispatch that writes there next, or says why not."""
        (filled,) = self.views.writes_to(fill.result)
        update = users.update
        if not _is_static(filled):
            return "where the pad lies is known at run time only"
        if update is None:
            return "no dispatch places anything in it"
        if not places(update) or users.passed or self.views.read_of(users, filled.box):
            return "its elements are read before anything is placed"
        if not all(map(_is_static, self.views.writes_to(update))):
            return "where the interior lies is known at run time only"
        late = self._overwriters(fill, update)
        if late is None:
            return "what it is filled with is overwritten before anything is placed"
        pieces = _left_of(filled.box, list(self._boxes(users, filled.box)))
        if pieces is None:
            return f"the border has more than {MOST_PIECES} pieces"
        if _are_short(pieces, fill.result):
            return "stores of the border touch more lines than all of the pad has"
        limit, operands = self.views.options.operand_limit, operands_of(update.op)
        added = set(read_by(fill)).difference(read_by(update.op))
        if operands + len(added) > max(limit, operands):
            return f"the producer has the {limit} operands that one dispatch may have"
        covered = self.covered.setdefault(update, BoxIndex())
        covered.cut(filled.box)
        covered.add(filled.box, filled.box)
        self._replace(fill, update, pieces, late)
        return ""

    def _overwriters(self, fill: Op, update: Value) -> list[Value] | None:
        """Who overwrites what the fill reads, and may do so when `update` has run; None if somebody
        may not, or does it before that."""
        late: list[Value] = []
        for touch in reads_of(self.views.region(fill)):
            version = behind_aliases(touch.value)
            box = touch.box.reshaped(touch.value.shape, version.shape)[0]
            chain = self.views.chain(version)
            if chain.is_passed:
                return None
            for other in chain.overwriting(version, box):
                if other.op is update.op or self.views.order.comes_before(other.op, update.op):
                    return None
            late += chain.overwriting(version, box)[:1]  # the others come after it
        if any(self.views.order.comes_before(use.user, update.op)
               for use in self.graph.uses(fill.result) if waits(use)):  # fmt: skip
            return None
        return late

    def _boxes(self, users: Users, filled: Box) -> Iterator[Box]:
        """Boxes that are written before anybody reads what was there."""
        version = users.version
        chain = self.views.chain(version)
        if chain not in self.events:
            self.events[chain] = _Events(self.views, chain)
        events, first = self.events[chain], chain.number[version]
        end = events.ends[bisect_left(events.ends, first)]
        read = [event for event in events.read.overlapping(filled) if event[0] >= first]
        for update in chain.overwriting(version, filled):
            number = chain.number[update]
            if number > end:
                break
            written = [touch.box for touch in self.views.writes_to(update) if _is_static(touch)]
            covered = self.covered.get(update, BoxIndex()).overlapping(filled)
            for box in (*covered, *written):
                if not any(at < number and box.overlaps(other) for at, other in read):
                    yield box

    def _replace(
        self, fill: Op, update: Value, pieces: Sequence[Box], late: Sequence[Value]
    ) -> None:
        """Leaves what the fill wrote to who makes `update`; late: see `_finish`."""
        self.pieces.setdefault(update.op, []).extend(
            _Piece(fill, box, update.index) for box in pieces
        )
        self.views.wait_for(update, fill.result)
        self.views.absorb(fill.result, update)
        before = destination_of(fill.result)
        if before is None:
            type = fill.result.type
            before = build(self.graph, "empty", [], shape=type.shape, dtype=type.dtype)
            self.graph.put_at(fill, before.op)
        if _reads(fill):
            self._finish(late)
        self.log.replace(NAME, fill, before, "the border is written where the interior is placed")

    def _finish(self, late: Sequence[Value] = ()) -> None:
        """Gives dispatches their borders; late: who overwrites what these read comes after them."""
        for old, pieces in self.pieces.items():
            launch = Launch(old)
            launch.parts = [(part.name, same(old, part)) for part in parts_of(old)]
            carried = dict(old.attrs["carried"])
            for piece in pieces:
                launch.reads.update(dict.fromkeys(read_by(piece.fill)))
                into = old.operands[carried[piece.index]]
                launch.parts.append(("border", partial(_border, piece.fill, piece.box, into)))
            new = launch.put(self.graph, old)
            for value, now in zip(old.results, new.results, strict=True):
                if value in self.covered:
                    self.covered[now] = self.covered.pop(value)
            self.views.put(self.log, old, new, new.results)
            for other in late:
                self.views.order.put_first([new], other)
        self.pieces.clear()


class _Events:
    """What happens to a buffer. `read`: boxes, each with the number of the version that is read;
    `ends`: numbers of versions that are passed on, or that no dispatch places anything in next."""

    def __init__(self, views: Views, chain: Chain) -> None:
        self.read: BoxIndex[tuple[int, Box]] = BoxIndex()
        self.ends: list[int] = []
        for number, version in enumerate(chain.versions):
            users = users_of(views.graph, version)
            for _, box in views.readers(users):
                self.read.add(box, (number, box))
            if users.passed or not places(users.update):
                self.ends.append(number)


def _is_fill(op: Op) -> bool:
    """Whether a dispatch only fills one box, with what it makes itself."""
    if not op.definition.is_dispatch or len(op.results) != 1 or len(parts_of(op)) > 1:
        return False
    (part,) = parts_of(op)
    (value, *others) = (made.value for made in written(part, 0))
    return not others and value.op.definition.is_splat and anchor_of(evaluated(part)) is None


def _reads(op: Op) -> bool:
    return any(True for _ in read_by(op))


def _border(
    fill: Op, box: Box, destination: Value, graph: Graph, reads: Inputs, into: Inputs
) -> list[Value]:
    """The part of a fill that lies in `box` of its buffer, as a part of who updates
    `destination`."""
    (part,) = parts_of(fill)
    (old,) = (made.value.op for made in written(part, 0))
    wanted = [op for op in evaluated(part) if op is not old and not op.definition.is_insert]
    made = appended(graph, wanted, inputs_of(fill, part, reads, into))
    scalar = made[old.operands[0]]
    piece = build(graph, old.kind, [scalar], old.loc, shape=box.sizes)
    return [
        build(
            graph,
            "insert_slice",
            [piece, into[destination]],
            old.loc,
            offsets=box.offsets,
            strides=box.strides,
        )
    ]


def _are_short(pieces: Sequence[Box], filled: Value) -> bool:
    """Whether pieces are many short runs, as around small images: each store takes a line that the
    interior is stored to at another time, so that to fill all of it before is faster."""
    itemsize, lines, nbytes = filled.type.dtype.itemsize, 0, filled.type.nbytes
    if not isinstance(nbytes, int) or nbytes < SHORT_FROM_NBYTES:
        return False
    for box in pieces:
        run = box.run(filled.shape)
        lines += box.count // run * (1 + run * itemsize // _LINE_NBYTES)
    return nbytes < lines * _LINE_NBYTES


def _is_static(touch: Touch) -> bool:
    """Whether a box is exact, and lies at the same place in every call."""
    return touch.exact and touch.box.static_offsets is not None


def _left_of(whole: Box, written: Sequence[Box]) -> list[Box] | None:
    """Disjoint boxes of what is not written; None if there are too many."""
    pieces = [whole]
    for box in _united(written):
        kept = []
        for piece in pieces:
            common = piece.intersection(box)
            kept += piece.without(common) if common.count else [piece]
        pieces = kept
        if len(pieces) > MOST_PIECES:
            return None
    return pieces


def _united(boxes: Sequence[Box]) -> list[Box]:
    """Fewer boxes for the same elements: neighbours along each of the axes."""
    united = list(dict.fromkeys(boxes))
    for axis in reversed(range(len(boxes[0].sizes) if boxes else 0)):
        united.sort(key=partial(_place, axis))
        apart: list[Box] = []
        for box in united:
            hull, exact = apart[-1].hull(box) if apart else (box, False)
            apart[-1:] = [hull] if exact else [*apart[-1:], box]
        united = apart
    return united


def _place(axis: int, box: Box) -> tuple[int, ...]:
    """The offsets of a box that lies still, that along `axis` last."""
    offsets = box.static_offsets
    assert offsets is not None
    return (*offsets[:axis], *offsets[axis + 1 :], offsets[axis])
