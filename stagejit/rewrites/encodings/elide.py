"""elide-packs: what is encoded for nothing, or by whoever reads it anyway, is not encoded before.

Input: a graph in which encodings have moved. Output: the same, with those that are left: of
constants, and of what one product stores for another one. Invariant: a constant has one encoding;
what is read as it lies, too, has none, for it would lie in memory twice.

Note [One copy of a weight]: a packed constant takes the place of the constant, so that memory does
not grow. Where somebody reads it as it lies there would be two, more than `MOST_GROWTH` allows.
Products that want it in other tiles read it in those of the product that works most.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.graph.ir import Graph, Op, Value
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.encodings.bodies import agree, is_known_before, read_in_bodies
from stagejit.rewrites.encodings.propagate import encoding_of, is_set

NAME = "elide-packs"
# Said of a pack that stays, as it is none of a call's: a reader is told that as no refusal.
PACKED_ONCE = "a constant: packed once, where the target has tiles for it"
MOST_GROWTH = 1.2  # times the bytes of a weight


def elide_packs(log: Log) -> None:
    """contract %x, (set %w)  -->  contract %x, %w where %w is no constant; unset (set %x)  -->
    %x"""
    graph = log.graph
    for op in graph.ops():
        if _unsets(op) and op in graph:
            log.replace(NAME, op, op.operands[0].op.operands[0], "read as it is made")
    wanted: dict[Value, list[Op]] = {}
    for op in graph.ops():
        if not is_set(op) or op not in graph:
            continue
        value = op.operands[0]
        if _is_weight(graph, value):
            wanted.setdefault(value, []).append(op)
        elif encoding_of(op).role != "result":
            log.replace(NAME, op, value, _why_by_kernel(graph, value))
    for value, sets in wanted.items():
        _one_encoding(log, value, sets)
    agree(graph)


def _unsets(op: Op) -> bool:
    """Whether it takes off what its operand has put on."""
    known = op.definition
    return known.is_encoding and not known.is_stored and is_set(op.operands[0].op)


def _is_weight(graph: Graph, value: Value) -> bool:
    """Whether it is there before any call, in memory."""
    return is_known_before(graph, value) and value.type.size > 1


def _why_by_kernel(graph: Graph, value: Value) -> str:
    source = value
    while source.op.definition.is_view or source.op.definition.is_conversion:
        source = source.op.operands[0]
    if _is_weight(graph, source):
        return "made of a weight where it is read, which is smaller: its kernel may pack it"
    if graph.is_donated(source):
        return "mutable state changes from call to call: its kernel may pack it"
    return "not known before a call: its kernel may pack it"


def _one_encoding(log: Log, value: Value, sets: Sequence[Op]) -> None:
    own = set(sets)
    others = [user for user in log.graph.users(value) if user not in own]
    if others:
        names = ", ".join(sorted({user.kind for user in others}))
        reason = (
            f"read by {names} as it lies, too: two copies are more than {MOST_GROWTH} times its"
            f" {value.type.nbytes} bytes"
        )
        for op in sets:
            log.decline(NAME, op, reason)
            log.put(op, [value])
        return
    most = max(sets, key=lambda op: (_flops(log.graph, op.result), -op.id))
    for op in sets:
        if op is most:
            log.decline(NAME, op, PACKED_ONCE)
            continue
        same = encoding_of(op) == encoding_of(most)
        how = "wanted so twice" if same else f"read as {encoding_of(most)}, which more work wants"
        log.replace(NAME, op, most.result, how)


def _flops(graph: Graph, value: Value) -> int:
    """Of the products that read it, through views, and in bodies."""
    total, pending = 0, [value]
    while pending:
        value = pending.pop()
        for user in graph.users(value):
            if user.definition.is_product:
                total += user.definition.flops(user)
            elif user.definition.is_view:
                pending.append(user.result)
            elif user.definition.has_bodies:
                inside = read_in_bodies(user, value)
                total += sum(times * _flops(body, inner) for times, body, inner in inside)
    return total
