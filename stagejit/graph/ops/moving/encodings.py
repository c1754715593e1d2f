"""`set_encoding`, `unset_encoding`: an array lies in memory as whoever multiplies it wants it.

Both are the array itself. What `set_encoding` gives lies in memory, in an order that the target
chooses later (`dispatch/encodings.py`); products, and views on the way to them, read it there. All
others read what `unset_encoding` makes of it.
"""

from __future__ import annotations

from dataclasses import replace

from stagejit.graph.definition import Attrs, DynamicStart, OpDef, Types, define, require
from stagejit.graph.ir import Op
from stagejit.graph.meaning.evaluator import Array, Evaluator
from stagejit.index.affine import Index
from stagejit.types import TensorType


def _set(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    encoding = attrs["encoding"]
    require(x.encoding is None, f"{x} is encoded already")
    require(len(encoding.axes) == x.rank, f"{encoding} is of rank {len(encoding.axes)}")
    return TensorType(x.dtype, x.shape, encoding=encoding)


def _unset(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    require(x.encoding is not None, f"{x} is not encoded")
    return replace(x, encoding=None)


def _same_elements(evaluator: Evaluator, op: Op, x: Array) -> Array:
    return x


def _pull(op: Op, index: Index, strict: bool, start: DynamicStart) -> Index:
    return index


def _push(op: Op, index: Index) -> Index:
    return index


define(
    OpDef(
        kind="set_encoding",
        infer=_set,
        interpret=_same_elements,
        implied=frozenset({"encoding"}),
        pull=_pull,
        push=_push,
        is_stored=True,
        is_encoding=True,
    )
)
define(
    OpDef(
        kind="unset_encoding",
        infer=_unset,
        interpret=_same_elements,
        pull=_pull,
        push=_push,
        is_encoding=True,
    )
)
