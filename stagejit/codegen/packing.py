"""Copies the block of an operand that an item needs into scratch, in the order its register tiles
read.

Input: an `Operand`, the axes' block lengths. Output: a `View` of scratch, and the loops that fill
it by evaluating the operand element by element (so prologues, borders, layout changes and type
conversions all happen here). Invariant: every position of the block that a window reaches outside
the operand holds zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from stagejit.codegen import scalars
from stagejit.codegen.builder import Builder
from stagejit.codegen.elements import Elements, Tile
from stagejit.codegen.ir import Buffer, element_type
from stagejit.codegen.ir import Value as Register
from stagejit.codegen.microkernel import Phased, View
from stagejit.codegen.tiling import Source, Tiling
from stagejit.dispatch.affine import Affine, Var
from stagejit.types import DType

_MOST_SHUFFLED = 4  # phases that shuffles sort faster than scattered stores
_NONE: Mapping[Var, int] = MappingProxyType({})


@dataclass(frozen=True)
class Dim:
    """One dimension of the packed block.

    source: the variable that walks the operand. length: positions in the block (constant upper
    bound). Axes reach position `sum(coeffs * axis)`, counted from the block's start. before:
    see `Window`; a plain axis has coefficient 1 and no border.
    """

    source: Var
    coeffs: Mapping[Var, int]
    length: int
    stride: int = 0
    modulus: int = 1
    plane: int = 0
    before: int = 0
    window: bool = False


class Packing:
    """Scratch for one operand, and the code that fills it."""

    def __init__(
        self,
        b: Builder,
        source: Source,
        tiling: Tiling,
        extents: Mapping[Var, int],
        dtype: DType,
        name: str,
    ) -> None:
        self.b, self.source, self.tiling, self.dtype = b, source, tiling, dtype
        self.dims, self.size = _layout(source, tiling, extents, dtype)
        self.buffer: Buffer = b.scratch(name, element_type(dtype), self.size)

    def view(self) -> View:
        """How register tiles read the block: axes count from the start of their block."""
        strides: dict[Var, int] = {}
        phased = []
        for dim in self.dims:
            if dim.modulus > 1:
                phased.append(Phased(dim.coeffs, dim.modulus, dim.plane, dim.stride))
                continue
            for axis, coeff in dim.coeffs.items():
                strides[axis] = strides.get(axis, 0) + coeff * dim.stride
        return View(
            self.buffer,
            self.dtype,
            strides,
            self.b.const(0),
            self.source.depends,
            padded=True,
            phased=tuple(phased),
        )

    # ---------------------------------------------------------------- filling

    def fill(
        self, elements: Elements, starts: Mapping[Var, Register], lengths: Mapping[Var, Register]
    ) -> None:
        """Copy the block whose axes start at `starts` and have `lengths` elements."""
        _Fill(self, elements, starts, lengths).emit()


class _Fill:
    """One copy into the scratch of a packing. Dimensions that run on into each other, in memory and
    in scratch, are walked as one."""

    def __init__(
        self,
        packing: Packing,
        elements: Elements,
        starts: Mapping[Var, Register],
        lengths: Mapping[Var, Register],
    ) -> None:
        self.b, self.elements, self.source = packing.b, elements, packing.source
        self.tiling, self.dtype = packing.tiling, packing.dtype
        self.buffer, self.size = packing.buffer, packing.size
        self.dims = list(packing.dims)
        self.index, self.memory = packing.source.operand.index, packing.source.memory
        starts, lengths = dict(starts), dict(lengths)
        if self.memory is not None:
            self._merge(starts, lengths)
        self.ranges = {dim.source: self._range(dim, starts, lengths) for dim in self.dims}

    def emit(self) -> None:
        if any(dim.window and not self._never_outside(dim) for dim in self.dims):
            self._clear()
        if not self.dims:
            self._write(None)
            return
        vector, along = self._directions()
        others = [dim for dim in self.dims if dim is not vector and dim is not along]
        if 1 < vector.modulus <= _MOST_SHUFFLED and self.tiling.lanes > 1:
            self._loops(others, lambda: self._phases(vector))
        elif along is None:
            self._loops(others, lambda: self._rows(vector, *self.ranges[vector.source][:2]))
        else:
            self._loops(others, lambda: self._squares(vector, along))

    def _merge(self, starts: dict[Var, Register], lengths: dict[Var, Register]) -> None:
        at = len(self.dims) - 2
        while at >= 0:
            outer, inner = self.dims[at], self.dims[at + 1]
            if self._joins(outer, inner, lengths):
                extent = inner.source.extent
                joint = Var(outer.source.extent * extent, inner.source.name)
                high, low = Affine.of(joint).divmod(extent)
                mapping = {outer.source: high, inner.source: low}
                self.index = tuple(part.substitute(mapping) for part in self.index)
                assert self.memory is not None
                self.memory = self.memory.substitute(mapping)
                starts[joint] = starts[outer.source] * extent
                lengths[joint] = lengths[outer.source] * extent
                self.dims[at : at + 2] = [
                    replace(inner, source=joint, coeffs={joint: 1}, length=outer.length * extent)
                ]
            at -= 1

    def _joins(self, outer: Dim, inner: Dim, lengths: Mapping[Var, Register]) -> bool:
        if outer.window or inner.window or inner.modulus > 1 or self.memory is None:
            return False
        extent = inner.source.extent
        return (
            lengths[inner.source].const == extent
            and outer.stride == inner.stride * extent
            and self.memory.coeff(outer.source) == self.memory.coeff(inner.source) * extent
        )

    def _never_outside(self, dim: Dim) -> bool:
        return self.source.operand.windows[dim.source].exact

    def _clear(self) -> None:
        lanes = self.tiling.lanes if self.tiling.lanes > 1 else 0
        zero = self.b.const(0, element_type(self.dtype).with_lanes(lanes))
        self.b.loop(0, self.size, max(lanes, 1), (), lambda i: self.b.store(zero, self.buffer, i))

    def _range(
        self,
        dim: Dim,
        starts: Mapping[Var, Register],
        lengths: Mapping[Var, Register],
    ) -> tuple[Register, Register, Register]:
        """(first source position, one past the last, block start in window coordinates)."""
        b = self.b
        if not dim.window:
            start = starts[dim.source]
            return start, start + lengths[dim.source], start
        begin, last = b.const(0), b.const(0)
        for axis, coeff in dim.coeffs.items():
            begin = begin + starts[axis] * coeff
            last = last + (lengths[axis] - 1) * coeff
        first = begin - dim.before
        stop = first + last + 1
        first = b.binary("smax", first, 0)
        size = self.source.operand.windows[dim.source].size
        stop = b.binary("smax", b.binary("smin", stop, size), first)
        return first, stop, begin

    def _directions(self) -> tuple[Dim, Dim | None]:
        """The dimension of the vectors, and the other one of a register transpose."""
        inner = self.dims[-1]
        contiguous = self._contiguous()
        if inner.modulus > 1 or contiguous is None or contiguous.source is inner.source:
            return inner, None
        if contiguous.modulus > 1 or self.tiling.lanes < 2:
            return inner, None
        return inner, contiguous

    def _contiguous(self) -> Dim | None:
        """The dimension along which the operand lies contiguous in memory."""
        memory = self.memory
        if memory is None:
            return None
        return next(
            (dim for dim in self.dims if memory.coeff(dim.source) == 1 and dim.source.extent > 1),
            None,
        )

    def _loops(self, dims: Sequence[Dim], body: Callable[[], None]) -> None:
        if not dims:
            body()
            return
        first, stop, _ = self.ranges[dims[0].source]

        def iteration(position: Register) -> None:
            with self.elements.at({dims[0].source: position}):
                self._loops(dims[1:], body)

        self.b.loop(first, stop, 1, (), iteration)

    def _phases(self, vector: Dim) -> None:
        """As many vectors at once as there are phases, sorted by shuffles; the rest one by one."""
        b, lanes, count = self.b, self.tiling.lanes, vector.modulus
        first, stop, _ = self.ranges[vector.source]
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
                b.store(_every(b, parts, phase), self.buffer, offset)

        b.loop(first, whole, lanes * count, (), chunk)
        self._rows(vector, whole, stop)

    def _rows(self, vector: Dim, first: Register, stop: Register) -> None:
        """Vectors along the innermost dimension, the last one masked."""
        lanes = self.tiling.lanes
        if lanes == 1:

            def scalar(position: Register) -> None:
                with self.elements.at({vector.source: position}):
                    self._write(None)

            self.b.loop(first, stop, 1, (), scalar)
            return

        def step(position: Register) -> None:
            with self.elements.at({vector.source: position}, vector=vector.source, lanes=lanes):
                self._write(None)

        whole = stop - self.b.urem(stop - first, lanes)
        self.b.loop(first, whole, lanes, (), step)
        mask = self.b.mask_below(whole, stop, lanes)

        def rest() -> None:
            with self.elements.at(
                {vector.source: whole}, vector=vector.source, lanes=lanes, mask=mask
            ):
                self._write(mask)

        self.b.if_(self.b.compare("lt", whole, stop), rest)

    def _squares(self, vector: Dim, along: Dim) -> None:
        """Square register transposes; what is left over goes element by element."""
        lanes = self.tiling.lanes
        first, stop, _ = self.ranges[vector.source]
        low, high, _ = self.ranges[along.source]
        whole = stop - self.b.urem(stop - first, lanes)
        even = high - self.b.urem(high - low, lanes)

        def column(position: Register) -> None:
            def square(at: Register) -> None:
                env = {vector.source: position, along.source: at}
                tile = Tile(along.source, lanes, lanes)
                with self.elements.at(env, vector=vector.source, lanes=lanes, tile=tile):
                    for row in range(lanes):
                        with self.elements.tile_step(row):
                            self._write(None, {along.source: row})

            def single(at: Register) -> None:
                with self.elements.at(
                    {vector.source: position, along.source: at}, vector=vector.source, lanes=lanes
                ):
                    self._write(None)

            self.b.loop(low, even, lanes, (), square)
            self.b.loop(even, high, 1, (), single)

        self.b.loop(first, whole, lanes, (), column)
        mask = self.b.mask_below(whole, stop, lanes)

        def rest() -> None:
            def single(at: Register) -> None:
                with self.elements.at(
                    {vector.source: whole, along.source: at},
                    vector=vector.source,
                    lanes=lanes,
                    mask=mask,
                ):
                    self._write(mask)

            self.b.loop(low, high, 1, (), single)

        self.b.if_(self.b.compare("lt", whole, stop), rest)

    def _element(self) -> Register:
        """The operand where `elements` stands, in the packed type."""
        value = self.source.operand.value
        raw = self.elements.value(value, self.index)
        register = scalars.convert(self.b, raw, value.type.dtype, self.dtype)
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
                position = position + steps.get(dim.source, 0)
                offset = offset + self._place(dim, position, self.ranges[dim.source][2])
        return offset

    def _write(self, mask: Register | None, steps: Mapping[Var, int] = _NONE) -> None:
        """Evaluate the operand where `elements` stands and store it in scratch."""
        b, position, register = self.b, self.elements.position, self._element()
        split = next(
            (dim for dim in self.dims if dim.source is position.vector and dim.modulus > 1), None
        )
        if split is None:
            b.store(register, self.buffer, self._offset({}, steps=steps), mask=mask)
            return
        lanes = position.lanes
        varying = self._scattered(
            split, position.env[split.source], self.ranges[split.source][2], lanes
        )
        offset = b.splat(self._offset({}, but=split, steps=steps), lanes) + varying
        b.scatter(register, self.buffer, offset, mask=mask)

    def _place(self, dim: Dim, at: Register, begin: Register) -> Register:
        """Scratch offset of source position `at` along one dimension."""
        position = at + dim.before - begin
        if dim.modulus == 1:
            return position * dim.stride
        quotient = self.b.udiv(position, dim.modulus)
        remainder = self.b.urem(position, dim.modulus)
        return remainder * dim.plane + quotient * dim.stride

    def _scattered(self, dim: Dim, at: Register, begin: Register, lanes: int) -> Register:
        """The offsets of consecutive source positions, lane by lane."""
        first = at + dim.before - begin
        position = self.b.splat(first, lanes) + self.b.lane_ids(lanes)
        quotient = self.b.udiv(position, dim.modulus)
        remainder = self.b.urem(position, dim.modulus)
        return remainder * dim.plane + quotient * dim.stride


def _every(b: Builder, parts: Sequence[Register], first: int) -> Register:
    """Elements `first`, `first + n`, `first + 2 n`, ... of n vectors end to end."""
    lanes, count = parts[0].type.lanes, len(parts)
    picks = [lane * count + first for lane in range(lanes)]
    result = parts[0]
    for number, part in enumerate(parts):
        if number == 0:
            continue
        # Lanes that earlier vectors filled stay; those of this one come in.
        here = [pick - number * lanes for pick in picks]
        before = [pick if number == 1 and pick < lanes else lane for lane, pick in enumerate(picks)]
        choice = [
            lanes + at if 0 <= at < lanes else earlier
            for at, earlier in zip(here, before, strict=True)
        ]
        result = b.shuffle(result, part, [lane if lane < 2 * lanes else -1 for lane in choice])
    return result


def _layout(
    source: Source, tiling: Tiling, extents: Mapping[Var, int], dtype: DType
) -> tuple[list[Dim], int]:
    """Dimensions in storage order, innermost last, and the number of elements."""
    dims = _dims(source, extents)
    lane = tiling.lane
    if lane in source.depends:
        dims.sort(key=lambda dim: lane in dim.coeffs)
    elif source.memory is not None:
        memory = source.memory
        dims.sort(key=lambda dim: -abs(memory.coeff(dim.source)) or -math.inf)
    line = max(64 // dtype.itemsize, 1)
    placed: list[Dim] = []
    size = 1
    for position, dim in enumerate(reversed(dims)):
        modulus = 1
        if position == 0 and lane is not None and dim.coeffs.get(lane, 0) > 1:
            modulus = dim.coeffs[lane]
        per_plane = -(-dim.length // modulus)
        if position == 0 and lane in dim.coeffs:
            per_plane = -(-(per_plane + tiling.lanes) // line) * line
        placed.append(
            Dim(
                dim.source,
                dim.coeffs,
                dim.length,
                size,
                modulus,
                size * per_plane,
                dim.before,
                dim.window,
            )
        )
        size *= per_plane * modulus
    return placed[::-1], -(-size // line) * line + line


def _dims(source: Source, extents: Mapping[Var, int]) -> list[Dim]:
    operand = source.operand
    dims, seen = [], set()
    for part in operand.index:
        for var in part.loop_vars():
            if var in seen:
                continue
            seen.add(var)
            window = operand.windows.get(var)
            if window is None:
                dims.append(Dim(var, {var: 1}, extents.get(var, var.extent)))
                continue
            coeffs = dict(window.at.terms)
            length = 1 + sum(c * (extents.get(v, v.extent) - 1) for v, c in coeffs.items())
            dims.append(
                Dim(
                    var,
                    coeffs,
                    length,
                    before=window.before - window.at.const,
                    window=True,
                )
            )
    return dims
