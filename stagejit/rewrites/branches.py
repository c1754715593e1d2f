"""simplify-branches and update-branches: what a branch really chooses, and where it writes it.

Input: the whole graph, whose bodies have been rewritten already. Output: branches with fewer
results and operands; results that are updates of an operand say so (`carried`, see
`graph/ops/control.py`). Invariant: a branch is rebuilt from clones of its graphs, which compute
what they computed before; the bodies in these are handed over, as the old branch is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import destination_of
from stagejit.graph.ops.elementwise import function_of
from stagejit.rewrites.cloning import cloned, handed_over, own_attributes, values_behind
from stagejit.rewrites.driving.driver import Log
from stagejit.types import bool_

SIMPLIFY = "simplify-branches"
UPDATE = "update-branches"

Pairs = tuple[tuple[int, int], ...]


def simplify_branches(log: Log) -> None:
    """branch %p, %x, %y, %y (a, b, c: a, b)  -->  branch %p, %y (b: b), %x for the first result"""
    for op in log.graph.ops():
        if op.definition.is_branch and op in log.graph:
            _simplify(log, op)


def update_branches(log: Log) -> None:
    """branch %p, %x (a: insert_slice .. into a; a: a)  -->  branch %p, %x carried=((0, 0))"""
    for op in log.graph.ops():
        if op.definition.is_branch and not op.attrs["carried"]:
            _update(log, op)


# ------------------------------------------------------------------------------- fewer results


def _simplify(log: Log, op: Op) -> None:
    graph, branches = log.graph, op.attrs["branches"]
    values: list[Value | None] = [_same_operand(op, at) for at in range(len(op.results))]
    used = graph.uses_by_result(op)
    first: dict[tuple[Value, ...], int] = {}
    for at in range(len(op.results)):
        if values[at] is None and at in used:
            first.setdefault(tuple(branch.outputs[at] for branch in branches), at)
    kept = sorted(first.values())
    needed = {
        value.op.attrs["index"]
        for branch in branches
        for value in values_behind(branch.outputs[at] for at in kept)
        if value.op.definition.is_input
    }
    operands = list(dict.fromkeys(op.operands[1 + at] for at in sorted(needed)))
    fewer = len(op.results) - len(kept), len(op.operands) - 1 - len(operands)
    if not any(fewer) and _index(op) is op.operands[0]:
        return
    if kept:
        made = _rebuilt(graph, op, kept, operands, ())
        for at in sorted(used):
            number = first.get(tuple(branch.outputs[at] for branch in branches))
            if values[at] is None and number is not None:
                values[at] = made.results[kept.index(number)]
    reason = f"{fewer[0]} results and {fewer[1]} operands fewer"
    if not any(fewer):
        reason = "the branch clamps its index itself"
    log.replace_results(SIMPLIFY, op, values, reason)


def _index(op: Op) -> Value:
    """The index without what only brings it into the range that a branch clamps it to anyway: a
    bool is 0 or 1."""
    value, last = op.operands[0], len(op.attrs["branches"]) - 1
    while True:
        producer = value.op
        if producer.definition.is_conversion and producer.operands[0].type.dtype is bool_:
            value = producer.operands[0]
        elif function_of(producer) == "clamp":
            low, x, high = producer.operands
            if (_number(low), _number(high)) != (0, last):
                return value
            value = x
        else:
            return value


def _number(value: Value) -> int | None:
    return int(value.op.attrs["value"]) if value.op.definition.is_constant else None


def _same_operand(op: Op, at: int) -> Value | None:
    """The operand that every branch gives as result `at`, if there is one."""
    found = set()
    for branch in op.attrs["branches"]:
        value = branch.outputs[at]
        found.add(
            op.operands[1 + value.op.attrs["index"]] if value.op.definition.is_input else None
        )
    return found.pop() if len(found) == 1 else None


def _rebuilt(
    graph: Graph, op: Op, results: Sequence[int], operands: Sequence[Value], carried: Pairs
) -> Op:
    """The branch with some of its results, over `operands`, each of which is one of the old."""
    donated = {at for _, at in carried}
    branches = tuple(
        _with_operands(branch, op, results, operands, donated) for branch in op.attrs["branches"]
    )
    types = [op.results[at].type for at in results]
    operands = [_index(op), *operands]
    return graph.add("branch", operands, types, op.loc, branches=branches, carried=carried)


def _with_operands(
    branch: Graph, op: Op, results: Sequence[int], operands: Sequence[Value], donated: set[int]
) -> Graph:
    """One branch of the new op. Inputs that stand for one operand become one."""
    made = Graph(branch.name)
    names: dict[Value, str] = {}
    for value, name in zip(op.operands[1:], branch.input_names, strict=True):
        names.setdefault(value, name)
    inputs = {
        value: made.add_input(names[value], value.type, donated=at in donated)
        for at, value in enumerate(operands)
    }
    known = {
        old: inputs[value]
        for old, value in zip(branch.inputs, op.operands[1:], strict=True)
        if value in inputs
    }
    outputs = [branch.outputs[at] for at in results]
    attributes = own_attributes if op.attrs.get("effects") else handed_over  # that one stays
    known |= cloned(made, list(dict.fromkeys(outputs)), known, attributes)
    made.set_outputs([known[value] for value in outputs])
    return made


# ------------------------------------------------------------------------------------- updates


def _update(log: Log, op: Op) -> None:
    pairs: dict[int, int] = {}
    for result in op.results:
        found = {_updated_input(branch.outputs[result.index]) for branch in op.attrs["branches"]}
        inputs = [at for at in found if at is not None]
        if len(inputs) != 1 or inputs[0] in pairs.values():
            continue
        operand = op.operands[1 + inputs[0]]
        if operand.type != result.type:
            continue
        if None in found and _lives_on(log.graph, operand, op):
            reason = "a branch computes all of it, and the operand would be copied for it in vain"
            log.decline(UPDATE, op, reason)
            continue
        pairs[result.index] = inputs[0]
    if pairs:
        made = _rebuilt(
            log.graph, op, range(len(op.results)), op.operands[1:], tuple(sorted(pairs.items()))
        )
        reason = f"{len(pairs)} results are updates of an operand, in its memory"
        log.replace_results(UPDATE, op, list(made.results), reason)


def _updated_input(value: Value) -> int | None:
    """The number of the input that `value` is an update of, or is itself."""
    while (destination := destination_of(value)) is not None:
        value = destination
    return int(value.op.attrs["index"]) if value.op.definition.is_input else None


def _lives_on(graph: Graph, operand: Value, op: Op) -> bool:
    """Whether the branch may not overwrite `operand`: it is a constant, the caller's, or read by
    others."""
    if operand.op.definition.is_input and not graph.is_donated(operand):
        return True
    return operand.op.definition.is_constant or graph.users(operand) != [op]
