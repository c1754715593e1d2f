"""Fills the packed block of an operand by evaluating it element by element.

Input: the `Source`, the place of the block. Output: loops that write its scratch; prologues,
borders, layout changes and type conversions all happen here. Invariant: every position of the block
that a window reaches outside the operand holds the operand's border.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from stagejit.codegen.contraction.sources import Source
from stagejit.codegen.cpu.contract.packing import Dim, Need, View, layout, need_of, panel_split
from stagejit.codegen.cpu.contract.tiling import Tiling
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.ir.strides import every
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.groups import Part, Split
from stagejit.codegen.nest.spans import Span
from stagejit.codegen.nest.tree import (
    At,
    Cell,
    Chunk,
    Do,
    Groups,
    Loop,
    Node,
    Run,
    everywhere,
    serial,
    vectors,
)
from stagejit.codegen.places.accesses import between_lanes
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Var
from stagejit.types import DType

_MOST_SHUFFLED = 4  # phases that shuffles sort faster than scattered stores
_UNROLLED_VECTORS = 8  # rows up to this length are written without a loop
_ROWS_AHEAD = 4  # of a panel, which are short and far from each other in memory
SIDES = ("left", "right")


class Fill:
    """Scratch for one operand, and what copies the block there that the loops around handed down of
    each axis. Dimensions that run on into each other, in memory and in scratch, are walked as one.
    """

    def __init__(
        self, emitter: Emitter, source: Source, tiling: Tiling, dtype: DType, side: int
    ) -> None:
        self.b, self.emitter, self.elements = emitter.b, emitter, emitter.elements
        self.source, self.tiling, self.lanes, self.dtype = source, tiling, tiling.lanes, dtype
        self.side, self.name, self.split = side, SIDES[side], panel_split(source, tiling)
        self.packed, self.panel = layout(source, tiling, dtype)
        self.size = self.panel * (self.split.block if self.split is not None else 1)
        self.buffer = self.b.scratch(self.name, element_type(dtype), self.size)
        self.dims, self.index, self.memory = list(self.packed), source.index, source.memory
        self.needs: dict[Var, Need] = {}
        for at in reversed(range(len(self.dims) - 1)):
            self._join(at)

    def view(self) -> View:
        """How tiles read the block: axes count from its start."""
        strides: dict[Var, int] = {}
        for dim in self.packed:
            for axis, coeff in dim.window.at.terms if dim.modulus == 1 else ():
                strides[axis] = strides.get(axis, 0) + coeff * dim.stride
        phased = [dim for dim in self.packed if dim.modulus > 1]
        b, depends = self.b, self.source.depends  # a view that held all of this would be a cycle
        base = partial(b.const, 0)
        panel = (self.split.var, self.panel) if self.split is not None else (None, 0)
        return View(
            self.buffer, self.dtype, strides, base, depends,
            padded=True, phased=phased, panel=panel,
        )  # fmt: skip

    def tree(self) -> Node:
        if self.split is None:
            return self.emitter.within("pack", self._spans, self._tree())
        if self.tiling.lane in self.source.depends:
            filled = self.emitter.within("pack", self._spans, self._tree())
            return Groups(self.split, tuple(self._panels(self.split, filled)))
        return self._rows_of(self.split)

    def _rows_of(self, split: Split) -> Node:
        """Panels of rows have few elements of each line of memory: step by step through all."""
        self._chose("row by row")
        *steps, row = self.dims
        sizes = (self.lanes >> at for at in range(self.lanes.bit_length()))
        chunks = (Chunk(size, self.write, vector=size > 1, straight=True) for size in sizes)
        piece = Loop(row.source, tuple(chunks))
        filled = self.emitter.within("piece", partial(self._spans_of, [row]), piece)
        groups = Groups(split, tuple(self._panels(split, filled)))
        walked = serial([dim.source for dim in steps], groups)
        return self.emitter.within("pack", partial(self._spans_of, steps), walked)

    def _panels(self, split: Split, fill: Node) -> Iterator[Run]:
        """What fills the panels of groups of each size, and of the last group, which ends where the
        axis does; squares are much code, and loop in any case."""
        over = split.unit * (split.small * split.groups + split.big) - split.var.extent
        last = split.groups - 1 if over else split.groups
        bounds: list[tuple[int, int, int, int | None]] = [
            (split.small + 1, 0, split.big, 0),
            (split.small, split.big, last, 0),
            (split.small, last, split.groups, over),
        ]
        if self._directions()[1] is not None and (over or len(split.sizes()) > 1):
            bounds = [(split.most, 0, split.groups, None)]
        for size, low, high, less in bounds:
            if low < high:
                count = None if less is None else size * split.unit - less
                group = partial(self._group, split, count)
                yield Run(size, low, high, self.emitter.within("panel", group, fill))

    def _group(self, split: Split, count: int | None) -> dict[Var, Span]:
        """So many elements from where the group starts; None: all that it has."""
        start = self.emitter.elements.position.env[split.var]
        if count is not None:
            return {split.var: Span(start, count)}
        part = self.emitter.span(split.var)
        assert isinstance(part, Part)
        stop = split.start(self.b, self.emitter.groups[split.var] + part.low + 1)
        stop = self.b.binary("smin", stop, split.var.extent)
        return {split.var: Span.between(start, stop)}

    def _spans(self) -> dict[Var, Span]:
        return self._spans_of(self.dims)

    def _spans_of(self, dims: Sequence[Dim]) -> dict[Var, Span]:
        needs = {dim.source: need_of(self.b, self.emitter.span, dim) for dim in dims}
        self.needs |= needs
        return {source: need.span for source, need in needs.items()}

    @property
    def write(self) -> Do:
        return Do("pack", self._write)

    def _tree(self) -> Node:
        if not self.dims:
            return self.write
        vector, along = self._directions()
        if self.lanes > 1 and vector.modulus == 1 and along is None:
            self._chose("as it lies")
            return self._walk(0)
        others = [dim.source for dim in self.dims if dim is not vector and dim is not along]
        if 1 < vector.modulus <= _MOST_SHUFFLED and self.lanes > 1:
            how, filled = "by phases", self._phases(vector)
        elif along is not None:
            how, filled = "in squares", self._squares(vector, along)
        else:
            how, filled = "in rows", self._row(vector)
        self._chose(how)
        border: Node = ()
        if not all(dim.window.exact for dim in self.dims):
            border = self._border(lambda: (self.b.const(0), self.b.const(self.size)))
        return (border, serial(others, filled))

    def _chose(self, how: str) -> None:
        reason = f"the {self.name} operand {how}: {self.size} elements of scratch"
        self.emitter.chose("pack", reason, packs=self.side)

    # ---------------------------------------------------------------- what is walked

    def _count(self, dim: Dim) -> int | None:
        """How many positions each block has, None where that differs."""
        if self.split is not None and dim.axis is self.split.var:
            return None
        lengths = {axis: self.tiling.count(axis) for axis in dim.window.at.vars()}
        known = {axis: length for axis, length in lengths.items() if length is not None}
        return dim.window.length(known) * dim.times if len(known) == len(lengths) else None

    def _join(self, at: int) -> None:
        """Two dimensions become one, if the first runs on into the second."""
        outer, inner = self.dims[at : at + 2]
        extent = inner.source.extent
        if (
            self.memory is None
            or inner.axis is None
            or not outer.modulus == inner.modulus == 1
            or self._count(inner) != extent
            or outer.stride != inner.stride * extent
            or self.memory.coeff(outer.source) != self.memory.coeff(inner.source) * extent
        ):
            return
        joint = Var(outer.source.extent * extent, inner.source.name)
        high, low = Affine.of(joint).divmod(extent)
        mapping = {outer.source: high, inner.source: low}
        self._substitute(mapping)
        self.memory = self.memory.substitute(mapping)
        length = outer.length * extent
        self.dims[at : at + 2] = [
            replace(outer, source=joint, length=length, stride=inner.stride, times=extent)
        ]

    def _substitute(self, mapping: Mapping[Var, Affine]) -> None:
        self.index = tuple(part.substitute(mapping) for part in self.index)

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

    def _walk(self, depth: int) -> Node:
        """The block in storage order, borders included."""
        dim = self.dims[depth]
        bordered = not dim.window.exact
        if depth == len(self.dims) - 1:
            return self._bordered_row(dim) if bordered else self._row(dim)
        inner = serial([dim.source], self._walk(depth + 1))
        if not bordered:
            return inner

        def before() -> tuple[Register, Register]:
            row, need = self._row_start(depth), self.needs[dim.source]
            return row, row + (need.first - need.origin) * dim.stride

        def after() -> tuple[Register, Register]:
            row, need = self._row_start(depth), self.needs[dim.source]
            return row + (need.stop - need.origin) * dim.stride, row + need.count * dim.stride

        # Whole vectors of it may reach into the rows that follow.
        return (self._border(before), inner, self._border(after))

    def _panel_start(self) -> Register:
        """Where in scratch the panel of the group begins, or the block."""
        if self.split is None:
            return self.b.const(0)
        return self.emitter.groups[self.split.var] * self.panel

    def _row_start(self, depth: int) -> Register:
        """Where in scratch the loops over the first dimensions stand."""
        start = self._panel_start()
        for dim in self.dims[:depth]:
            position = self.elements.position.env[dim.source] - self.needs[dim.source].origin
            start = start + position * dim.stride
        return start

    def _bordered_row(self, dim: Dim) -> Node:
        """Vectors over the positions of the block; lanes outside the operand are the border."""
        b, lanes, border = self.b, self.lanes, self.border
        size = dim.window.size * dim.times
        block = Var(dim.length, "block")
        # A masked load gives zeros already.
        reads = self.memory is not None and self.memory.coeff(dim.source) == 1

        def step() -> None:
            position, need = self.elements.position.env[block], self.needs[dim.source]
            at = position + need.origin
            inside = b.mask_below(at, size, lanes) ^ b.mask_below(at, 0, lanes)
            with self.elements.at({dim.source: at}, vector=dim.source, lanes=lanes, mask=inside):
                self._prefetch()
                register = self._element()
            if border != 0 or not reads:
                register = b.select(inside, register, border)
            b.store(register, self.buffer, self._row_start(len(self.dims) - 1) + position)

        def ends() -> dict[Var, Span]:
            return {block: Span.between(b.const(0), self.needs[dim.source].count)}

        short = dim.length <= _UNROLLED_VECTORS * lanes  # masks then do not depend on the row
        row = vectors(block, lanes, Do("pack", step), tail="padded", straight=short)
        return row if short else self.emitter.within("ends", ends, row)

    def _prefetch(self) -> None:
        """The same place one step of the outermost dimension ahead: rows are short, and the next
        ones far away."""
        outer, memory, leaf = self.dims[0], self.memory, self.source.leaf
        if memory is None or leaf is None or len(self.dims) < 2:
            return
        place, here = self._place(memory, leaf)
        self.b.prefetch(place.buffer, here + memory.coeff(outer.source))

    def _fetch_row(self) -> None:
        """A row of the panel that follows some rows later, a line at a time."""
        memory, leaf, (*_, outer, row) = self.memory, self.source.leaf, (None, *self.dims)
        if memory is None or leaf is None or outer is None or memory.coeff(row.source) != 1:
            return
        place, here = self._place(memory, leaf)
        step, itemsize = memory.coeff(outer.source), place.buffer.elem.bits // 8
        for first in self._rows_at_once(outer, step):
            ahead = here + (step * _ROWS_AHEAD + first)
            for at in range(0, row.length * itemsize, self.tiling.line_nbytes):
                self.b.prefetch(place.buffer, ahead + at // itemsize)

    def _rows_at_once(self, outer: Dim, step: int) -> range:
        """Where rows of memory begin that are read for one row of scratch."""
        return range(1)

    def _place(self, memory: Affine, leaf: Value) -> tuple[Memory, Register]:
        """Where what is read here lies."""
        _, place = self.elements.behind(leaf)
        form = self.elements.started(memory + self.source.starts)
        return place, self.elements.scalar_index(form - place.base)

    def _border(self, ends: Callable[[], tuple[Register, Register]]) -> Node:
        """Whole vectors of the border, from one place in scratch to another or a little further."""
        b, lanes, at = self.b, self.lanes if self.lanes > 1 else 0, Var(self.size, "border")

        def store() -> None:
            border = b.const(self.border, element_type(self.dtype).with_lanes(lanes))
            b.store(border, self.buffer, self.elements.position.env[at])

        fill = Loop(at, (Chunk(max(lanes, 1), Do("border", store), tail="padded"),))
        return self.emitter.within("ends", lambda: {at: Span.between(*ends())}, fill)

    def _phases(self, vector: Dim) -> Node:
        """As many vectors at once as there are phases, sorted by shuffles; the rest one by one."""
        var, lanes, count = vector.source, self.lanes, vector.modulus
        cells = [Cell("phase") for _ in range(count)]
        loads = [self.emitter.set_cell("load", c, lambda: [self._element()]) for c in cells]

        def store(phase: int) -> None:
            offset, parts = self._offset(self.dims), [self.emitter.cells[cell][0] for cell in cells]
            self.b.store(every(self.b, parts, phase), self.buffer, offset)

        places = (
            At(((var, at * lanes),), load, var, lanes, lanes) for at, load in enumerate(loads)
        )
        stores = (At(((var, phase),), Do("sort", partial(store, phase))) for phase in range(count))
        together = Chunk(lanes * count, (*places, *stores))
        return Loop(var, (together, Chunk(lanes, self.write, vector=True, tail="masked")))

    def _row(self, vector: Dim) -> Node:
        """Positions along the innermost dimension."""
        if self.lanes > 1:
            short = self.split is not None and vector.length <= _UNROLLED_VECTORS * self.lanes
            row = vectors(vector.source, self.lanes, self.write, straight=short)
            return (Do("fetch ahead", self._fetch_row), row) if short else row
        return serial([vector.source], self.write)

    def _squares(self, vector: Dim, along: Dim) -> Node:
        """Square register transposes; what is left over goes element by element. Elements that lie
        between the lanes and nowhere else are all loaded with them."""
        lanes, var, single = self.lanes, along.source, Chunk(1, self.write)
        if self._is_between(vector, along):
            whole: Node = self.emitter.interleaved(var.extent, everywhere([var], self.write))
        else:
            square = self.emitter.square(var, lanes, self.write)
            whole = Loop(var, (Chunk(lanes, square), single))
        rest = Chunk(lanes, Loop(var, (single,)), vector=True, tail="all masked")
        return Loop(vector.source, (Chunk(lanes, whole, vector=True), rest))

    def _is_between(self, vector: Dim, along: Dim) -> bool:
        """Whether positions of `along` are all the elements from one lane to the next in memory."""
        assert self.memory is not None
        sources = [dim.source for dim in self.dims]
        between = between_lanes(sources, self.memory, vector.source, self.lanes)
        whole = along.window.exact and self._count(along) == along.source.extent
        return whole and between == [along.source]

    @property
    def border(self) -> int | float:
        """What positions outside a window read as, in the packed type."""
        return self.source.border

    def _made(self) -> Register:
        """The operand where `elements` stands, in the packed type."""
        raw = self.elements.value(self.source.value, self.index)
        return vmath.convert(self.b, raw, self.source.value.type.dtype, self.dtype)

    def _element(self) -> Register:
        register, position = self._made(), self.elements.position
        return register if position.vector is None else self.b.splat(register, position.lanes)

    def _offset(self, dims: Sequence[Dim]) -> Register:
        """Scratch offset of the source position where `elements` stands, along dimensions."""
        offset = self._panel_start()
        for dim in dims:
            position = self.elements.scalar_index(Affine.of(dim.source))
            offset = offset + dim.place(position - self.needs[dim.source].origin)
        return offset

    def _write(self) -> None:
        """Evaluate the operand where `elements` stands and store it in scratch."""
        b, position, register = self.b, self.elements.position, self._element()
        split = next(
            (dim for dim in self.dims if dim.source is position.vector and dim.modulus > 1), None
        )
        if split is None:
            b.store(register, self.buffer, self._offset(self.dims), mask=position.mask)
            return
        lanes = position.lanes
        first = position.env[split.source] - self.needs[split.source].origin
        varying = split.place(b.splat(first, lanes) + b.lane_ids(lanes))
        fixed = self._offset([dim for dim in self.dims if dim is not split])
        b.scatter(register, self.buffer, b.splat(fixed, lanes) + varying, mask=position.mask)
