"""What a region's evaluation reads, as affine forms: the dry run before any code is written.

Input: values and the index at which they are wanted. Output: the element offset of every read of
memory, every index that is used as a number, and what views on the way divide. Invariant:
mirrors `Elements`; a form that is not listed here is not needed there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.elements.gathers import gather_reads
from stagejit.codegen.elements.windows import window_numbers, window_reads
from stagejit.dispatch.regions import Store
from stagejit.errors import InternalError
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.slices import place, pull_view
from stagejit.index.affine import (
    Affine,
    Index,
    divisions,
    linearize,
    reshape_index,
    watching_divisions,
)
from stagejit.locks import remembered


@dataclass
class Footprint:
    """Reads and index uses of one region.

    bound: values computed elsewhere; the indices at which they are asked for are kept in `asked`.
    divided: see `space.merge`. strict: split loops rather than divide (see Affine.divmod).
    """

    region: ClosedRegion
    bound: Collection[Value] = ()
    strict: bool = False
    reads: list[tuple[Value, Affine]] = field(default_factory=list)
    numbers: list[Affine] = field(default_factory=list)
    asked: list[tuple[Value, Index]] = field(default_factory=list)
    divided: list[tuple[Affine, int]] = field(default_factory=list)
    visited: dict[tuple[Value, Index], None] = field(default_factory=dict)  # in order

    @remembered
    def _inputs(self) -> frozenset[Value]:
        return frozenset(self.region.inputs)

    @property
    def forms(self) -> list[Affine]:
        """Every affine form that merging of loops must respect."""
        asked = [linearize(index, value.shape) for value, index in self.asked]
        return [form for _, form in self.reads] + self.numbers + asked

    def visit(self, value: Value, index: Index) -> None:
        """Record all that evaluating `value` at `index` needs."""
        pending = [(value, index)]  # a chain of ops may be longer than Python's own stack
        while pending:
            key = pending.pop()
            if key not in self.visited:
                self.visited[key] = None
                pending += reversed(self._record(*key))

    def _record(self, value: Value, index: Index) -> list[tuple[Value, Index]]:
        """Records one value; returns what it is computed from."""
        op = value.op
        if value in self.bound:
            self.asked.append((value, index))
            return []
        if value in self._inputs:
            self.reads.append((value, self._offset(value, index)))
            return []
        if op.definition.is_view:
            pulled, divided = watching_divisions(lambda: pull_view(op, index, strict=self.strict))
            if op.definition.splits:
                require_elements(op, pulled)
            known = op.definition.divisions
            self.divided += divided if known is None else known(op, index)
            return [(op.operands[0], pulled), *((start, ()) for start in op.operands[1:])]
        if op.definition.counts:
            self.numbers.append(index[op.attrs["axis"]])
        if op.definition.is_splat:
            return [(op.operands[0], ())]
        if op.definition.is_gather:
            return list(gather_reads(op, index))
        if op.definition.is_window:
            self.numbers += window_numbers(op, index)
            return [(op.operands[0], read) for read in window_reads(op, index)]
        return [(operand, index) for operand in op.operands]

    def reshaped(self, index: Index, to: Sequence[int], of: Sequence[int]) -> Index:
        """`reshape_index`; what it divides is recorded."""
        self.divided += divisions(index, to, of)
        return reshape_index(index, to, of, strict=self.strict)

    def write(self, store: Store, index: Index) -> Affine:
        """Visit element `index` of `store.value`. Its offset in `store.into`, which is recorded."""
        self.visit(store.value, index)
        for insert in store.inserts:
            index = place(insert, index)
            for start in insert.operands[2:]:
                self.visit(start, ())
        offset = self._offset(store.into, index)
        self.numbers.append(offset)
        return offset

    def _offset(self, value: Value, index: Index) -> Affine:
        """Where an element lies in memory; what that divides is recorded."""
        offset, divided = watching_divisions(lambda: value.type.offset(index, strict=self.strict))
        self.divided += divided
        return offset


def require_elements(split: Op, index: Index) -> None:
    """Raises InternalError where a part that is shorter than others is run to the end of those:
    whoever sums over parts has a nest of its own for it. (An index of merged loops may leave a
    dimension for the next one; not the array.)"""
    whole = split.operands[0].type
    if linearize(index, whole.shape).range()[1] >= whole.size:
        at = ", ".join(map(str, index))
        raise InternalError(f"{split} has no element [{at}]", step="codegen", loc=split.loc)
