"""skip-zeros: a contraction says which operand a mask may have made zero in most of its steps.

Input: contractions. Output: the same, with the attribute `zeros`: the number of an operand whose
zeros are worth looking for at run time, in attention and its gradient above all. Invariant: a hint;
where it is wrong, looking costs a little.

Note [Masks by place]: zeros are worth looking for where they lie together, so that whole tiles have
nothing else. A mask of positions, lengths or segments, which are integers, makes such zeros, and so
may one that was given. One that compares floats, as dropout and relu do, leaves zeros anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.elementwise import function_of
from stagejit.rewrites.algebra import scalar_of
from stagejit.rewrites.driving.driver import LocalStep, Outcome, declined, rewrite

NAME = "skip-zeros"

MOST_OPS = 64  # that are looked at, for one operand
VANISHING = -1e4  # exp of what is so far below the maximum of a row is zero

_KEEPS = frozenset({"neg", "abs", "sqrt", "sign", "tanh", "sin", "floor", "ceil", "round"})


@rewrite(NAME, roots="contract")
def operand_behind_a_mask(graph: Graph, op: Op) -> Outcome:
    """contract (map select %mask, %x, 0), %y  -->  contract (...), %y zeros=0"""
    if "zeros" in op.attrs or not op.attrs["dtype"].is_float:
        return None
    masks = [list(_zero_masks(operand)) for operand in op.operands]
    if not any(masks):
        return None
    for number, found in enumerate(masks):
        if any(_by_place(mask) for mask in found):
            return build(graph, "contract", op.operands, op.loc, **op.attrs, zeros=number)
    return declined("the mask compares floats, so its zeros may lie anywhere")


def _zero_masks(operand: Value) -> Iterator[Value]:
    """The masks that make an operand zero: what is made of the value 0 by functions that keep it,
    or by exp of what is far below all else."""
    pending, seen = [(operand, 0.0)], set[tuple[Value, float]]()
    while pending and len(seen) < MOST_OPS:
        value, limit = key = pending.pop()
        if key in seen:
            continue
        seen.add(key)
        op, fn = value.op, function_of(value.op)
        known = op.definition
        if fn == "select":
            cases = [scalar_of(case) for case in op.operands[1:]]
            if any(case is not None and _is_masked(case, limit) for case in cases):
                yield op.operands[0]
        elif known.is_view or known.is_conversion or (fn in _KEEPS and not limit) or fn == "div":
            pending.append((op.operands[0], limit))
        elif fn == "mul":
            pending += [(factor, limit) for factor in op.operands]
        elif fn in ("exp", "exp2") and not limit:
            pending.append((op.operands[0], VANISHING))
        elif fn in ("sub", "add") and limit:
            pending += [(term, limit) for term in op.operands[: 1 if fn == "sub" else 2]]


def _is_masked(number: float, limit: float) -> bool:
    return number <= limit if limit else number == 0


def _by_place(mask: Value) -> bool:
    """Whether nothing that the mask is made of, as far as that is evaluated with it, is a float."""
    pending, seen = [mask], set[Value]()
    while pending:
        value = pending.pop()
        if value.type.dtype.is_float or len(seen) > MOST_OPS:
            return False
        if value not in seen:
            seen.add(value)
            if value.op.definition.is_pointwise or value.op.definition.is_splat:
                pending += value.op.operands
    return True


STEP = LocalStep(NAME, (operand_behind_a_mask,))
