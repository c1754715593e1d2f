"""What the bodies of loops and branches need before they are divided into regions.

Input: a graph. Output: the same graph, whose bodies read arrays of constants as inputs. Invariant:
memory inside a loop is that of the dispatch around it, so a body has none of its own but
transients.
"""

from __future__ import annotations

from stagejit.graph.control import CONTROL, LoopOperands, bodies_of
from stagejit.graph.ir import Graph, Op, Value

_LINE_NBYTES = 64


def hoist_constants(graph: Graph) -> None:
    """loop (body: const [...])  -->  loop of const [...] (body: input), and so on outwards."""
    for op in graph.ops():
        if op.kind not in CONTROL:
            continue
        for number, body in enumerate(bodies_of(op)):
            hoist_constants(body)
            for inner in body.ops():
                if inner.kind == "const" and inner.result.type.size != 1:
                    constant = graph.add("const", (), inner.result.type, inner.loc, **inner.attrs)
                    _add_operand(graph, op, number, inner, constant.result)


def _add_operand(graph: Graph, op: Op, number: int, constant: Op, value: Value) -> None:
    """Replaces a constant of body `number` by a new input that stands for `value`."""
    bodies = bodies_of(op)
    owners = bodies if op.kind == "branch" else bodies[number : number + 1]
    at = len(op.operands)
    if op.kind == "loop" and number == 0:
        at -= len(LoopOperands.of(op).condition_constants)
    for body in owners:
        read = body.add_input(f"const{len(body.inputs)}", value.type)
        if body is bodies[number]:
            body.replace_uses(constant.result, read)
            body.erase(constant)
    graph.insert_operand(op, at, value)


def has_slices_anywhere(op: Op) -> bool:
    """Whether the body of `op` is given slices of arrays that start off the lines of the cache."""
    if op.kind != "loop":
        return False
    carries, xs = op.attrs["carries"], op.attrs["xs"]
    sliced = (*op.attrs["body"].inputs[carries : carries + xs], *op.attrs["body"].outputs[carries:])
    return any(value.type.nbytes % _LINE_NBYTES for value in sliced)
