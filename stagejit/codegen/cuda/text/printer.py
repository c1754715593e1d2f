"""Kernels of the loop-nest IR as CUDA C++ that a person can read.

Input: a `Function` with threads, a name, what the kernel is for. Output: the source of a
translation unit that includes nothing, with one `extern "C"` kernel. Its arguments are the argument
buffers in their order, the parameters, then `lo` and `hi`, all of 8 bytes.

Invariant: the kernel does what the simulator (`ir/interpreter/grid.py`) does, bit for bit, with the
interpreter's freedoms. It is to be compiled with `-fmad=false`: the IR says where a product and a
sum are one operation.

Note [Restrict]: nothing writes a readonly buffer while the kernel runs, so it is `const` and
`__restrict__`. Two buffers that are written may be one array (donation), so such a one is
`__restrict__` only where it is the only one.
"""

from __future__ import annotations

import math

from stagejit.codegen.cuda.text.names import Names, called_name
from stagejit.codegen.cuda.text.preamble import preamble
from stagejit.codegen.cuda.text.statements import write_block
from stagejit.codegen.cuda.text.tiles import (
    load_function,
    product_function,
    store_function,
    tile_name,
    way_of,
)
from stagejit.codegen.cuda.text.types import c_type, constant
from stagejit.codegen.cuda.text.values import Values, names_of
from stagejit.codegen.cuda.text.warpgroups import function_of
from stagejit.codegen.ir.grid import shared_memory as shared
from stagejit.codegen.ir.nodes import Buffer, Callee, Function, Op
from stagejit.errors import InternalError

_OPTIONS = "compile with -fmad=false"
_WIDTH = 80
DYNAMIC = "shared_memory"


def cuda_source(function: Function, name: str, about: str = "") -> str:
    """The source of a kernel. about: lines that say which dispatch it is."""
    if not function.threads:
        raise InternalError("a kernel for a CPU cannot be printed as CUDA C++", step="cuda")
    taken = frozenset({name, DYNAMIC, *map(called_name, function.callees)})
    names = Names(taken)
    buffers = names_of(function.buffers, names)
    parts = [_callee(callee, taken) for callee in function.callees]
    parts += [_table(b, buffers[b]) for b in function.buffers if b.space == "table"]
    parts += [*_tile_functions(function), _kernel(function, name, names, buffers)]
    text = "\n\n".join(parts)
    threads = " x ".join(map(str, function.threads))
    comment = [*about.splitlines(), f"Blocks of {threads} threads; {_OPTIONS}."]
    return "\n\n".join(["\n".join(f"// {line}" for line in comment), preamble(text), text]) + "\n"


def _kernel(function: Function, name: str, names: Names, buffers: dict[Buffer, str]) -> str:
    v = Values(names, buffers, function.body)
    written = sum(b.space == "arg" and not b.readonly for b in function.buffers)
    args = [
        _argument(b, buffers[b], alone=written == 1) for b in function.buffers if b.space == "arg"
    ]
    for number, value in enumerate(function.params):
        v.bind_name(value, names.fresh(f"n{number}"))
        args.append(f"u64 {v.scalar(value)}")
    for value, given in ((function.lo, "lo"), (function.hi, "hi")):
        v.bind_name(value, given)
        args.append(f"u64 {given}")
    _declare_memory(v, function.buffers)
    write_block(v, function.body)
    most = math.prod(function.threads), *([function.resident] if function.resident else [])
    bounds = f"__launch_bounds__({', '.join(map(str, most))})"
    head = f'extern "C" __global__ void {bounds}\n{name}({_joined(args)}) {{'
    return "\n".join([head, *v.lines, "}"])


def _joined(args: list[str]) -> str:
    """Arguments on one line, or on one each."""
    line = ", ".join(args)
    return line if len(line) < _WIDTH else "\n    " + ",\n    ".join(args)


def _argument(buffer: Buffer, name: str, *, alone: bool) -> str:
    const = "const " if buffer.readonly else ""
    restrict = " __restrict__" if buffer.readonly or alone else ""
    return f"{const}{c_type(buffer.elem)}*{restrict} {name}"


def _declare_memory(v: Values, buffers: tuple[Buffer, ...]) -> None:
    """Memory of a block and of a thread, aligned for any access."""
    first = shared.places(buffers) if shared.dynamic_nbytes(buffers) else {}
    if first:
        v.line(f"alignas({shared.MOST_ALIGNED}) extern __shared__ u8 {DYNAMIC}[];")
    for buffer in buffers:
        kind, name, size = c_type(buffer.elem), v.buffers[buffer], max(buffer.size, 1)
        if buffer in first:
            place = f"reinterpret_cast<{kind} (&)[{size}]>({DYNAMIC}[{first[buffer]}])"
            v.line(f"{kind} (&{name})[{size}] = {place};")
        elif buffer.space in ("shared", "stack"):
            space = "__shared__ " if buffer.space == "shared" else ""
            v.line(f"alignas({shared.alignment(buffer)}) {space}{kind} {name}[{size}];")


def _table(buffer: Buffer, name: str) -> str:
    items = (constant(number, buffer.elem) for number in buffer.data)
    shown = ", ".join(item.bare or item.text for item in items)
    return f"static __device__ const {c_type(buffer.elem)} {name}[{buffer.size}] = {{{shown}}};"


# How functions are called; else as the compiler likes.
_ATTRIBUTES = {"inlined": " __forceinline__", "rare": " __noinline__"}


def _callee(callee: Callee, taken: frozenset[str]) -> str:
    """Code that is called, with its tables before it."""
    own, names = called_name(callee), Names(taken)
    buffers = {b: names.fresh(f"{own}_{b.name.split('.')[0]}") for b in callee.buffers}
    v = Values(names, buffers, callee.body, callee.result)
    params: list[str] = []
    for value in callee.params:
        name = names.fresh("xyzw"[len(params)] if len(params) < 4 else "x")
        v.bind_name(value, name)
        params.append(f"{c_type(value.type)} {name}")
    _declare_memory(v, callee.buffers)
    write_block(v, callee.body)
    v.line(f"return {v.text(callee.result)};")
    how = f"static __device__{_ATTRIBUTES.get(callee.kind, '')}"
    head = f"{how} {c_type(callee.result.type)} {own}({', '.join(params)}) {{"
    tables = [_table(b, buffers[b]) for b in callee.buffers if b.space == "table"]
    return "\n".join([*tables, head, *v.lines, "}"])


def _tile_functions(function: Function) -> list[str]:
    """One of each kind."""
    made: dict[str, str] = {}
    for op in function.walk():
        if op.opcode.startswith("tile_"):
            name, text = _tile_function(op)
            made.setdefault(name, text)
        elif op.opcode in ("wgmma", "wgmma_fence", "wgmma_wait"):
            name, text = function_of(op)
            made.setdefault(name, text)
    return list(made.values())


def _tile_function(op: Op) -> tuple[str, str]:
    tile = op.attrs["tile"]
    if op.opcode == "tile_load":
        role, way = op.attrs["role"], way_of(op)
        return tile_name(f"load_{role}{way}", tile), load_function(tile, role, way)
    if op.opcode == "tile_store":
        return tile_name("store", tile), store_function(tile)
    return tile_name("product", tile), product_function(tile)
