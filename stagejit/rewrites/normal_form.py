"""What grouping counts on: returned values have memory of their own, bodies have no arrays.

Input: a rewritten graph. Output: the same graph. Invariant: distinct outputs are distinct values,
none of them an input or a constant, but where an output is the very input that has to hold it;
arrays of constants that a body reads are inputs of it, because memory inside a loop is that of the
dispatch around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagejit.errors import VerificationError
from stagejit.graph.ir import Graph, Op, Value, in_memory
from stagejit.graph.isomorphic import attribute_key
from stagejit.graph.ops.control import bodies_of, carried_inputs, read_from_outside


def normalize(graph: Graph) -> None:
    """Brings a graph that is no body, and all bodies in it, into this form."""
    _hoist_constants(graph)
    _separate_outputs(graph, {})


def verify_normal_form(graph: Graph, carried: Mapping[int, int] | None = None) -> None:
    """Raises VerificationError. carried: of a body, the input that has to hold an output."""
    seen: set[Value] = set()
    for number, value in enumerate(graph.outputs):
        if _is_taken(graph, number, value, carried or {}, seen):
            raise VerificationError(f"{graph.name} returns {value}, whose memory is not its own")
        seen.add(value)
    for op, number, body in _bodies(graph):
        arrays = [inner for inner in body if _is_array(inner)]
        if arrays:
            raise VerificationError(f"{body.name} has an array of constants, {arrays[0]}")
        verify_normal_form(body, carried_inputs(op, number))


def _separate_outputs(graph: Graph, carried: Mapping[int, int]) -> None:
    """return %x, %x  -->  return reshape %x, reshape %x: whoever evaluates these, copies."""
    seen: set[Value] = set()
    outputs: list[Value] = []
    for number, value in enumerate(graph.outputs):
        if _is_taken(graph, number, value, carried, seen):
            copy = graph.add("reshape", [value], value.type, value.op.loc, shape=value.shape)
            value = copy.result
        seen.add(value)
        outputs.append(value)
    if outputs != list(graph.outputs):
        graph.set_outputs(outputs)
    for op, number, body in _bodies(graph):
        _separate_outputs(body, carried_inputs(op, number))


def _is_taken(
    graph: Graph, number: int, value: Value, carried: Mapping[int, int], seen: set[Value]
) -> bool:
    """Whether output `number` needs memory that `value` does not have for it; `seen`: outputs
    before."""
    if number in carried and value is graph.inputs[carried[number]]:
        return False
    return value in seen or in_memory(value)


def _hoist_constants(graph: Graph) -> None:
    """loop (body: const [...])  -->  loop of const [...] (body: input), and so on outwards."""
    known: dict[Any, Value] = {}
    for op, number, body in _bodies(graph):
        _hoist_constants(body)
        for inner in filter(_is_array, body.ops()):
            if not known:
                known = {_elements(other): other.result for other in graph if _is_array(other)}
            value = known.get(_elements(inner))
            if value is None:
                constant = graph.add("const", (), inner.result.type, inner.loc, **inner.attrs)
                value = known[_elements(inner)] = constant.result
            read_from_outside(graph, op, number, inner.result, value)


def _elements(constant: Op) -> Any:
    """Equal for constants of the same bits."""
    return constant.result.type, attribute_key(constant.attrs["value"])


def _bodies(graph: Graph) -> list[tuple[Op, int, Graph]]:
    """Of all loops and branches: the op, the number of the body, the body."""
    controls = [op for op in graph.ops() if op.definition.has_bodies]
    return [(op, number, body) for op in controls for number, body in enumerate(bodies_of(op))]


def _is_array(op: Op) -> bool:
    return op.definition.is_constant and op.result.type.size != 1
