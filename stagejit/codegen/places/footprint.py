"""What a region's evaluation reads, as affine forms: the dry run before any code is written.

Input: values and the index at which they are wanted. Output: the element offset of every read of
memory, every index that is used as a number, and what views on the way divide. Invariant: what is
not known before a kernel runs stands for all that it may be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.places.walk import Walk
from stagejit.codegen.places.windows import window_numbers, window_reads
from stagejit.dispatch.regions import Store
from stagejit.errors import InternalError
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.moving.slices import beneath, is_beneath, pull_view
from stagejit.graph.ops.moving.splits import is_uneven
from stagejit.index.affine import (
    Affine,
    Index,
    Var,
    divisions,
    linearize,
    reshape_index,
    watching_divisions,
)
from stagejit.types import DType


class Need(NamedTuple):
    """An element of a value; another one wherever one of these loops stands elsewhere."""

    value: Value
    loops: frozenset[Var]


class Footprint(Walk[Need]):
    """Reads and index uses of one region. All it knows of an element is whose it is, and which
    loops it follows.

    bound: values computed elsewhere; the indices at which they are asked for are kept in `asked`.
    compared: what tells which of several values an element is; cuts: those of these forms that tell
    it by lying within [0, an extent), or not.
    divided: see `space.merge`. parts: the elements of splits that were needed, as indices into what
    is split. strict: split loops rather than divide (see Affine.divmod).
    """

    def __init__(
        self, region: ClosedRegion, bound: Collection[Value] = (), *, strict: bool = False
    ) -> None:
        super().__init__()
        self.bound, self.strict = bound, strict
        self.reads: list[tuple[Value, Affine]] = []
        self.numbers: list[Affine] = []
        self.compared: list[Affine] = []
        self.cuts: list[tuple[Affine, int]] = []
        self.asked: list[tuple[Value, Index]] = []
        self.divided: list[tuple[Affine, int]] = []
        self.parts: list[tuple[Op, Index]] = []
        self._inputs = frozenset(region.inputs)

    @property
    def forms(self) -> list[Affine]:
        """Every affine form that merging of loops must respect."""
        asked = [linearize(index, value.shape) for value, index in self.asked]
        return [form for _, form in self.reads] + self.numbers + self.compared + asked

    @property
    def evaluated(self) -> list[tuple[Value, Index]]:
        """All elements that were needed, each after those that it is made of."""
        return list(self._known)

    def reshaped(self, index: Index, to: Sequence[int], of: Sequence[int]) -> Index:
        """`reshape_index`; what it divides is recorded."""
        self.divided += divisions(index, to, of)
        return reshape_index(index, to, of, strict=self.strict)

    def write(self, store: Store, index: Index) -> Affine:
        """Visit element `index` of `store.value`. Its offset in `store.into`, which is recorded."""
        self.value(store.value, index)
        offset = self._offset(store.into, self.placed(store, index))
        self.numbers.append(offset)
        return offset

    def require_elements(self) -> None:
        """Raises InternalError where a part that is shorter than others is run to the end of those:
        whoever sums over parts has a nest of its own for it. To be asked before loops are merged:
        those that nothing follows have any numbers then, beyond the array's end, too.
        """
        for split, index in self.parts:
            axis, whole = split.attrs["axis"], split.operands[0].type
            if is_uneven(split) and index[axis].range()[1] >= whole.shape[axis]:
                at = ", ".join(map(str, index))
                what = f"{split} has no element [{at}]"
                raise InternalError(what, step="codegen", loc=split.loc)

    def _offset(self, value: Value, index: Index) -> Affine:
        """Where an element lies in memory; what that divides is recorded."""
        offset, divided = watching_divisions(lambda: value.type.offset(index, strict=self.strict))
        self.divided += divided
        return offset

    # ---------------------------------------------------------------- of the walk

    def given(self, value: Value, index: Index) -> Need | None:
        if value in self.bound:
            self.asked.append((value, index))
            return Need(value, _loops_of(index))
        if value in self._inputs:
            offset = self._offset(value, index)
            self.reads.append((value, offset))
            return Need(value, _loops_of([offset]))
        return None

    def pull(self, op: Op, index: Index) -> Index:
        pulled, divided = watching_divisions(
            lambda: pull_view(op, index, strict=self.strict, start=self.start)
        )
        if op.definition.splits:
            self.parts.append((op, pulled))
        known = op.definition.divisions
        self.divided += divided if known is None else known(op, index)
        return pulled

    def standing_at(
        self,
        element: Need,
        dtype: DType,
        room: int,
        inside: list[Need] | None = None,
        *,
        clamps: bool = True,
    ) -> Affine:
        if inside is not None:
            inside.append(element)
        return Affine.of(Var(room, "s", "dynamic", source=element.value, follows=element.loops))

    def computed(self, op: Op, elements: Sequence[Need]) -> Need:
        return Need(op.result, _together(elements))

    def filled(self, op: Op, element: Need, inside: Sequence[Need]) -> Need:
        return Need(op.result, _together([element, *inside]))

    def window(self, op: Op, index: Index) -> Need:
        self.numbers += window_numbers(op, index)
        read = [self.value(op.operands[0], read) for read in window_reads(op, index)]
        return Need(op.result, _together(read) | _loops_of(index))

    def overlaid(self, op: Op, index: Index) -> Need:
        at, rests = beneath(op, index, strict=self.strict)
        upper = is_beneath(op, at, rests)
        forms = [form for axis, rest in rests.items() for form in (at[axis], rest)]
        if upper is not None:
            self.numbers += forms  # kernels find out the same again, of these
            return self.value(*((op.operands[0], at) if upper else (op.operands[1], index)))
        self.compared += forms
        for axis, rest in rests.items():
            self.cuts.append((at[axis], op.operands[0].shape[axis]))
            self.cuts += [(rest, 1)] if rest.terms else []
        parts = [self.value(op.operands[0], at), self.value(op.operands[1], index)]
        return Need(op.result, _together(parts) | _loops_of(index))

    def counted(self, op: Op, part: Affine) -> Need:
        self.numbers.append(part)
        return Need(op.result, _loops_of([part]))

    def constant(self, value: Value) -> Need:
        return Need(value, frozenset())


def _loops_of(index: Iterable[Affine]) -> frozenset[Var]:
    return frozenset[Var]().union(*(part.loop_vars() for part in index))


def _together(elements: Iterable[Need]) -> frozenset[Var]:
    return frozenset[Var]().union(*(element.loops for element in elements))
