"""Translation of `ffi_call`: a handler of jaxlib that our host program can call itself.

Input: an `ffi_call` equation, JAX's own or one of `linalg.py`. Output: a `call`, with transposes
around it where the handler wants matrices column by column; or `Unsupported`. Invariant: the
handler is one that jaxlib registers (its address is known in every process), it has no effects, and
its attributes are scalars.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stagejit.compat import foreign_address
from stagejit.graph.ir import Value
from stagejit.trace.emitter import Emitter
from stagejit.trace.translation import Site, Translation, Unsupported, integers, translation
from stagejit.types import TensorType, from_numpy

_TYPED_FFI = 4  # `custom_call_api_version` of handlers that take a call frame


def _ffi_call(emit: Emitter, site: Site, *operands: Value) -> Sequence[Value]:
    params, target = site.params, str(site.params["target_name"])
    if params["has_side_effect"] or params["custom_call_api_version"] != _TYPED_FFI:
        raise Unsupported("it calls foreign code")
    if foreign_address(target) is None:
        raise Unsupported("it calls foreign code")
    if not all(type.size for type in (*(x.type for x in operands), *site.results)):
        raise Unsupported("it calls foreign code on arrays without elements")
    attributes = tuple(sorted(_scalar(name, value) for name, value in params["attributes"]))
    of_operands = _column_major(params["input_layouts"], [x.type for x in operands])
    of_results = _column_major(params["output_layouts"], site.results)
    made = emit.emit_many(
        "call",
        [_turned(emit, x) if turn else x for x, turn in zip(operands, of_operands, strict=True)],
        [_turned_type(t) if turn else t for t, turn in zip(site.results, of_results, strict=True)],
        target=target, attributes=attributes, column_major=(of_operands, of_results),
    )  # fmt: skip
    return [_turned(emit, x) if turn else x for x, turn in zip(made, of_results, strict=True)]


def _scalar(name: str, value: Any) -> tuple[str, str, int | float]:
    """(name, dtype, value) of an attribute."""
    if not isinstance(value, np.generic) or value.dtype.kind not in "biuf":
        raise Unsupported(f"attribute {name}={value} is no scalar")
    return name, from_numpy(value.dtype).name, value.item()


def _column_major(layouts: Sequence[Any], types: Sequence[TensorType]) -> tuple[bool, ...]:
    """For each array whether its matrices are stored column by column. Layouts of the parameter
    name the fastest axis first."""
    made = []
    for layout, type in zip(layouts, types, strict=True):
        order, plain = integers(layout or ()), tuple(range(type.rank))[::-1]
        turned = type.rank > 1 and order == (plain[1], plain[0], *plain[2:])
        if order and order != plain and not turned:
            raise Unsupported(f"layout {order}")
        made.append(turned and order != plain)
    return tuple(made)


def _turned_type(type: TensorType) -> TensorType:
    *batch, rows, columns = type.shape
    return TensorType(type.dtype, (*batch, columns, rows))


def _turned(emit: Emitter, x: Value) -> Value:
    last = x.type.rank - 1
    return emit.transpose(x, (*range(last - 1), last, last - 1))


TRANSLATIONS: dict[str, Translation] = {
    "ffi_call": translation(
        _ffi_call, "target_name", "has_side_effect", "input_layouts", "output_layouts",
        "custom_call_api_version", "attributes",
        ignored=("result_avals", "vmap_method", "input_output_aliases"),
    ),
}  # fmt: skip
