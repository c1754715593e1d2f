"""fuse-pad: the dispatch that places the interior of a pad writes the border too, and only that.

Input: regions in order, in which a pad is a `fill` of a whole box followed by the dispatches that
write parts of it. Output: the same without those fills; the first dispatch that writes there has
`borders`. Invariant: an element that the fill wrote and that no later dispatch writes before it is
read is in exactly one border.

Note [Borders]: fills are looked at last to first. In a pad of a pad the inner fill goes first; the
dispatch that takes its border then covers the inner fill's whole box, and the outer fill is left
with the outer ring.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stagejit.dispatch.accesses import Touch, reads_of, writes_of
from stagejit.dispatch.limits import operands_of
from stagejit.dispatch.region import Draft, Store
from stagejit.dispatch.roots import Roots
from stagejit.dispatch.state import State
from stagejit.graph.ir import Op, Value
from stagejit.index.box import Box
from stagejit.symbolic import Undecided
from stagejit.types import TensorType

NAME = "fuse-pad"

# More pieces than these would be more launches than the fill saves bytes.
MOST_PIECES = 12


def fuse_pads(state: State, regions: Sequence[Draft]) -> list[Draft]:
    """fill %b; place %x in %b  -->  place %x in %b, with what is left of the fill as borders"""
    return _Borders(state, regions).run()


class _Borders:
    """`touching`: for each buffer that a fill begins, or reads, by its root, the regions that touch
    it. `read`: what regions read of such buffers, for those that were asked; borders change
    nothing."""

    def __init__(self, state: State, regions: Sequence[Draft]) -> None:
        self.state, self.roots = state, Roots(regions)
        self.regions: dict[int, Draft] = dict(enumerate(regions))
        self.read: dict[int, list[tuple[Value, Touch]]] = {}
        self.covered: dict[int, list[tuple[Value, Box]]] = {}  # what a region writes, with borders
        pads = [region for region in regions if _is_pad(region)]
        filled = {self.roots[pad.stores[0].into] for pad in pads}
        filled |= {self.roots[value] for pad in pads for value in pad.inputs}
        self.touching: dict[Value, list[int]] = {root: [] for root in filled}
        for at, region in enumerate(regions):
            touched = (*region.inputs, *(store.into for store in region.stores))
            for root in dict.fromkeys(self.roots[value] for value in touched):
                if root in filled:
                    self.touching[root].append(at)

    def run(self) -> list[Draft]:
        for at in sorted(self.regions, reverse=True):
            region = self.regions[at]
            if _is_pad(region):
                (store,) = region.stores
                try:
                    reason = self._fuse(at, store)
                except Undecided as undecided:
                    reason = str(undecided)
                self.state.decide(
                    NAME,
                    store.into.op,
                    not reason,
                    reason or "the border is written where the interior is placed",
                )
        return list(self.regions.values())

    def _fuse(self, at: int, store: Store) -> str:
        """Gives the border of the fill at `at` to the next region that writes there, or says why
        not."""
        if not self.state.enabled(NAME):
            return f"{NAME} is disabled"
        root = self.roots[store.into]
        (filled,) = writes_of(self.regions[at])
        after = [other for other in self.touching[root] if other > at and other in self.regions]
        if not _is_static(filled):
            return "where the pad lies is known at run time only"
        if not after:
            return "no dispatch places anything in it"
        first = self.regions[after[0]]
        if first.updates or self._reads(after[0], root):
            return "its elements are read before anything is placed"
        if not all(map(_is_static, self._writes(first, root))):
            return "where the interior lies is known at run time only"
        if self._is_overwritten(at, after[0]):
            return "what it is filled with is overwritten before anything is placed"
        pieces = _left_of(filled.box, self._written(root, after))
        if pieces is None:
            return f"the border has more than {MOST_PIECES} pieces"
        made = tuple(_border(self.regions[at], store, piece) for piece in pieces)
        bordered = replace(first, borders=(*first.borders, *made))
        limit = self.state.options.operand_limit
        if operands_of(bordered) > max(limit, operands_of(first)):
            return f"the producer has the {limit} operands that one dispatch may have"
        self.regions[after[0]] = bordered
        known = self.covered.get(after[0], ())
        apart = [(of, box) for of, box in known if of is not root or not filled.box.contains(box)]
        self.covered[after[0]] = [*apart, (root, filled.box)]
        del self.regions[at]
        return ""

    def _is_overwritten(self, at: int, last: int) -> bool:
        """Whether a region after the fill at `at`, up to `last`, writes what the fill reads."""
        for touch in reads_of(self.regions[at]):
            root = self.roots[touch.value]
            for other in self.touching[root]:
                if at < other <= last and other in self.regions:
                    written = writes_of(self.regions[other])
                    if any(
                        self.roots[t.value] is root and t.box.overlaps(touch.box) for t in written
                    ):
                        return True
        return False

    def _written(self, root: Value, touching: Iterable[int]) -> list[Box]:
        """Boxes that are written before anybody reads what was there."""
        read: list[Box] = []
        boxes: list[Box] = []
        for at in touching:
            region = self.regions[at]
            if region.updates:
                break
            for touch in self._reads(at, root):
                read = _with(read, touch.box)
            written = [box for of, box in self.covered.get(at, ()) if of is root]
            written += [touch.box for touch in self._writes(region, root) if _is_static(touch)]
            boxes += [box for box in written if not any(map(box.overlaps, read))]
        return boxes

    def _reads(self, at: int, root: Value) -> list[Touch]:
        if all(self.roots[value] is not root for value in self.regions[at].inputs):
            return []
        known = self.read.get(at)
        if known is None:
            touches = [(self.roots[touch.value], touch) for touch in reads_of(self.regions[at])]
            known = self.read[at] = [item for item in touches if item[0] in self.touching]
        return [touch for of, touch in known if of is root]

    def _writes(self, region: Draft, root: Value) -> list[Touch]:
        return [
            touch
            for touch in writes_of(replace(region, borders=()))
            if self.roots[touch.value] is root
        ]


def _is_static(touch: Touch) -> bool:
    """Whether a box is exact, and lies at the same place in every call."""
    return touch.exact and touch.box.static_offsets is not None


def _is_pad(region: Draft) -> bool:
    """Whether the region only fills what others are placed in, with what it makes itself."""
    if region.anchor is not None or len(region.stores) != 1:
        return False
    (store,) = region.stores
    made, into = store.value.op, store.into.op.definition
    return made in region.ops and made.definition.is_splat and into.updates and not into.has_bodies


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
    """Fewer boxes for the same elements."""
    united: list[Box] = []
    for box in boxes:
        united = _with(united, box)
    return united


def _with(united: Sequence[Box], box: Box) -> list[Box]:
    """The boxes and one more, which takes in those that it continues."""
    apart = []
    for other in united:
        hull, exact = other.hull(box)
        if exact:
            box = hull
        else:
            apart.append(other)
    return [*apart, box]


def _border(region: Draft, store: Store, box: Box) -> Draft:
    """The part of a fill that lies in `box` of its buffer."""
    fill = store.value.op
    piece = Op(
        fill.id,
        "fill",
        fill.operands,
        [TensorType(store.value.type.dtype, box.sizes)],
        {"shape": box.sizes},
        fill.loc,
    )
    insert = Op(
        fill.id,
        "insert_slice",
        (piece.result, store.into),
        [store.into.type],
        {"offsets": box.offsets, "strides": box.strides},
        fill.loc,
    )
    before = tuple(op for op in region.ops if op is not fill and not op.definition.is_insert)
    return Draft(
        region.name,
        region.kind,
        (*before, piece, insert),
        region.inputs,
        (Store(piece.result, insert.result, (insert,)),),
    )
