"""Chains of inserts: what concatenations, stacks, pads and assembled blocks are in a graph.

Input: a graph. Output: `Chain`s of inserts at known places into an `empty` that they fill, or into
a `fill`. Invariant: the boxes of one chain are disjoint, so its inserts may come in any order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from stagejit.base.records import record
from stagejit.graph.ir import Graph, Op, Value
from stagejit.index.box import Box
from stagejit.index.box_index import are_disjoint

Offsets = tuple[int, ...]


@record
class Part:
    """`source` at `offsets`, every `strides`-th element; `insert` puts it there."""

    source: Value
    offsets: Offsets
    strides: Offsets
    insert: Op

    def moved(self, by: Offsets) -> Part:
        """The same within something that lies at `by`."""
        offsets = tuple(a + b for a, b in zip(self.offsets, by, strict=True))
        return Part(self.source, offsets, self.strides, self.insert)

    @property
    def place(self) -> tuple[Value, Offsets, Offsets]:
        return self.source, self.offsets, self.strides

    @property
    def around(self) -> Box:
        """The solid box around it."""
        pairs = zip(self.source.shape, self.strides, strict=True)
        return Box(
            self.offsets,
            tuple((size - 1) * step + 1 for size, step in pairs),
            (1,) * len(self.offsets),
        )


@record(eq=False)
class Chain:
    """Inserts one after the other; nobody else reads what is there between."""

    parts: tuple[Part, ...]
    base: Value

    @property
    def result(self) -> Value:
        return self.parts[-1].insert.result

    @property
    def is_filled(self) -> bool:
        """Whether the parts are all of it."""
        return self.base.op.definition.is_empty


def chains_of(graph: Graph, ops: Sequence[Op]) -> dict[Value, Chain]:
    """The chains among `ops`, which are in program order, by their results."""
    found = (chain_of(graph, op) for op in ops if op.definition.is_insert)
    return {chain.result: chain for chain in found if chain is not None}


def chain_of(graph: Graph, last: Op) -> Chain | None:
    """The chain that ends with the insert `last`."""
    if any(use.user.definition.is_insert and use.operand == 1 for use in graph.uses(last.result)):
        return None
    inserts = [last]
    while inserts[-1].operands[1].op.definition.is_insert:
        before = inserts[-1].operands[1]
        if len(graph.uses(before)) != 1:
            return None
        inserts.append(before.op)
    base = inserts[-1].operands[1]
    made = base.op.definition.is_empty or base.op.definition.is_splat
    if not made or any(None in op.attrs["offsets"] for op in inserts):
        return None
    parts = tuple(
        Part(op.operands[0], op.attrs["offsets"], op.attrs["strides"], op)
        for op in reversed(inserts)
        if op.operands[0].type.size
    )
    size = sum(part.source.type.size for part in parts)
    fits = bool(parts) and (base.op.definition.is_splat or size == last.result.type.size)
    apart = fits and are_disjoint([part.around for part in parts])
    return Chain(parts, base) if apart and parts[-1].insert is last else None


def inner_chains(chain: Chain, chains: Mapping[Value, Chain]) -> Iterator[tuple[Part, Chain]]:
    """The parts that are filled chains themselves, side by side in the longer one."""
    for part in chain.parts:
        inner = chains.get(part.source)
        if inner is not None and inner.is_filled and math.prod(part.strides) == 1:
            yield part, inner


def wants_memory(op: Op) -> bool:
    """Whether what `op` reads has to lie in memory of its own, in one piece."""
    return op.definition.is_return or op.definition.updates or op.definition.is_foreign
