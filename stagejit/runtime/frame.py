"""What a handler does with the call frame that XLA gives it: checks it, and reads the addresses of
the call's buffers.

Input: a `HostProgram`. Output: LLVM IR; `%cf` is the frame. Invariant: behind it, entry i of
`%args` and of `%results` is the address of buffer i; a frame that this handler was not made for
goes to `%unknown.api` or to `%wrong.counts`.
"""

from __future__ import annotations

from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.program import HostProgram

# As many are read by code of their own, more by a loop.
_FEW = 8


def buffer_count(program: HostProgram) -> int:
    """Arguments and results of a call."""
    return len(program.arg_nbytes) + len(program.result_nbytes)


def checks(program: HostProgram) -> str:
    """The struct sizes and counts are what this handler was made for."""
    return (
        abi.load("%frame.size", "i64", "%cf", abi.FRAME_STRUCT_SIZE)
        + f"  %frame.ok = icmp uge i64 %frame.size, {abi.FRAME_MIN_NBYTES}\n"
        + abi.load("%api", "ptr", "%cf", abi.FRAME_API)
        + "  %api.size = load i64, ptr %api\n"
        + f"  %api.ok = icmp uge i64 %api.size, {abi.API_MIN_NBYTES}\n"
        + abi.load("%major", "i32", "%api", abi.API_VERSION_MAJOR)
        + "  %major.ok = icmp eq i32 %major, 0\n"
        + "  %known.sizes = and i1 %frame.ok, %api.ok\n"
        + "  %known = and i1 %known.sizes, %major.ok\n"
        + "  br i1 %known, label %counts, label %unknown.api\ncounts:\n"
        + abi.load("%stage", "i32", "%cf", abi.FRAME_STAGE)
        + abi.load("%nargs", "i64", "%cf", abi.FRAME_ARGS_COUNT)
        + abi.load("%nresults", "i64", "%cf", abi.FRAME_RESULTS_COUNT)
        + f"  %stage.ok = icmp eq i32 %stage, {abi.STAGE_EXECUTE}\n"
        + f"  %nargs.ok = icmp eq i64 %nargs, {len(program.arg_nbytes)}\n"
        + f"  %nresults.ok = icmp eq i64 %nresults, {len(program.result_nbytes)}\n"
        + "  %counts.both = and i1 %nargs.ok, %nresults.ok\n"
        + "  %counts.ok = and i1 %counts.both, %stage.ok\n"
        + "  br i1 %counts.ok, label %decode, label %wrong.counts\ndecode:\n"
    )


def addresses(program: HostProgram) -> str:
    """Reads those of all buffers. `%counter` is a number of the handler's own."""
    return _addresses("args", len(program.arg_nbytes), abi.FRAME_ARGS) + _addresses(
        "results", len(program.result_nbytes), abi.FRAME_RESULTS
    )


def _addresses(kind: str, count: int, offset: int) -> str:
    if not count:
        return ""
    table = abi.load(f"%{kind}.table", "ptr", "%cf", offset)
    if count > _FEW:
        return table + _loop(kind, count)
    for i in range(count):
        name = f"%{kind}.{i}"
        table += abi.load(f"{name}.struct", "ptr", f"%{kind}.table", 8 * i)
        table += abi.load(f"{name}.data", "ptr", f"{name}.struct", abi.BUFFER_DATA)
        table += abi.store("ptr", f"{name}.data", f"%{kind}", 8 * i, f"{name}.slot")
    return table


def _loop(kind: str, count: int) -> str:
    number, struct = f"%{kind}.number", f"%{kind}.struct"
    return (
        f"  store i64 0, ptr %counter\n  br label %{kind}.next\n{kind}.next:\n"
        f"  {number} = load i64, ptr %counter\n"
        f"  %{kind}.from = getelementptr ptr, ptr %{kind}.table, i64 {number}\n"
        f"  {struct} = load ptr, ptr %{kind}.from\n"
        + abi.load(f"%{kind}.data", "ptr", struct, abi.BUFFER_DATA)
        + f"  %{kind}.slot = getelementptr ptr, ptr %{kind}, i64 {number}\n"
        f"  store ptr %{kind}.data, ptr %{kind}.slot\n"
        f"  {number}.next = add i64 {number}, 1\n  store i64 {number}.next, ptr %counter\n"
        f"  %{kind}.more = icmp ult i64 {number}.next, {count}\n"
        f"  br i1 %{kind}.more, label %{kind}.next, label %{kind}.all\n{kind}.all:\n"
    )
