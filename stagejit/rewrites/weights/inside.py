"""Which inputs of bodies are weights: those that stand for one in every iteration.

Input: a loop or a branch of a graph in which inputs may be bound. Output: its bodies, whose inputs
are bound, too. Invariant: said while bodies are rewritten, and forgotten after that.
"""

from __future__ import annotations

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import bodies_of, unchanging


def tell_bound(graph: Graph, op: Op) -> None:
    """loop %w bound (body: %v)  -->  loop %w bound (body: %v bound)"""
    for operand, body, inner in handed_on(op):
        at = inner.op.attrs["index"]
        body.bound[at] = graph.is_bound(operand)
        if operand in graph.weights:
            body.weights[inner] = graph.weights[operand]
        else:
            body.weights.pop(inner, None)


def forget_bound(graph: Graph) -> None:
    """loop %w bound (body: %v bound)  -->  loop %w bound (body: %v), for all bodies in it."""
    for op in graph.ops():
        for body in bodies_of(op):
            body.bound[:] = [False] * len(body.inputs)
            body.weights.clear()
            forget_bound(body)


def handed_on(op: Op) -> list[tuple[Value, Graph, Value]]:
    """Operands of a loop or branch that are the same in each iteration: with each body that has
    one, the input that it is there. A carry that no iteration changes is one, too."""
    found = [
        (op.operands[at], body, inner)
        for at, inputs in unchanging(op).items()
        for body, inner in inputs
    ]
    if op.definition.is_loop:
        body: Graph = op.attrs["body"]
        for at in range(op.attrs["carries"]):
            if body.outputs[at] is body.inputs[at]:
                found.append((op.operands[at], body, body.inputs[at]))
    return found
