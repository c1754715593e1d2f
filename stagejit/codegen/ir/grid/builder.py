"""Builds kernels for blocks of threads: the ops that only they have.

Input: calls from policies. Output: a `Function` with `threads`. Invariant: what threads do together
(barriers, exchanges in a warp, products of tiles) stays where it was written, and in that order;
loads do not pass barriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stagejit.codegen.ir.builder import Builder, Operand
from stagejit.codegen.ir.grid.matrix_tiles import WARP, MatrixTile, Role
from stagejit.codegen.ir.grid.warpgroups import SwizzledMatrix, WarpgroupTile
from stagejit.codegen.ir.nodes import I1, I32, I64, Buffer, Function, Type, Value


class GridBuilder(Builder):
    """Writes a kernel for blocks of `threads` threads along each axis, of which the first is the
    one that follows each other in a warp."""

    def __init__(self, threads: Sequence[int], *, calls: bool = False, resident: int = 0) -> None:
        super().__init__(calls=calls, by_lanes=True)
        self.threads, self.resident = tuple(threads), resident

    def finish(self) -> Function:
        return replace(super().finish(), threads=self.threads, resident=self.resident)

    # ---------------------------------------------------------------- who one is

    def thread_id(self, axis: int = 0) -> Value:
        return self._pure("thread_id", (), I64, axis=axis)

    def block_id(self, axis: int = 0) -> Value:
        return self._pure("block_id", (), I64, axis=axis)

    def block_count(self, axis: int = 0) -> Value:
        """Blocks of the launch."""
        return self._pure("block_count", (), I64, axis=axis)

    def block_size(self, axis: int = 0) -> Value:
        """Threads of a block."""
        return self.const(self.threads[axis])

    def thread_of_block(self) -> Value:
        """The number of a thread among all of its block."""
        number: Operand = 0
        for axis in reversed(range(len(self.threads))):
            number = self.thread_id(axis) + number * self.threads[axis]
        return self.as_value(number, I64)

    def lane(self) -> Value:
        """The number of a thread in its warp."""
        return self.thread_of_block() % WARP

    def warp(self) -> Value:
        """The number of a thread's warp in its block."""
        return self.thread_of_block() // WARP

    # ---------------------------------------------------------------- what a block shares

    def shared(self, name: str, elem: Type, size: int, *, alignment: int = 0) -> Buffer:
        """`size` elements that the threads of a block share; contents undefined at entry."""
        return self._declared(name, elem, "shared", size=size, alignment=alignment)

    def barrier(self) -> None:
        """All threads of the block wait here for each other, and see what they wrote. Between two
        barriers no thread writes an element of shared memory that another one reads or writes."""
        self._effect("barrier", ())

    def warp_barrier(self) -> None:
        """The same of the threads of a warp, all of which take part."""
        self._effect("warp_barrier", ())

    def atomic(
        self, opcode: str, value: Operand, buffer: Buffer, index: Operand,
        *, mask: Value | None = None,
    ) -> Value:  # fmt: skip
        """Element `index` becomes `opcode` of itself and `value`, undivided; gives what it was, or
        zero where `mask` is off. add smin smax umin umax of i32 or i64, fadd of f32 or f64,
        fminimum fmaximum of f32."""
        operands = (self.as_value(value, buffer.elem), *self._at(index, mask))
        return self._effect("atomic", operands, buffer.elem, op=opcode, buffer=buffer)[0]

    def compare_and_swap(
        self, expected: Operand, value: Operand, buffer: Buffer, index: Operand,
        *, mask: Value | None = None,
    ) -> Value:  # fmt: skip
        """Element `index` becomes `value` if it is `expected`, undivided; gives what it was, or
        zero where `mask` is off. i32 or i64."""
        pair = (self.as_value(expected, buffer.elem), self.as_value(value, buffer.elem))
        return self._effect("cas", (*pair, *self._at(index, mask)), buffer.elem, buffer=buffer)[0]

    # ---------------------------------------------------------------- what is on its way

    def copy_ahead(self, source: Buffer, at: Operand, target: Buffer, place: Operand) -> None:
        """Starts to copy 16 bytes of `source`, from element `at` on, to element `place` of
        `target`, which threads share; both begin at whole accesses. Nobody may read or write them
        until this thread has waited for the copy, and others not before a barrier after that."""
        where = self.as_value(at, I64), self.as_value(place, I64)
        self._effect("copy_ahead", where, buffer=target, source=source)

    def commit_copies(self) -> None:
        """What a thread has started to copy since it came here last is a group. All threads of the
        block take part, here and in waiting."""
        self._effect("commit_copies", ())

    def wait_for_copies(self, behind: int = 0) -> None:
        """Waits until the thread's groups have arrived, but for the last `behind` of them."""
        self._effect("wait_for_copies", (), behind=behind)

    # ---------------------------------------------------------------- what a warp exchanges

    def exchange(self, kind: str, value: Value, lane: Operand) -> Value:
        """`value` of another thread of the warp. idx: of thread `lane` (modulo 32); xor, down, up:
        of the own number xor, plus or minus `lane`, or the own value where there is none. All
        threads of the warp take part."""
        return self._effect("exchange", (value, self.as_value(lane, I64)), value.type, kind=kind)[0]

    def vote(self, kind: str, condition: Value) -> Value:
        """any, all: whether `condition` holds in any or all threads of the warp; ballot: an i32
        with a bit for each. All threads of the warp take part."""
        return self._effect("vote", (condition,), I32 if kind == "ballot" else I1, kind=kind)[0]

    # ---------------------------------------------------------------- products of tiles

    def tile_load(
        self, tile: MatrixTile, role: Role, buffer: Buffer, index: Operand,
        strides: tuple[Operand, Operand], *, whole: bool = False,
    ) -> Value:  # fmt: skip
        """A thread's fragment of a matrix whose element (r, c) is element `index + r * strides[0] +
        c * strides[1]` of `buffer`; index and strides are the same in all threads of a warp. whole:
        one of the strides is 1, and neighbours along it begin at multiples of 16 bytes."""
        where = tuple(self.as_value(x, I64) for x in (index, *strides))
        attrs = {"tile": tile, "role": role, "buffer": buffer, **({"whole": True} if whole else {})}
        return self._effect("tile_load", where, tile.fragment(role), **attrs)[0]

    def tile_product(self, tile: MatrixTile, a: Value, b: Value, c: Value) -> Value:
        """The fragment of a * b + c, see `MatrixTile`."""
        return self._effect("tile_product", (a, b, c), tile.fragment("c"), tile=tile)[0]

    def tile_store(
        self, tile: MatrixTile, value: Value, buffer: Buffer, index: Operand,
        strides: tuple[Operand, Operand],
    ) -> None:  # fmt: skip
        """Stores fragments of `c`; index and strides as in `tile_load`."""
        where = tuple(self.as_value(x, I64) for x in (index, *strides))
        self._effect("tile_store", (value, *where), tile=tile, role="c", buffer=buffer)

    # ---------------------------------------------------------------- products of warpgroups

    def wgmma(
        self, tile: WarpgroupTile, sums: Buffer, at: Operand,
        a: tuple[SwizzledMatrix, Buffer, Operand], b: tuple[SwizzledMatrix, Buffer, Operand],
    ) -> None:  # fmt: skip
        """Begins to add a * b to a thread's sums from `at` on, which are there when `wgmma_wait`
        says so. Operands begin at an element of shared memory: at the first line of an atom, and
        at a whole number of its accesses; threads of a warpgroup name the same. See
        `warpgroups.py` for what has to stand before it."""
        (left, x, i), (right, y, j) = a, b
        where = tuple(self.as_value(place, I64) for place in (at, i, j))
        self._effect("wgmma", where, tile=tile, buffer=sums, a=x, b=y, a_in=left, b_in=right)

    def wgmma_fence(self, sums: Buffer) -> None:
        """What was done to the sums comes before the products that follow."""
        self._effect("wgmma_fence", (), buffer=sums)

    def wgmma_commit(self) -> None:
        """The products since the last one are a group."""
        self._effect("wgmma_commit", ())

    def wgmma_wait(self, sums: Buffer, pending: int = 0) -> None:
        """All groups but the last `pending` are done."""
        self._effect("wgmma_wait", (), buffer=sums, pending=pending)

    def proxy_fence(self) -> None:
        """What this thread has written to shared memory can be seen by products, behind a barrier
        that comes after it."""
        self._effect("proxy_fence", ())
