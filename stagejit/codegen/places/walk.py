"""`Walk`: from an element of a region's value to the elements that it is made of.

Input: a value, and the index of an element. Output: what an interpretation makes of that element:
`Elements` a register, `Footprint` notes of all that is needed on the way. Invariant: both meet the
same elements in the same order, what an element is made of before the element itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Generator, Sequence
from typing import Generic, TypeVar

from stagejit.dispatch.regions import Store
from stagejit.errors import InternalError
from stagejit.graph.dims import GatherDims
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.moving.slices import place
from stagejit.index.affine import Affine, Index
from stagejit.types import DType

E = TypeVar("E")
Key = tuple[Value, Index]
Steps = Generator[Key, E, E]  # asks for elements, is given each of them, and makes its own


def behind_views(value: Value, ends: Container[Value]) -> Value | None:
    """The first of `ends` that a value is, or is a view of; None where it is no view of any."""
    while value not in ends:
        if not value.op.definition.is_view:
            return None
        value = value.op.operands[0]
    return value


class Walk(ABC, Generic[E]):
    """The way through a region, for one interpretation; `E` is what that makes of an element."""

    def __init__(self) -> None:
        self._known: dict[Key, E] = {}  # what was made, in this order

    def value(self, value: Value, index: Index) -> E:
        """The element of `value` at `index`."""
        wanted = (value, index)
        waiting: list[tuple[Key, Steps[E]]] = []  # a chain of ops may be longer than Python's stack
        while True:
            made = self._at_hand(wanted)
            if made is None:
                waiting.append((wanted, self._steps(*wanted)))
            while waiting:
                key, steps = waiting[-1]
                try:
                    wanted = next(steps) if made is None else steps.send(made)
                    break
                except StopIteration as end:
                    waiting.pop()
                    made = self._known[key] = end.value
            else:
                assert made is not None
                return made

    def _at_hand(self, key: Key) -> E | None:
        """What is made of no other element, or was made before."""
        made = self.known(key)
        if made is None:
            made = self.given(*key)
            if made is not None:
                self._known[key] = made
        return made

    def _steps(self, value: Value, index: Index) -> Steps[E]:
        op, definition = value.op, value.op.definition
        if definition.is_view:
            return (yield op.operands[0], self.pull(op, index))
        if definition.is_splat:
            return (yield op.operands[0], ())
        if definition.is_elementwise:
            elements = []
            for operand in op.operands:
                elements.append((yield operand, index))
            return self.computed(op, elements)
        if definition.is_gather:
            return (yield from self._gathered(op, index))
        if definition.is_window:
            return self.window(op, index)
        if definition.overlays:
            return self.overlaid(op, index)
        if definition.counts:
            return self.counted(op, index[op.attrs["axis"]])
        if definition.is_constant:
            return self.constant(value)
        raise InternalError(
            f"{op} cannot be evaluated element by element", step="codegen", loc=op.loc
        )

    def _gathered(self, op: Op, index: Index) -> Steps[E]:
        """Reads the index vector, then the operand there. Starts are clamped in all modes; mode
        "fill" replaces what was out of bounds afterwards."""
        (operand, indices), dims = op.operands, GatherDims.of(op.attrs)
        inside: list[E] | None = [] if op.attrs["mode"] == "fill" else None
        starts = {}
        for component, (axis, room) in enumerate(dims.rooms(operand.shape).items()):
            start = yield indices, (*dims.batch_of(index), Affine((), component))
            starts[axis] = self.standing_at(start, indices.type.dtype, room, inside)
        element = yield operand, dims.operand_index(index, starts)
        return self.filled(op, element, inside) if inside else element

    def placed(self, store: Store, index: Index) -> Index:
        """Where element `index` of `store.value` goes in `store.into`."""
        for insert in store.inserts:
            index = place(insert, index, self.start)
        return index

    def start(self, op: Op, operand: int, extent: int) -> Affine:
        """A dynamic start of a slice."""
        value = op.operands[operand]
        return self.standing_at(self.value(value, ()), value.type.dtype, extent)

    # ---------------------------------------------------------------- what an interpretation says

    def known(self, key: Key) -> E | None:
        """What was made of an element before, if that still holds here."""
        return self._known.get(key)

    @abstractmethod
    def given(self, value: Value, index: Index) -> E | None:
        """An element that lies in memory, or that a generator computes itself."""

    @abstractmethod
    def pull(self, op: Op, index: Index) -> Index:
        """The index into the operand of a view."""

    @abstractmethod
    def standing_at(
        self,
        element: E,
        dtype: DType,
        room: int,
        inside: list[E] | None = None,
        *,
        clamps: bool = True,
    ) -> Affine:
        """A variable that stands at `element`, clamped to [0, room), or as it is, where nothing is
        done at what lies beyond. inside: is told whether it was there before."""

    @abstractmethod
    def computed(self, op: Op, elements: Sequence[E]) -> E:
        """Of an elementwise op, from the elements of its operands."""

    @abstractmethod
    def filled(self, op: Op, element: E, inside: Sequence[E]) -> E:
        """Of a gather: the element, or what stands for it where some start was out of bounds."""

    @abstractmethod
    def window(self, op: Op, index: Index) -> E:
        """Of a window."""

    @abstractmethod
    def overlaid(self, op: Op, index: Index) -> E:
        """Of an overlay: the element of operand 0 where it lies there, of operand 1 elsewhere."""

    @abstractmethod
    def counted(self, op: Op, part: Affine) -> E:
        """Of an op whose elements are their own index along an axis."""

    @abstractmethod
    def constant(self, value: Value) -> E:
        """Of a constant of one element."""
