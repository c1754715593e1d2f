"""What a dispatch moves against the grain, where its operands and results lie in given orders.

Input: a dispatch, layouts. Output: bytes: those that come one by one, or have to be put in another
order on the way, because the vectors of its kernel run along another axis than memory does, with
the vectors along the axis that is best for all. Invariant: an estimate of a difference; nothing but
the choice of layouts depends on it, and it knows no target.

Note [What goes against the grain]: measured on two cores of a Zen 4 (EPYC, family 25, model 17)
with AVX-512, f32, NCHW against the same program with channels innermost in all memory between
dispatches. Three 3x3 convolutions gain 5 to 20% by channels where images are larger than weights,
which vectors of channels want packed; where weights are larger they lose up to 15%. 1x1
convolutions gain 0 to 10%. With a stride of 2 a 3x3 convolution loses 20 to 50% (its kernel packs
phases of pixels), a depthwise one gains 20 to 60%. A mean and variance of each channel, whose rows
are read again, takes 1.0 to 1.3 times as long by channels, 2.3 times of 512 rows of 600, and 1.5 to
1.8 times where rows are read across lines. Pools of stride 2, and their gradients, gain 30 to 100%.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from stagejit.base.records import record
from stagejit.dispatch.ranges.accesses import Walk, store_index
from stagejit.dispatch.ranges.scalars import NOTHING
from stagejit.dispatch.regions import Region, view_of
from stagejit.graph.dims import ConvDims, WindowDims
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.axes import separate
from stagejit.index.affine import Affine, Index, Var
from stagejit.index.coordinates import coordinates, variables
from stagejit.index.layout import ROW_MAJOR, Layout

_NEAR = 0.5  # of what comes one by one, where two neighbours share most lines
_PACKED = 0.13  # of an operand of a product that is put in another order once, and read often
_IMAGE = 0.25  # of an image that is put in another order, with its border
_SHIFTED = 0.25  # of an image that vectors along its pixels read at each tap, across lines
_PASSED = 0.05  # of one that they read once
_PHASES = 0.5  # of one that is read in steps, for vectors along channels
_COLUMNS = 0.25  # of what is summed into vectors of columns, which share no lane
_COLUMNS_AGAIN = 0.4  # and read again, from further away than a row
_SHORT = 8  # lanes of vectors that are hardly worth it


@record
class _Access:
    """`value`, an operand or a result of the dispatch, is met at `index`; weight: bytes that this
    takes, times what one of them costs where they come one by one."""

    value: Value
    shape: tuple[int, ...]
    index: Index
    weight: float
    _known: dict[Layout, dict[Var, float]] = field(default_factory=dict)

    def against(self, lane: Var, layout: Layout) -> float:
        """What vectors along `lane` cost it."""
        if self.value.shape != self.shape:  # through an alias: row-major
            layout = ROW_MAJOR
        if layout not in self._known:
            self._known[layout] = self._by_lane(layout)
        return self._known[layout].get(lane, 0.0)

    def _by_lane(self, layout: Layout) -> dict[Var, float]:
        """Of the variables along which it goes against the grain."""
        found: dict[Var, float] = {}
        for var, step in layout.offset(self.index, self.shape).terms:
            if var.operand is not None:
                found |= dict.fromkeys(var.operand.loop_vars(), self.weight)
            elif abs(step) > 1:
                part = _NEAR if abs(step) == 2 else 1.0
                found[var] = max(part * self.weight, found.get(var, 0.0))
        return found


class _Walk(Walk):
    """Indices of inputs as what a vector sees of them: along the axes of a result, not those of
    sums. `weights`: of those that count other than by their elements."""

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        self.weights: dict[Value, float] = {}

    def operands_at(self, op: Op, index: Index) -> Iterator[tuple[Value, Index]]:
        kind = op.definition
        if kind.is_window:
            dims = WindowDims.of(op.attrs)
            self._weigh(op.operands[0], float(math.prod(dims.sizes) * op.result.type.nbytes))
            yield op.operands[0], _scaled(index, dims.strides)
        elif kind.is_windowed:
            yield from self._of_conv(op, index)
        elif kind.separate is not None and op.results:
            yield from self._of_sum(op, index)
        else:
            yield from super().operands_at(op, index)

    def _of_sum(self, op: Op, index: Index) -> Iterator[tuple[Value, Index]]:
        """Kept axes as the result has them, others along themselves."""
        found = [list(coordinates(operand.shape)) for operand in op.operands]
        for axis, part in enumerate(index):
            for number, own in enumerate(separate(op, axis) or ()):
                if own is not None:
                    found[number][own] = part
        for operand, at in zip(op.operands, found, strict=True):
            if op.definition.is_product:
                self._weigh(operand, _PACKED * operand.type.nbytes)
            yield operand, tuple(at)

    def _of_conv(self, op: Op, index: Index) -> Iterator[tuple[Value, Index]]:
        dims, (lhs, rhs) = ConvDims.of(op.attrs), op.operands
        own = index if dims.split is None else index[1:]
        image, kernel = [Affine()] * lhs.type.rank, [Affine()] * rhs.type.rank
        image[dims.lhs_spec[0]] = own[dims.out_spec[0]]
        if is_depthwise(op):
            image[dims.lhs_spec[1]] = own[dims.out_spec[1]]
        else:
            self._weigh(lhs, _IMAGE * lhs.type.nbytes)
        for at, out, stride in zip(dims.lhs_spec[2:], dims.out_spec[2:], dims.strides, strict=True):
            image[at] = own[out] * stride
        kernel[dims.rhs_spec[0]] = own[dims.out_spec[1]]
        self._weigh(rhs, _PACKED * rhs.type.nbytes)
        yield lhs, tuple(image)
        yield rhs, tuple(kernel)

    def _weigh(self, value: Value, weight: float) -> None:
        """Of the operand itself; what it is made of counts as it is."""
        self.weights[value] = max(weight, self.weights.get(value, 0.0))


def _scaled(index: Index, strides: Sequence[int]) -> Index:
    return tuple(part * stride for part, stride in zip(index, strides, strict=True))


class Grain:
    """Bytes against the grain of one dispatch, by the layouts of the memory that it touches."""

    def __init__(self, op: Op, number: int) -> None:
        region = view_of(op, number, NOTHING)
        self.region, self.kind = region, region.definition
        self.values = tuple(dict.fromkeys((*region.operands, *region.results)))
        self.groups = [self._of(part) for part in region.parts]

    def nbytes(self, layouts: Mapping[Value, Layout]) -> float:
        """layouts: of values that are not row-major."""
        if not self._vectors_are_known:
            moved = (
                value for value in self.values if not layouts.get(value, ROW_MAJOR).is_row_major
            )
            return float(sum(value.type.nbytes for value in moved))
        return sum(
            min((self._along(lane, group, layouts) for lane in _lanes(group)), default=0.0)
            for groups in self.groups
            for group in groups.values()
        )

    @property
    def _vectors_are_known(self) -> bool:
        """Whether the kernel chooses its vectors by what lies in order; others count on theirs."""
        kind = self.kind
        return kind.is_elementwise or kind.is_reduce or kind.is_product

    def _of(self, part: Region) -> dict[tuple[int, ...], list[_Access]]:
        """What is met by the elements of each shape that is stored: one space of vectors."""
        groups: dict[tuple[int, ...], list[_Access]] = {}
        memory = dict(zip(part.inputs, part.operands, strict=True))
        for store, result in zip(part.stores, part.results, strict=True):
            own, space = self._space(part, store.value)
            walk = _Walk(part)
            walk.visit(store.value, own)
            found = groups.setdefault(space, [])
            steps = dict(zip(variables(store.value.shape), own, strict=True))
            placed = tuple(at.substitute(steps) for at in store_index(store))
            nbytes = float(store.value.type.nbytes)
            found.append(_Access(result, store.into.shape, placed, nbytes))
            for value, indices in walk.indices.items():
                weight = walk.weights.get(value, float(value.type.nbytes))
                found += [_Access(memory[value], value.shape, at, weight) for at in indices]
        return groups

    def _space(self, part: Region, value: Value) -> tuple[Index, tuple[int, ...]]:
        """The index at which a stored value is met, and the shape of the vectors' space: that of
        the rows where it is made of rows."""
        own = coordinates(value.shape)
        if not self.kind.is_reduce or part.anchor is None:
            return own, value.shape
        (rows, *_), gone = part.anchor.operands, part.anchor.attrs["axes"]
        kept = [axis for axis in range(rows.type.rank) if axis not in gone]
        if value.shape == tuple(rows.shape[axis] for axis in kept):
            return tuple(coordinates(rows.shape)[axis] for axis in kept), rows.shape
        return own, value.shape if value.shape == rows.shape else rows.shape

    def _along(self, lane: Var, group: Sequence[_Access], layouts: Mapping[Value, Layout]) -> float:
        total = sum(access.against(lane, layouts.get(access.value, ROW_MAJOR)) for access in group)
        return total + self._of_anchor(lane, layouts)

    def _of_anchor(self, lane: Var, layouts: Mapping[Value, Layout]) -> float:
        """What vectors along `lane` cost the anchor, whatever lies where."""
        anchor = self.region.anchor
        if anchor is None:
            return 0.0
        operand = anchor.operands[0]
        if self.kind.is_reduce:
            if any(lane is variables(operand.shape)[axis] for axis in anchor.attrs["axes"]):
                return 0.0
            again = any(s.value.shape == operand.shape for s in self.region.stores)
            return (_COLUMNS_AGAIN if again else _COLUMNS) * operand.type.nbytes
        return _of_windows(anchor, lane) if self.kind.is_windowed else 0.0


def is_depthwise(op: Op) -> bool:
    """Whether each feature of a convolution is made of one of its own."""
    return bool(op.operands[1].shape[op.attrs["rhs_spec"][1]] == 1)


def _of_windows(op: Op, lane: Var) -> float:
    """What vectors along `lane` cost a convolution, see Note [What goes against the grain]."""
    dims, (image, kernel) = ConvDims.of(op.attrs), op.operands
    steps = max((*dims.strides, *dims.lhs_dilation), default=1) > 1
    taps = math.prod(kernel.shape[axis] for axis in dims.rhs_spec[2:])
    part = _NEAR if lane.extent < _SHORT else 0.0
    if is_depthwise(op):
        pass
    elif lane is variables(op.result.shape)[dims.out_spec[1]]:
        part += _PHASES if steps and taps > 1 else 0.0
    elif not steps:
        part += _SHIFTED if taps > 1 else _PASSED
    return part * image.type.nbytes


def _lanes(group: Sequence[_Access]) -> list[Var]:
    """The variables along which vectors may run."""
    found = (var for access in group for part in access.index for var in part.loop_vars())
    return list(dict.fromkeys(var for var in found if var.kind == "loop"))
