"""Parts of a graph built again, elsewhere or with other inputs: how bodies change.

Input: values of a graph, and what their leaves become. Output: clones in a graph. Invariant: the
original is left as it was; clones keep attributes and locations, and have bodies of their own, for
a rewrite changes these in place, together with the operands of one op.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from operator import attrgetter
from typing import Any

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.order import first_order


def values_behind(values: Iterable[Value], known: Iterable[Value] = ()) -> set[Value]:
    """Values that `values` are computed from, themselves included, where `known` are at hand."""
    stop, found = set(known), set[Value]()
    pending = list(values)
    while pending:
        value = pending.pop()
        if value in found or value in stop:
            continue
        found.add(value)
        pending += value.op.operands
    return found


def own_attributes(op: Op) -> Mapping[str, Any]:
    """Attributes for a clone of an op that stays: its bodies are other graphs."""
    known = op.definition
    if not known.has_bodies or known.with_bodies is None:
        return op.attrs
    return {**op.attrs, **known.with_bodies([_twin(body) for body in known.bodies(op)])}


def handed_over(op: Op) -> Mapping[str, Any]:
    """Attributes for a clone of an op that goes: its bodies are those of the clone from now on, so
    that what lies in many of them is not built again by each."""
    return op.attrs


Attributes = Callable[[Op], Mapping[str, Any]]


def cloned(
    graph: Graph,
    values: Sequence[Value],
    known: Mapping[Value, Value],
    attributes: Attributes = own_attributes,
) -> dict[Value, Value]:
    """Appends clones of the ops behind `values` to `graph`."""
    ops = _in_order({value.op for value in values_behind(values, known)})
    made = appended(graph, ops, known, attributes)
    return {value: made[value] for value in values}


def cloned_alike(
    graph: Graph, values: Sequence[Value], known: Mapping[Value, Value]
) -> dict[Value, Value]:
    """The same in an order that is the same wherever the values are from: as users read them."""
    made = appended(graph, _as_read(values, known), known)
    return {value: made[value] for value in values}


def appended(
    graph: Graph,
    ops: Iterable[Op],
    known: Mapping[Value, Value],
    attributes: Attributes = own_attributes,
) -> dict[Value, Value]:
    """Appends clones of `ops`, operands before users; what stands for each value now."""
    made = dict(known)
    for op in ops:
        clone = graph.add(
            op.kind,
            [made[value] for value in op.operands],
            [result.type for result in op.results],
            op.loc,
            **attributes(op),
        )
        made.update(zip(op.results, clone.results, strict=True))
    return made


def _twin(body: Graph) -> Graph:
    """An equal graph, of whose inputs the same is known."""
    made = Graph(body.name)
    known = {
        value: made.add_input(name, value.type, donated=donated, bound=bound)
        for value, name, donated, bound in zip(
            body.inputs, body.input_names, body.donated, body.bound, strict=True
        )
    }
    made.weights = {known[value]: weight for value, weight in body.weights.items()}
    made.sliced = {known[value]: weight for value, weight in body.sliced.items()}
    made.of_gradient = body.of_gradient
    known = appended(made, body.ops(), known)
    made.set_outputs([known[value] for value in body.outputs])
    return made


def copied(
    graph: Graph,
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    donated: Container[int],
    name: str = "",
) -> Graph:
    """A graph that computes `outputs` from `inputs`, both values of `graph`; donated: which of the
    new inputs may be overwritten. name: of one that has the same text wherever it is from: its
    inputs are called alike, and ops come as their users read them."""
    made = Graph(name or graph.name)
    known = {}
    for at, value in enumerate(inputs):
        input_name = f"{'w' if name else 'hoisted'}{at}"
        if not name and value.op.definition.is_input:
            input_name = graph.input_names[value.op.attrs["index"]]
        known[value] = made.add_input(input_name, value.type, donated=at in donated)
    wanted = list(dict.fromkeys(outputs))
    known |= (cloned_alike if name else cloned)(made, wanted, known)
    made.set_outputs([known[value] for value in outputs])
    return made


def _as_read(values: Iterable[Value], known: Container[Value]) -> Iterable[Op]:
    """The ops behind values, each after those of its operands, which come in their order."""
    ops = dict[Op, None]()
    pending = [value.op for value in values if value not in known][::-1]
    while pending:
        op = pending[-1]
        missing = [x.op for x in op.operands if x not in known and x.op not in ops]
        pending += reversed(missing)
        if not missing:
            ops[pending.pop()] = None
    return ops


def _in_order(ops: Set[Op]) -> list[Op]:
    """Operands before users, otherwise the oldest first."""
    before = {op: [value.op for value in op.operands if value.op in ops] for op in ops}
    return first_order(before, attrgetter("id"))
