"""The buffers of a kernel, and what it writes to them.

Input: a region, what it reads, the offset of each of its stores. Output: the builder's buffers with
the kernel's arguments; `Stores`, which writes elements. Invariant: see `ClosedRegion.mutable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.elements.elements import Elements, Memory
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import storage_type
from stagejit.codegen.kernel import KernelArg
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Index


class Nest(Protocol):
    """Loops that read memory at `reads`, and store at `offsets`, one for each store."""

    @property
    def reads(self) -> Sequence[tuple[Value, Affine]]: ...

    @property
    def offsets(self) -> Sequence[Affine]: ...


def bind_memory(
    builder: Builder,
    region: ClosedRegion,
    nests: Sequence[Nest],
) -> tuple[dict[Value, Memory], list[Memory], tuple[KernelArg, ...]]:
    """Declares the buffers of a region of so many nests: inputs first, then stores. Constant
    offsets move to the arguments, so that equal work at different places is one kernel. An input
    without elements is none: nothing is read there, and in a body it has no memory."""
    memory: dict[Value, Memory] = {}
    args: list[KernelArg] = []
    reads = [read for nest in nests for read in nest.reads]
    for value in region.inputs:
        if not value.type.size:
            continue
        base = min((form.range()[0] for read, form in reads if read is value), default=0)
        elem = storage_type(value.type.dtype)
        memory[value] = Memory(
            builder.buffer("in", elem, readonly=value not in region.mutable), base
        )
        args.append(KernelArg(value, base))
    bases: dict[int, int] = {}
    for nest in nests:  # views may run backwards, so a store begins at its lowest offset
        for number, form in zip(region.buffers, nest.offsets, strict=True):
            bases[number] = min(bases.get(number, form.range()[0]), form.range()[0])
    stores: list[Memory] = []
    buffers: dict[int, Memory] = {}
    for store, number in zip(region.stores, region.buffers, strict=True):
        elem = storage_type(store.into.type.dtype)
        made = Memory(builder.buffer("out", elem), bases[number])
        stores.append(buffers.setdefault(number, made))
        args.append(KernelArg(store.into, bases[number], written=True))
    return memory, stores, tuple(args)


class Stores:
    """The stores of a region. offsets: of each store, in its `into`. streamed: see `streaming`."""

    def __init__(
        self,
        region: ClosedRegion,
        elements: Elements,
        memory: Sequence[Memory],
        offsets: Sequence[Affine],
        streamed: Sequence[bool],
    ) -> None:
        self.elements = elements
        self.all = list(zip(region.stores, memory, offsets, streamed, strict=True))

    def write(self, places: Sequence[tuple[int, Index]]) -> None:
        """The element at the index, of the store with that number. All are evaluated first: a store
        may take the place of what another one reads."""
        elements = self.elements
        registers = [elements.value(self.all[number][0].value, index) for number, index in places]
        whole = elements.position.mask is None
        for register, (number, index) in zip(registers, places, strict=True):
            store, memory, offset, streamed = self.all[number]
            at = elements.with_starts(store, index, offset)
            dtype = store.value.type.dtype
            elements.store(register, dtype, memory, at, nontemporal=streamed and whole)
