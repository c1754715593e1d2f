"""How many buffers the ops of a graph of dispatches take, and which of them take too many.

Input: ops of a graph of dispatches. Output: numbers of buffers, or a VerificationError.
Invariant: what one op, or one insert, needs as it is, is never too much.
"""

from __future__ import annotations

from collections.abc import Iterable

from stagejit.errors import VerificationError
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import bodies_of, read_operands
from stagejit.graph.ops.dispatches import Written, evaluated, parts_of, written
from stagejit.graph.ops.moving.views import behind_aliases


def operands_of(op: Op) -> int:
    """How many buffers an op takes: each value that it reads, each result that it stores. Borders
    write where a result is stored."""
    if op.definition.is_dispatch:
        return len({*read_by(op)}) + len(stores_of(op))
    return len({*map(behind_aliases, read_operands(op))}) + len(op.results)


def read_by(op: Op) -> Iterable[Value]:
    """The operands that a dispatch reads."""
    tied = set(dict(op.attrs["carried"]).values())
    return [value for at, value in enumerate(op.operands) if at not in tied]


def updated_by(op: Op) -> Iterable[Value]:
    """The operands that a dispatch updates."""
    return [op.operands[at] for _, at in op.attrs["carried"]]


def stores_of(op: Op) -> list[tuple[int, Written]]:
    """What the first part of a dispatch writes, with the number of the output."""
    first = parts_of(op)[0]
    return [(at, made) for at in range(len(first.outputs)) for made in written(first, at)]


def starts_of(made: Written) -> list[Value]:
    """What says where it is placed."""
    return [start for insert in made.inserts for start in insert.operands[2:]]


def verify_operands(graph: Graph, limit: int) -> None:
    """Raises VerificationError for the first dispatch over the limit that could be several."""
    for op in graph.ops():
        if not op.definition.is_dispatch:
            for body in bodies_of(op):
                verify_operands(body, limit)
        elif operands_of(op) > max(limit, _least_operands(op)):
            raise VerificationError(f"{op} is over the operand limit", loc=op.loc)


def _least_operands(op: Op) -> int:
    """How many the widest op, or insert, of a dispatch takes by itself. An op of several results
    makes all of them at once."""
    stored = {made.value for _, made in stores_of(op)}
    ops = [
        len({*read_operands(inner)}) + max(len(stored.intersection(inner.results)), 1)
        for inner in evaluated(parts_of(op)[0])
    ]
    inserts = [2 + len({*starts_of(made)}) for _, made in stores_of(op)]
    return max([*ops, *inserts])
