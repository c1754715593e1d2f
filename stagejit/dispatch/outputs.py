"""Whose memory returned values lie in.

Input: a graph. Output: the values that are stored for the outputs of one in normal form; donated
arguments whose memory a result takes over. Invariant: distinct outputs are stored in distinct
buffers, none of them an input or a constant; a returned reshape of a value that nobody else returns
shares that value's buffer, because its elements are in the same order. Pairs of result and argument
are those that JAX itself makes for the same call, so XLA adds no copies.
"""

from __future__ import annotations

from stagejit.graph.ir import Graph, Value, in_memory


def stored_outputs(graph: Graph) -> dict[Value, Value]:
    """For each output the value whose buffer it is: itself, or what it is a reshape of."""
    taken = {value for value in graph.outputs if without_reshapes(value) is value}
    stored = {}
    for value in graph.outputs:
        base = without_reshapes(value)
        shares = base is not value and base not in taken and not in_memory(base)
        stored[value] = base if shares else value
        taken.add(stored[value])
    return stored


def without_reshapes(value: Value) -> Value:
    """The value that `value` is a row-major reshape of."""
    while value.op.definition.keeps_order:
        value = value.op.operands[0]
    return value


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
