"""From the nests of a region to its kernel.

Input: nests that cover what a region stores, and what makes the tree of one. Output: a `Kernel`.
Invariant: the items of nests follow each other, in order; see also `ClosedRegion.mutable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from stagejit.base.machine import Machine
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.elements.elements import Elements, Memory
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import storage_type
from stagejit.codegen.kernel import Choice, Kernel, KernelArg
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.text import text_of
from stagejit.codegen.nest.tree import Parallel
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine


class Nest(Protocol):
    """Loops that read memory at `reads`, and store at `offsets`, one for each store."""

    @property
    def reads(self) -> Sequence[tuple[Value, Affine]]: ...

    @property
    def offsets(self) -> Sequence[Affine]: ...


_FEW = 16  # elements

N = TypeVar("N", bound=Nest)


E = TypeVar("E", bound=Emitter)


def kernel_of(
    region: ClosedRegion,
    nests: Sequence[N],
    tree: Callable[[N, Emitter, Sequence[Memory]], Parallel],
    seconds: float,
    choices: Sequence[Choice],
    machine: Machine | None = None,
) -> Kernel:
    """tree: of a nest, whose stores go to the memory that it is given. seconds: what all items take
    on one core. machine: see `Elements`."""

    def emitter(builder: Builder, memory: Mapping[Value, Memory]) -> Emitter:
        return Emitter(Elements(builder, memory, machine))

    builder = Builder(calls=region.calls)
    builder.few = is_small(region)
    return kernel_by(builder, emitter, region, nests, tree, seconds, choices)


def is_small(region: ClosedRegion) -> bool:
    """Whether a vector or two have all elements."""
    values = (
        *(store.value for store in region.stores),
        *(v for op in region.ops for v in op.results),
    )
    return max(value.type.size for value in values) <= _FEW


def kernel_by(
    builder: Builder,
    emitter_of: Callable[[Builder, Mapping[Value, Memory]], E],
    region: ClosedRegion,
    nests: Sequence[N],
    tree: Callable[[N, E, Sequence[Memory]], Parallel],
    seconds: float,
    choices: Sequence[Choice],
) -> Kernel:
    """The same, by an emitter of its own."""
    memory, stores, args = _bind_memory(builder, region, nests)
    emitter = emitter_of(builder, memory)
    trees: list[Parallel] = []
    for nest in nests:
        made = tree(nest, emitter, stores)
        if len(nests) > 1:
            before = sum(other.shares for other in trees)
            made = replace(made, before=before, last=nest is nests[-1])
        emitter.emit(made)
        emitter.elements.bound.clear()  # a cycle: they read through the policy
        trees.append(made)
    shares = sum(made.shares for made in trees)
    shared = Choice("items", f"{shares}, about {1e6 * seconds / shares:.2g} us each")
    loops = "\n".join(map(text_of, trees))
    choices = (*choices, *emitter.choices, shared)
    return Kernel(builder.finish(), args, shares, seconds, choices, loops)


def _bind_memory(
    builder: Builder, region: ClosedRegion, nests: Sequence[Nest]
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
        first = min((form.range()[0] for read, form in reads if read is value), default=0)
        base = max(first, 0)  # what is read behind a condition may seem to lie before the first
        elem, readonly = storage_type(value.type.dtype), value not in region.mutable
        memory[value] = Memory(builder.buffer("in", elem, readonly=readonly), base)
        args.append(KernelArg(value, base))
    written = [at for nest in nests for at in zip(region.buffers, nest.offsets, strict=True)]
    buffers: dict[int, Memory] = {}
    for store, number in zip(region.stores, region.buffers, strict=True):
        # Views may run backwards, so a store begins at its lowest offset.
        base = min(form.range()[0] for buffer, form in written if buffer == number)
        made = builder.buffer("out", storage_type(store.into.type.dtype))
        buffers.setdefault(number, Memory(made, base))
        args.append(KernelArg(store.into, base, written=True))
    return memory, [buffers[number] for number in region.buffers], tuple(args)
