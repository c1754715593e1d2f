"""Which inputs of bodies are weights: those that stand for one in every iteration, or for a slice.

Input: a loop or a branch of a graph in which inputs may be bound. Output: its bodies, whose inputs
are bound, too. Invariant: said while bodies are rewritten, and forgotten after that.
"""

from __future__ import annotations

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import LoopOperands, bodies_of, given, unchanging
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.weights.behind import is_determined
from stagejit.rewrites.weights.made import applied, base_of, views_of


def tell_bound(graph: Graph, op: Op) -> None:
    """loop %w bound (body: %v)  -->  loop %w bound (body: %v bound)

    A slice that a body hands on to others is a slice there, too."""
    slices = slices_of(op)
    for body in bodies_of(op):
        body.of_gradient = graph.of_gradient
    for operand, body, inner in handed_on(op):
        at = inner.op.attrs["index"]
        body.bound[at] = graph.is_bound(operand)
        body.weights.pop(inner, None)
        body.sliced.pop(inner, None)
        if body.bound[at] and operand in graph.weights:
            body.weights[inner] = graph.weights[operand]
        if body.bound[at] and inner in slices:
            body.sliced[inner] = graph.weights.get(operand)
        elif body.bound[at] and operand in graph.sliced:
            body.sliced[inner] = graph.sliced[operand]


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


def turn_inside(log: Log, name: str) -> None:
    """loop (transpose %w bound) (body: %v)  -->  loop %w bound (body: transpose %v)

    A view that is handed on would be a copy in each call, and no weight. name: see `let_through`.
    """
    graph = log.graph
    for op in graph.ops():
        for at, inputs in unchanging(op).items() if op.definition.has_bodies else ():
            operand = op.operands[at]
            base, views = base_of(operand), views_of(operand)
            if not views or not is_determined(graph, base):
                continue
            log.apply(name, op, f"operand {at} is turned where its bodies read it")
            graph.set_operand(op, at, base)
            for body, inner in inputs:
                uses, inner.type, inner.shape = body.uses(inner), base.type, base.shape
                turned = applied(body, inner, views) if uses else inner
                for use in uses:
                    body.set_operand(use.user, use.operand, turned)


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
