"""Products of small matrices that the threads of a warp do together, declared by shape and types.

Input: a place in a fragment. Output: a place in the matrix. Invariant: a fragment is an ordinary
vector in each thread's registers, so what is done element by element may be done to it.

The layouts are those of `mma.sync` in NVIDIA's PTX ISA, "Warp-level matrix instructions", of which
all shapes here are instances: rows and columns in groups of 8 and 4 threads, and registers of 32
bits that hold neighbours along the summed dimension. Thread 4 g + t of a warp has, of p elements in
a register (2 of 16 bits, 4 of 8 bits, 1 of 32 or 64):

    a (m x k)   register r: row g, or g + 8 if m is 16 and r odd; columns (t + 4 h) p, ..., + p - 1,
                where h counts registers of a row
    b (k x n)   register r: rows (t + 4 r) p, ..., + p - 1; column g
    c (m x n)   elements 2 r and 2 r + 1: row g + 8 r; columns 2 t and 2 t + 1

Note [Short floats]: tf32 is f32 with 10 bits of mantissa. `mma.sync` does not look at the other 13,
which alone would be rounding towards zero. So an operand is rounded as it is loaded: to nearest,
ties away from zero, as `cvt.rna.tf32.f32` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from stagejit.base.records import record
from stagejit.codegen.ir.nodes import BF16, F16, F32, F64, I8, I32, Type

WARP = 32
Role = Literal["a", "b", "c"]


@record
class MatrixTile:
    """c[m, n] += a[m, k] * b[k, n]. dropped_bits: low bits of an operand's elements that are not
    looked at, see Note [Short floats]. unsigned: whether the integers of a and b have no sign.
    The sum over k is rounded at least once; how often and in which order is free. Integers wrap."""

    m: int
    n: int
    k: int
    operand: Type
    accumulator: Type
    dropped_bits: int = 0
    unsigned: tuple[bool, bool] = (False, False)

    def __str__(self) -> str:
        operands = ".".join(dict.fromkeys((self.kind("a"), self.kind("b"))))
        return f"m{self.m}n{self.n}k{self.k}.{operands}.{self.accumulator}"

    def kind(self, role: Role) -> str:
        """The type of a matrix's elements, as PTX names it."""
        elem = self.accumulator if role == "c" else self.operand
        if elem.is_float:
            return "tf32" if self.dropped_bits and role != "c" else elem.elem
        sign = "u" if role != "c" and self.unsigned["ab".index(role)] else "s"
        return f"{sign}{elem.bits}"

    def shape(self, role: Role) -> tuple[int, int]:
        return {"a": (self.m, self.k), "b": (self.k, self.n), "c": (self.m, self.n)}[role]

    def fragment(self, role: Role) -> Type:
        """What each thread of a warp has of a matrix."""
        rows, columns = self.shape(role)
        elem = self.accumulator if role == "c" else self.operand
        return elem.with_lanes(rows * columns // WARP)

    def place(self, role: Role, thread: int, lane: int) -> tuple[int, int]:
        """(row, column) of one element of a thread's fragment."""
        return _PLACES[role](self, thread // 4, thread % 4, lane)

    @property
    def turned(self) -> MatrixTile:
        """The same, where a has the elements that b had."""
        return replace(self, unsigned=self.unsigned[::-1])

    @property
    def packed(self) -> int:
        """Elements of an operand in a register."""
        return max(32 // self.operand.bits, 1)


def _place_of_a(tile: MatrixTile, group: int, member: int, lane: int) -> tuple[int, int]:
    register, part = divmod(lane, tile.packed)
    along, down = divmod(register, tile.m // 8)
    return group + 8 * down, (member + 4 * along) * tile.packed + part


def _place_of_b(tile: MatrixTile, group: int, member: int, lane: int) -> tuple[int, int]:
    register, part = divmod(lane, tile.packed)
    return (member + 4 * register) * tile.packed + part, group


def _place_of_c(tile: MatrixTile, group: int, member: int, lane: int) -> tuple[int, int]:
    down, part = divmod(lane, 2)
    return group + 8 * down, 2 * member + part


_PLACES: dict[Role, Callable[[MatrixTile, int, int, int], tuple[int, int]]] = {
    "a": _place_of_a, "b": _place_of_b, "c": _place_of_c,
}  # fmt: skip

M16N8K16_F16 = MatrixTile(16, 8, 16, F16, F32)
M16N8K16_BF16 = MatrixTile(16, 8, 16, BF16, F32)
M16N8K8_TF32 = MatrixTile(16, 8, 8, F32, F32, dropped_bits=13)
M8N8K4_F64 = MatrixTile(8, 8, 4, F64, F64)


def m16n8k32(*, unsigned: tuple[bool, bool] = (False, False)) -> MatrixTile:
    """Of 8-bit integers."""
    return MatrixTile(16, 8, 32, I8, I32, unsigned=unsigned)
