"""Fills the packed block of an operand by evaluating it element by element.

Input: a `Packing`, the place of the block. Output: loops that write its scratch; prologues,
borders, layout changes and type conversions all happen here. Invariant: every position of the block
that a window reaches outside the operand holds the operand's border.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from stagejit.codegen.contract.packing import Dim, Packing
from stagejit.codegen.elements.elements import Elements
from stagejit.codegen.elements.register_tiles import Tile
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.ir.strides import every, is_dealt
from stagejit.codegen.math import functions as vmath
from stagejit.index.affine import Affine, Var

_MOST_SHUFFLED = 4  # phases that shuffles sort faster than scattered stores
_UNROLLED_VECTORS = 8  # rows up to this length are written without a loop
_NONE: Mapping[Var, int] = MappingProxyType({})


@dataclass(frozen=True)
class _Span:
    """The part of one dimension that a block needs: source positions [first, stop), which lie at
    block positions `source - origin`. The block has `count` positions; with a border, those that no
    position of [0, size) reaches hold the border."""

    first: Register
    stop: Register
    origin: Register
    count: Register
    size: int
    border: bool

    def times(self, factor: int) -> _Span:
        """Of a dimension that runs on into one of `factor` elements, the span of both."""
        first, stop, origin, count = (
            number * factor for number in (self.first, self.stop, self.origin, self.count)
        )
        return _Span(first, stop, origin, count, self.size * factor, self.border)


class Fill:
    """Copies the block whose axes start at `starts` and have `lengths` elements. Dimensions that
    run on into each other, in memory and in scratch, are walked as one."""

    def __init__(
        self,
        packing: Packing,
        elements: Elements,
        starts: Mapping[Var, Register],
        lengths: Mapping[Var, Register],
    ) -> None:
        self.b, self.elements, self.source = packing.b, elements, packing.source
        self.lanes, self.dtype = packing.tiling.lanes, packing.dtype
        self.buffer, self.size = packing.buffer, packing.size
        self.dims = list(packing.dims)
        self.index, self.memory = packing.source.operand.index, packing.source.memory
        self._border_value = packing.source.operand.border
        self.spans = {dim.source: self._span(dim, starts, lengths) for dim in self.dims}
        if self.memory is not None:
            self._merge()

    def emit(self) -> None:
        if not self.dims:
            self._write()
            return
        vector, along = self._directions()
        others = [dim for dim in self.dims if dim is not vector and dim is not along]
        phases = 1 < vector.modulus <= _MOST_SHUFFLED and self.lanes > 1
        if self.lanes > 1 and vector.modulus == 1 and along is None:
            self._walk(0, self.b.const(0))
            return
        if any(span.border for span in self.spans.values()):
            self._border(self.b.const(0), self.b.const(self.size))
        if phases:
            self._loops(others, lambda: self._phases(vector))
        elif along is not None:
            self._loops(others, lambda: self._squares(vector, along))
        else:
            span = self.spans[vector.source]
            self._loops(others, lambda: self._rows(vector, span.first, span.stop))

    # ---------------------------------------------------------------- what is walked

    def _span(
        self, dim: Dim, starts: Mapping[Var, Register], lengths: Mapping[Var, Register]
    ) -> _Span:
        b = self.b
        if not dim.window:
            start, count = starts[dim.source], lengths[dim.source]
            return _Span(start, start + count, start, count, dim.source.extent, border=False)
        origin, count = b.const(-dim.before), b.const(1)
        for axis, coeff in dim.coeffs.items():
            origin = origin + starts[axis] * coeff
            count = count + (lengths[axis] - 1) * coeff
        window = self.source.operand.windows[dim.source]
        if window.exact:
            return _Span(origin, origin + count, origin, count, window.size, border=False)
        end = origin + count
        first = b.binary("smin", b.binary("smax", origin, 0), end)
        stop = b.binary("smax", b.binary("smin", end, window.size), first)
        return _Span(first, stop, origin, count, window.size, border=True)

    def _merge(self) -> None:
        at = len(self.dims) - 2
        while at >= 0:
            outer, inner = self.dims[at], self.dims[at + 1]
            if self._joins(outer, inner):
                extent = inner.source.extent
                joint = Var(outer.source.extent * extent, inner.source.name)
                high, low = Affine.of(joint).divmod(extent)
                mapping = {outer.source: high, inner.source: low}
                self.index = tuple(part.substitute(mapping) for part in self.index)
                assert self.memory is not None
                self.memory = self.memory.substitute(mapping)
                self.spans[joint] = self.spans[outer.source].times(extent)
                length = outer.length * extent
                self.dims[at : at + 2] = [
                    replace(inner, source=joint, window=outer.window, length=length)
                ]
            at -= 1

    def _joins(self, outer: Dim, inner: Dim) -> bool:
        if inner.window or outer.modulus > 1 or inner.modulus > 1 or self.memory is None:
            return False
        extent = inner.source.extent
        return (
            self.spans[inner.source].count.const == extent
            and outer.stride == inner.stride * extent
            and self.memory.coeff(outer.source) == self.memory.coeff(inner.source) * extent
        )

    def _directions(self) -> tuple[Dim, Dim | None]:
        """The dimension of the vectors, and the other one of a register transpose."""
        inner, memory = self.dims[-1], self.memory
        if inner.modulus > 1 or memory is None or self.lanes < 2:
            return inner, None
        contiguous = next(
            (dim for dim in self.dims if memory.coeff(dim.source) == 1 and dim.source.extent > 1),
            inner,
        )
        return inner, contiguous if contiguous is not inner and contiguous.modulus == 1 else None

    # ---------------------------------------------------------------- loops

    def _walk(self, depth: int, base: Register) -> None:
        """The block in storage order, borders included; `base`: where the current row starts."""
        dim = self.dims[depth]
        span, b = self.spans[dim.source], self.b
        if depth == len(self.dims) - 1:
            if span.border:
                self._bordered_row(dim, base)
            else:
                self._rows(dim, span.first, span.stop)
            return

        def iteration(position: Register) -> None:
            with self.elements.at({dim.source: position}):
                self._walk(depth + 1, base + (position - span.origin) * dim.stride)

        if span.border:  # whole vectors of it may reach into the rows that follow
            self._border(base, base + (span.first - span.origin) * dim.stride)
        b.loop(span.first, span.stop, 1, (), iteration)
        if span.border:
            end = base + (span.stop - span.origin) * dim.stride
            self._border(end, base + span.count * dim.stride)

    def _bordered_row(self, dim: Dim, base: Register) -> None:
        """Vectors over the positions of the block; lanes outside the operand are the border."""
        b, lanes, span, border = self.b, self.lanes, self.spans[dim.source], self._border_value
        # A masked load gives zeros already.
        reads = self.memory is not None and self.memory.coeff(dim.source) == 1

        def step(position: Register) -> None:
            at = position + span.origin
            inside = b.mask_below(at, span.size, lanes) ^ b.mask_below(at, 0, lanes)
            with self.elements.at({dim.source: at}, vector=dim.source, lanes=lanes, mask=inside):
                self._prefetch()
                register = self._element()
            if border != 0 or not reads:
                register = b.select(inside, register, border)
            b.store(register, self.buffer, base + position)

        if dim.length <= _UNROLLED_VECTORS * lanes:  # masks then do not depend on the row
            for position in range(0, dim.length, lanes):
                step(b.const(position))
        else:
            b.loop(0, span.count, lanes, (), step)

    def _prefetch(self) -> None:
        """The same place one step of the outermost dimension ahead: rows are short, and the next
        ones far away."""
        outer, memory = self.dims[0], self.memory
        if memory is None or len(self.dims) < 2:
            return
        _, place = self.elements.behind(self.source.operand.value)
        here = self.elements.scalar_index(memory - place.base)
        self.b.prefetch(place.buffer, here + memory.coeff(outer.source))

    def _border(self, start: Register, stop: Register) -> None:
        """Whole vectors of the border, from `start` to `stop` or a little further."""
        b, lanes = self.b, self.lanes if self.lanes > 1 else 0
        border = b.const(self._border_value, element_type(self.dtype).with_lanes(lanes))
        b.loop(start, stop, max(lanes, 1), (), lambda i: b.store(border, self.buffer, i))

    def _loops(self, dims: Sequence[Dim], body: Callable[[], None]) -> None:
        """The positions of the operand that the block needs."""
        if not dims:
            body()
            return
        span = self.spans[dims[0].source]

        def iteration(position: Register) -> None:
            with self.elements.at({dims[0].source: position}):
                self._loops(dims[1:], body)

        self.b.loop(span.first, span.stop, 1, (), iteration)

    def _phases(self, vector: Dim) -> None:
        """As many vectors at once as there are phases, sorted by shuffles; the rest one by one."""
        b, lanes, count = self.b, self.lanes, vector.modulus
        first, stop = self.spans[vector.source].first, self.spans[vector.source].stop
        whole = stop - b.urem(stop - first, lanes * count)

        def chunk(position: Register) -> None:
            parts = []
            for number in range(count):
                with self.elements.at(
                    {vector.source: position + number * lanes}, vector=vector.source, lanes=lanes
                ):
                    parts.append(self._element())
            for phase in range(count):
                offset = self._offset({vector.source: position + phase})
                b.store(every(b, parts, phase), self.buffer, offset)

        b.loop(first, whole, lanes * count, (), chunk)
        self._rows(vector, whole, stop)

    def _rows(self, vector: Dim, first: Register, stop: Register) -> None:
        """Positions along the innermost dimension."""
        if self.lanes > 1:
            self._in_vectors(vector, first, stop, self._write)
            return

        def scalar(position: Register) -> None:
            with self.elements.at({vector.source: position}):
                self._write()

        self.b.loop(first, stop, 1, (), scalar)

    def _in_vectors(
        self, dim: Dim, first: Register, stop: Register, body: Callable[[], None]
    ) -> None:
        """`body` at each vector from `first` to `stop`, the last one masked."""
        b, lanes = self.b, self.lanes
        whole = stop - b.urem(stop - first, lanes)

        def vector(position: Register, mask: Register | None = None) -> None:
            with self.elements.at(
                {dim.source: position}, vector=dim.source, lanes=lanes, mask=mask
            ):
                body()

        b.loop(first, whole, lanes, (), vector)
        mask = b.mask_below(whole, stop, lanes)
        b.if_(b.compare("lt", whole, stop), lambda: vector(whole, mask))

    def _squares(self, vector: Dim, along: Dim) -> None:
        """Square register transposes; what is left over goes element by element. Elements that lie
        between the lanes and nowhere else are all loaded with them."""
        lanes, between = self.lanes, self._is_between(vector, along)
        first, stop = self.spans[vector.source].first, self.spans[vector.source].stop
        low, high = self.spans[along.source].first, self.spans[along.source].stop
        even = high - self.b.urem(high - low, lanes)

        def square(at: Register) -> None:
            tile = Tile(along.source, lanes, lanes)
            with self.elements.at({along.source: at}, tile=tile):
                for row in range(lanes):
                    with self.elements.tile_step(row):
                        self._write({along.source: row})

        def single(at: Register) -> None:
            with self.elements.at({along.source: at}):
                self._write()

        def column() -> None:
            whole = self.elements.position.mask is None
            if whole and between:
                self._gaps(along)
                return
            if whole:
                self.b.loop(low, even, lanes, (), square)
            self.b.loop(even if whole else low, high, 1, (), single)

        self._in_vectors(vector, first, stop, column)

    def _is_between(self, vector: Dim, along: Dim) -> bool:
        """Whether positions of `along` are all the elements from one lane to the next in memory."""
        assert self.memory is not None
        gap, span = self.memory.coeff(vector.source), self.spans[along.source]
        return (
            is_dealt(gap, self.lanes, shared=True)
            and (span.first.const, span.stop.const) == (0, gap)
            and along.source.extent == gap
        )

    def _gaps(self, along: Dim) -> None:
        """A vector for each position of `along`, from the same loads."""
        elements, count = self.elements, along.source.extent
        with elements.interleaving(count):
            for number in range(count):
                with elements.at({along.source: self.b.const(number)}):
                    self._write()

    def _element(self) -> Register:
        """The operand where `elements` stands, in the packed type."""
        value = self.source.operand.value
        raw = self.elements.value(value, self.index)
        register = vmath.convert(self.b, raw, value.type.dtype, self.dtype)
        position = self.elements.position
        return register if position.vector is None else self.b.splat(register, position.lanes)

    def _offset(
        self,
        at: Mapping[Var, Register],
        *,
        but: Dim | None = None,
        steps: Mapping[Var, int] = _NONE,
    ) -> Register:
        """Scratch offset of a source position; that of `elements` where `at` says nothing."""
        offset = self.b.const(0)
        for dim in self.dims:
            if dim is not but:
                position = at.get(dim.source, self.elements.position.env.get(dim.source))
                assert position is not None
                position = position + steps.get(dim.source, 0) - self.spans[dim.source].origin
                offset = offset + self._along(dim, position)
        return offset

    def _write(self, steps: Mapping[Var, int] = _NONE) -> None:
        """Evaluate the operand where `elements` stands and store it in scratch."""
        b, position, register = self.b, self.elements.position, self._element()
        split = next(
            (dim for dim in self.dims if dim.source is position.vector and dim.modulus > 1), None
        )
        if split is None:
            b.store(register, self.buffer, self._offset({}, steps=steps), mask=position.mask)
            return
        lanes = position.lanes
        first = position.env[split.source] - self.spans[split.source].origin
        varying = self._along(split, b.splat(first, lanes) + b.lane_ids(lanes))
        offset = b.splat(self._offset({}, but=split, steps=steps), lanes) + varying
        b.scatter(register, self.buffer, offset, mask=position.mask)

    def _along(self, dim: Dim, position: Register) -> Register:
        """Scratch offset of a position of the block, or of one for each lane, along a dimension."""
        if dim.modulus == 1:
            return position * dim.stride
        quotient = self.b.udiv(position, dim.modulus)
        remainder = self.b.urem(position, dim.modulus)
        return remainder * dim.plane + quotient * dim.stride
