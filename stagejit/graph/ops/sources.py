"""Where values begin and end: `input`, `return`, `const`, `bound`, `iota`, `empty`, `fill`."""

from __future__ import annotations

from typing import Any

import numpy as np

from stagejit.errors import InternalError
from stagejit.graph.definition import Attrs, Names, OpDef, Types, define, require, states_its_types
from stagejit.graph.ir import Op, Value
from stagejit.graph.meaning.evaluator import Array, Evaluator
from stagejit.graph.text.literals import array_text
from stagejit.graph.text.syntax import implied_attributes
from stagejit.graph.text.tokens import Line, Values
from stagejit.index.layout import ROW_MAJOR
from stagejit.types import TensorType, from_numpy

_SHAPED = frozenset({"shape", "dtype"})


def _not_evaluated(evaluator: Evaluator, op: Op, *operands: Any) -> Any:
    raise InternalError(f"{op} has no value of its own", step="interpret")


def _const(operands: Types, attrs: Attrs) -> TensorType | None:
    value = attrs["value"]
    require(not operands, "takes no operands")
    if not isinstance(value, np.ndarray):
        return None
    layout = attrs.get("layout", ROW_MAJOR)
    require(layout.fits(value.shape), "{} is no layout of that shape", layout)
    return TensorType(from_numpy(value.dtype), value.shape, layout)


def _value_of_const(evaluator: Evaluator, op: Op) -> Any:
    return op.attrs["value"]


def _write_const(op: Op, names: Names) -> str:
    value = op.attrs["value"]
    return array_text(value) if isinstance(value, np.ndarray) else "opaque"


def _read_const(
    tokens: Line, definition: OpDef, values: Values, types: list[TensorType]
) -> tuple[list[Value], dict[str, Any]]:
    if len(types) != 1:
        raise tokens.error("const has one result")
    return [], {"value": tokens.array(types[0])} | implied_attributes(tokens, definition, types)


def _iota(operands: Types, attrs: Attrs) -> TensorType:
    require(not operands, "takes no operands")
    require(0 <= attrs["axis"] < len(attrs["shape"]), "no axis {}", attrs["axis"])
    return TensorType(attrs["dtype"], attrs["shape"])


def _value_of_iota(evaluator: Evaluator, op: Op) -> Array:
    shape, axis = op.attrs["shape"], op.attrs["axis"]
    line = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.broadcast_to(line, shape)


def _empty(operands: Types, attrs: Attrs) -> TensorType:
    require(not operands, "takes no operands")
    layout = attrs.get("layout", ROW_MAJOR)
    require(layout.fits(attrs["shape"]), "{} is no layout of that shape", layout)
    return TensorType(attrs["dtype"], attrs["shape"], layout)


def _value_of_empty(evaluator: Evaluator, op: Op) -> Array:
    return np.full(op.attrs["shape"], _poison(op.result.type))


def _poison(type: TensorType) -> Any:
    """What nobody should read."""
    if type.dtype.is_float:
        return np.nan
    if type.dtype.kind == "bool":
        return True
    return np.iinfo(type.dtype.numpy).max


def _fill(operands: Types, attrs: Attrs) -> TensorType:
    (scalar,) = operands
    require(scalar.shape == (), "the operand is not a scalar")
    return TensorType(scalar.dtype, attrs["shape"])


def _value_of_fill(evaluator: Evaluator, op: Op, x: Array) -> Array:
    return np.broadcast_to(x, op.attrs["shape"])


define(OpDef(kind="input", infer=states_its_types, interpret=_not_evaluated, is_input=True))
define(OpDef(kind="return", infer=states_its_types, interpret=_not_evaluated, is_return=True))
define(
    OpDef(
        kind="const",
        infer=_const,
        interpret=_value_of_const,
        opaque_attributes=frozenset({"value"}),
        implied=frozenset({"layout"}),
        write=_write_const,
        read=_read_const,
        is_free=True,
        is_constant=True,
    )
)
# What `stagejit.bind` binds, while a graph is traced: see `trace/weights.py`.
define(
    OpDef(
        kind="bound",
        infer=states_its_types,
        interpret=_not_evaluated,
        opaque_attributes=frozenset({"weight"}),
        is_weight=True,
    )
)
define(
    OpDef(
        kind="iota",
        infer=_iota,
        interpret=_value_of_iota,
        implied=_SHAPED,
        is_free=True,
        counts=True,
    )
)
define(
    OpDef(
        kind="empty",
        infer=_empty,
        interpret=_value_of_empty,
        implied=_SHAPED | {"layout"},
        is_empty=True,
    )
)
define(
    OpDef(
        kind="fill",
        infer=_fill,
        interpret=_value_of_fill,
        implied=frozenset({"shape"}),
        is_free=True,
        is_splat=True,
    )
)
