"""From the nests of a region to its kernel.

Input: nests that cover what a region stores, and what makes the tree of one. Output: a `Kernel`.
Invariant: the items of nests follow each other, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.elements.elements import Elements, Memory
from stagejit.codegen.elements.stores import Nest, bind_memory
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.kernel import Choice, Kernel
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.text import text_of
from stagejit.codegen.nest.tree import Parallel

N = TypeVar("N", bound=Nest)


def kernel_of(
    region: ClosedRegion,
    nests: Sequence[N],
    tree: Callable[[N, Emitter, Sequence[Memory]], Parallel],
    seconds: float,
    choices: Sequence[Choice],
) -> Kernel:
    """tree: of a nest, whose stores go to the memory that it is given. seconds: what all items take
    on one core."""
    builder = Builder(calls=region.calls)
    memory, stores, args = bind_memory(builder, region, nests)
    emitter = Emitter(Elements(builder, memory))
    trees: list[Parallel] = []
    for nest in nests:
        made = tree(nest, emitter, stores)
        if len(nests) > 1:
            before = sum(other.items for other in trees)
            made = replace(made, before=before, last=nest is nests[-1])
        emitter.emit(made)
        emitter.elements.bound.clear()  # a cycle: they read through the policy
        trees.append(made)
    items = sum(made.items for made in trees)
    shared = Choice("items", f"{items}, about {1e6 * seconds / items:.2g} us each")
    loops = "\n".join(map(text_of, trees))
    return Kernel(builder.finish(), args, (), items, seconds, (*choices, shared), loops)
