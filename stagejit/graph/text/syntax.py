"""How operands and attributes of an op stand in its line, after the kind: the forms that several
kinds share.

Input: an op and the names of values, or tokens and the values of names. Output: the text, or
operands and attributes. Invariant: each `read_...` is the inverse of its `write_...`, and both
leave out what the result type tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stagejit.graph.definition import Names, OpDef
from stagejit.graph.ir import Op, Value
from stagejit.graph.text.literals import literal_text
from stagejit.graph.text.tokens import Line, Values
from stagejit.types import TensorType

Parts = tuple[list[Value], dict[str, Any]]
Types = list[TensorType]


def write_plain(op: Op, names: Names) -> str:
    """Operands, then attributes by name."""
    return joined(operands_text(op, names), *attributes_text(op))


def read_plain(tokens: Line, definition: OpDef, values: Values, types: Types) -> Parts:
    operands, attrs = _operands(tokens, values), tokens.attributes()
    return operands, attrs | implied_attributes(tokens, definition, types)


def write_function(op: Op, names: Names) -> str:
    """The attribute `fn` comes first, bare."""
    return joined(op.attrs["fn"], operands_text(op, names), *attributes_text(op, {"fn"}))


def read_function(tokens: Line, definition: OpDef, values: Values, types: Types) -> Parts:
    fn = tokens.take("name")
    operands, attrs = read_plain(tokens, definition, values, types)
    return operands, {"fn": fn} | attrs


def _operands(tokens: Line, values: Values) -> list[Value]:
    """Values up to the first token that is none."""
    operands = []
    while tokens.kind() == "value":
        operands.append(tokens.value(values))
        tokens.accept(",")
    return operands


def implied_attributes(tokens: Line, definition: OpDef, types: Types) -> dict[str, Any]:
    """The attributes that the result type tells, of a kind with one result."""
    if not definition.implied:
        return {}
    if len(types) != 1:
        raise tokens.error(f"{definition.kind} has one result, not {len(types)}")
    (type,) = types
    known: dict[str, Any] = {"shape": type.shape, "sizes": type.shape, "dtype": type.dtype}
    if not type.layout.is_row_major:
        known["layout"] = type.layout
    if type.encoding is not None:
        known["encoding"] = type.encoding
    return {name: known[name] for name in sorted(definition.implied & known.keys())}


def operands_text(op: Op, names: Names) -> str:
    return ", ".join([names[value] for value in op.operands])


def attributes_text(op: Op, hidden: Iterable[str] = ()) -> list[str]:
    hidden = {*hidden, *op.definition.implied, *op.definition.opaque_attributes}
    shown = [name for name in op.attrs if name not in hidden]
    return [f"{name}={literal_text(op.attrs[name])}" for name in sorted(shown)]


def joined(*parts: str) -> str:
    return " ".join(filter(None, parts))
