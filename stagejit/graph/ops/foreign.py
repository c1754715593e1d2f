"""What is not ours to compute: `call`, a handler of jaxlib; `delegate`, an equation left to XLA;
`optimization_barrier`, which passes its operands on.

In the interpreter LAPACK's routines run in float64, whatever the element type, as every op does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from stagejit.compat import evaluate_equation
from stagejit.crossing import from_user, to_user
from stagejit.errors import InternalError, VerificationError
from stagejit.graph.definition import Attrs, OpDef, Types, define, states_its_types
from stagejit.graph.ir import Op, Value
from stagejit.graph.meaning.evaluator import Evaluator
from stagejit.graph.python_functions import TARGET, function_of
from stagejit.graph.text.syntax import Parts, read_plain
from stagejit.graph.text.tokens import Line, Values
from stagejit.types import TensorType, dtype_named


def handler_types(op: Op) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...]]:
    """The types of operands and results as the handler sees them."""
    of_operands, of_results = op.attrs["column_major"]
    return _seen(op.operands, of_operands), _seen(op.results, of_results)


def _seen(values: Sequence[Value], column_major: Sequence[bool]) -> tuple[TensorType, ...]:
    return tuple(
        _turned(value.type) if turned else value.type
        for value, turned in zip(values, column_major, strict=True)
    )


def _turned(type: TensorType) -> TensorType:
    *batch, columns, rows = type.shape
    return TensorType(type.dtype, (*batch, rows, columns))


def _check_call(op: Op) -> None:
    """Raises VerificationError where attributes do not fit operands and results."""
    of_operands, of_results = op.attrs["column_major"]
    for values, turned in ((op.operands, of_operands), (op.results, of_results)):
        if len(values) != len(turned):
            raise VerificationError(f"column_major names {len(turned)} of {len(values)} arrays")
        if any(turn and value.type.rank < 2 for value, turn in zip(values, turned, strict=True)):
            raise VerificationError("a column-major array has two dimensions at least")
    names = [name for name, _, _ in op.attrs["attributes"]]
    if names != sorted(set(names)):
        raise VerificationError(f"attributes {names} are not in order")


def _value_of_call(evaluator: Evaluator, op: Op, *operands: Any) -> list[Any]:
    """Floats as float64."""
    if op.attrs["target"] == TARGET:
        return _call_python(op, operands)
    inputs, outputs = handler_types(op)
    of_operands, of_results = op.attrs["column_major"]
    with jax.enable_x64(True):
        types = [_type(t) for t in outputs]
        call = jax.ffi.ffi_call(
            op.attrs["target"].replace("lapack_s", "lapack_d"), types,
            input_layouts=[_layout(*pair) for pair in zip(inputs, of_operands, strict=True)],
            output_layouts=[_layout(*pair) for pair in zip(outputs, of_results, strict=True)],
        )  # fmt: skip
        arrays = [
            np.asarray(x, _wide(t.dtype.numpy)).swapaxes(-1, -2)
            if turned
            else np.asarray(x, _wide(t.dtype.numpy))
            for x, t, turned in zip(operands, inputs, of_operands, strict=True)
        ]
        attributes = {
            name: dtype_named(dtype).numpy.type(value)
            for name, dtype, value in op.attrs["attributes"]
        }
        made = [np.asarray(x) for x in call(*arrays, **attributes)]
    return [x.swapaxes(-1, -2) if turned else x for x, turned in zip(made, of_results, strict=True)]


def _call_python(op: Op, operands: Sequence[Any]) -> list[Any]:
    ((_, _, number),) = op.attrs["attributes"]
    function = function_of(int(number))
    if function is None:
        raise InternalError(f"{op} was parsed from text and has no function", step="interpret")
    types = [value.type.dtype.numpy for value in op.operands]
    return list(function([np.asarray(x, t) for x, t in zip(operands, types, strict=True)]))


def _type(type: TensorType) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(type.shape, _wide(type.dtype.numpy))  # type: ignore[no-untyped-call]


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float64) if dtype == np.float32 else dtype


def _layout(type: TensorType, column_major: bool) -> tuple[int, ...] | None:
    if not column_major:
        return None
    return (*range(type.rank - 2), type.rank - 1, type.rank - 2)


# ---------------------------------------------------------------- delegate


def _check_delegate(op: Op) -> None:
    equation = op.attrs["equation"]
    if equation is None:
        return
    own = len(equation.outvars) + bool(op.attrs["effects"])
    if len(op.results) != own:
        raise VerificationError(f"{len(op.results)} results where its equation gives {own}")


def _value_of_delegate(evaluator: Evaluator, op: Op, *operands: Any) -> list[Any]:
    equation = op.attrs["equation"]
    if equation is None:
        raise InternalError(f"{op} was parsed from text and has no equation", step="interpret")
    arguments = [
        to_user(np.asarray(x).astype(v.type.dtype.numpy), atom.aval)
        if v.type.dtype.kind != "opaque"
        else x
        for x, v, atom in zip(operands, op.operands, equation.invars, strict=False)
    ]  # a token, the last operand, only orders
    results = evaluate_equation(equation, arguments)
    made = [
        from_user(x, variable.aval) if v.type.dtype.kind != "opaque" else x
        for x, v, variable in zip(results, op.results, equation.outvars, strict=False)
    ]
    return [*made, None] if op.attrs["effects"] else made


def _read_delegate(
    tokens: Line, definition: OpDef, values: Values, types: list[TensorType]
) -> Parts:
    """Text has no equation."""
    operands, attrs = read_plain(tokens, definition, values, types)
    return operands, {"equation": None} | attrs


# -------------------------------------------------------------- optimization_barrier


def _same(operands: Types, attrs: Attrs) -> Types:
    return operands


def _operands(evaluator: Evaluator, op: Op, *operands: Any) -> list[Any]:
    return list(operands)


define(
    OpDef(
        kind="call",
        infer=states_its_types,
        interpret=_value_of_call,
        check=_check_call,
        is_foreign=True,
        is_call=True,
        stands_alone=True,
    )
)
define(
    OpDef(
        kind="delegate",
        infer=states_its_types,
        interpret=_value_of_delegate,
        check=_check_delegate,
        opaque_attributes=frozenset({"equation"}),
        read=_read_delegate,
        is_foreign=True,
        is_left=True,
        stands_alone=True,
    )
)
define(
    OpDef(
        kind="optimization_barrier",
        infer=_same,
        interpret=_operands,
        forwards=True,
        orders=True,
    )
)
