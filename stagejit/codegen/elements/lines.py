"""Lines: the loops of a kernel that goes along one axis of its anchor's result, step by step.

Input: a region whose anchor has operands and results of one shape. Output: `lines_of`, its loops,
and `Line`, its elements where the loops stand. Invariant: each element is visited once, those of a
line in order; what is fused into the region is evaluated with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagejit.base.machine import Machine
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.elements.elements import Elements, Memory
from stagejit.codegen.elements.stores import Stores
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.places.footprint import Footprint
from stagejit.codegen.places.loops import Loops, Walked, loops_of
from stagejit.codegen.places.space import Space
from stagejit.errors import OptionsError
from stagejit.index.affine import Affine, Index


def lines_of(region: ClosedRegion, target: Machine, axis: int, *, backwards: bool = False) -> Loops:
    """Loops in three groups: before, along and after an axis. backwards: from the last element of a
    line to the first. Raises OptionsError for an anchor whose operands are not of the shape of its
    results, such as a sum, and for an axis that these have not."""
    op = region.anchor_op
    shape = op.results[0].shape
    for operand in op.operands:
        if operand.shape != shape:
            raise OptionsError(
                f"there are no lines of a {op.kind} whose operand is {operand.type}, and whose "
                f"result is {op.results[0].type}: at an index of the result it has no element",
                next_step="decline what has other shapes: extending.declined(reason)",
            )
    if axis not in range(len(shape)):
        raise OptionsError(
            f"{op.results[0].type} has no axis {axis}", next_step="give one from 0 on"
        )

    def walk(footprint: Footprint, index: Index) -> Walked:
        if backwards:
            last = Affine((), shape[axis] - 1)
            index = (*index[:axis], last - index[axis], *index[axis + 1 :])
        for operand in op.operands:
            footprint.value(operand, index)
        footprint.asked += [(result, index) for result in op.results]
        places = [footprint.reshaped(index, shape, store.value.shape) for store in region.stores]
        return index, places, list(map(footprint.write, region.stores, places))

    groups = (range(axis), (axis,), range(axis + 1, len(shape)))
    return loops_of(region, target, Space(shape, "c"), groups, walk, set(op.results))


class Line:
    """Operands and results of the anchor where the loops stand."""

    def __init__(self, loops: Loops, elements: Elements, memory: Sequence[Memory]) -> None:
        self._op, self._index, self._places = loops.region.anchor_op, loops.index, loops.places
        self._elements = elements
        self._stores = Stores(loops.region, elements, memory, loops.offsets, loops.streamed)
        self._made: tuple[Register, ...] = ()
        for number, result in enumerate(self._op.results):
            elements.bind(result, loops.index, self._maker(number))

    def _maker(self, number: int) -> Callable[[], Register]:
        return lambda: self._made[number]

    def operand(self, number: int) -> Register:
        """The element of an operand of the anchor."""
        return self._elements.value(self._op.operands[number], self._index)

    def store(self, *results: Register) -> None:
        """Writes what is made of the anchor's results, one element of each."""
        self._made = results
        self._stores.write(enumerate(self._places))
