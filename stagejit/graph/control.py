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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stagejit.graph.ir import Graph, Op, Value
from stagejit.types import TensorType

CONTROL = frozenset({"loop", "branch"})


@dataclass(frozen=True)
class LoopOperands:
    """The operands of a loop by purpose; see Note [Order of operands]."""

    inits: tuple[Value, ...]
    xs: tuple[Value, ...]
    constants: tuple[Value, ...]
    condition_constants: tuple[Value, ...]

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
    if op.kind == "loop":
        body, condition = op.attrs["body"], op.attrs["condition"]
        return (body,) if condition is None else (body, condition)
    return tuple(op.attrs["branches"]) if op.kind == "branch" else ()


def body_operands(op: Op) -> tuple[tuple[Value, ...], ...]:
    """For each of `bodies_of(op)` the operand that each of its inputs stands for: an init for a
    carry, all of x for a slice of it."""
    if op.kind == "branch":
        return (op.operands[1:],) * len(op.attrs["branches"])
    parts = LoopOperands.of(op)
    body = (*parts.inits, *parts.xs, *parts.constants)
    if op.attrs["condition"] is None:
        return (body,)
    return body, (*parts.inits, *parts.condition_constants)


def carried_operands(op: Op) -> dict[int, int]:
    """Results that are updates of an operand, whose memory they take over: numbers of both. See
    Note [Carried memory]."""
    if op.kind == "loop":
        return {at: at for at in range(op.attrs["carries"])}
    return {result: at + 1 for result, at in op.attrs["carried"]} if op.kind == "branch" else {}


def carried_inputs(op: Op, number: int) -> dict[int, int]:
    """The same in body `number`: output --> input."""
    if op.kind == "loop":
        return carried_operands(op) if number == 0 else {}
    return dict(op.attrs["carried"])


def read_operands(op: Op) -> tuple[Value, ...]:
    """Operands that the op only reads."""
    updated = set(carried_operands(op).values())
    return tuple(value for at, value in enumerate(op.operands) if at not in updated)


def destination_of(value: Value) -> Value | None:
    """The operand that `value` is an update of: a destination, or what a carried result of a loop
    or branch starts as."""
    op = value.op
    if op.kind == "insert_slice":
        return op.operands[1]
    if op.kind == "scatter":
        return op.operands[0]
    if op.kind == "loop":
        return op.operands[value.index] if value.index < op.attrs["carries"] else None
    at = carried_operands(op).get(value.index)
    return None if at is None else op.operands[at]


def updates_of(op: Op, destination: Value) -> list[Value]:
    """The results of an op that are updates of `destination`: one look at each operand, however
    many are carried."""
    if op.kind in CONTROL:
        carried = carried_operands(op).items()
        return [op.results[result] for result, at in carried if op.operands[at] is destination]
    return [value for value in op.results if destination_of(value) is destination]


def infer_loop(operands: Sequence[TensorType], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
    body, condition, trip = attrs["body"], attrs["condition"], attrs["trip"]
    carries, xs = attrs["carries"], attrs["xs"]
    inits, scanned = tuple(operands[:carries]), tuple(operands[carries : carries + xs])
    end = len(body.inputs)
    _require(end >= carries + xs, "the body has too few inputs")
    for x in scanned:
        _require(x.rank > 0 and x.shape[0] == trip, f"{x} does not have {trip} slices")
    slices = [TensorType(x.dtype, x.shape[1:]) for x in scanned]
    _require_inputs(body, (*inits, *slices, *operands[carries + xs : end]))
    outputs = [value.type for value in body.outputs]
    _require(tuple(outputs[:carries]) == inits, "the body gives carries of other types")
    donated = [at < carries for at in range(end)]
    _require(body.donated == donated, "the carries of a body are donated, and nothing else")
    _require(isinstance(attrs["reverse"], bool), "reverse is a bool")
    ys = outputs[carries:]
    if condition is None:
        _require(isinstance(trip, int) and trip > 0, "a loop without a condition has a trip count")
        _require(end == len(operands), "operands and inputs of the body differ in number")
        return (*inits, *(TensorType(y.dtype, (trip, *y.shape)) for y in ys))
    _require(trip is None and not xs and not ys, "a loop with a condition has carries only")
    _require_inputs(condition, (*inits, *operands[end:]))
    verdicts = [str(value.type) for value in condition.outputs]
    _require(verdicts == ["bool[]"], "a condition gives one bool")
    return inits


def infer_branch(
    operands: Sequence[TensorType], attrs: Mapping[str, Any]
) -> tuple[TensorType, ...]:
    index, *arguments = operands
    _require(str(index) in ("bool[]", "i32[]"), "the index is a bool or an i32 scalar")
    _require(len(attrs["branches"]) > 0, "there is a branch")
    carried = dict(attrs["carried"])
    updated = set(carried.values())
    distinct = len(carried) == len(updated) == len(attrs["carried"])
    _require(distinct, f"carried={attrs['carried']} names a result or an input twice")
    found = []
    for branch in attrs["branches"]:
        _require_inputs(branch, arguments)
        found.append(tuple(value.type for value in branch.outputs))
        donated = [at in updated for at in range(len(arguments))]
        _require(branch.donated == donated, "the inputs of a branch that it updates are donated")
    _require(len(set(found)) == 1, "branches give results of different types")
    fits = all(found[0][result] == arguments[at] for result, at in carried.items())
    _require(fits, "a result has another type than the input that it updates")
    return found[0]


INFER: dict[str, Callable[..., tuple[TensorType, ...]]] = {
    "loop": infer_loop,
    "branch": infer_branch,
}


def _require_inputs(body: Graph, types: Sequence[TensorType]) -> None:
    given = [value.type for value in body.inputs]
    _require(given == list(types), f"{body.name} takes {given}, not {list(types)}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
