"""Where the memory lies that the threads of a block share.

Input: the buffers of a kernel. Output: the place of each, and how much there is. Invariant: buffers
do not overlap, and each lies at a multiple of its alignment if the first byte lies at one of
`MOST_ALIGNED`.

Note [Static and dynamic]: CUDA C++ declares up to 48 KiB of arrays in a kernel; more is one block
that a launch asks for, after it has said so (CUDA C++ Programming Guide, "Shared Memory" of compute
capabilities 8.x and 9.0: `cudaFuncAttributeMaxDynamicSharedMemorySize`).
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.ir.nodes import Buffer

STATIC_NBYTES = 48 << 10
MOST_ALIGNED = 1024  # bytes: what a swizzled matrix repeats after, see `warpgroups.py`
_ALIGNED = 16  # for any access


def alignment(buffer: Buffer) -> int:
    return max(buffer.alignment, _ALIGNED)


def places(buffers: Sequence[Buffer]) -> dict[Buffer, int]:
    """The first byte of each that is shared, one behind the other."""
    found, end = dict[Buffer, int](), 0
    for buffer in buffers:
        if buffer.space == "shared":
            found[buffer] = -(-end // alignment(buffer)) * alignment(buffer)
            end = found[buffer] + _nbytes(buffer)
    return found


def shared_nbytes(buffers: Sequence[Buffer]) -> int:
    """All that a block takes: a multiple of what the buffers are aligned to."""
    first = places(buffers)
    end = max((place + _nbytes(buffer) for buffer, place in first.items()), default=0)
    whole = max(map(alignment, first), default=1)
    return -(-end // whole) * whole


def dynamic_nbytes(buffers: Sequence[Buffer]) -> int:
    """What a launch has to ask for: see Note [Static and dynamic]."""
    nbytes = shared_nbytes(buffers)
    return nbytes if nbytes > STATIC_NBYTES else 0


def _nbytes(buffer: Buffer) -> int:
    return max(buffer.size, 1) * buffer.elem.bits // 8
