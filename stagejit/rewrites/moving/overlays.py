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

import numpy as np

from stagejit.base.machine import Machine
from stagejit.graph.ir import Graph, Value
from stagejit.graph.ops import build
from stagejit.index.box import Box
from stagejit.rewrites.constants import frozen
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.moving.chains import Chain, chains_of

NAME = "overlay-rows"

MOST_PARTS = 8
_LEAST_GAIN = 1.5  # vectors and turns of loops over runs, by whole vectors
_MOST_VECTORS = 64  # of what is stored between places that differ by their other axes only
_MOST_SHUFFLE = 8.0  # operations
_SMALL_NBYTES = 32 << 10  # of which the first cache holds less: it takes less than the call
_MOST_FLOPS = 8.0  # an element, of what a part is made by
_FOLLOWED = 64  # ops


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
        _replace(log, chain)


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
    if not all(_is_evaluated(part.source, chains) for part in chain.parts):
        return "who makes a part does more than to read it, and places it"
    if not _is_stored(graph, chain.result, chains):
        return "who reads it does not store it element by element"
    return ""


def _is_evaluated(value: Value, chains: Mapping[Value, Chain]) -> bool:
    """Whether a value is made of what lies in memory, element by element, by so little that it may
    be done for lanes that nobody stores."""
    pending, seen, flops = [value], set[Value](), 0.0
    while pending:
        value = pending.pop()
        known = value.op.definition
        if value in seen or value in chains or known.is_input or known.is_constant:
            continue
        flops += known.element_flops(value.op) if known.is_elementwise else 0.0
        if flops > _MOST_FLOPS or len(seen) == _FOLLOWED or not (
            known.is_elementwise or known.is_view or known.is_free or known.is_splat
        ):  # fmt: skip
            return False
        seen.add(value)
        pending += value.op.operands
    return True


def _is_stored(graph: Graph, value: Value, chains: Mapping[Value, Chain]) -> bool:
    """Whether all that is made of a value is stored, element by element."""
    placing = {part.insert: chain for chain in chains.values() for part in chain.parts}
    pending, seen = [value], set[Value]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        if len(seen) == _FOLLOWED:
            return False
        seen.add(value)
        for use in graph.uses(value):
            known = use.user.definition
            if known.is_elementwise and not all(
                operand is value or _is_evaluated(operand, chains) for operand in use.user.operands
            ):
                return False
            if known.is_elementwise or (known.is_view and not known.is_stored):
                pending.append(use.user.result)
            elif not known.is_return and (use.user not in placing or use.operand):
                return False
    return True


def _replace(log: Log, chain: Chain) -> None:
    graph, last = log.graph, chain.parts[-1].insert
    made = chain.base
    if chain.is_filled:
        zeros = frozen(np.zeros((), made.type.dtype.numpy))
        zero = build(graph, "const", (), last.loc, value=zeros)
        made = build(graph, "fill", (zero,), last.loc, shape=made.shape)
    for part in chain.parts:
        made = build(
            graph, "overlay", (part.insert.operands[0], made), part.insert.loc,
            offsets=part.offsets, strides=part.strides,
        )  # fmt: skip
    log.replace(NAME, last, made, "short rows: it is stored in whole vectors")
