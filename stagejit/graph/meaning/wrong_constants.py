"""Constants that are NaN, or infinite: which ops make them, or bring them in.

Input: ops that are evaluated together, in order. Output: those that make such a constant of right
ones, or compute with one that stands in the program. Invariant: only what gets into a result is
told: an infinity that is compared, or that a minimum leaves out, is not.

Note [Ordinary operands]: whether a constant gets into a result is asked of the op's own meaning:
with the constant for what is known, and ones, then zeros for what is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from stagejit.graph.ir import Op, Value
from stagejit.graph.meaning.evaluator import Array
from stagejit.graph.meaning.interpreter import evaluate_op

_MOST_ELEMENTS = 4096  # of an array that is evaluated again to say where it comes from

Known = dict[Value, Array]  # an array, or the scalar that each of its elements is


def is_wrong(array: Any, *, infs: bool) -> bool:
    """Whether an element is NaN, or with `infs` infinite."""
    if not isinstance(array, np.ndarray) or array.dtype.kind in "biuSUO":
        return False
    wide = array if array.dtype.kind in "fc" else array.astype(np.float64)
    return not np.isfinite(wide).all() if infs else bool(np.isnan(wide).any())


def makes_wrong(op: Op, made: Array, operands: Iterable[Array], *, infs: bool) -> bool:
    """Whether an op of constants made a wrong one of right ones, or computed with a wrong one: what
    only moves it is not where it comes from."""
    known = op.definition
    moves = known.is_conversion or known.is_view or known.is_splat
    is_given = any(is_wrong(each, infs=infs) for each in operands)
    return is_wrong(made, infs=infs) and not (moves and is_given)


def wrong_constants(ops: Sequence[Op], given: Mapping[Value, Array], *, infs: bool) -> list[Op]:
    """The ops that make a wrong constant, or compute with one that stands in the program, or store
    it. given: constants in memory."""
    known: Known = {v: array for v, array in given.items() if array.size <= _MOST_ELEMENTS}
    told = set[Value]()  # wrong ones, of which the op that made them is found
    found = list[Op]()
    used = {value for op in ops for value in op.operands}
    for op in ops:
        wrong = [v for v in op.operands if v in known and is_wrong(known[v], infs=infs)]
        array = _evaluated(op, known)
        if array is not None:
            known[op.result] = array
            operands = [known[v] for v in op.operands]
            if not told.isdisjoint(wrong):
                told.add(op.result)
            elif _is_told(op, array, operands, is_stored=op.result not in used, infs=infs):
                told.add(op.result)
                found.append(op)
        elif wrong and _gets_in(op, known, infs=infs) and told.isdisjoint(wrong):
            found.append(op)
    return found


def _is_told(
    op: Op, array: Array, operands: Iterable[Array], *, is_stored: bool, infs: bool
) -> bool:
    """Whether it makes a wrong constant; or stores one that others only moved."""
    makes = bool(op.operands) and makes_wrong(op, array, operands, infs=infs)
    return makes or (is_stored and is_wrong(array, infs=infs))


def _evaluated(op: Op, known: Mapping[Value, Array]) -> Array | None:
    """What constants alone determine, if it is small or all its elements are one."""
    kind = op.definition
    if kind.is_constant:
        value = op.attrs["value"]
        small = isinstance(value, np.ndarray) and value.size <= _MOST_ELEMENTS
        return value if small and op.result.type.dtype.is_native else None
    if not (kind.is_pointwise or kind.is_reduce) or not all(v in known for v in op.operands):
        return None
    operands = [known[v] for v in op.operands]
    is_one = operands and all(array.ndim == 0 for array in operands)
    if is_one and (kind.is_splat or kind.is_view):
        return operands[0]
    if is_one and kind.is_elementwise:
        return evaluate_op(op, operands)[0]
    shapes = [value.type for value in (*op.operands, *op.results)]
    if any(not isinstance(type.size, int) or type.size > _MOST_ELEMENTS for type in shapes):
        return None
    whole = [np.broadcast_to(known[v], v.type.shape) for v in op.operands]
    return evaluate_op(op, whole)[0]


def _gets_in(op: Op, known: Mapping[Value, Array], *, infs: bool) -> bool:
    """See Note [Ordinary operands]; anything else than element by element is taken to."""
    if not op.definition.is_elementwise:
        return any(value.type.dtype.is_float for value in op.results)
    for ordinary in (1, 0):
        given = [
            known[v] if v in known else np.asarray(ordinary).astype(v.type.dtype.numpy)
            for v in op.operands
        ]
        if is_wrong(evaluate_op(op, given)[0], infs=infs):
            return True
    return False
