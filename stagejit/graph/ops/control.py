"""Ops whose bodies are graphs of their own: `loop` and `branch`.

Input: an op, or its operand types and attributes. Output: its bodies, what each operand is for, the
result types. Invariant: a body reads nothing but its own inputs, and holds no equation of JAX.

Note [Order of operands]: a loop takes inits, xs, constants of the body, constants of the condition.
Inits come first, so that carry k is operand k, input k and output k of the body, and result k.
Constants come last, so that one can be added without renumbering anything. A branch takes its
index, then the inputs of its branches.

Note [Carried memory]: result k of a loop is an update of operand k. `carried` of a branch says
which of its results are updates, too: pairs of a result and the number of the input that it takes
over. A branch that leaves its input as it is gives that input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stagejit.base.records import record
from stagejit.graph.definition import Attrs, Names, OpDef, Types, define, require
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.meaning.evaluator import Evaluator
from stagejit.graph.text.syntax import attributes_text, joined, operands_text
from stagejit.types import TensorType


@record
class LoopOperands:
    """The operands of a loop by purpose; see Note [Order of operands]."""

    inits: Sequence[Value]
    xs: Sequence[Value]
    constants: Sequence[Value]
    condition_constants: Sequence[Value]

    @staticmethod
    def of(op: Op) -> LoopOperands:
        carries, end = op.attrs["carries"], len(op.attrs["body"].inputs)
        xs = carries + op.attrs["xs"]
        operands = op.operands
        return LoopOperands(
            operands[:carries], operands[carries:xs], operands[xs:end], operands[end:]
        )


def bodies_of(op: Op) -> tuple[Graph, ...]:
    """The graphs inside an op: of a loop the body, then the condition if there is one."""
    return op.definition.bodies(op) if op.definition.has_bodies else ()


def body_operands(op: Op) -> tuple[Sequence[Value], ...]:
    """For each of `bodies_of(op)` the operand that each of its inputs stands for: an init for a
    carry, all of x for a slice of it."""
    if op.definition.is_branch:
        return (op.operands[1:],) * len(op.attrs["branches"])
    parts = LoopOperands.of(op)
    body = (*parts.inits, *parts.xs, *parts.constants)
    if op.attrs["condition"] is None:
        return (body,)
    return body, (*parts.inits, *parts.condition_constants)


def unchanging(op: Op) -> dict[int, list[tuple[Graph, Value]]]:
    """Operands that every iteration, or every branch, has whole and as they are, by number: the
    inputs of bodies that they are, each with its body."""
    bodies = bodies_of(op)
    found: dict[int, list[tuple[Graph, Value]]] = {}
    if op.definition.is_branch:
        carried = set(carried_operands(op).values())
        for at in range(1, len(op.operands)):
            if at not in carried:
                found[at] = [(body, body.inputs[at - 1]) for body in bodies]
        return found
    first, end = op.attrs["carries"] + op.attrs["xs"], len(bodies[0].inputs)
    for at in range(first, end):
        found[at] = [(bodies[0], bodies[0].inputs[at])]
    for at in range(end, len(op.operands)):
        found[at] = [(bodies[1], bodies[1].inputs[at - end + op.attrs["carries"]])]
    return found


def given(op: Op) -> dict[int, list[tuple[Graph, Value]]]:
    """The same, and those of which each iteration has a slice."""
    found = unchanging(op)
    if op.definition.is_loop:
        body, first = op.attrs["body"], op.attrs["carries"]
        found |= {at: [(body, body.inputs[at])] for at in range(first, first + op.attrs["xs"])}
    return found


def given_at(op: Op, operand: int) -> list[tuple[Graph, Value]]:
    """What `given` has of one operand; nothing of what is carried, or says which branch runs."""
    bodies = bodies_of(op)
    if op.definition.is_branch:
        carried = any(operand == at + 1 for _, at in op.attrs["carried"])
        none = carried or not operand
        return [] if none else [(body, body.inputs[operand - 1]) for body in bodies]
    carries, end = op.attrs["carries"], len(bodies[0].inputs)
    if operand < end:
        return [(bodies[0], bodies[0].inputs[operand])] if operand >= carries else []
    return [(bodies[1], bodies[1].inputs[operand - end + carries])]


def is_sliced(op: Op, operand: int) -> bool:
    """Whether each iteration has a slice of the operand."""
    if not op.definition.is_loop:
        return False
    first = op.attrs["carries"]
    return bool(first <= operand < first + op.attrs["xs"])


def given_type(op: Op, operand: int) -> TensorType:
    """What bodies are given of an operand."""
    type = op.operands[operand].type
    return type.of_slice if is_sliced(op, operand) else type


def read_from_outside(graph: Graph, op: Op, number: int, inner: Value, outer: Value) -> None:
    """loop (body: %inner)  -->  loop of %outer (body: input). number: of the body."""
    bodies = bodies_of(op)
    owners = bodies if op.definition.is_branch else bodies[number : number + 1]
    at = len(op.operands)
    if op.definition.is_loop and number == 0:
        at -= len(LoopOperands.of(op).condition_constants)
    for body in owners:
        read = body.add_input(f"const{len(body.inputs)}", outer.type)
        if body is bodies[number]:
            body.replace_uses(inner, read)
            body.erase(inner.op)
    graph.insert_operand(op, at, outer)


def carried_operands(op: Op) -> dict[int, int]:
    """Results that are updates of an operand, whose memory they take over: numbers of both. See
    Note [Carried memory]."""
    if op.definition.is_loop:
        return {at: at for at in range(op.attrs["carries"])}
    return {result: at + 1 for result, at in op.attrs["carried"]} if op.definition.is_branch else {}


def carried_inputs(op: Op, number: int) -> dict[int, int]:
    """The same in body `number`: output --> input."""
    if op.definition.is_loop:
        return carried_operands(op) if number == 0 else {}
    return dict(op.attrs["carried"])


def read_operands(op: Op) -> Sequence[Value]:
    """Operands that the op only reads."""
    if not op.definition.updates:  # nearly all; asked of every op
        return op.operands
    updated: set[int | None]
    if op.definition.has_bodies:
        updated = set(carried_operands(op).values())
    else:
        updated = {op.definition.tied_operand(op, result.index) for result in op.results}
    return tuple(value for at, value in enumerate(op.operands) if at not in updated)


def destination_of(value: Value) -> Value | None:
    """The operand that `value` is an update of: a destination, or what a carried result of a loop
    or branch starts as."""
    op = value.op
    at = op.definition.tied_operand(op, value.index)
    return None if at is None else op.operands[at]


def before(value: Value) -> Value | None:
    """What lay in the memory of `value` before: its destination, or what its op passes on."""
    op = value.op
    return op.operands[value.index] if op.definition.forwards else destination_of(value)


def memory_of(value: Value, known: dict[Value, Value] | None = None) -> Value:
    """The earliest value that lay in the memory of `value`. known: that of others, to be added to
    by who asks for many, as memory may have as many versions as a program has ops."""
    known, later = {} if known is None else known, []
    while value not in known and (earlier := before(value)) is not None:
        later.append(value)
        value = earlier
    first = known.get(value, value)
    known.update(dict.fromkeys(later, first))
    return first


def updates_of(op: Op, destination: Value) -> list[Value]:
    """The results of an op that are updates of `destination`: one look at each operand, however
    many are carried."""
    if op.definition.has_bodies:
        carried = carried_operands(op).items()
        return [op.results[result] for result, at in carried if op.operands[at] is destination]
    return [value for value in op.results if destination_of(value) is destination]


# ------------------------------------------------------------------ results


def _loop(operands: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    body, condition, trip = attrs["body"], attrs["condition"], attrs["trip"]
    carries, xs = attrs["carries"], attrs["xs"]
    inits, scanned = tuple(operands[:carries]), tuple(operands[carries : carries + xs])
    end = len(body.inputs)
    require(end >= carries + xs, "the body has too few inputs")
    for x in scanned:
        require(x.rank > 0 and x.shape[0] == trip, f"{x} does not have {trip} slices")
        require(x.layout.has_slices, f"slices of {x} do not lie together")
    slices = [x.of_slice for x in scanned]
    _require_inputs(body, (*inits, *slices, *operands[carries + xs : end]))
    outputs = [value.type for value in body.outputs]
    require(tuple(outputs[:carries]) == inits, "the body gives carries of other types")
    donated = [at < carries for at in range(end)]
    require(body.donated == donated, "the carries of a body are donated, and nothing else")
    require(isinstance(attrs["reverse"], bool), "reverse is a bool")
    ys = outputs[carries:]
    if condition is None:
        require(isinstance(trip, int) and trip > 0, "a loop without a condition has a trip count")
        require(end == len(operands), "operands and inputs of the body differ in number")
        return (*inits, *(TensorType(y.dtype, (trip, *y.shape)) for y in ys))
    require(trip is None and not xs and not ys, "a loop with a condition has carries only")
    _require_inputs(condition, (*inits, *operands[end:]))
    verdicts = [str(value.type) for value in condition.outputs]
    require(verdicts == ["bool[]"], "a condition gives one bool")
    return inits


def _branch(operands: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    index, *arguments = operands
    require(str(index) in ("bool[]", "i32[]"), "the index is a bool or an i32 scalar")
    require(len(attrs["branches"]) > 0, "there is a branch")
    carried = dict(attrs["carried"])
    updated = set(carried.values())
    distinct = len(carried) == len(updated) == len(attrs["carried"])
    require(distinct, f"carried={attrs['carried']} names a result or an input twice")
    found = []
    for branch in attrs["branches"]:
        _require_inputs(branch, arguments)
        found.append(tuple(value.type for value in branch.outputs))
        donated = [at in updated for at in range(len(arguments))]
        require(branch.donated == donated, "the inputs of a branch that it updates are donated")
    require(len(set(found)) == 1, "branches give results of different types")
    fits = all(found[0][result] == arguments[at] for result, at in carried.items())
    require(fits, "a result has another type than the input that it updates")
    return found[0]


def _require_inputs(body: Graph, types: Sequence[TensorType]) -> None:
    given = [value.type for value in body.inputs]
    require(given == list(types), f"{body.name} takes {given}, not {list(types)}")


# ------------------------------------------------------------------ meaning


def _value_of_loop(evaluator: Evaluator, op: Op, *operands: Any) -> list[Any]:
    body, condition, trip = op.attrs["body"], op.attrs["condition"], op.attrs["trip"]
    parts, values = LoopOperands.of(op), dict(zip(op.operands, operands, strict=True))
    carries = [values[value] for value in parts.inits]
    xs, constants, of_condition = (
        [values[value] for value in part]
        for part in (parts.xs, parts.constants, parts.condition_constants)
    )
    if condition is not None:
        while evaluator.graph(condition, [*carries, *of_condition])[0]:
            carries = evaluator.graph(body, [*carries, *constants])
        return carries
    ys: list[list[Any]] = [[] for _ in op.results[len(carries) :]]
    for at in range(trip):
        row = trip - 1 - at if op.attrs["reverse"] else at
        results = evaluator.graph(body, [*carries, *(x[row] for x in xs), *constants])
        carries = results[: len(carries)]
        for stack, y in zip(ys, results[len(carries) :], strict=True):
            stack.append(y)
    step = -1 if op.attrs["reverse"] else 1
    return [*carries, *(np.stack(stack[::step]) for stack in ys)]


def _value_of_branch(evaluator: Evaluator, op: Op, index: Any, *operands: Any) -> list[Any]:
    branches = op.attrs["branches"]
    chosen = min(max(int(index), 0), len(branches) - 1)
    return evaluator.graph(branches[chosen], operands)


# --------------------------------------------------------------------- text


def _write(op: Op, names: Names) -> str:
    """Bodies follow on lines of their own."""
    shown = attributes_text(op, {"body", "condition", "branches"})
    return joined(operands_text(op, names), *shown)


def _loop_with(graphs: Sequence[Graph]) -> dict[str, Any]:
    if len(graphs) not in (1, 2):
        raise ValueError("a loop has a body, and may have a condition")
    return {"body": graphs[0], "condition": graphs[1] if graphs[1:] else None}


def _branch_with(graphs: Sequence[Graph]) -> dict[str, Any]:
    return {"branches": tuple(graphs)}


# ---------------------------------------------------------------- structure


def _bodies_of_loop(op: Op) -> tuple[Graph, ...]:
    body, condition = op.attrs["body"], op.attrs["condition"]
    return (body,) if condition is None else (body, condition)


def _bodies_of_branch(op: Op) -> tuple[Graph, ...]:
    return tuple(op.attrs["branches"])


def _tied_in_loop(op: Op, result: int) -> int | None:
    return result if result < op.attrs["carries"] else None


def _tied_in_branch(op: Op, result: int) -> int | None:
    return carried_operands(op).get(result)


def _loop_flops(op: Op) -> int:
    """A loop of unknown length counts once."""
    return (op.attrs["trip"] or 1) * sum(map(_flops, _bodies_of_loop(op)))


def _branch_flops(op: Op) -> int:
    return max(map(_flops, _bodies_of_branch(op)))


def _flops(graph: Graph) -> int:
    return sum(op.definition.flops(op) for op in graph)


define(
    OpDef(
        kind="loop",
        infer=_loop,
        interpret=_value_of_loop,
        write=_write,
        bodies=_bodies_of_loop,
        with_bodies=_loop_with,
        is_loop=True,
        tied_operand=_tied_in_loop,
        stands_alone=True,
        flops=_loop_flops,
    )
)
define(
    OpDef(
        kind="branch",
        infer=_branch,
        interpret=_value_of_branch,
        write=_write,
        bodies=_bodies_of_branch,
        with_bodies=_branch_with,
        is_branch=True,
        tied_operand=_tied_in_branch,
        stands_alone=True,
        flops=_branch_flops,
    )
)
