"""What threads are, and what they exchange, in CUDA C++.

Input: an op and the values so far. Output: lines, and what the op gives. Invariant: exchanges and
votes stay where they were written; all threads of a warp take part, as the IR demands.
"""

from __future__ import annotations

from collections.abc import Callable

from stagejit.codegen.cuda.text.casts import bits_of
from stagejit.codegen.cuda.text.types import Expr, c_type
from stagejit.codegen.cuda.text.values import Values
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.nodes import Op, Type, Value

_AXES = "xyz"
_PLACES = {"thread_id": ("thread", "threadIdx"), "block_id": ("block", "blockIdx"),
           "block_count": ("blocks", "gridDim")}  # fmt: skip


def place(v: Values, op: Op) -> None:
    """thread_id, block_id, block_count."""
    axis = _AXES[op.attrs["axis"]]
    name, variable = _PLACES[op.opcode]
    if v.is_used(op.results[0]):
        v.declare(
            op.results[0], f"{variable}.{axis}", wanted=name if axis == "x" else f"{name}_{axis}"
        )


def exchange(v: Values, op: Op) -> None:
    value, lane = op.operands
    (result,) = op.results
    function, number = _shuffle(v, op.attrs["kind"], lane)
    if not function:
        v.declare(result, v.text(value))
    elif value.type.lanes:
        parts = [_moved(function, x, value.type.scalar, number) for x in v.lanes(value)]
        v.bind_lanes(result, parts)
    else:
        v.declare(result, str(_moved(function, v.scalar(value), value.type, number)))


def _shuffle(v: Values, kind: str, lane: Value) -> tuple[str, str]:
    """The function and its last argument; none where every thread gets what it has."""
    if isinstance(lane.const, int):
        if kind == "idx":
            return "__shfl_sync", str(lane.const % WARP)
        inside = 0 <= lane.const < WARP
        return f"__shfl_{kind}_sync" if inside else "", str(lane.const)
    number = v.short(lane)
    return "__shfl_sync", f"{number} % {WARP}" if kind == "idx" else f"lane_{kind}({number})"


def _moved(function: str, value: Expr, type: Type, number: str) -> Expr:
    """Of what CUDA exchanges: 32 and 64 bits."""
    if type.bits >= 32:
        return Expr(f"{function}(~0u, {value}, {number})")
    if type.is_float:
        return Expr(
            f"{c_type(type)}{{u16({function}(~0u, u32({bits_of(value, type)}), {number}))}}"
        )
    return Expr(f"{c_type(type)}({function}(~0u, u32({value}), {number}))")


def vote(v: Values, op: Op) -> None:
    kind = op.attrs["kind"]
    text = f"__{kind}_sync(~0u, {v.scalar(op.operands[0])})"
    v.declare(op.results[0], text if kind == "ballot" else f"{text} != 0")


def barrier(v: Values, op: Op) -> None:
    v.line("__syncthreads();" if op.opcode == "barrier" else "__syncwarp();")


WARPS: dict[str, Callable[[Values, Op], None]] = {
    **dict.fromkeys(_PLACES, place), "exchange": exchange, "vote": vote,
    **dict.fromkeys(("barrier", "warp_barrier"), barrier),
}  # fmt: skip
