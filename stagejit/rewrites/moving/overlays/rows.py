"""overlay-rows: what is put together of short rows is evaluated, and stored in whole vectors.

Input: the whole graph. Output: inserts of short rows as overlays. Invariant: every element is as
before; whoever makes what is put together by more than an element of each operand still places it.

Note [Short rows]: a pad of an image of 7x7, a board that is rolled, and columns side by side are
put together of rows that are shorter than a vector. To place each of them is a masked store, which
crosses lines that others store to, too; as a value, all of it is stored once by whoever evaluates
it, and with what is made of it. Long rows are placed at the speed of memory by whoever makes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from stagejit.base.machine import Machine
from stagejit.graph.ir import Graph, Value
from stagejit.index.box import Box
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.moving.chains import Chain, chains_of
from stagejit.rewrites.moving.overlays.evaluated import (
    FOLLOWED,
    as_overlays,
    is_evaluated,
)

NAME = "overlay-rows"

MOST_PARTS = 8
_LEAST_GAIN = 1.5  # vectors and turns of loops over runs, by whole vectors
_MOST_VECTORS = 64  # of what is stored between places that differ by their other axes only
_MOST_SHUFFLE = 8.0  # operations
_SMALL_NBYTES = 32 << 10  # of which the first cache holds less: it takes less than the call
_MOST_FLOPS = 8.0  # an element, of what a part is made by


def overlay_rows(log: Log) -> None:
    """insert_slice %y into (insert_slice %x into empty) --> overlay %y, (overlay %x, (fill 0))"""
    graph = log.graph
    chains = {
        value: chain
        for value, chain in chains_of(graph, graph.ops()).items()
        if _is_of_short_rows(chain, log.machine)
    }
    while refused := [
        (value, reason)
        for value, chain in chains.items()
        if (reason := _why_not(graph, chain, chains))
    ]:
        for value, reason in refused:
            log.decline(NAME, value.op, reason)
            del chains[value]
    for chain in chains.values():
        inserts = [part.insert for part in chain.parts]
        why = "short rows: it is stored in whole vectors"
        log.replace(NAME, inserts[-1], as_overlays(graph, inserts), why)


def _is_of_short_rows(chain: Chain, machine: Machine) -> bool:
    """Whether to place all runs of a chain takes longer than to store whole vectors."""
    type = chain.result.type
    static = all(isinstance(size, int) for size in type.shape)
    if len(chain.parts) > MOST_PARTS or not static or type.nbytes < _SMALL_NBYTES:
        return False
    if all(part.source.shape[-1] == 1 for part in chain.parts):
        return False  # what lies between lanes is stored with them
    if machine.shuffle_cost(type.dtype.itemsize) > _MOST_SHUFFLE:
        return False
    lanes, boxes = machine.vector_nbytes / type.dtype.itemsize, _boxes(chain)
    cut = (
        axis
        for axis, extent in enumerate(type.shape)
        if any(box.sizes[axis] < extent for box in boxes)
    )
    if math.prod(type.shape[next(cut, 0) :]) > _MOST_VECTORS * lanes:
        return False
    placed = 0.0 if chain.is_filled else type.size / lanes
    for box in boxes:
        run = box.run(type.shape)
        placed += box.count / run * (math.ceil(run / lanes) + 1)
    return placed >= _LEAST_GAIN * type.size / lanes


def _boxes(chain: Chain) -> list[Box]:
    return [Box(part.offsets, part.source.shape, part.strides) for part in chain.parts]


def _why_not(graph: Graph, chain: Chain, chains: Mapping[Value, Chain]) -> str:
    """Why a chain stays one of inserts."""
    if not all(is_evaluated(part.source, chains, _MOST_FLOPS) for part in chain.parts):
        return "who makes a part does more than to read it, and places it"
    if not _is_stored(graph, chain.result, chains):
        return "who reads it does not store it element by element"
    return ""


def _is_stored(graph: Graph, value: Value, chains: Mapping[Value, Chain]) -> bool:
    """Whether all that is made of a value is stored, element by element."""
    placing = {part.insert: chain for chain in chains.values() for part in chain.parts}
    pending, seen = [value], set[Value]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        if len(seen) == FOLLOWED:
            return False
        seen.add(value)
        for use in graph.uses(value):
            known = use.user.definition
            if known.is_elementwise and not all(
                operand is value or is_evaluated(operand, chains, _MOST_FLOPS)
                for operand in use.user.operands
            ):
                return False
            if known.is_elementwise or (known.is_view and not known.is_stored):
                pending.append(use.user.result)
            elif not known.is_return and (use.user not in placing or use.operand):
                return False
    return True
