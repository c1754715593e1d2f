"""`Source`: an operand of a contraction nest, and where it lies in memory.

Input: a region, an operand of a nest of it. Output: a `Source`. Invariant: plain data; it has an
offset only where every element is simply read, or made of one that is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stagejit.base.records import record
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.contraction.nest import QUAD, Nest, Operand, Quads
from stagejit.codegen.places.footprint import Footprint
from stagejit.codegen.places.walk import behind_views
from stagejit.graph.ir import Op, Value
from stagejit.index.affine import Affine, Index, Var
from stagejit.types import DType, bf16, f16, f32, i8, i16, i32, u8, u16

NOWHERE = Affine()
_FEW_OPERATIONS = 6  # of an element, evaluated by each tile that uses it: of half a byte, three
_WITHIN_F32 = frozenset({bf16, f16, i8, i16, u8, u16})


@record
class Source(Operand):
    """One operand as the tiling sees it.

    offset: the memory offset in terms of axes, None where the operand must be evaluated. Either way
    it may be packed. memory: the same in terms of the variables of its index, borders aside; None
    where it is not simply read. starts: what a call adds to both, in terms of variables that stand
    at scalars, see `Elements.started`. leaf: what it is read of, perhaps in a type of fewer bits.
    operations: of an element that is made of a single one of fewer bits, which is at the offset,
    beside its conversion; 0 where it is simply read. A tile may evaluate it. quads: where elements
    are words of four bytes. bytes: the index of each. words: they lie in memory as they are, and
    places count them; else a place is that of the first byte.
    """

    offset: Affine | None = None
    memory: Affine | None = None
    starts: Affine = NOWHERE
    leaf: Value | None = None
    operations: int = 0
    quads: Quads | None = None
    bytes: tuple[Index, ...] = ()
    words: bool = False

    @property
    def dtype(self) -> DType:
        """The type of what is read."""
        if self.quads is not None:
            return i32
        return (self.leaf or self.value).type.dtype

    @property
    def bytes_apart(self) -> bool:
        """Whether words are made of bytes that do not follow each other in memory."""
        return self.quads is not None and not self.words

    @property
    def beside(self) -> Var | None:
        """The variable along which elements lie side by side; None where windows share them."""
        terms = self.memory.terms if self.memory is not None and not self.windows else ()
        return next((var for var, stride in terms if stride == 1), None)

    def stride(self, var: Var) -> int:
        return self.offset.coeff(var) if self.offset is not None else 0

    def box(self, extents: Mapping[Var, int], lane: Var | None = None, lanes: int = 1) -> int:
        """Elements of the smallest box that holds what a block of these extents reads, in whole
        vectors along `lane`."""
        size, plain = 1, self.depends
        for window in self.windows.values():
            length, axes = window.length(extents), window.at.loop_vars()
            size *= -(-length // lanes) * lanes if lane in axes else length
            plain -= axes
        for var in plain:
            size *= extents.get(var, var.extent)
        return size


def source_of(region: ClosedRegion, operand: Operand) -> Source:
    """The operand, and where it lies."""
    value, exact = operand.value, operand.exact_index
    leaf = _leaf(region, value)
    if leaf is None:
        plain = Source(value, operand.index, operand.windows, operand.border)
        return plain if operand.windows else _made_of_one(region, plain)
    offset = None if exact is None else _place(region, value, exact)[0]
    memory, starts = _place(region, value, operand.index)
    return Source(
        value, operand.index, operand.windows, operand.border, offset, memory, starts, leaf
    )


def quads_of(region: ClosedRegion, nest: Nest, side: int) -> Source:
    """An operand of a nest in quads."""
    operand, quads = (nest.left, nest.right)[side], nest.quads
    assert quads is not None
    made = replace(
        Source(operand.value, operand.index, operand.windows, operand.border),
        quads=quads, bytes=quads.bytes[side],
    )  # fmt: skip
    leaf = _leaf(region, operand.value)
    if leaf is None:
        return made
    memory, starts = _place(region, operand.value, operand.index)
    made = replace(made, memory=memory, starts=starts, leaf=leaf)
    beside = memory is not None and memory.coeff(quads.var) == QUAD and not quads.rest
    words, whole = _in_words(memory), _in_words(starts)
    if not beside or words is None or whole is None:
        return made
    exact = operand.exact_index
    offset = None if exact is None else _in_words(_place(region, operand.value, exact)[0])
    return replace(made, offset=offset, memory=words, starts=whole, words=True)


def _in_words(form: Affine | None) -> Affine | None:
    """A place in words, if it is that of one."""
    if form is None or form.const % QUAD or any(step % QUAD for _, step in form.terms):
        return None
    return Affine(tuple((var, step // QUAD) for var, step in form.terms), form.const // QUAD)


def _leaf(region: ClosedRegion, value: Value) -> Value | None:
    """What lies in memory where an element is only read through views, and widened: from fewer bits
    a tile makes the same number when it reads it."""
    while (found := behind_views(value, region.inputs)) is None:
        while value.op.definition.is_view:
            value = value.op.operands[0]
        narrow = value.op.operands[0].type.dtype if value.op.operands else value.type.dtype
        exact = value.type.dtype is f32 and narrow in _WITHIN_F32
        if not (value.op.definition.is_conversion and exact):
            return None
        value = value.op.operands[0]
    return found


def evaluated_by_tiles(sources: Sequence[Source], pack: Sequence[bool]) -> list[Source | None]:
    """Of the operands those that tiles make of what they read; None for one that is simply read, or
    packed."""
    return [
        source if source.operations and not packs else None
        for source, packs in zip(sources, pack, strict=True)
    ]


def _made_of_one(region: ClosedRegion, source: Source) -> Source:
    """A source whose elements are made of one element each, in a type of fewer bits, where it is
    that and few operations make them."""
    footprint = Footprint(region)
    footprint.value(source.value, source.index)
    reads = dict.fromkeys(footprint.reads)
    if len(reads) != 1:
        return source
    ((leaf, form),) = reads
    narrow = leaf.type.dtype.itemsize < source.value.type.dtype.itemsize
    operations = _operations(leaf, [value for value, _ in footprint.evaluated])
    if not narrow or not form.loops_only or not 0 < operations <= _FEW_OPERATIONS:
        return source
    return replace(source, offset=form, leaf=leaf, operations=operations)


def _operations(leaf: Value, evaluated: Sequence[Value]) -> int:
    """Operations on an element of the leaf and what becomes of it, conversions aside; 0 where one
    is no usual one. evaluated: each behind what it is made of."""
    made, total = {leaf}, 0
    for value in evaluated:
        if made.isdisjoint(value.op.operands) or value in made:
            continue
        definition = value.op.definition
        if not definition.is_view and not definition.is_elementwise:
            return 0
        made.add(value)
        if definition.is_elementwise and not definition.is_conversion:
            total += math.ceil(definition.element_flops(value.op))
    return total


class _Reading(Footprint):
    """Whose starts of slices are variables that know their scalars."""

    def start(self, op: Op, operand: int, extent: int) -> Affine:
        value = op.operands[operand]
        self.value(value, ())
        return Affine.of(Var(extent, "s", "dynamic", source=value))


def _place(region: ClosedRegion, value: Value, index: Index) -> tuple[Affine | None, Affine]:
    """The offset in memory of an element of what has a leaf, and what starts of slices add to it;
    None where it is no sum of both."""
    footprint = _Reading(region)
    footprint.value(value, index)
    _, form = footprint.reads[-1]  # what starts are made of is read before
    if any(var.kind not in ("loop", "dynamic") for var in form.vars()):
        return None, NOWHERE
    starts = Affine(tuple(term for term in form.terms if term[0].kind == "dynamic"))
    return form - starts, starts
