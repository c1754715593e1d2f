"""Which inputs of bodies are weights: those that stand for one in every iteration, or for a slice.

Input: a loop or a branch of a graph in which inputs may be bound. Output: its bodies, whose inputs
are bound, too. Invariant: said while bodies are rewritten, and forgotten after that.
"""

from __future__ import annotations

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import LoopOperands, bodies_of, given
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.weights.behind import is_determined


def tell_bound(graph: Graph, op: Op) -> None:
    """loop %w bound (body: %v)  -->  loop %w bound (body: %v bound)

    A slice that a body hands on to others whole is none there: nothing is made in these."""
    slices = slices_of(op)
    for body in bodies_of(op):
        body.of_gradient = graph.of_gradient
    for operand, body, inner in handed_on(op):
        at, is_known = inner.op.attrs["index"], graph.is_bound(operand)
        body.bound[at] = is_known and (inner in slices or operand not in graph.sliced)
        body.weights.pop(inner, None)
        body.sliced.pop(inner, None)
        if body.bound[at] and operand in graph.weights:
            body.weights[inner] = graph.weights[operand]
        if body.bound[at] and inner in slices:
            body.sliced[inner] = graph.weights.get(operand)


def let_through(log: Log, name: str) -> None:
    """barrier %x, (slice %w bound)  -->  (barrier %x), (slice %w)

    What is behind a barrier is computed again there; what weights determine is computed once,
    wherever it is read. name: that it is recorded under."""
    graph = log.graph
    for op in graph.ops():
        if not op.definition.orders or not any(is_determined(graph, x) for x in op.operands):
            continue
        held = [value for value in op.operands if not is_determined(graph, value)]
        values = dict(zip(op.operands, op.operands, strict=True))
        if held:
            types = [value.type for value in held]
            apart = graph.add(op.kind, held, types, op.loc, **op.attrs)
            values |= zip(held, apart.results, strict=True)
        log.replace_results(name, op, [values[x] for x in op.operands], "weights determine it")


def forget_bound(graph: Graph) -> None:
    """loop %w bound (body: %v bound)  -->  loop %w bound (body: %v), for all bodies in it."""
    for op in graph.ops():
        for body in bodies_of(op):
            body.bound[:] = [False] * len(body.inputs)
            body.weights.clear()
            body.sliced.clear()
            forget_bound(body)


def handed_on(op: Op) -> list[tuple[Value, Graph, Value]]:
    """Operands of a loop or branch that are the same in each iteration, or of which each has a
    slice: with each body that has one, the input that it is there. A carry that no iteration
    changes is one, too."""
    found = [
        (op.operands[at], body, inner) for at, inputs in given(op).items() for body, inner in inputs
    ]
    if op.definition.is_loop:
        body: Graph = op.attrs["body"]
        for at in range(op.attrs["carries"]):
            if body.outputs[at] is body.inputs[at]:
                found.append((op.operands[at], body, body.inputs[at]))
    return found


def slices_of(op: Op) -> dict[Value, Value]:
    """Inputs of the body of a loop that are slices, and what they are slices of."""
    if not op.definition.is_loop:
        return {}
    carries, xs = op.attrs["carries"], LoopOperands.of(op).xs
    return dict(zip(op.attrs["body"].inputs[carries : carries + len(xs)], xs, strict=True))
