"""Calls of FFI handlers that jaxlib brings along, and of Python's, as LLVM IR in one of ours.

Input: a `Call` and the addresses of its arrays. Output: IR that makes a call frame on the stack and
calls the handler by its symbol; the address behind each symbol. Invariant: the text depends on the
call alone; dimensions and attributes are constants; the frame's API, context and struct sizes are
those of the frame that we were called with, so the handler meets the jaxlib that it is from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from stagejit.compat import foreign_address
from stagejit.errors import InternalError
from stagejit.graph.python_functions import TARGET
from stagejit.runtime import ffi_abi as abi
from stagejit.runtime import python_calls
from stagejit.runtime.program import Call, ForeignArray, Step
from stagejit.types import dtype_named

Constant = Callable[[str], str]  # text of a private constant --> its symbol


def symbol(target: str) -> str:
    """The symbol that a module of ours knows a handler by."""
    return f"foreign.{re.sub(r'[^A-Za-z0-9_]', '_', target)}"


def addresses(targets: Iterable[str]) -> dict[str, int]:
    """By symbol. Raises InternalError for a target that jaxlib does not have."""
    found = {
        target: python_calls.address() if target == TARGET else foreign_address(target)
        for target in targets
    }
    lost = [target for target, address in found.items() if address is None]
    if lost:
        raise InternalError(f"jaxlib has no handler for {', '.join(lost)}", step="load")
    return {symbol(target): address or 0 for target, address in found.items()}


def allocas(steps: Iterable[Step]) -> str:
    """Stack memory that all calls of a handler share; none where there are no calls."""
    arrays = [len(step.operands) + len(step.results) for step in steps if isinstance(step, Call)]
    if not arrays:
        return ""
    most = max(arrays)
    return (
        f"  %foreign.frame = alloca [{abi.FRAME_NBYTES} x i8], align 16\n"
        f"  %foreign.arrays = alloca [{most * abi.BUFFER_NBYTES} x i8], align 16\n"
        f"  %foreign.table = alloca [{most} x ptr], align 16\n"
        "  %foreign.result = alloca ptr\n"
    )


def call_ir(call: Call, places: Sequence[str], unique: str, constant: Constant) -> str:
    """The call. places: names of the arrays' addresses, operands first. An error of the handler
    ends the program at `foreign.failed`."""
    arrays = (*call.operands, *call.results)
    text = ""
    for at, (array, place) in enumerate(zip(arrays, places, strict=True)):
        text += _array(array, place, at, f"{unique}.{at}", constant)
    return (
        text
        + _frame(call, unique, constant)
        + (
            f"  %ferr{unique} = call ptr @{symbol(call.target)}(ptr %foreign.frame)\n"
            f"  store ptr %ferr{unique}, ptr %foreign.result\n"
            f"  %fok{unique} = icmp eq ptr %ferr{unique}, null\n"
            f"  br i1 %fok{unique}, label %fdone{unique}, label %foreign.failed\nfdone{unique}:\n"
        )
    )


def _array(array: ForeignArray, place: str, at: int, unique: str, constant: Constant) -> str:
    """Entry `at` of the arrays, and of the table of their addresses."""
    base = f"%fa{unique}"
    dims = ", ".join(f"i64 {size}" for size in array.dims)
    known = f"@{constant(f'private constant [{len(array.dims)} x i64] [{dims}]')}"
    fields = [
        (0, "i64", str(abi.BUFFER_NBYTES)),
        (8, "ptr", "null"),
        (abi.BUFFER_DTYPE, "i32", str(abi.DATA_TYPES[array.dtype])),
        (abi.BUFFER_DATA, "ptr", place),
        (abi.BUFFER_RANK, "i64", str(len(array.dims))),
        (abi.BUFFER_DIMS, "ptr", known if array.dims else "null"),
    ]
    return (
        abi.field(base, "%foreign.arrays", at * abi.BUFFER_NBYTES)
        + abi.fill(base, fields)
        + abi.store("ptr", base, "%foreign.table", 8 * at, f"%ft{unique}")
    )


def _frame(call: Call, unique: str, constant: Constant) -> str:
    operands, results = len(call.operands), len(call.results)
    text = ""
    for offset, kind in (
        (abi.FRAME_STRUCT_SIZE, "i64"), (abi.FRAME_API, "ptr"), (abi.FRAME_CONTEXT, "ptr"),
        (abi.FRAME_STAGE, "i32"), (FRAME_OF_ARGS, "i64"), (FRAME_OF_RESULTS, "i64"),
        (abi.FRAME_ATTRS, "i64"),
    ):  # fmt: skip
        name = f"%fc{unique}.{offset}"
        text += abi.load(name, kind, "%cf", offset)
        text += abi.store(kind, name, "%foreign.frame", offset, f"{name}.to")
    buffers = ", ".join([f"i32 {abi.TYPE_BUFFER}"] * max(operands, results, 1))
    types = f"@{constant(f'private constant [{max(operands, results, 1)} x i32] [{buffers}]')}"
    attribute_types, names, values = _attributes(call, constant)
    second = f"%fr{unique}"
    fields = [
        (abi.FRAME_EXTENSION, "ptr", "null"),
        *_table(FRAME_OF_ARGS, operands, types, "%foreign.table"),
        *_table(FRAME_OF_RESULTS, results, types, second),
        (abi.FRAME_ATTRS + 8, "ptr", "null"),
        (abi.FRAME_ATTRS + abi.TABLE_COUNT, "i64", str(len(call.attributes))),
        (abi.FRAME_ATTRS + abi.TABLE_TYPES, "ptr", attribute_types),
        (abi.FRAME_ATTRS + abi.ATTRS_NAMES, "ptr", names),
        (abi.FRAME_ATTRS + abi.ATTRS_VALUES, "ptr", values),
        (abi.FRAME_NBYTES - 8, "ptr", "null"),
    ]
    text += abi.field(second, "%foreign.table", 8 * operands)
    for offset, kind, value in fields:
        text += abi.store(kind, value, "%foreign.frame", offset, f"%ff{unique}.{offset}")
    return text


FRAME_OF_ARGS = abi.FRAME_ARGS - abi.TABLE_ITEMS
FRAME_OF_RESULTS = abi.FRAME_RESULTS - abi.TABLE_ITEMS


def _table(start: int, count: int, types: str, items: str) -> list[tuple[int, str, str]]:
    return [
        (start + 8, "ptr", "null"),
        (start + abi.TABLE_COUNT, "i64", str(count)),
        (start + abi.TABLE_TYPES, "ptr", types),
        (start + abi.TABLE_ITEMS, "ptr", items),
    ]


def _attributes(call: Call, constant: Constant) -> tuple[str, str, str]:
    """Constants: the types, names and values of the attributes."""
    if not call.attributes:
        return "null", "null", "null"
    spans, scalars = [], []
    for name, dtype, value in call.attributes:
        text = f"@{constant(_bytes(name.encode()))}"
        pair = f"private constant {{ptr, i64}} {{ptr {text}, i64 {len(name)}}}"
        spans.append(f"ptr @{constant(pair)}")
        stored = f"@{constant(_bytes(_stored(dtype, value)))}"
        kind = abi.DATA_TYPES[dtype]
        scalar = f"private constant {{i32, ptr}} {{i32 {kind}, ptr {stored}}}"
        scalars.append(f"ptr @{constant(scalar)}")
    count = len(call.attributes)
    kinds = [f"i32 {abi.TYPE_SCALAR}"] * count
    tables = [
        f"private constant [{count} x {kind}] [{', '.join(items)}]"
        for kind, items in (("i32", kinds), ("ptr", spans), ("ptr", scalars))
    ]
    types, names, values = (f"@{constant(table)}" for table in tables)
    return types, names, values


def _stored(dtype: str, value: int | float) -> bytes:
    return np.asarray(value, dtype_named(dtype).numpy).tobytes()


def _bytes(data: bytes) -> str:
    text = "".join(f"\\{b:02x}" for b in data)
    return f'private constant [{len(data)} x i8] c"{text}", align 16'
