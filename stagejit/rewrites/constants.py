"""fold-constants: evaluate, once and now, what only constants determine.

Input: an op whose operands are constants. Output: a `const`. Invariant: a folded value is small or
no larger than a constant that it was made from, so folding never trades computing for reading;
what is cheaper to make than to read (`fill`, `iota`, `broadcast`) stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from stagejit.base.symbolic import at_most
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.meaning.interpreter import evaluate_op
from stagejit.graph.ops import build
from stagejit.graph.ops.moving.slices import boxed
from stagejit.rewrites.driving.driver import Outcome, declined, rewrite

NAME = "fold-constants"

SMALL_NBYTES = 512  # free to read: a few cache lines
MAX_NBYTES = 1 << 20  # more takes longer to evaluate here than it is worth

_FOLDABLE = (
    "map convert bitcast reshape transpose reverse insert_slice reduce cumulative"
    " contract gather scatter"
)

Array = np.ndarray[Any, np.dtype[Any]]


@rewrite(NAME, roots=_FOLDABLE)
def constant_operands(graph: Graph, op: Op) -> Outcome:
    """op of constants  -->  const"""
    return _folded(graph, op)


@rewrite(NAME, roots="extract_slice", counts=True)
def constant_box(graph: Graph, op: Op) -> Outcome:
    """box of a constant  -->  const, where nobody reads other boxes of it, or indices are read"""
    type = op.result.type
    if _constants(op) is None:
        return None
    if type.size > 1 and type.dtype.is_float and len(graph.uses(op.operands[0])) > 1:
        return declined("others read the constant, too: its boxes are read where it is")
    return _folded(graph, op)


def _folded(graph: Graph, op: Op) -> Outcome:
    if not op.result.type.dtype.is_native:
        return None
    known = _constants(op)
    if known is None:
        return None
    nbytes = op.result.type.nbytes
    if nbytes > SMALL_NBYTES and nbytes > max(array.nbytes for array in known):
        return declined(f"the result of {nbytes} bytes is larger than the constants it is made of")
    if max(nbytes, *(array.nbytes for array in known)) > MAX_NBYTES:
        return declined(f"more than {MAX_NBYTES} bytes are not evaluated at compile time")
    (array,) = evaluate_op(op, known)
    return graph.add("const", (), op.result.type, op.loc, value=frozen(array)).result


@rewrite(NAME, roots="extract_slice insert_slice")
def constant_start(graph: Graph, op: Op) -> Outcome:
    """extract_slice %x at (const)  -->  extract_slice %x at a plain offset"""
    x, sizes, computed = boxed(op)
    starts = iter(computed)
    offsets: list[int | None] = []
    kept = []
    for axis, offset in enumerate(op.attrs["offsets"]):
        if offset is None:
            start = next(starts)
            if not _is_known(start):
                kept.append(start)
            else:
                value = _constant(start)
                extent = (sizes[axis] - 1) * op.attrs["strides"][axis] + 1 if sizes[axis] else 0
                offset = min(max(int(value), 0), x.shape[axis] - extent)
        offsets.append(offset)
    if len(kept) == len(computed):
        return None
    fixed = len(op.operands) - len(computed)
    attrs = dict(op.attrs) | {"offsets": tuple(offsets)}
    return build(graph, op.kind, [*op.operands[:fixed], *kept], op.loc, **attrs)


def _constants(op: Op) -> list[Array] | None:
    """The values of all operands, if they are constants."""
    return [_constant(value) for value in op.operands] if _are_known(op.operands) else None


def _are_known(values: Iterable[Value]) -> bool:
    return all(map(_is_known, values))


def _is_known(value: Value) -> bool:
    """Whether it is a constant, or a small array that ops without cost make from constants."""
    op = value.op
    if op.definition.is_constant:
        return isinstance(op.attrs["value"], np.ndarray) and value.type.dtype.is_native
    # Made again at no cost wherever it is read; a constant only together with another operand.
    kind = op.definition
    remade = kind.is_free or kind.keeps_order or kind.repeats
    return remade and at_most(value.type.nbytes, SMALL_NBYTES) and _are_known(op.operands)


def _constant(value: Value) -> Array:
    """The value of what is known."""
    op = value.op
    if op.definition.is_constant:
        array: Array = op.attrs["value"]
        return array
    return evaluate_op(op, [_constant(operand) for operand in op.operands])[0]


def frozen(array: Array) -> Array:
    """A copy that nobody can write to, as constants are."""
    copy = np.array(array)
    copy.flags.writeable = False
    return copy


RULES = (constant_operands, constant_box, constant_start)
