"""Every returned value gets memory of its own.

Input: a graph. Output: the values that must be stored for its outputs. Invariant: distinct outputs
are stored in distinct buffers, none of them an input or a constant; a returned reshape of a value
that nobody else returns shares that value's buffer, because its elements are in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping

from stagejit.dispatch.state import in_memory
from stagejit.graph.ir import Graph, Value


def require_outputs(graph: Graph, carried: Mapping[int, int]) -> list[Value]:
    """The values to store. Outputs that are inputs, constants or the same value again become
    reshapes to their own shape, which somebody has to evaluate: that is the copy. An output that is
    the very input that has to hold it stays as it is."""
    seen: set[Value] = set()
    outputs = []
    for number, value in enumerate(graph.outputs):
        stays = number in carried and value is graph.inputs[carried[number]]
        if not stays and (value in seen or in_memory(value)):
            copy = graph.add("reshape", [value], value.type, value.op.loc, shape=value.shape)
            value = copy.result
        seen.add(value)
        outputs.append(value)
    if tuple(outputs) != graph.outputs:
        graph.set_outputs(outputs)
    return list(stored_outputs(graph).values())


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
