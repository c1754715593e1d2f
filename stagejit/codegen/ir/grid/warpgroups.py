"""Products of matrices in shared memory that four warps do together, while they go on.

Input: a place among a thread's sums, or in a matrix. Output: a place in the matrix, or in shared
memory. Invariant: sums are elements of an array in each thread's registers, which nobody reads or
writes from a product until it has been waited for.

All is that of NVIDIA's PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions" (9.7.15), as
CUTLASS has it in `cute/arch/mma_sm90_desc.hpp` and `cute/atom/mma_traits_sm90_gmma.hpp`:

- *Order* ("Async Proxy", "wgmma.fence", "wgmma.wait_group"). What threads write to shared memory is
  seen by a product once they have passed a fence of proxies, and then a barrier that the threads of
  the product come to. Sums that a thread has changed need a `wgmma.fence`, as do the first ones.
  Products are committed as a group; waiting for groups gives back their sums, and only then may the
  operands be written again.
- *Sums* ("Register Fragments", Figure "WGMMA .m64nNk16 register fragment layout for accumulator
  matrix D"): warp w has the rows 16 w to 16 w + 15; there thread t has, of each 8 columns, the two
  that begin at 2 (t % 4), of row t / 4 and of the row 8 further down.
- *Operands* ("Shared Memory Matrix Layout"): see Note [Swizzled by 128 bytes].

Note [Swizzled by 128 bytes]: a matrix lies in lines of 128 bytes, that is of 64 neighbours, which
are steps (the ISA's K-major) or rows of the left operand and columns of the right one (MN-major).
Eight lines that follow each other are an atom of 1024 bytes, which begins at a multiple of 1024;
in line r of it, the 16 bytes that would be number c are number c ^ r: bits 4 to 6 of the address
are xored with bits 7 to 9. A matrix with more than 64 neighbours has another strip of lines.
The descriptor ("Matrix Descriptor Format"), with the 4 lowest bits of addresses left out: bits 0
to 13 the first byte; 16 to 29 the leading offset, from strip to strip (without a meaning where
neighbours are steps: 16 steps do not leave a line); 32 to 45 the stride offset, from atom to atom
along the lines; 49 to 51 how far the first atom is from a multiple of 1024, here 0; 62 and 63 the
mode: 1 for 128 bytes.
"""

from __future__ import annotations

from typing import Any

from stagejit.base.records import record
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.nodes import Type

WARPGROUP = 4 * WARP
LINE = 64  # elements of 16 bits
ATOM = 8  # lines
_ACCESS = 8  # elements: 16 bytes
ALIGNMENT = 1024
MOST_COLUMNS = 256


@record
class WarpgroupTile:
    """c[m, n] += a[m, k] * b[k, n], with a and b of 16-bit floats and sums in f32."""

    n: int
    operand: Type

    m = 64
    k = 16

    def __str__(self) -> str:
        return f"m{self.m}n{self.n}k{self.k}.{self.operand}.f32"

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.m * self.n // WARPGROUP

    def place(self, thread: int, at: int) -> tuple[int, int]:
        """(row, column) of one of the sums of a thread of the warpgroup."""
        warp, lane = divmod(thread, WARP)
        row = 16 * warp + lane // 4 + 8 * (at // 2 % 2)
        return row, 8 * (at // 4) + 2 * (lane % 4) + at % 2


@record
class SwizzledMatrix:
    """How an operand lies in shared memory, see Note [Swizzled by 128 bytes]. by_steps: whether
    neighbours are steps. lines: of a strip."""

    by_steps: bool
    lines: int

    def __str__(self) -> str:
        return f"{'steps' if self.by_steps else 'others'} x {self.lines}"

    @property
    def strip(self) -> int:
        """Elements from a strip to the next one."""
        return self.lines * LINE

    def offset(self, other: Any, step: Any) -> Any:
        """From the first element to that of a row or column and a step, if nothing was swizzled.
        Of numbers or registers."""
        along, line = (step, other) if self.by_steps else (other, step)
        return along // LINE * self.strip + line * LINE + along % LINE

    def place(self, other: Any, step: Any) -> Any:
        """The same where it is, of a matrix that begins at a multiple of `ALIGNMENT`. What changes
        with the line, and what is xored, are apart: of lines 8 apart the compiler finds the latter
        once."""
        along, line = (step, other) if self.by_steps else (other, step)
        access = along % LINE // _ACCESS ^ line % ATOM
        first = along // LINE * self.strip + line * LINE
        return first + access * _ACCESS + along % _ACCESS


def swizzled(place: Any) -> Any:
    """Where the element is whose place would be `place`, a number, an array of them or a register
    with one; places count from a multiple of `ALIGNMENT` bytes."""
    return place ^ (place // LINE % ATOM * _ACCESS)
