"""Kernels of `scatter` regions: updates written into, or combined with, an array at computed
places.

Input: a region whose anchor is a `scatter`; its result's buffer holds the operand already. Output:
its kernel. Invariant: deterministic. Updates of one element are applied in the order of the index
vectors, by one item: items differ in the batch they belong to, in the range of the destination that
they own, or in window elements along axes on which windows stay where they are. See the Notes of
`elements/scatters.py`, and of `rewrites/split/sharing.py`.

Note [Lists]: whether a window is one of an item's own range is not to be predicted. So an item
looks at some index vectors and lists its own ones without a branch; then it applies those of the
list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

from stagejit.base.records import record
from stagejit.codegen.choices import Ranked, cheapest
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import element_code, region_seconds
from stagejit.codegen.elements.abreast import (
    CLAMPED,
    FEWEST_ROWS,
    best_abreast,
    index_operations,
)
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.elements.scatters import (
    UpdateLoops,
    Updates,
    dims_of,
    evaluated_abreast,
    update_loops,
)
from stagejit.codegen.ir.nodes import I64
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.items import in_items
from stagejit.codegen.nest.kernels import kernel_of
from stagejit.codegen.nest.spans import Span
from stagejit.codegen.nest.tree import (
    At,
    Cell,
    Chunk,
    Do,
    Loop,
    Node,
    Parallel,
    When,
    Within,
    blocks,
    narrowing,
    pieces_of,
    serial,
    vectors,
)
from stagejit.codegen.target import Target
from stagejit.index.affine import Var
from stagejit.rewrites.split.sharing import MOVES, Sharing, Way

_LISTED = 128  # windows that an item looks at before it applies those of its own
_BLOCK = 64  # vectors of a window that one item takes: a page of it, for the prefetchers
_NARROWEST = 8  # bytes of the shortest vector
_UNFORWARDED = 12.0  # cycles to load what a masked store wrote just before


@record(kw_only=True)
class _Nest(UpdateLoops):
    """still: whether elements along the vector variable are of different destinations. way: how
    cores share windows. narrows: the fewest lanes of vectors that cover what is left of a window, 0
    where one masked vector does. seconds: of one core, for all windows. abreast: windows whose
    updates are evaluated together."""

    still: bool
    way: Way
    seconds: float
    narrows: int = 0
    abreast: int = 1


def scatter_kernel(region: ClosedRegion, target: Target) -> Kernel:
    """The kernel of a region of kind `scatter`."""
    nest = _plan(region, target)
    seconds = max(region_seconds(region, target), nest.seconds)
    return kernel_of(region, [nest], lambda *at: _Policy(*at).tree(), seconds, nest.choices, target)


# -------------------------------------------------------------------- planning


def _plan(region: ClosedRegion, target: Target) -> _Nest:
    loops = update_loops(region, target)
    _, indices, _ = loops.op.operands
    loops = loops.in_vectors(loops.window[::-1], but=indices)
    still = loops.vector not in loops.moving
    sharing = _sharing(loops, target)
    ways = _ways(sharing, loops)
    tail = _tail(loops)
    abreast = _abreast(loops, ways.best, target)
    found = [ranked.choice for ranked in (tail, abreast) if ranked]
    choices = (*loops.choices, ways.choice, *found)
    return _Nest(
        **{**vars(loops), "choices": choices},
        still=still,
        way=ways.best,
        seconds=sharing.seconds_alone,
        narrows=tail.best if tail else 0,
        abreast=abreast.best if abreast else 1,
    )


def _tail(loops: UpdateLoops) -> Ranked[int] | None:
    """How few lanes vectors of the rest of a window have, 0 where they are all masked; None where
    there is no rest, or where elements of a vector are no neighbours."""
    var, lanes, op = loops.vector, loops.lanes, loops.op
    if var is None or not var.extent % lanes:
        return None
    if any(form.coeff(var) not in (0, 1) for form in (*loops.forms, *loops.offsets)):
        return None
    least = _NARROWEST // op.result.type.dtype.itemsize
    pieces = pieces_of(var.extent % lanes, lanes, least)
    again = 0 if op.attrs["fn"] == "set" else _UNFORWARDED

    def cycles(narrows: int) -> float:
        each = MOVES + element_code(loops.region)
        return pieces * each if narrows else each + again

    def text(narrows: int) -> str:
        return f"{pieces} shorter vectors" if narrows else "a masked vector"

    return cheapest("tail", [least, 0], cycles, text, "cycles")


def _abreast(loops: UpdateLoops, way: Way, target: Target) -> Ranked[int] | None:
    """How many updates of single elements are evaluated at once, and then applied one by one; None
    where there are few, or an item lists its own. See Note [Rows abreast] of `elements/`."""
    if loops.vector is not None or loops.window or way.ranges > 1 or not loops.ordered:
        return None
    if loops.ordered[-1].extent < FEWEST_ROWS:
        return None
    found = evaluated_abreast(loops)
    components = loops.op.operands[1].shape[-1]
    picks = components + len(found) - 1
    clamped = CLAMPED * components if loops.op.attrs["mode"] == "clip" else 0.0
    return best_abreast(target, clamped + index_operations(loops.region.ops, found), picks)


def _sharing(loops: UpdateLoops, target: Target) -> Sharing:
    """What the model of `sharing.py` is told."""
    op, lanes = loops.op, loops.lanes if loops.vector else 1
    index_code = index_operations(loops.region.ops, op.operands[1:2])
    batches = math.prod(var.extent for var in loops.free)
    elements = math.prod(dims_of(op).sizes)
    return Sharing(
        machine=target,
        vectors=math.prod(var.extent for var in loops.ordered),
        batches=batches,
        pieces=-(-elements // lanes),
        code=max(element_code(loops.region) - index_code, 0.0),
        index_code=index_code,
        window_nbytes=elements * op.result.type.dtype.itemsize,
        nbytes=op.result.type.nbytes // batches,
        sorted=op.attrs["sorted"],
    )


def _ways(sharing: Sharing, loops: UpdateLoops) -> Ranked[Way]:
    """How cores share windows."""
    axis, vector, blocks = loops.owned_axis, loops.vector, 1
    if vector is not None and vector not in loops.moving:
        blocks = -(-vector.extent // loops.lanes)
    ranges = loops.op.result.shape[axis] if axis >= 0 and loops.ordered else 1
    ways = sharing.ways(blocks, ranges)
    return cheapest("owners", ways, lambda way: 1e6 * sharing.seconds(way), str, "us")


# -------------------------------------------------------------------- loops and statements


class _Policy:
    """The loops of one scatter, and what they do."""

    def __init__(self, nest: _Nest, emitter: Emitter, memory: Sequence[Memory]) -> None:
        self.nest, self.emitter, (into,) = nest, emitter, memory
        self.b, self.elements, self.into = emitter.b, emitter.elements, into
        self.range = Var(nest.way.ranges, "p")
        self.updates = Updates(nest, emitter.elements, into, self.range)

    def tree(self) -> Parallel:
        nest = self.nest
        loops = [(var, 1) for var in nest.free]
        if nest.way.ranges > 1:
            loops.append((self.range, 1))
        body: Node = Do("combine", self.updates.combine)
        if nest.vector is not None:
            # One item takes all along it where windows move.
            block = -(-nest.vector.extent // nest.lanes)
            if nest.still:
                block = min(-(-block // nest.way.blocks), _BLOCK)
            loops.append((nest.vector, block * nest.lanes))
            if nest.narrows:
                body = narrowing(nest.vector, nest.lanes, nest.narrows, body)
            else:
                body = vectors(nest.vector, nest.lanes, body)
        body = serial([var for var in nest.window if var is not nest.vector], body)
        return in_items(loops, self._windows(body), nest.target.cores)

    def _windows(self, body: Node) -> Node:
        """`body` for each window of an item, in order."""
        if self.nest.way.ranges == 1:
            inside = When("inside", lambda: self.updates.inside, body)
            window: Node = Within("starts", self.updates.window, inside)
            together = self.nest.abreast > 1
            return self._abreast(window) if together else serial(self.nest.ordered, window)
        *outer, var = self.nest.ordered
        return serial(outer, blocks(var, min(_LISTED, var.extent), self._listed(var, body)))

    def _abreast(self, window: Node) -> Node:
        """The updates of so many windows at once; of the last ones one by one."""
        rows, (*outer, along) = self.nest.abreast, self.nest.ordered
        each = tuple(At(((along, number),), window) for number in range(rows))
        together = Within(
            f"{rows} windows abreast", lambda: self.updates.abreast(along, rows), each
        )
        return serial(outer, Loop(along, (Chunk(rows, together), Chunk(1, window))))

    # ---------------------------------------------------------------- windows of an own range

    def _listed(self, var: Var, body: Node) -> tuple[Node, ...]:
        """See Note [Lists]."""
        b, listed = self.b, Var(min(_LISTED, var.extent), "k")
        places = b.scratch("own", I64, listed.extent)
        count = Cell("count")

        def none() -> tuple[Register]:
            return (b.const(0),)

        def note() -> tuple[Register]:
            (number,), inside = self.emitter.cells[count], self.updates.inside
            assert inside is not None
            b.store(self.elements.position.env[var], places, number)
            return (number + b.cast("zext", inside, "i64"),)

        def found() -> AbstractContextManager[None]:
            number = self.elements.position.env[listed]
            return self.elements.at({var: b.load(places, number)})

        def spans() -> dict[Var, Span]:
            return {listed: Span(b.const(0), None, self.emitter.cells[count][0])}

        noted = self.emitter.set_cell("list", count, note)
        look = Within("starts", partial(self.updates.window, own=True), noted)
        applied = Within("starts", partial(self.updates.window, applied=True), body)
        return (
            self.emitter.set_cell("none", count, none),
            serial([var], look),
            self.emitter.within("own", spans, serial([listed], Within("own", found, applied))),
        )
