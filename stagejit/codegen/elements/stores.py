"""What a region stores, element by element.

Input: what `Elements` gives, and where the results lie. Output: stores in loop-nest IR.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from stagejit.base.records import record
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.elements.elements import Elements, Memory
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.places.walk import Key
from stagejit.dispatch.regions import Store
from stagejit.index.affine import Affine, Index, Var


@record
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
        places = list(places)
        self._store(places, self._evaluated(places))

    def write_steps(
        self, steps: Sequence[Mapping[Var, int]], places: Iterable[tuple[int, Index]]
    ) -> None:
        """The elements at all steps of some variables from where the loops stand. What does not
        follow these is evaluated once."""
        elements, places = self.elements, list(places)
        env, moved = elements.position.env, {var for step in steps for var in step}
        shared, made = dict[Key, Register](), []
        for step in steps:
            zero = elements.b.const(0)
            position = {var: env.get(var, zero) + count for var, count in step.items()}
            known = dict(shared)
            with elements.at(position, known=known):
                made.append((position, known, self._evaluated(places)))
            shared = {key: each for key, each in known.items() if _stays(key, moved)}
        for position, known, registers in made:
            with elements.at(position, known=known):
                self._store(places, registers)

    def _evaluated(self, places: Sequence[tuple[int, Index]]) -> list[Register]:
        stores = self.region.stores
        return [self.elements.value(stores[number].value, index) for number, index in places]

    def _store(self, places: Sequence[tuple[int, Index]], registers: Sequence[Register]) -> None:
        elements, stores = self.elements, self.region.stores
        for register, (number, index) in zip(registers, places, strict=True):
            store, memory = stores[number], self.memory[number]
            streams = store in self.streamed and elements.position.mask is None
            offset, ask = self.offsets[number], elements.ahead
            asks = ask.steps * offset.coeff(ask.var) if ask and store in ask.stores else 0
            at, dtype = elements.with_starts(store, index, offset), store.value.type.dtype
            elements.store(register, dtype, memory, at, nontemporal=streams, ahead=asks)


def _stays(key: Key, moved: Collection[Var]) -> bool:
    """Whether an element is the same wherever these variables stand."""
    return all(part.loop_vars().isdisjoint(moved) for part in key[1])
