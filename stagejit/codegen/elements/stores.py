"""What a region stores, element by element.

Input: what `Elements` gives, and where the results lie. Output: stores in loop-nest IR.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.elements.elements import Elements, Memory
from stagejit.dispatch.regions import Store
from stagejit.index.affine import Affine, Index


@dataclass(frozen=True)
class Stores:
    """The stores of a region. offsets: of each of them, in its `into`. streamed: see `Loops`."""

    region: ClosedRegion
    elements: Elements
    memory: Sequence[Memory]
    offsets: Sequence[Affine]
    streamed: Sequence[Store] = ()

    def write(self, places: Iterable[tuple[int, Index]]) -> None:
        """The element at the index, of the store with that number. All are evaluated first: a store
        may take the place of what another one reads."""
        elements, stores, places = self.elements, self.region.stores, list(places)
        registers = [elements.value(stores[number].value, index) for number, index in places]
        for register, (number, index) in zip(registers, places, strict=True):
            store, memory = stores[number], self.memory[number]
            streams = store in self.streamed and elements.position.mask is None
            offset, ask = self.offsets[number], elements.ahead
            asks = ask.steps * offset.coeff(ask.var) if ask and store in ask.stores else 0
            at, dtype = elements.with_starts(store, index, offset), store.value.type.dtype
            elements.store(register, dtype, memory, at, nontemporal=streams, ahead=asks)
