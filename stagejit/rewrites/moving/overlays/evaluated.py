"""What is put together as a value, and whether its parts may be evaluated with it.

Input: a graph, inserts, and the results of others that may become values, too. Output: overlays.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.rewrites.constants import frozen

FOLLOWED = 64  # ops


def is_evaluated(value: Value, others: Collection[Value], most_flops: float) -> bool:
    """Whether a value is made of what lies in memory, or of others, element by element, by so
    little that it may be done where nobody wants it."""
    pending, seen, flops = [value], set[Value](), 0.0
    while pending:
        value = pending.pop()
        known = value.op.definition
        if value in seen or value in others or known.is_input or known.is_constant:
            continue
        flops += known.element_flops(value.op) if known.is_elementwise else 0.0
        if flops > most_flops or len(seen) == FOLLOWED or not (
            known.is_elementwise or known.is_view or known.is_free or known.is_splat
        ):  # fmt: skip
            return False
        seen.add(value)
        pending += value.op.operands
    return True


def as_overlays(graph: Graph, inserts: Sequence[Op]) -> Value:
    """The value that inserts put together, one after the other."""
    made, loc = inserts[0].operands[1], inserts[-1].loc
    if made.op.definition.is_empty:
        zeros = frozen(np.zeros((), made.type.dtype.numpy))
        zero = build(graph, "const", (), loc, value=zeros)
        made = build(graph, "fill", (zero,), loc, shape=made.shape)
    for insert in inserts:
        made = build(
            graph, "overlay", (insert.operands[0], made), insert.loc,
            offsets=insert.attrs["offsets"], strides=insert.attrs["strides"],
        )  # fmt: skip
    return made
