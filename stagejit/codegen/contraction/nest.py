"""The affine contraction nest: what products and convolutions have in common.

    result[axes] = sum over reduce of left[affine of axes, reduce] * right[affine of axes, reduce]

Input: a contract op (`conv_nest.py`: a conv op). Output: a `Nest` of index variables and, for each
operand, the index at which it is read. Invariant: every element of the op's result is the sum at
exactly one position of `axes`; a window position outside its operand reads as the border.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from stagejit.base.records import record, replace
from stagejit.base.threads.locks import remembered
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.moving.splits import is_uneven, last_part, whole_index
from stagejit.index.affine import Affine, Index, Var
from stagejit.types import DType, dtype_named

QUAD = 4  # bytes in a word


@record
class Window:
    """A source variable that several axes share: source = at - before.

    Positions outside [0, size) read as the operand's border. `at` is never negative. The source
    variable has an extent of at least 2: one of extent 1 would be dropped from an index, but a
    source of one element still has a border.
    """

    at: Affine
    size: int
    before: int = 0

    @property
    def exact(self) -> bool:
        """True where no position is outside."""
        lo, hi = self.at.range()
        return lo >= self.before and hi - self.before < self.size

    def length(self, extents: Mapping[Var, int]) -> int:
        """Positions from the first to the last one, where axes have these extents."""
        return 1 + sum(step * (extents.get(v, v.extent) - 1) for v, step in self.at.terms)

    def substitute(self, mapping: Mapping[Var, Affine]) -> Window:
        return replace(self, at=self.at.substitute(mapping))


@record
class Operand:
    """`value` is read at `index`, an affine form of axes and of the variables of `windows`.

    border: what positions outside a window read as, in the type of the sums.
    """

    value: Value
    index: Index
    windows: Mapping[Var, Window] = field(default_factory=dict)
    border: int | float = 0

    @property
    def exact_index(self) -> Index | None:
        """The index in terms of axes alone, if no element is of the border."""
        exact = all(window.exact for window in self.windows.values())
        return self._without(self.windows).index if exact else None

    @remembered
    def depends(self) -> frozenset[Var]:
        """The axes that choose the element."""
        found = {var for part in self.index for var in part.loop_vars()}
        windows = [self.windows[var].at for var in found & self.windows.keys()]
        return frozenset(found - self.windows.keys()).union(*(at.loop_vars() for at in windows))

    def simplified(self) -> Operand:
        """Windows of a single tap, without a border, replaced by their axis."""
        windows = self.windows.items()
        return self._without([v for v, w in windows if len(w.at.terms) <= 1 and w.exact])

    def _without(self, windows: Collection[Var]) -> Operand:
        """Some windows, which need no border, replaced by where they are."""
        known = {var: self.windows[var].at - self.windows[var].before for var in windows}
        rest = {var: window for var, window in self.windows.items() if var not in known}
        return replace(self, index=_substituted(self.index, known), windows=rest)

    def substitute(self, mapping: Mapping[Var, Affine]) -> Operand:
        windows = {var: window.substitute(mapping) for var, window in self.windows.items()}
        return replace(self, index=_substituted(self.index, mapping), windows=windows)


@record
class Cut:
    """Parts of a sum: each position of `part` sums all steps of `step`, the last only `last`."""

    part: Var
    step: Var
    last: int


@record
class Blocks:
    """Sums of at most `steps` products are exact in the type of these; sums of all in `dtype`."""

    steps: int
    dtype: DType


@record
class Quads:
    """var: numbers the quads. steps: bytes along it. signed: whether bytes of the left and of the
    right operand have a sign. flips: see Note [Signs] in `quads.py`. bytes: where each of the four
    bytes of a quad lies in the left and in the right operand; of one that the last quad lacks, an
    element of `within` is which of the four it is."""

    var: Var
    steps: int
    signed: tuple[bool, bool]
    flips: bool
    bytes: tuple[tuple[Index, ...], tuple[Index, ...]]
    within: tuple[Var, ...]

    @property
    def whole(self) -> int:
        """Quads that lack nothing."""
        return self.steps // QUAD

    @property
    def rest(self) -> int:
        """Bytes of the last quad; 0 where it lacks none."""
        return self.steps % QUAD

    def read(self, flipped: int | None) -> tuple[bool, bool]:
        """Whether an instruction reads bytes with a sign."""
        left, right = self.signed
        return left != (flipped == 0), right != (flipped == 1)


@record
class Nest:
    """`axes` and `reduce` in their natural order, outermost first; extents of 1 are left out.

    result: the index of the anchor's result. dtype: the type that products are summed in. zero:
    what the sums start from: -0, which is neutral, or +0 where zeros are left out of the sums. cut:
    where not all positions have all steps. blocks: where few products only are summed in `dtype`.
    quads: where each step is one of four bytes.
    """

    axes: tuple[Var, ...]
    reduce: tuple[Var, ...]
    result: Index
    left: Operand
    right: Operand
    dtype: DType
    zero: float = -0.0
    cut: Cut | None = None
    blocks: Blocks | None = None
    quads: Quads | None = None

    @property
    def total(self) -> DType:
        """The type of the sums over all steps."""
        return self.dtype if self.blocks is None else self.blocks.dtype

    def flipped(self, lane: Var | None) -> int | None:
        """The operand in quads whose bytes are flipped: that without lanes, or the larger one where
        both have them; None: neither."""
        if self.quads is None or not self.quads.flips:
            return None
        if lane in self.axes:
            return int(lane in self.left.depends)
        left, right = (math.prod(v.extent for v in s.depends) for s in (self.left, self.right))
        return int(right > left)

    @property
    def keeps_cut(self) -> bool:
        """Whether the variables that are cut, if any, are still its own."""
        cut = self.cut
        return cut is None or (cut.part in self.axes and cut.step in self.reduce)

    def substitute(
        self, axes: Sequence[Var], reduce: Sequence[Var], mapping: Mapping[Var, Affine]
    ) -> Nest:
        """The same nest over other variables."""
        return replace(
            self,
            axes=loops(axes),
            reduce=loops(reduce),
            result=_substituted(self.result, mapping),
            left=self.left.substitute(mapping),
            right=self.right.substitute(mapping),
        )

    def split(self, var: Var, inner: int) -> Nest | None:
        """`var` iterated as (extent // inner, inner); None if it is not a variable of this nest."""
        if var not in self.axes and var not in self.reduce:
            return None
        outer, rest = Var(var.extent // inner, var.name), Var(inner, var.name)
        return self.moved(var, Affine.of(outer) * inner + Affine.of(rest), outer, rest)

    def moved(self, var: Var, at: Affine, *new: Var) -> Nest:
        """With new variables in the place of one, which stands at a form of them."""
        axes, reduce = (_with(variables, var, *new) for variables in (self.axes, self.reduce))
        return self.substitute(axes, reduce, {var: at})

    def at(self, var: Var, first: int, count: int, step: int = 1) -> Nest:
        """Over so many positions of a variable alone, `step` apart."""
        some = Var(count, var.name)
        return self.moved(var, Affine.of(some) * step + first, some)


def accumulator(operand: DType, result: DType) -> DType:
    """The type of the running sums: at least f32 for floats, at least 32 bits for integers (which
    wrap, so the low bits are those of the result)."""
    if result.is_float or operand.is_float:
        wider = max((d for d in (operand, result) if d.is_float), key=lambda d: d.bits)
        return wider.accumulator
    bits = max(operand.bits, result.bits)
    return dtype_named("i64" if bits > 32 else "i32")


def contract_nest(op: Op) -> Nest:
    """The nest of a `contract`: each operand dimension is one axis."""
    lhs, rhs = op.operands
    (lhs_sum, rhs_sum), (lhs_batch, rhs_batch) = op.attrs["contracting"], op.attrs["batch"]
    batch = [Var(lhs.shape[dim], "b") for dim in lhs_batch]
    reduce = [Var(lhs.shape[dim], "k") for dim in lhs_sum]
    left = dict(zip((*lhs_batch, *lhs_sum), (*batch, *reduce), strict=True))
    right = dict(zip((*rhs_batch, *rhs_sum), (*batch, *reduce), strict=True))
    axes = list(batch)
    for known, shape, name in ((left, lhs.shape, "m"), (right, rhs.shape, "n")):
        free = {dim: Var(extent, name) for dim, extent in enumerate(shape) if dim not in known}
        known.update(free)
        axes += free.values()
    return Nest(
        loops(axes),
        loops(reduce),
        tuple(map(Affine.of, axes)),
        Operand(lhs, tuple(Affine.of(left[dim]) for dim in range(lhs.type.rank))),
        Operand(rhs, tuple(Affine.of(right[dim]) for dim in range(rhs.type.rank))),
        accumulator(lhs.type.dtype, op.result.type.dtype),
    )


def cut_nest(nest: Nest) -> Nest:
    """The nest, which may sum over parts of which the last is shorter, over what is split."""
    split = nest.left.value.op
    if not is_uneven(split):
        return nest
    ((part, _),), ((step, _),) = (nest.left.index[at].terms for at in (0, split.attrs["axis"] + 1))
    left, right = map(_of_whole, (nest.left, nest.right))
    return replace(nest, left=left, right=right, cut=Cut(part, step, last_part(split)))


def _of_whole(operand: Operand) -> Operand:
    op = operand.value.op
    if not op.definition.splits:
        return operand
    return replace(operand, value=op.operands[0], index=whole_index(op, operand.index))


def apart_nests(nest: Nest) -> list[Nest]:
    """A nest that is cut as one over all parts but the last, and one over that."""
    assert nest.cut is not None
    part, step, last = nest.cut.part, nest.cut.step, nest.cut.last
    nest, whole = replace(nest, cut=None), part.extent - 1
    return [nest.at(part, 0, whole), nest.at(part, whole, 1).at(step, 0, last)]


def apart_at(nest: Nest, axis: Var, first: int) -> list[Nest]:
    """A nest as one over the first so many positions of an axis, and one over the others."""
    return [nest.at(axis, 0, first), nest.at(axis, first, axis.extent - first)]


def every(nest: Nest, axis: Var, period: int) -> list[Nest]:
    """A nest as one over every so-manieth position of an axis, for each that it may begin at."""
    if period == 1:
        return [nest]
    starts = range(min(period, axis.extent))
    return [nest.at(axis, at, -(-(axis.extent - at) // period), period) for at in starts]


def apart(nest: Nest, summed: Affine, tile: int) -> list[Nest]:
    """A nest over all whole parts of a variable that is summed over, `tile` positions each, and one
    over the last part, where that is shorter; axis 0 of the result is the number of the part."""
    ((step, _),) = summed.terms
    whole, rest = divmod(step.extent, tile)
    nests = []
    for first, count, length in ((0, whole, tile), (whole, min(rest, 1), rest)):
        if count:
            part, inner = Var(count, "p"), Var(length, step.name)
            number = Affine.of(part) + first
            moved = {step: number * tile + Affine.of(inner)}
            reduce = _with(nest.reduce, step, inner)
            made = nest.substitute((part, *nest.axes), reduce, moved)
            nests.append(replace(made, result=(number, *made.result)))
    return nests


def _with(variables: Sequence[Var], old: Var, *new: Var) -> list[Var]:
    return [each for var in variables for each in (new if var is old else (var,))]


def _substituted(index: Index, mapping: Mapping[Var, Affine]) -> Index:
    return tuple(part.substitute(mapping) for part in index)


def loops(variables: Sequence[Var]) -> tuple[Var, ...]:
    """Those that loop: an extent of 1 is position 0."""
    return tuple(var for var in variables if var.extent != 1)
