"""Calls of FFI handlers that jaxlib brings along, and of Python's, from a host program.

Input: a `Call`. Output: its words, `sj_foreign`, which makes a call frame of them on the stack and
calls the handler, and the address behind each target. Invariant: the words depend on the call
alone; the frame's API, context and struct sizes are those of the frame that we were called with, so
the handler meets the jaxlib that it is from.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from stagejit.compat import foreign_address
from stagejit.errors import InternalError
from stagejit.graph.python_functions import TARGET
from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.cpu import python_calls
from stagejit.runtime.hosting.program_steps import Call
from stagejit.types import dtype_named

_ARGS, _RESULTS = abi.FRAME_ARGS - abi.TABLE_ITEMS, abi.FRAME_RESULTS - abi.TABLE_ITEMS
# Taken over from the frame that we were called with.
_KEPT = (
    (abi.FRAME_STRUCT_SIZE, "i64"), (abi.FRAME_API, "ptr"), (abi.FRAME_CONTEXT, "ptr"),
    (abi.FRAME_STAGE, "i32"), (_ARGS, "i64"), (_RESULTS, "i64"), (abi.FRAME_ATTRS, "i64"),
)  # fmt: skip


def addresses(targets: Iterable[str]) -> dict[str, int]:
    """By target. Raises InternalError for one that jaxlib does not have."""
    found = {
        target: python_calls.address() if target == TARGET else foreign_address(target)
        for target in targets
    }
    lost = [target for target, address in found.items() if address is None]
    if lost:
        raise InternalError(f"jaxlib has no handler for {', '.join(lost)}", step="load")
    return {target: address or 0 for target, address in found.items()}


def words_of(
    call: Call, constant: Callable[[Sequence[Any]], Any], data: Callable[[bytes], Any]
) -> list[Any]:
    """Handler, number of operands, of all arrays, then the frame and the arrays, as far as known.

    constant, data: give the addresses of constants of words and of bytes.
    """
    arrays: list[Any] = []
    for known in (*call.operands, *call.results):
        array_words = dict.fromkeys(range(0, abi.BUFFER_NBYTES, 8), 0)
        array_words |= {
            0: abi.BUFFER_NBYTES,
            abi.BUFFER_DTYPE: abi.DATA_TYPES[known.dtype],
            abi.BUFFER_RANK: len(known.dims),
            abi.BUFFER_DIMS: constant(known.dims) if known.dims else 0,
        }
        arrays += array_words.values()
    operands, results = len(call.operands), len(call.results)
    types = data(array("i", [abi.TYPE_BUFFER] * max(operands, results)).tobytes())
    frame: dict[int, Any] = dict.fromkeys(range(0, abi.FRAME_NBYTES, 8), 0)
    frame |= {
        _ARGS + abi.TABLE_COUNT: operands,
        _ARGS + abi.TABLE_TYPES: types,
        _RESULTS + abi.TABLE_COUNT: results,
        _RESULTS + abi.TABLE_TYPES: types,
    }
    if call.attributes:
        spans = [constant([data(n.encode()), len(n)]) for n, _, _ in call.attributes]
        scalars = [
            constant([abi.DATA_TYPES[dtype], data(_stored(dtype, value))])
            for _, dtype, value in call.attributes
        ]
        kinds = array("i", [abi.TYPE_SCALAR] * len(spans))
        frame |= {
            abi.FRAME_ATTRS + abi.TABLE_COUNT: len(spans),
            abi.FRAME_ATTRS + abi.TABLE_TYPES: data(kinds.tobytes()),
            abi.FRAME_ATTRS + abi.ATTRS_NAMES: constant(spans),
            abi.FRAME_ATTRS + abi.ATTRS_VALUES: constant(scalars),
        }
    return [call.target, operands, operands + results, *frame.values(), *arrays]


def _stored(dtype: str, value: int | float) -> bytes:
    return np.asarray(value, dtype_named(dtype).numpy).tobytes()


_TAKE_OVER = "".join(
    abi.load(f"%kept{offset}", kind, "%cf", offset)
    + abi.store(kind, f"%kept{offset}", "%frame", offset, f"%kept{offset}.to")
    for offset, kind in _KEPT
)

CALL_IR = f"""
; Calls a handler with the arrays whose addresses are in a row; null, or its error.
define internal ptr @sj_foreign(ptr %cf, ptr %words, ptr %row) nounwind {{
entry:
{abi.load("%handler", "ptr", "%words", 0)}{abi.load("%operands", "i64", "%words", 8)}\
{abi.load("%count", "i64", "%words", 16)}\
  %arrays.nbytes = mul i64 %count, {abi.BUFFER_NBYTES}
  %nbytes = add i64 %arrays.nbytes, {abi.FRAME_NBYTES}
  %frame = alloca i8, i64 %nbytes, align 16
  %table = alloca ptr, i64 %count, align 16
{abi.field("%known", "%words", 24)}\
  %copied = call ptr @memcpy(ptr %frame, ptr %known, i64 %nbytes)
{abi.field("%arrays", "%frame", abi.FRAME_NBYTES)}\
  br label %check
check:
  %number = phi i64 [0, %entry], [%number.next, %one]
  %more = icmp ult i64 %number, %count
  br i1 %more, label %one, label %ready
one:
  %offset = mul i64 %number, {abi.BUFFER_NBYTES}
  %array = getelementptr i8, ptr %arrays, i64 %offset
  %from = getelementptr ptr, ptr %row, i64 %number
  %place = load ptr, ptr %from
{abi.store("ptr", "%place", "%array", abi.BUFFER_DATA, "%data")}\
  %slot = getelementptr ptr, ptr %table, i64 %number
  store ptr %array, ptr %slot
  %number.next = add i64 %number, 1
  br label %check
ready:
  %results = getelementptr ptr, ptr %table, i64 %operands
{_TAKE_OVER}\
{abi.store("ptr", "%table", "%frame", abi.FRAME_ARGS, "%frame.args")}\
{abi.store("ptr", "%results", "%frame", abi.FRAME_RESULTS, "%frame.results")}\
  %error = call ptr %handler(ptr %frame)
  ret ptr %error
}}
"""
