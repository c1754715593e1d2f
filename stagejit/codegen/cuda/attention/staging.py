"""Tiles of operands in shared memory.

Input: an operand, two groups of variables, the first element of the tile in each. Output: the
threads of a block have filled the tile. Invariant: elements beyond an end are 0 there, and are read
nowhere; barriers are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import and_

from stagejit.base.records import record
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.cuda.attention.nest import Group
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.ir.nodes import Buffer, Type, element_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.places.footprint import Footprint
from stagejit.graph.ir import Value
from stagejit.index.affine import Index, Var
from stagejit.types import DType

_STRAIGHT = 8  # vectors of a thread, up to which there is no loop over them


@record
class Side:
    """One direction of a tile: so many elements of a group, `pitch` apart in shared memory."""

    group: Group
    size: int
    pitch: int


@record
class Staged:
    """A tile of an operand. quick: the side along which threads follow each other, vectors of so
    many lanes each."""

    value: Value
    index: Index
    dtype: DType
    buffer: Buffer
    quick: Side
    slow: Side
    lanes: int

    @property
    def type(self) -> Type:
        """Of a vector, which may be one element."""
        elem = element_type(self.dtype)
        return elem.with_lanes(self.lanes) if self.lanes > 1 else elem

    def looked_at(
        self, emitter: ThreadEmitter, starts: Mapping[Group, Register], total: Register,
        then: Callable[[Register, Register], Register],
    ) -> Register:  # fmt: skip
        """`then` of a total and of each vector that the thread has of the tile."""
        b, vectors = emitter.b, self.across * self.slow.size
        for at in range(0, vectors, emitter.threads):
            number = b.thread_of_block() + at
            some = b.compare("lt", number, vectors) if at + emitter.threads > vectors else None
            total = then(total, self._read(emitter, self._place(number), starts, some))
        return total

    @property
    def across(self) -> int:
        """Vectors of a line."""
        return self.quick.size // self.lanes

    def _place(self, number: Register) -> tuple[Register, Register]:
        return number % self.across * self.lanes, number // self.across

    def fill(self, emitter: ThreadEmitter, starts: Mapping[Group, Register]) -> None:
        """starts: the first element in each group."""
        b, vectors = emitter.b, self.across * self.slow.size
        each, rest = divmod(vectors, emitter.threads)

        def one(number: Register) -> Sequence[Register]:
            self._store(emitter, self._place(number), starts)
            return ()

        me = b.thread_of_block()
        if each <= _STRAIGHT:
            for at in range(each):
                one(me + at * emitter.threads)
        else:
            b.loop(me, each * emitter.threads, emitter.threads, (), one, runs=True)
        if rest:
            last = me + each * emitter.threads
            b.if_(b.compare("lt", me, rest), partial(one, last))

    def _store(
        self, emitter: ThreadEmitter, at: tuple[Register, Register],
        starts: Mapping[Group, Register],
    ) -> None:  # fmt: skip
        b, lanes = emitter.b, self.lanes
        made = self._read(emitter, at, starts, None)
        first = at[0] * self.quick.pitch + at[1] * self.slow.pitch
        if lanes == 1 or self.quick.pitch == 1:
            b.store(made, self.buffer, first, alignment=lanes * self.dtype.itemsize)
            return
        for lane in range(lanes):
            b.store(b.extract(made, lane), self.buffer, first + lane * self.quick.pitch)

    def _read(
        self, emitter: ThreadEmitter, at: tuple[Register, Register],
        starts: Mapping[Group, Register], some: Register | None,
    ) -> Register:  # fmt: skip
        """A vector of the tile. some: where it is one of the tile; None: everywhere."""
        b, lanes = emitter.b, self.lanes
        quick, slow = starts[self.quick.group] + at[0], starts[self.slow.group] + at[1]
        inside, mask = [] if some is None else [some], None
        if self.slow.group.extent % self.slow.size:
            inside.append(b.compare("lt", slow, self.slow.group.extent))
        if self.quick.group.extent % self.quick.size:
            inside.append(b.compare("lt", quick, self.quick.group.extent))
            if lanes > 1 and self.quick.group.extent % lanes:
                mask = b.mask_below(quick, self.quick.group.extent, lanes)
        nothing = b.const(0, self.type)

        def read() -> Sequence[Register]:
            env = {**self.quick.group.places(quick), **self.slow.group.places(slow)}
            vector = self.quick.group.only if lanes > 1 else None
            count = lanes if lanes > 1 else 0
            with emitter.elements.at(
                env, vector=vector, lanes=count, mask=mask, within=bool(inside)
            ):
                raw = emitter.elements.value(self.value, self.index)
            made = vmath.convert(b, raw, self.value.type.dtype, self.dtype)
            if lanes > 1:
                made = b.splat(made, lanes)
            return (made if mask is None else b.select(mask, made, nothing),)

        (made,) = b.if_(reduce(and_, inside), read, lambda: (nothing,)) if inside else read()
        return made


def staged(
    region: ClosedRegion, value: Value, index: Index, dtype: DType, buffer: Buffer,
    sides: tuple[Side, Side], lanes: int,
) -> Staged:  # fmt: skip
    """The tile, filled along the side of which neighbours lie in memory."""
    quick, slow = sides
    apart = [_apart(region, value, index, side.group) for side in sides]
    if apart[0] != 1 and (apart[1] == 1 or (apart[1] and apart[1] < apart[0])):
        quick, slow = slow, quick
    unit = 1 in apart and quick.group.only is not None and quick.size % lanes == 0
    return Staged(value, index, dtype, buffer, quick, slow, lanes if unit else 1)


def _apart(region: ClosedRegion, value: Value, index: Index, group: Group) -> int:
    """Elements from neighbour to neighbour of a group in memory; 0 where they are the same."""
    if not group.variables:
        return 0
    footprint = Footprint(region)
    footprint.value(value, index)
    var: Var = group.variables[-1]
    return max((abs(form.coeff(var)) for _, form in footprint.reads), default=0)
