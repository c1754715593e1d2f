"""share-prefixes: a concatenation that lies within a longer one is read from its buffer.

Input: the whole graph. Output: chains of inserts replaced by a slice of a longer chain. Invariant:
what is read was inserted before, and what the longer chain inserts later lies outside of it, so it
may be written while the first is read.

Note [Growing buffers]: a dense block concatenates (x, a), (x, a, b), (x, a, b, c), ...: each is a
prefix of the next. One buffer of the longest serves all: every part is stored once, and a dispatch
that wants the first parts reads them there. The price is a longer stride between rows. New parts
may as well come first, or on both sides: all that counts is that each shorter one is a box of the
longest. A shorter one may also be a part of the longer one as it is, ((x, a), b): then its own
parts are inserted instead.

Note [Order of parts]: the parts of one buffer are disjoint, so they are inserted in the order in
which they are computed. A box is read after its last part. What is inserted before that was
computed before, or copied, so it cannot depend on who reads the box.

Note [Shared or stored twice]: without this, whoever computes a part stores it in every buffer that
wants it. That always moves more bytes, but each buffer is there only as long as it is needed.
`Options(memory_budget=...)` says when that matters; `lifetimes.py` has the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stagejit.base.machine import SHORTEST_RUN_NBYTES
from stagejit.base.symbolic import Expr
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.moving.chains import (
    Chain,
    Offsets,
    Part,
    chains_of,
    inner_chains,
    wants_memory,
)
from stagejit.rewrites.moving.lifetimes import Lifetimes

NAME = "share-prefixes"

_CANDIDATES = 8  # longer chains that one is compared with


@dataclass(eq=False)
class _Buffer:
    """A chain that may hold others. `parts`: those of the chains inside instead of these.
    `inside`: chains that lie in it, with their place. `inserts`: all that it would take over."""

    chain: Chain
    parts: dict[tuple[Value, Offsets, Offsets], Part] = field(default_factory=dict)
    inside: list[tuple[Chain, Offsets]] = field(default_factory=list)
    inserts: set[Op] = field(default_factory=set)


def share_prefixes(log: Log) -> None:
    """%a = concatenate %x, %y; %b = concatenate %x, %y, %z  -->  %a = extract_slice %b' where %b'
    is %b before %z is inserted"""
    ops = log.graph.ops()
    chains = chains_of(log.graph, ops)
    if len(chains) < 2:
        return
    if any(isinstance(value.type.nbytes, Expr) for op in ops for value in op.results):
        for chain in chains.values():
            log.decline(NAME, chain.result.op, "how much memory is live is not known for all sizes")
    else:
        _Sharing(log, chains, Lifetimes(log.graph, ops, chains)).run()


class _Sharing:
    """`holding`: the buffers that hold a source, by the source; `held`: chains inside of others."""

    def __init__(self, log: Log, chains: Mapping[Value, Chain], lifetimes: Lifetimes) -> None:
        self.log, self.graph, self.chains, self.lifetimes = log, log.graph, chains, lifetimes
        self.holding: dict[Value, list[tuple[_Buffer, Part]]] = {}
        self.held: set[Chain] = set()

    def run(self) -> None:
        rank = self.lifetimes.rank
        largest = sorted(
            self.chains.values(),
            key=lambda chain: (-chain.result.type.size, -rank[chain.result.op]),
        )
        buffers = [buffer for chain in largest if (buffer := self._buffer(chain)) is not None]
        for buffer in buffers:
            if buffer.inside:
                self._rebuild(buffer)

    def _buffer(self, chain: Chain) -> _Buffer | None:
        """The buffer of a chain, None if it lies within another."""
        if chain in self.held or self._find_place(chain):
            return None
        buffer = _Buffer(chain)
        self._take_over(buffer, chain, (0,) * len(chain.result.shape))
        for part in buffer.parts.values():
            self.holding.setdefault(part.source, []).append((buffer, part))
        return buffer

    def _take_over(self, buffer: _Buffer, chain: Chain, at: Offsets) -> None:
        """Puts the parts of `chain`, which lies at `at`, into the buffer."""
        buffer.inserts.update(part.insert for part in chain.parts)
        inner = {part.insert: found for part, found in inner_chains(chain, self.chains)}
        for part in chain.parts:
            moved, found = part.moved(at), inner.get(part.insert)
            read_twice = found is not None and len(self.graph.uses(found.result)) > 1
            if found is None or found in self.held:
                buffer.parts[moved.place] = moved
            elif not read_twice or self._accept(found, buffer, moved.offsets):
                self.held.add(found)
                self._take_over(buffer, found, moved.offsets)
            else:
                buffer.parts[moved.place] = moved

    def _find_place(self, chain: Chain) -> bool:
        """Whether the chain lies within a larger one."""
        first = chain.parts[0]
        for buffer, part in self.holding.get(first.source, [])[:_CANDIDATES]:
            if not chain.is_filled or part.strides != first.strides:
                continue
            at = tuple(a - b for a, b in zip(part.offsets, first.offsets, strict=True))
            if all(own.moved(at).place in buffer.parts for own in chain.parts):
                return self._accept(chain, buffer, at)
        return False

    def _accept(self, chain: Chain, buffer: _Buffer, at: Offsets) -> bool:
        """Decides whether the chain, which lies at `at` in the buffer, is read there."""
        last, whole = chain.result.op, buffer.chain
        reason = _refuse(self.graph, chain, buffer)
        if not reason:
            shared, apart = self.lifetimes.peaks(chain, whole)
            moved, fewer = self.lifetimes.moved, chain.result.type.nbytes
            model = (
                f"{moved - fewer} bytes moved and at most {shared} in use while either lives, "
                f"or {moved} and {apart}"
            )
            budget = self.log.options.memory_budget
            if budget is not None and shared > budget and shared > apart:
                reason = f"over the memory budget of {budget}: {model} stored apart"
        if reason:
            self.log.decline(NAME, last, reason)
            return False
        self.lifetimes.share(chain, whole)
        buffer.inside.append((chain, at))
        self.held.add(chain)
        where = "the first" if not any(at) else f"at {at}:"
        reason = f"{where} {len(chain.parts)} parts of {whole.result.op}: {model} stored apart"
        self.log.apply(NAME, last, reason)
        return True

    # ---------------------------------------------------------------- rewriting

    def _rebuild(self, buffer: _Buffer) -> None:
        """Inserts the parts in the order in which they are there, and slices between."""
        graph, whole, parts = self.graph, buffer.chain, list(buffer.parts.values())
        ends = np.array([part.around.ends for part in parts])
        when = [self.lifetimes.stored_at(part) for part in parts]
        within = []
        for chain, at in buffer.inside:
            within_it = (ends[:, 0] >= at) & (ends[:, 1] < np.add(at, chain.result.shape))
            inside = np.flatnonzero(within_it.all(1)).tolist()
            for number in inside:  # copied when the first of them is read
                when[number] = min(when[number], self.lifetimes.rank[chain.result.op])
            within.append(inside)
        views = {chain.result for chain, _ in buffer.inside}  # read from here once they are there

        def turn_of(number: int) -> tuple[int, bool, Offsets]:
            source = parts[number].source
            if source in views:
                return max(when[number], self.lifetimes.rank[source.op]), True, ()
            return when[number], False, parts[number].offsets

        order = sorted(range(len(parts)), key=turn_of)
        grown, value = {}, whole.base
        for number in order:
            part = parts[number]
            value = build(graph, "insert_slice", (part.source, value), part.insert.loc,
                          offsets=part.offsets, strides=part.strides)  # fmt: skip
            grown[number] = value
        turn = {number: at for at, number in enumerate(order)}
        graph.replace_uses(whole.result, value)
        for (chain, at), inside in zip(buffer.inside, within, strict=True):
            shape, loc = chain.result.shape, chain.result.op.loc
            view = build(graph, "extract_slice", (grown[max(inside, key=turn.__getitem__)],), loc,
                         offsets=at, sizes=shape, strides=(1,) * len(shape))  # fmt: skip
            graph.replace_uses(chain.result, view)


def _refuse(graph: Graph, chain: Chain, buffer: _Buffer) -> str:
    """Why `chain` cannot be read from the buffer; empty if it can."""
    shape, whole = chain.result.shape, buffer.chain.result.shape
    pending = [chain.result]
    while pending:
        for use in graph.uses(pending.pop()):
            held = wants_memory(use.user) or use.user.definition.forwards
            if held and use.user not in buffer.inserts:
                return f"it is wanted in memory of its own, by {use.user.kind}"
            if use.user.definition.keeps_order:
                pending.append(use.user.result)
    differing = [axis for axis, (a, b) in enumerate(zip(shape, whole, strict=True)) if a != b]
    run = math.prod(shape[max(differing, default=0) :]) * chain.result.type.dtype.itemsize
    if run < SHORTEST_RUN_NBYTES:
        return f"rows of {run} bytes apart are slower to read than to copy together"
    return ""
