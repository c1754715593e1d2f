"""Whose memory a value lies in: the chains of inserts and scatters that share one buffer.

Input: a graph and its regions. Output: for each stored or read value the root of its buffer.
Invariant: two values have one root iff they are one buffer, maybe at different times.
"""

from __future__ import annotations

from collections.abc import Iterable

from stagejit.dispatch.region import Draft
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.control import destination_of


class Roots:
    """`roots[value]` is the value that stands for the buffer of `value`.

    An insert, a scatter or the carry of a loop takes over the buffer of its destination, unless
    some region stores first contents in a buffer of its own, or the destination has no memory
    (`empty`, a covered `fill`). A result of an optimization barrier lies in its operand's buffer.
    """

    def __init__(self, regions: Iterable[Draft]) -> None:
        self._own = {
            store.into
            for region in regions
            for store in region.stores
            if not store.inserts and store.value is not store.into
        }
        self._known: dict[Value, Value] = {}

    def __getitem__(self, value: Value) -> Value:
        known = self._known.get(value)
        if known is not None:
            return known
        passed = []
        while value not in self._known and value not in self._own:
            if value.op.definition.forwards:
                passed.append(value)
                value = value.op.operands[value.index]
                continue
            destination = destination_of(value)
            if destination is None or not _has_memory(destination.op):
                break
            passed.append(value)
            value = destination
        root = self._known.setdefault(value, value)
        self._known.update(dict.fromkeys(passed, root))
        return root


def _has_memory(op: Op) -> bool:
    """Whether a result of `op` lies somewhere, whoever reads it."""
    return op.definition.is_input or op.definition.updates
