"""`Elements`: evaluates values of a region, element by element, as loop-nest IR.

Input: a region's values, the buffers of its inputs, and where the loops stand (an environment
from index variables to IR values). Output: one IR value per request: a scalar where the element
is the same for all lanes, a vector along the vector variable otherwise. Invariant: a request has
no effect but loads, so a generator may ask for the same value in several loops.

Note [Loads]: how a load happens follows from the coefficient of the vector variable in the
element's offset: 0 is a scalar load, 1 a vector load, -1 a reversed one, anything else a gather, or
a register transpose inside a tile, or what is found in registers: see Note [Tables in registers].
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce

import numpy as np

from stagejit.base.machine import Machine
from stagejit.base.records import record
from stagejit.codegen.elements.abreast import Rows, lane_of, picked
from stagejit.codegen.elements.lookups import looked_up
from stagejit.codegen.elements.overlays import from_rows, overlaid
from stagejit.codegen.elements.phases import Place, WaitingStores
from stagejit.codegen.elements.positions import clamped, fits_i32, is_inside
from stagejit.codegen.elements.register_tiles import Tile
from stagejit.codegen.elements.windows import Window
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Buffer, element_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.strides import WIDEST_PICKED, dealt, is_dealt, squares
from stagejit.codegen.ir.transposes import transpose_registers
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.places.accesses import table_width
from stagejit.codegen.places.loops import Ahead
from stagejit.codegen.places.walk import behind_views
from stagejit.dispatch.regions import Store
from stagejit.errors import InternalError
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.moving.slices import pull_view
from stagejit.index.affine import Affine, Index, Var, linearize
from stagejit.types import DType, dtype_named, i32, i64


@record
class Memory:
    """Where a value lies: `buffer`, whose base is element `base` of the row-major array."""

    buffer: Buffer
    base: int = 0


class Elements(Rows):
    """Evaluates one region. `bound` gives values that a generator has computed itself (a
    reduction's result, an accumulator tile); they win over evaluation. machine: the one in whose
    registers small tables may lie; None: they stay in memory."""

    def __init__(
        self, builder: Builder, memory: Mapping[Value, Memory], machine: Machine | None = None
    ) -> None:
        super().__init__(builder)
        self.memory, self.machine = memory, machine
        self.bound: dict[Value, Callable[[Index], Register]] = {}
        self._pulled: dict[tuple[Op, Index], Index] = {}  # what views of fixed places read
        self._squares: dict[tuple[int, ...], list[Register]] = {}  # transposed, by their rows
        self._waiting = WaitingStores(builder, 0)
        self.ahead: Ahead | None = None
        self._asked: set[int] = set()  # the loads whose lines were

    @contextmanager
    def interleaving(self, stride: int) -> Iterator[None]:
        """Inside, all elements between lanes that stand `stride` apart are wanted: they are loaded
        as whole vectors; stores wait for each other and are written as whole vectors at the end."""
        before, waiting = self.position, self._waiting
        self.position, self._waiting = replace(before, stride=stride), WaitingStores(self.b, stride)
        try:
            yield
            self._waiting.write()
        finally:
            self.position, self._waiting = before, waiting

    # ---------------------------------------------------------------- values

    def given(self, value: Value, index: Index) -> Register | None:
        if value in self.bound:
            return self.bound[value](index)
        if (made := self.lane(value, index)) is not None:
            return made
        if value not in self.memory:
            return None
        return self.load_at(value, self.memory[value], value.type.offset(index))

    def bind(self, value: Value, index: Index, made: Callable[[], Register]) -> None:
        """`made` gives the element of `value` at `index`; no other one is asked for."""
        where = linearize(index, value.shape)

        def read(at: Index) -> Register:
            if linearize(at, value.shape) != where:
                what = f"{value} is used at another element"
                raise InternalError(what, step="codegen", loc=value.op.loc)
            return made()

        self.bound[value] = read

    @contextmanager
    def giving(self, value: Value, made: Callable[[], Register]) -> Iterator[None]:
        """Inside, `made` gives the element of `value` where the loops stand."""
        self.bound[value] = lambda _: made()
        yield
        del self.bound[value]  # a cycle

    def pull(self, op: Op, index: Index) -> Index:
        if len(op.operands) > 1:
            return pull_view(op, index, start=self.start)
        pulled = self._pulled.get((op, index))
        if pulled is None:
            pulled = self._pulled[op, index] = pull_view(op, index)
        return pulled

    def standing_at(
        self,
        element: Register,
        dtype: DType,
        room: int,
        inside: list[Register] | None = None,
        *,
        clamps: bool = True,
    ) -> Affine:
        element, lane = lane_of(element) if self.are_abreast else (element, None)
        if dtype.bits == 64 and not dtype.is_signed:  # beyond i64 is beyond every array
            element = self.b.binary("umin", element, (1 << 63) - 1)
        narrow = element.type.lanes > 0 and dtype.bits + (not dtype.is_signed) <= 32
        start = vmath.convert(self.b, element, dtype, i32 if narrow else i64)
        if inside is not None:
            inside.append(is_inside(self.b, picked(self.b, start, lane), room))
        start = clamped(self.b, start, room) if clamps else start
        return self.dynamic(picked(self.b, start, lane), room)

    def started(self, form: Affine) -> Affine:
        """A form of a dry run whose dynamic variables know the scalars that they stand at."""
        starts = {
            var: self.standing_at(self.value(var.source, ()), var.source.type.dtype, var.extent)
            for var in form.vars()
            if var.kind == "dynamic"
        }
        return form.substitute(starts) if starts else form

    def computed(self, op: Op, elements: Sequence[Register]) -> Register:
        if op.definition.code is not None:
            lanes = max((element.type.lanes for element in elements), default=0)
            given = [self.b.splat(each, lanes) if lanes else each for each in elements]
            made: Register = op.definition.code(self.b, op, given)
            return made
        dtype = op.operands[-1].type.dtype  # of several, select's cases decide about signs, width
        if op.definition.is_conversion:
            return vmath.convert(self.b, elements[0], dtype, op.result.type.dtype)
        if op.kind == "bitcast":
            return vmath.bitcast(self.b, elements[0], op.result.type.dtype)
        return self.combined(op.attrs["fn"], dtype, elements, op.attrs)

    def combined(
        self, fn: str, dtype: DType, elements: Sequence[Register], attrs: vmath.Attrs | None = None
    ) -> Register:
        """A function of elements, which are the same for all lanes or one for each."""
        if lanes := max(element.type.lanes for element in elements):
            elements = [self.b.splat(element, lanes) for element in elements]
        return vmath.emit(self.b, fn, dtype, elements, attrs)

    def filled(self, op: Op, element: Register, inside: Sequence[Register]) -> Register:
        b, fits = self.b, reduce(operator.and_, inside)
        lanes = max(element.type.lanes, fits.type.lanes)
        fill = b.const(op.attrs["fill_value"], element_type(op.result.type.dtype).with_lanes(lanes))
        return b.select(fits, b.splat(element, lanes) if lanes else element, fill)

    def window(self, op: Op, index: Index) -> Register:
        before, self.beside = self.beside, True
        try:
            return Window(self, op, index).value()
        finally:
            self.beside = before

    def overlaid(self, op: Op, index: Index) -> Register:
        return overlaid(self, op, index)

    def counted(self, op: Op, part: Affine) -> Register:
        narrow = fits_i32(part)
        number = self.lane_index(part, narrow=narrow)
        return vmath.convert(self.b, number, i32 if narrow else i64, op.result.type.dtype)

    def constant(self, value: Value) -> Register:
        array = value.op.attrs["value"]
        if array.size != 1:
            raise InternalError("a constant array must be a buffer", step="codegen")
        dtype, number = value.type.dtype, array.reshape(1)
        if dtype.is_float and math.isnan(number.item()):  # a kernel spells one, a program any
            bits = dtype_named(f"u{dtype.bits}")
            word, usual = number.view(bits.numpy), np.full(1, np.nan, dtype.numpy).view(bits.numpy)
            if word != usual:
                return vmath.bitcast(self.b, self.b.const(word.item(), element_type(bits)), dtype)
        return self.b.const(number.item(), element_type(dtype))

    def with_starts(self, store: Store, index: Index, offset: Affine) -> Affine:
        """`offset` of element `index` in `store.into`, with positions for the dynamic starts of its
        box, which a dry run cannot know."""
        if any(insert.operands[2:] for insert in store.inserts):
            return store.into.type.offset(self.placed(store, index))
        return offset

    # ---------------------------------------------------------------- memory

    def behind(self, value: Value) -> tuple[Value, Memory]:
        """What a value in memory, or a view of one, is read from."""
        leaf = behind_views(value, self.memory)
        assert leaf is not None
        return leaf, self.memory[leaf]

    def load_at(self, value: Value, memory: Memory, offset: Affine) -> Register:
        """The element at `offset` of the array at `memory`, which holds `value`."""
        raw = self._fetch(value, memory, offset - memory.base)
        return self.b.compare("ne", raw, 0) if value.type.dtype.kind == "bool" else raw

    def _fetch(self, value: Value, memory: Memory, offset: Affine) -> Register:
        coeff, uniform, varying = self.split(offset)
        lanes, mask, tile = self.position.lanes, self.position.mask, self.position.tile
        buffer, some = memory.buffer, self.position.wanted is not None
        room = (value.type.room >> 2 * (buffer.space == "words")) - memory.base
        if not coeff and not varying:
            return self.b.load(buffer, self.scalar_index(uniform))
        if self.machine is not None and (varying or some):
            picks = from_rows(self, buffer, offset, room, self.machine)
            if picks is not None:
                return picks
        if varying or coeff not in (1, -1) or some:
            square = tile and not (varying or some or self.position.within)
            if tile and square and uniform.coeff(tile.var) in (1, -1):
                return self._transposed(value, memory, uniform, coeff, tile)
            if (
                not (varying or some)
                and (used := self.used_lanes()) is not None
                and is_dealt(coeff, lanes, shared=coeff == self.position.stride)
            ):
                first, phase = self._phase(uniform, coeff)
                lo, hi = first.range()
                if lo >= 0 and hi + coeff <= room:
                    return self._dealt(buffer, first, phase, coeff, used)
                if self.position.within and coeff <= WIDEST_PICKED:
                    return self._dealt_at_edge(buffer, uniform, coeff, used, room)
            if not coeff and (width := self._table_width(buffer, offset, varying, room)):
                return looked_up(self, buffer, uniform, varying, width)
            places = self.of_wanted(self._lane_offset(offset))
            mask = None if mask is None else self.of_wanted(mask)
            return self.b.gather(buffer, places, mask=mask, room=room)
        if coeff == 1:
            aligned, at = self.alignment(buffer, memory.base, uniform), self.scalar_index(uniform)
            loaded = self.b.load(buffer, at, lanes, mask=mask, alignment=aligned)
            if mask is None and loaded.id not in self._asked:  # equal loads are one
                self._asked.add(loaded.id)
                self._ask(value, offset + memory.base, buffer, at)
            return loaded
        if mask is not None:
            mask = self.reversed(mask)
        first = uniform - (lanes - 1)
        return self.reversed(self.b.load(buffer, self.scalar_index(first), lanes, mask=mask))

    def _ask(self, value: Value, form: Affine, buffer: Buffer, at: Register) -> None:
        """Asks for the line that a read at this place will need some steps later, if it is to."""
        ahead = self.ahead
        if ahead and (value, form) in ahead.reads and (step := form.coeff(ahead.var)):
            further = at + ahead.steps * step
            self.b.prefetch(buffer, further, locality=2 if ahead.far else 3)

    def alignment(self, buffer: Buffer, base: int, uniform: Affine) -> int:
        """Bytes of which the place of a vector is a multiple; 0: of an element's."""
        return 0

    def _table_width(
        self, buffer: Buffer, offset: Affine, terms: Sequence[tuple[Var, int]], room: int
    ) -> int:
        """See `table_width`. What is behind a condition may be no memory of the buffer, and so what
        lanes without an element would find."""
        lo, hi = offset.range()
        if self.machine is None or self.position.within or lo < 0 or hi >= room:
            return 0
        return table_width(terms, self.position.lanes, buffer.elem.bits // 8, self.machine)

    def _lane_offset(self, offset: Affine) -> Register:
        return self.lane_index(offset, narrow=offset.range()[0] >= 0 and fits_i32(offset))

    def _phase(self, uniform: Affine, stride: int) -> tuple[Affine, int]:
        """(where lane 0 of phase 0 is, the phase), by the loops whose position is a number. The
        vector variable stays, so that the range of the form covers all lanes."""
        number, terms = uniform.const, []
        for var, coeff in uniform.terms:
            at = self._scalar_var(var).const if var in self.position.env else None
            if isinstance(at, int) and var is not self.position.vector:
                number += coeff * at
            else:
                terms.append((var, coeff))
        return Affine(tuple(terms), number - number % stride), number % stride

    def _dealt(self, buffer: Buffer, first: Affine, phase: int, stride: int, used: int) -> Register:
        b, lanes = self.b, self.position.lanes
        at = self.scalar_index(first)
        if stride <= WIDEST_PICKED:
            mask = None if used == lanes else b.active(used * stride, lanes * stride)
            return dealt(b, b.load(buffer, at, lanes * stride, mask=mask), stride, phase)
        # Equal ops are one op, so all phases of a square share the loads, and so the transpose.
        start, width = next(s for s in squares(stride, lanes) if phase < sum(s))
        mask = None if width == lanes else b.active(width, lanes)
        rows = [
            b.load(buffer, at + (row * stride + start), lanes, mask=mask) for row in range(used)
        ]
        key = (lanes, *(row.id for row in rows))
        columns = self._squares.get(key)
        if columns is None or not b.sees(columns[0].block):
            columns = self._squares[key] = transpose_registers(b, rows, lanes, width)
        return columns[phase - start]

    def _dealt_at_edge(
        self, buffer: Buffer, uniform: Affine, stride: int, used: int, room: int
    ) -> Register:
        """The same where what lies behind the last element may be no memory of the buffer."""
        b, lanes = self.b, self.position.lanes
        at = self.scalar_index(uniform)
        end = b.binary("smin", at + used * stride, room)
        loaded = b.load(buffer, at, lanes * stride, mask=b.mask_below(at, end, lanes * stride))
        return dealt(b, loaded, stride, 0)

    def _transposed(
        self, value: Value, memory: Memory, uniform: Affine, coeff: int, tile: Tile
    ) -> Register:
        lanes, buffer = self.position.lanes, memory.buffer
        backwards = uniform.coeff(tile.var) == -1

        def rows() -> list[Register]:
            mask = None if tile.count == lanes else self.b.active(tile.count, lanes)
            with self.tile_step(0):
                first = self.scalar_index(uniform - (tile.count - 1 if backwards else 0))
                columns = [
                    self.b.load(buffer, first + coeff * r, lanes, mask=mask)
                    for r in range(tile.lanes_used)
                ]
                for r in range(tile.lanes_used):
                    self._ask(value, uniform + memory.base, buffer, first + coeff * r)
            found = transpose_registers(self.b, columns, lanes, tile.count)
            return found[::-1] if backwards else found

        return tile.row(self.b, (value, uniform), buffer.elem.with_lanes(lanes), rows)

    def store(
        self,
        register: Register,
        dtype: DType,
        memory: Memory,
        offset: Affine,
        *,
        nontemporal: bool = False,
        ahead: int = 0,
    ) -> None:
        """Write `register` at element `offset` of the array at `memory`; a scalar where the offset
        varies per lane is splatted. nontemporal: lanes are neighbours, see `Loops.in_streams`.
        ahead: so many elements further lies the line that is asked for, if any."""
        coeff, uniform, varying = self.split(offset - memory.base)
        lanes, mask = self.position.lanes, self.position.mask
        if dtype.kind == "bool":
            register = self.b.cast("zext", register, "i8")
        if not coeff and not varying:
            if register.type.lanes:
                raise InternalError("a store of a vector to one element", step="codegen")
            self.b.store(register, memory.buffer, self.scalar_index(uniform))
            return
        register = self.b.splat(register, lanes)
        apart = not varying and coeff == self.position.stride
        if apart and is_dealt(coeff, lanes, shared=True):  # it waits for those between its lanes
            used = self.used_lanes()
            if used is not None:
                first, phase = self._phase(uniform, coeff)
                place = Place(memory.buffer, self.scalar_index(first), lanes, used)
                self._waiting.add(place, phase, register)
                return
        if varying or coeff not in (1, -1):
            at = self._lane_offset(offset - memory.base)
            self.b.scatter(register, memory.buffer, at, mask=mask)
            return
        if coeff == -1:
            register = self.reversed(register)
            mask = None if mask is None else self.reversed(mask)
            uniform = uniform - (lanes - 1)
        at, buffer = self.scalar_index(uniform), memory.buffer
        aligned = self.alignment(buffer, memory.base, uniform) if coeff == 1 else 0
        if ahead and coeff == 1 and mask is None:
            self.b.prefetch(buffer, at + ahead, write=True)
        if nontemporal:
            aligned = register.type.lanes * buffer.elem.bits // 8
        self.b.store(register, buffer, at, mask=mask, alignment=aligned, nontemporal=nontemporal)
