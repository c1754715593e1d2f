"""Simulates kernels for blocks of threads, see `codegen/ir/grid/`. Their CUDA C++ is compared with
it (tests/cuda).

Input: a `Function` with threads, arrays, the number of blocks. Output: arrays that are written in
place, or a VerificationError: beside what `run.py` finds, races of threads or of blocks, and
barriers or exchanges that some threads do not come to. Invariant: blocks run one after the other in
the order that is asked for, the threads of each in lockstep, see Note [Rows].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from stagejit.codegen.ir.grid.matrix_tiles import WARP, MatrixTile, Role
from stagejit.codegen.ir.grid.rules import MOST_AXES
from stagejit.codegen.ir.interpreter.arithmetic import DTYPES, REDUCTIONS, filled
from stagejit.codegen.ir.interpreter.copies import Copies
from stagejit.codegen.ir.interpreter.memory import Memory
from stagejit.codegen.ir.interpreter.rounding import Array
from stagejit.codegen.ir.interpreter.run import Run
from stagejit.codegen.ir.interpreter.shared import Marks, SharedMemory
from stagejit.codegen.ir.interpreter.warpgroups import Products, proxy_fence
from stagejit.codegen.ir.nodes import Block, Buffer, Function, Op
from stagejit.codegen.ir.rules import Fault


def simulate(
    function: Function,
    arrays: Sequence[np.ndarray[Any, Any]],
    params: Sequence[int] = (),
    lo: int = 0,
    hi: int = 0,
    *,
    blocks: Sequence[int],
    order: Sequence[int] | None = None,
) -> None:
    """Launches `blocks` blocks along each axis. order: of the blocks' numbers; the first axis
    counts fastest."""
    numbers = range(math.prod(blocks)) if order is None else order
    launched: dict[Buffer, Marks] = {}
    for number in numbers:
        GridRun(function, arrays, (*params, lo, hi), blocks, number, launched).all()


class GridRun(Run):
    """The block `number`. launched: what all blocks so far did to buffers that they write."""

    def __init__(
        self,
        function: Function,
        arrays: Sequence[Array],
        given: Sequence[int],
        blocks: Sequence[int],
        number: int,
        launched: dict[Buffer, Marks],
    ) -> None:
        self.threads = math.prod(function.threads)
        super().__init__(function, arrays, given)
        self.number, self.launched = number, launched
        self.copies = Copies()
        self.blocks = (*blocks, *[1] * (MOST_AXES - len(blocks)))
        self.place = [
            number // math.prod(self.blocks[:axis]) % count
            for axis, count in enumerate(self.blocks)
        ]
        self.effects |= {
            "thread_id": self._thread_id, "block_id": lambda op: self._same(op, self.place),
            "block_count": lambda op: self._same(op, self.blocks), "barrier": self._barrier,
            "exchange": self._exchange, "vote": self._vote, "warp_barrier": self._warp_barrier,
            "atomic": lambda op: self._change(op, 1, REDUCTIONS[op.attrs["op"]]),
            "cas": lambda op: self._change(op, 2, _swapped), "tile_load": self._tile_load,
            "tile_store": self._tile_store, "tile_product": self._tile_product,
            "copy_ahead": self._copy_ahead, "commit_copies": self._commit_copies,
            "wait_for_copies": self._wait_for_copies,
        }  # fmt: skip
        self.products = products = Products(self.threads, self.memories)
        self.effects |= {
            "wgmma": lambda op: products.product(
                op, [self._row(op, k) for k in range(3)], self.active
            ),
            "wgmma_fence": lambda op: products.fence(),
            "wgmma_commit": lambda op: products.commit(),
            "wgmma_wait": lambda op: products.wait(op.attrs["pending"]),
            "proxy_fence": lambda op: proxy_fence(self.memories, self.active),
        }

    def _ops(self, block: Block) -> None:
        super()._ops(block)
        if block is self.function.body:
            self.products.end()

    def _end(self) -> None:
        self.copies.require_none()

    def _memory(self, buffer: Buffer) -> Memory:
        if buffer.space == "shared":
            elements = filled((buffer.size,), DTYPES[buffer.elem.elem], 0)
            return SharedMemory(Memory(buffer, elements, np.zeros(buffer.size, np.bool_), 1))
        made = super()._memory(buffer)
        if buffer.space != "arg" or buffer.readonly:
            return made
        shared = SharedMemory(made)
        shared.block = self.number
        shared.blocks = self.launched.setdefault(buffer, Marks(buffer, made.size, "block"))
        return shared

    def _row(self, op: Op, at: int) -> Array:
        """An operand with a row for each thread."""
        value = self.values[op.operands[at]]
        return np.broadcast_to(value, (self.threads, *value.shape[1:]))

    # ---------------------------------------------------------------- who one is

    def _thread_id(self, op: Op) -> None:
        sizes, axis = self.function.threads, op.attrs["axis"]
        number = np.arange(self.threads) // math.prod(sizes[:axis]) % sizes[axis]
        self.values[op.results[0]] = number

    def _same(self, op: Op, numbers: Sequence[int]) -> None:
        self.values[op.results[0]] = np.array([numbers[op.attrs["axis"]]])

    # ---------------------------------------------------------------- a block

    def _barrier(self, op: Op) -> None:
        if self.active is not None:
            raise Fault("a barrier that not all threads of the block come to")
        for memory in self.memories.values():
            if isinstance(memory, SharedMemory):
                memory.threads.settle()

    def _copy_ahead(self, op: Op) -> None:
        source, target = (self.memories[op.attrs[name]] for name in ("source", "buffer"))
        self.copies.start(source, self._row(op, 0), target, self._row(op, 1), self.active)

    def _commit_copies(self, op: Op) -> None:
        self._require_block(op)
        self.copies.commit()

    def _wait_for_copies(self, op: Op) -> None:
        self._require_block(op)
        self.copies.wait(op.attrs["behind"])

    def _require_block(self, op: Op) -> None:
        if self.active is not None:
            raise Fault(f"`{op.opcode}` that not all threads of the block come to")

    def _change(self, op: Op, count: int, change: Callable[..., Array]) -> None:
        """One thread after the other; those that change different elements at once."""
        memory, result = self.memories[op.attrs["buffer"]], op.results[0]
        index, on = self._places(op, count, result.type)
        values = [self._row(op, k) for k in range(count)]
        at = memory.changed(index, on)
        before = np.zeros(self.threads, memory.elements.dtype)
        left = np.ones(self.threads, np.bool_) if on is None else on.copy()
        while left.any():
            threads = np.flatnonzero(left)
            now = threads[np.unique(at[threads], return_index=True)[1]]
            before[now] = memory.elements[at[now]]
            memory.elements[at[now]] = change(before[now], *(value[now] for value in values))
            left[now] = False
        self.values[result] = before

    # ---------------------------------------------------------------- a warp

    def _require_warps(self, op: Op) -> None:
        """All threads of a warp take part, or none."""
        if self.active is not None:
            there = self.active.reshape(-1, WARP)
            if (there.any(axis=1) != there.all(axis=1)).any():
                raise Fault(f"`{op.opcode}` that not all threads of a warp come to")

    def _exchange(self, op: Op) -> None:
        self._require_warps(op)
        value, number = self._row(op, 0), self._row(op, 1)
        own = np.arange(self.threads) % WARP
        kind = op.attrs["kind"]
        lane = {
            "idx": number % WARP, "xor": own ^ number, "down": own + number, "up": own - number,
        }[kind]  # fmt: skip
        lane = np.where((lane < 0) | (lane >= WARP), own, lane)
        self.values[op.results[0]] = value[np.arange(self.threads) - own + lane]

    def _vote(self, op: Op) -> None:
        self._require_warps(op)
        votes = self._row(op, 0).reshape(-1, WARP)
        if op.attrs["kind"] == "ballot":
            bits = (votes * (np.uint64(1) << np.arange(WARP, dtype=np.uint64))).sum(axis=1)
            result = bits.astype(np.uint32).view(np.int32)
        else:
            result = votes.any(axis=1) if op.attrs["kind"] == "any" else votes.all(axis=1)
        self.values[op.results[0]] = np.repeat(result, WARP)

    def _warp_barrier(self, op: Op) -> None:
        self._require_warps(op)
        there = np.ones(self.threads, np.bool_) if self.active is None else self.active
        for memory in self.memories.values():
            if isinstance(memory, SharedMemory):
                memory.threads.meet(there)

    # ---------------------------------------------------------------- tiles

    def _tile_places(self, op: Op, at: int) -> tuple[Array, Array | None]:
        """The index of each lane of a fragment, of operands from `at` on."""
        self._require_warps(op)
        where = [self._row(op, k) for k in range(at, at + 3)]
        if any((x.reshape(-1, WARP) != x[::WARP, None]).any() for x in where):
            raise Fault(f"`{op.opcode}` where the threads of a warp name different places")
        rows, columns = _layout(op.attrs["tile"], op.attrs["role"])
        repeats = self.threads // WARP
        first, down, along = (x[:, None] for x in where)
        index = first + down * np.tile(rows, (repeats, 1)) + along * np.tile(columns, (repeats, 1))
        on = None if self.active is None else np.broadcast_to(self.active[:, None], index.shape)
        return index, on

    def _tile_load(self, op: Op) -> None:
        index, on = self._tile_places(op, 0)
        made = self.memories[op.attrs["buffer"]].read(index, on)
        is_operand = op.attrs["role"] != "c"
        self.values[op.results[0]] = _short(made, op.attrs["tile"]) if is_operand else made

    def _tile_store(self, op: Op) -> None:
        index, on = self._tile_places(op, 1)
        self.memories[op.attrs["buffer"]].write(index, self._row(op, 0), on)

    def _tile_product(self, op: Op) -> None:
        """Of whole matrices, with sums in f64, or of integers in 64 bits."""
        self._require_warps(op)
        tile: MatrixTile = op.attrs["tile"]
        a, b, c = (_matrices(tile, role, self._row(op, at)) for at, role in enumerate("abc"))
        a, b = _wide(a, tile, "a"), _wide(b, tile, "b")
        made = (a @ b + c).astype(c.dtype)
        rows, columns = _layout(tile, "c")
        self.values[op.results[0]] = made[:, rows, columns].reshape(self.threads, -1)


def _swapped(old: Array, expected: Array, value: Array) -> Array:
    return np.where(old == expected, value, old)


@cache
def _layout(tile: MatrixTile, role: Role) -> tuple[Array, Array]:
    """Row and column by thread of the warp, and lane."""
    lanes = range(tile.fragment(role).lanes)
    places = np.array([[tile.place(role, t, lane) for lane in lanes] for t in range(WARP)])
    return places[..., 0], places[..., 1]


def _matrices(tile: MatrixTile, role: Any, fragments: Array) -> Array:
    """Each warp's matrix."""
    warps = fragments.reshape(-1, WARP, fragments.shape[1])
    whole = np.zeros((len(warps), *tile.shape(role)), fragments.dtype)
    rows, columns = _layout(tile, role)
    whole[:, rows, columns] = warps
    return whole


def _short(a: Array, tile: MatrixTile) -> Array:
    """Rounded to the bits that a product looks at, see Note [Short floats]."""
    if not tile.dropped_bits:
        return a
    bits = np.ascontiguousarray(a).view(f"u{a.itemsize}")
    half = bits + bits.dtype.type(1 << (tile.dropped_bits - 1))
    made = np.where(np.isfinite(a), _cut(half, tile), bits).view(a.dtype)
    return np.where(np.isnan(a), a.dtype.type(np.nan), made)


def _cut(bits: Array, tile: MatrixTile) -> Array:
    """Without the bits that are not looked at."""
    cut: Array = bits >> tile.dropped_bits << tile.dropped_bits
    return cut


def _wide(a: Array, tile: MatrixTile, role: Role) -> Array:
    """As a product sees an operand, in 64 bits."""
    if a.dtype.kind == "i":
        return (a if tile.kind(role)[0] == "s" else a.view(f"u{a.itemsize}")).astype(np.int64)
    if tile.dropped_bits:
        a = _cut(np.ascontiguousarray(a).view(f"u{a.itemsize}"), tile).view(a.dtype)
    return a.astype(np.float64)
