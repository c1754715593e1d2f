"""Donated arguments whose memory a result takes over.

Input: a graph. Output: pairs of result and argument. Invariant: pairs are those that JAX itself
makes for the same call, so XLA adds no copies.
"""

from __future__ import annotations

from stagejit.graph.ir import Graph


def donations(graph: Graph) -> dict[int, int]:
    """Argument by result, both as numbers: each result takes the first donated argument of its type
    that is left. This is JAX's own rule (`jax._src.interpreters.mlir`, input-output aliases)."""
    free: dict[object, list[int]] = {}
    for number, (value, donated) in enumerate(zip(graph.inputs, graph.donated, strict=True)):
        if donated:
            free.setdefault(value.type, []).append(number)
    pairs = {}
    for number, value in enumerate(graph.outputs):
        left = free.get(value.type)
        if left:
            pairs[number] = left.pop(0)
    return pairs
