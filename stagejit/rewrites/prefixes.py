"""share-prefixes: a concatenation that is the beginning of a longer one is read from its buffer.

Input: the whole graph. Output: chains of inserts replaced by a slice of a longer chain. Invariant:
the elements that are read are those that were inserted first; what the longer chain inserts later
lies outside of them, so it may be written while they are read.

Note [Growing buffers]: a dense block concatenates (x, a), (x, a, b), (x, a, b, c), ...: each is a
prefix of the next. One buffer of the longest serves all: every part is stored once, and a dispatch
that wants the first parts reads them there. The price is a longer stride between rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.rewrites.driver import Log

NAME = "share-prefixes"

# Shorter contiguous runs than a cache line would waste most of what each one loads.
SHORTEST_RUN_NBYTES = 64

_Part = tuple[Value, tuple[int, ...], tuple[int, ...]]  # source, offsets, strides


@dataclass(frozen=True)
class _Chain:
    """Inserts into one `empty`, first to last, which fill it with disjoint boxes."""

    inserts: tuple[Op, ...]

    @property
    def result(self) -> Value:
        return self.inserts[-1].result

    @property
    def parts(self) -> tuple[_Part, ...]:
        return tuple(
            (op.operands[0], op.attrs["offsets"], op.attrs["strides"]) for op in self.inserts
        )


def share_prefixes(log: Log) -> None:
    """%a = concatenate %x, %y; %b = concatenate %x, %y, %z  -->  %a = extract_slice %b' where %b'
    is %b before %z is inserted"""
    graph = log.graph
    chains = [chain for op in graph.ops() if (chain := _chain_of(graph, op)) is not None]
    chains.sort(key=lambda chain: -len(chain.inserts))
    longest: dict[_Part, list[_Chain]] = {}
    for chain in chains:
        parts = chain.parts
        candidates = longest.setdefault(parts[0], [])
        longer = next((other for other in candidates if other.parts[: len(parts)] == parts), None)
        if longer is None:
            candidates.append(chain)
            continue
        last = chain.inserts[-1]
        reason = _refuse(graph, chain, longer)
        if reason:
            log.decline(NAME, last, reason)
            continue
        shape = chain.result.shape
        grown = longer.inserts[len(parts) - 1].result
        view = build(
            graph,
            "extract_slice",
            [grown],
            last.loc,
            offsets=(0,) * len(shape),
            sizes=shape,
            strides=(1,) * len(shape),
        )
        log.replace(NAME, last, view, f"the first {len(parts)} parts of {longer.inserts[-1]}")


def _chain_of(graph: Graph, op: Op) -> _Chain | None:
    """The chain that ends with `op`."""
    if op.kind != "insert_slice" or any(
        use.user.kind == "insert_slice" and use.operand == 1 for use in graph.uses(op.result)
    ):
        return None
    inserts = [op]
    while inserts[-1].operands[1].op.kind == "insert_slice":
        before = inserts[-1].operands[1]
        if len(graph.uses(before)) != 1:
            return None
        inserts.append(before.op)
    sizes = sum(insert.operands[0].type.size for insert in inserts)
    static = all(None not in insert.attrs["offsets"] for insert in inserts)
    filled = inserts[-1].operands[1].op.kind == "empty" and sizes == op.result.type.size
    return _Chain(tuple(reversed(inserts))) if static and filled and sizes else None


def _refuse(graph: Graph, chain: _Chain, longer: _Chain) -> str:
    """Why `chain` cannot be read from the buffer of `longer`; empty if it can."""
    shape, whole = chain.result.shape, longer.result.shape
    differing = [axis for axis, (a, b) in enumerate(zip(shape, whole, strict=True)) if a != b]
    if any(a > b for a, b in zip(shape, whole, strict=True)) or len(differing) > 1:
        return "the longer one has another shape"
    for insert in longer.inserts[len(chain.inserts) :]:
        if any(insert.attrs["offsets"][axis] < shape[axis] for axis in differing):
            return "later parts lie between the first ones"
    for use in graph.uses(chain.result):
        if use.user.kind in ("return", "insert_slice", "scatter", "delegate", "loop", "branch"):
            return f"it is wanted in memory of its own, by {use.user.kind}"
    run = math.prod(shape[min(differing, default=0) :]) * chain.result.type.dtype.itemsize
    if run < SHORTEST_RUN_NBYTES:
        return f"rows of {run} bytes apart are slower to read than to copy together"
    return ""
