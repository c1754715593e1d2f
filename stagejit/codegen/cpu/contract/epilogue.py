"""The last step of an item of a contraction nest: what is stored, evaluated from finished sums.

Input: a `ContractPlan`, the panel that holds the sums of what the loops around handed down of each
axis. Output: the loops that store these elements. Invariant: each is stored once; the order of the
loops changes nothing.

Note [Vectors of the epilogue]: the sums lie as the tiles made them, vectors along the lane axis;
memory is contiguous along another axis, perhaps. Where that one is long its vectors store whole,
and squares of sums are transposed in registers. Where it is short (the columns of a 3x3 window, of
a 7x7 image) they would be almost empty, so vectors run along the lanes and are scattered; and if
the axes inside of the lane axis fill all the elements between two lanes, as the nine taps of a
weight's gradient do, all of them are evaluated at once and a register transpose makes whole vectors
of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from stagejit.codegen.cpu.contract.packing import View
from stagejit.codegen.cpu.contract.plan import ContractPlan
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.elements.register_tiles import rows_are_a_loop
from stagejit.codegen.elements.stores import Stores
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.ir.transposes import transpose_registers
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.kernels import is_small
from stagejit.codegen.nest.tree import (
    Chunk,
    Do,
    Loop,
    Node,
    Tail,
    Within,
    everywhere,
    narrowing,
    serial,
)
from stagejit.codegen.places.accesses import between_lanes
from stagejit.index.affine import Affine, Var


class Epilogue:
    """The stores of one item."""

    def __init__(
        self,
        plan: ContractPlan,
        emitter: Emitter,
        memory: Sequence[Memory],
        panel: View,
        most_joined: int,
    ) -> None:
        """most_joined: how many sums a vector has, of tiles whose sums are single elements."""
        self.plan, self.emitter, self.elements = plan, emitter, emitter.elements
        self.stores = Stores(plan.region, self.elements, memory, plan.offsets)
        self.panel, self.b = panel, emitter.b
        self.lanes, self.result = plan.tiling.lanes, plan.region.anchor_op.result
        self.vector = self._joined()
        self.narrows = self.vector is not None
        if self.narrows:
            self.lanes = most_joined
        else:
            self.vector = self._vector()
        self.across = self._across()

    def tree(self) -> Node:
        """Loops in the order of memory; a vector of neighbours innermost."""
        axes = sorted(self.plan.nest.axes, key=lambda var: -abs(self._stride(var)))
        if self.vector is not None and self._stride(self.vector) <= 1:
            last = [self.vector, self.across] if self.across is not None else [self.vector]
            axes = [*(var for var in axes if var not in last), *last]
        return Within("epilogue", self._inside, self._loops(axes))

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """The anchor's result is what the panel holds, which starts where the item does."""
        self.base = self.panel.origin(self.emitter.span, self.plan.nest.axes)
        with self.elements.giving(self.result, self._sum):
            yield

    def _stride(self, var: Var) -> int:
        """Elements from neighbour to neighbour in the first store."""
        return self.plan.offsets[0].coeff(var)

    def _joined(self) -> Var | None:
        """The axis of which all sums lie as they are stored, where they are few: vectors are those
        of Note [Joined sums]."""
        tiling = self.plan.tiling
        if (tiling.lanes > 1 and not tiling.across) or not is_small(self.plan.region):
            return None
        unit = next((var for var in self.plan.nest.axes if self._stride(var) == 1), None)
        if unit is None or self.panel.strides.get(unit) != 1 or tiling.count(unit) != unit.extent:
            return None
        return unit

    def _vector(self) -> Var | None:
        """See Note [Vectors of the epilogue]."""
        if self.lanes == 1:
            return None
        lane = self.plan.tiling.lane if self.plan.tiling.lane in self.plan.nest.axes else None
        unit = next((var for var in self.plan.nest.axes if self._stride(var) == 1), None)
        found = [var for var in (unit, lane) if var is not None]
        longest = self.plan.tiling.extents  # parts
        return max(found, key=lambda v: min(longest[v], v.extent, self.lanes), default=None)

    def _across(self) -> Var | None:
        """The axis along which sums are neighbours, where vectors store along another one and it is
        long enough for squares."""
        lane, vector, lanes = self.plan.tiling.lane, self.vector, self.lanes
        if lane is None or vector in (None, lane) or self.panel.strides.get(lane) != 1:
            return None
        long = min(self.plan.tiling.extents.get(lane, lane.extent), vector.extent) >= lanes
        return lane if long and self._stride(vector) == 1 else None

    # ---------------------------------------------------------------- loops

    def _loops(self, axes: Sequence[Var]) -> Node:
        if not axes:
            return Do("store", self._store_all)
        var, rest = axes[0], axes[1:]
        if var is not self.vector:
            return serial([var], self._loops(rest))
        if self.across is not None:
            return self._squares(var, self.across)
        if self.narrows:
            return narrowing(var, self.lanes, 2, self._loops(rest), straight=True)
        lanes, chunks = self.lanes, self._gaps(var, rest)
        whole = var is self.plan.tiling.lane and var.extent % lanes == 0
        if not (whole and chunks):
            tail: Tail = "none" if whole else "all masked"
            chunks.append(Chunk(lanes, self._loops(rest), vector=True, tail=tail))
        return Loop(var, tuple(chunks))

    def _squares(self, vector: Var, across: Var) -> Node:
        """Square register transposes; what is left over gathers its sums."""
        plan, lanes, store = self.plan, self.lanes, Do("store", self._store_all)
        looped = rows_are_a_loop(plan.region, plan.reads, plan.offsets, across, lanes)
        square = self.emitter.square(across, lanes, store, looped=looped)
        whole = Loop(across, (Chunk(lanes, square), Chunk(1, store)))
        rest = Chunk(lanes, serial([across], store), vector=True, tail="all masked")
        return Loop(vector, (Chunk(lanes, whole, vector=True), rest))

    def _gaps(self, vector: Var, inner: Sequence[Var]) -> list[Chunk]:
        """Vectors together with all the elements between their lanes, where these are all the
        positions of `inner`, in order."""
        axes, stored, tiling = self.plan.nest.axes, self.plan.offsets[0], self.plan.tiling
        between = between_lanes(axes, stored, vector, self.lanes)
        whole = all(tiling.count(var) == var.extent for var in between)
        if not between or not whole or between != list(inner):
            return []
        all_ = everywhere(inner, self._loops(()))
        body = self.emitter.interleaved(self._stride(vector), all_)
        return [Chunk(self.lanes, body, vector=True)]

    # ---------------------------------------------------------------- one position

    def _store_all(self) -> None:
        panel, indices = self.plan.panel, self.plan.indices
        self.stores.write([(n, index) for n, index in enumerate(indices) if n != panel])

    def _sum(self) -> Register:
        """The finished sums where the loops stand, in the type of the anchor's result."""
        b, view, position = self.b, self.panel, self.elements.position
        vector, lanes = position.vector, position.lanes
        offset = view.offset(self.base, self.plan.nest.axes, position.env)
        stride = view.strides.get(vector, 0) if vector is not None else 0
        if vector is None or not stride:
            raw = b.load(view.buffer, offset)
        elif stride == 1:
            raw = b.load(view.buffer, offset, lanes, mask=position.mask)
        elif position.tile is not None:
            rows = partial(self._transposed, offset, stride)
            type = element_type(self.plan.nest.total).with_lanes(lanes)
            raw = position.tile.row(b, (self.result, Affine()), type, rows)
        else:
            raw = b.gather(
                view.buffer, b.splat(offset, lanes) + b.lane_ids(lanes) * stride, mask=position.mask
            )
        return vmath.convert(b, raw, self.plan.nest.total, self.result.type.dtype)

    def _transposed(self, offset: Register, stride: int) -> list[Register]:
        """The rows of a square whose first sum lies at an offset."""
        b, lanes = self.b, self.lanes
        columns = [b.load(self.panel.buffer, offset + stride * at, lanes) for at in range(lanes)]
        return transpose_registers(b, columns, lanes)
