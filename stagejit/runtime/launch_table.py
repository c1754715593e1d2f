"""Many launches in a row, as a table that one loop goes through.

Input: launches that run one after the other on the calling thread. Output: constants, and a call of
`sj_launches`, which is one of the support functions. Invariant: the calls are those that code for
each launch would make, in the same order.

A handler's code for a launch is an address for each buffer and a call: some 30 microseconds of
LLVM's time each, of which a program may have thousands. In a table it is a few words: which of the
`shapes` it has, (kernel, params, items, whether it needs scratch, how many buffers), then for each
buffer the number of its base and its offset in bytes. Bases are the call's arguments and results,
then the arena and the fault word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.program import BufferRef, Launch

# Fewer are worth their code, which takes a few nanoseconds less.
FEWEST = 8
_SHAPE = "{ ptr, ptr, i64, i64, i64 }"
_SHAPE_NBYTES = 40

DECLARATION = "declare void @sj_launches(ptr, i64, ptr, ptr, ptr, ptr)\n"

RUN_IR = f"""
define void @sj_launches(ptr %words, i64 %count, ptr %shapes, ptr %bases, ptr %bufs, ptr %scratch)
    nounwind {{
entry:
  br label %launch
launch:
  %number = phi i64 [0, %entry], [%number.next, %call]
  %at = phi ptr [%words, %entry], [%at.next, %call]
  %shape.number = load i64, ptr %at
  %shape.offset = mul i64 %shape.number, {_SHAPE_NBYTES}
  %shape = getelementptr i8, ptr %shapes, i64 %shape.offset
{abi.load("%kernel", "ptr", "%shape", 0)}{abi.load("%params", "ptr", "%shape", 8)}\
{abi.load("%total", "i64", "%shape", 16)}{abi.load("%wants", "i64", "%shape", 24)}\
{abi.load("%buffers", "i64", "%shape", 32)}\
  %first = getelementptr i8, ptr %at, i64 8
  br label %check
check:
  %buffer = phi i64 [0, %launch], [%buffer.next, %address]
  %at.next = phi ptr [%first, %launch], [%behind, %address]
  %more = icmp ult i64 %buffer, %buffers
  br i1 %more, label %address, label %call
address:
{abi.load("%base.number", "i64", "%at.next", 0)}{abi.load("%offset", "i64", "%at.next", 8)}\
  %base.p = getelementptr ptr, ptr %bases, i64 %base.number
  %base = load ptr, ptr %base.p
  %memory = getelementptr i8, ptr %base, i64 %offset
  %slot = getelementptr ptr, ptr %bufs, i64 %buffer
  store ptr %memory, ptr %slot
  %behind = getelementptr i8, ptr %at.next, i64 16
  %buffer.next = add i64 %buffer, 1
  br label %check
call:
  %none = icmp eq i64 %wants, 0
  %own = select i1 %none, ptr null, ptr %scratch
  call void %kernel(ptr %bufs, ptr %params, i64 0, i64 %total, ptr %own)
  %number.next = add i64 %number, 1
  %again = icmp ult i64 %number.next, %count
  br i1 %again, label %launch, label %out
out:
  ret void
}}
"""


def call_ir(
    launches: Sequence[Launch],
    base_of: Callable[[BufferRef], int],
    params: Callable[[Launch], str],
    constant: Callable[[str], str],
    scratch: str,
) -> str:
    """Code that runs the launches.

    base_of: the number of a buffer's base. params, constant: as the handler's emitter names them.
    """
    shapes: dict[str, int] = {}
    words: list[int] = []
    for launch in launches:
        fields = (
            f"ptr @{launch.kernel}, ptr {params(launch)}, i64 {launch.total},"
            f" i64 {int(launch.scratch_nbytes > 0)}, i64 {len(launch.buffers)}"
        )
        words.append(shapes.setdefault(f"{_SHAPE} {{ {fields} }}", len(shapes)))
        for ref in launch.buffers:
            words += base_of(ref), ref.offset_nbytes
    text = ", ".join(f"i64 {word}" for word in words)
    table = constant(f"private constant [{len(words)} x i64] [{text}]")
    kinds = constant(f"private constant [{len(shapes)} x {_SHAPE}] [{', '.join(shapes)}]")
    return (
        f"  call void @sj_launches(ptr @{table}, i64 {len(launches)}, ptr @{kinds}, ptr %bases,"
        f" ptr %bufs, ptr {scratch})\n"
    )
