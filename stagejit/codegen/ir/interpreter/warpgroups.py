"""Simulates products of warpgroups, see `codegen/ir/grid/warpgroups.py`.

Input: ops, the memories of a block. Output: sums, when they have been waited for, or a `Fault`: a
product of what was written and not fenced, or written by another thread without a barrier; sums
that are touched too early; operands that change before the product is done. Invariant: a product is
computed when it is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from stagejit.codegen.ir.grid.warpgroups import (
    WARPGROUP,
    SwizzledMatrix,
    WarpgroupTile,
    swizzled,
)
from stagejit.codegen.ir.interpreter.memory import Memory
from stagejit.codegen.ir.interpreter.rounding import Array
from stagejit.codegen.ir.interpreter.shared import SharedMemory
from stagejit.codegen.ir.nodes import Buffer, Op
from stagejit.codegen.ir.rules import Fault


@dataclass
class _Product:
    """places: of each operand in shared memory, by warpgroup; seen: what was there. sums: where
    those of each thread are."""

    tile: WarpgroupTile
    memories: tuple[Memory, Memory]
    places: tuple[Array, Array]
    seen: tuple[Array, Array]
    sums: Memory
    at: Array
    group: int = -1


class Products:
    """Those of one block, whose `threads` are in lockstep."""

    def __init__(self, threads: int, memories: Mapping[Buffer, Memory]) -> None:
        self.threads, self.memories = threads, memories
        self.queue: list[_Product] = []
        self.groups, self.fenced = 0, False

    def product(self, op: Op, where: list[Array], active: Array | None) -> None:
        """where: the operands of the op, with a row for each thread."""
        if active is not None:
            raise Fault("a product of warpgroups that not all threads of the block come to")
        if not self.fenced:
            raise Fault("`wgmma` with no `wgmma_fence` since the sums were free to be changed")
        tile: WarpgroupTile = op.attrs["tile"]
        starts = [self._of_groups(x) for x in where[1:]]
        memories = self.memories[op.attrs["a"]], self.memories[op.attrs["b"]]
        places = (
            starts[0][:, None, None] + _offsets(op.attrs["a_in"], tile.m, tile.k),
            starts[1][:, None, None] + _offsets(op.attrs["b_in"], tile.n, tile.k),
        )
        a, b = (swizzled(place) for place in places)
        seen = _seen(memories[0], a), _seen(memories[1], b)
        sums = self.memories[op.attrs["buffer"]]
        own = int(where[0][0]) + np.arange(tile.sums)
        at = np.arange(self.threads)[:, None] * sums.size + own
        self._take(sums, at)
        self.queue.append(_Product(tile, memories, (a, b), seen, sums, at))

    def _of_groups(self, places: Array) -> Array:
        found = places.reshape(-1, WARPGROUP)
        if (found != found[:, :1]).any():
            raise Fault("`wgmma` where the threads of a warpgroup name different places")
        first: Array = found[:, 0]
        return first

    def _take(self, sums: Memory, at: Array) -> None:
        """From now on they have no value, until they are waited for."""
        if sums.written is None:
            raise Fault("sums of `wgmma` in memory that is not a thread's own")
        busy = any(each.sums is sums and np.isin(each.at, at).any() for each in self.queue)
        if not busy and not sums.written[at].all():
            raise Fault("`wgmma` adds to sums that were not written")
        sums.written[at] = False

    def fence(self) -> None:
        self.fenced = True

    def commit(self) -> None:
        for each in self.queue:
            if each.group < 0:
                each.group = self.groups
        self.groups += 1

    def wait(self, pending: int) -> None:
        self.fenced = False
        while self.queue and 0 <= self.queue[0].group < self.groups - pending:
            self._finish(self.queue.pop(0))

    def _finish(self, one: _Product) -> None:
        tile, sums = one.tile, one.sums
        for memory, at, seen in zip(one.memories, one.places, one.seen, strict=True):
            if (memory.elements[at].view(np.uint16) != seen.view(np.uint16)).any():
                raise Fault(f"{memory.buffer} changed before a product of it was waited for")
        assert sums.written is not None
        if sums.written[one.at].any():
            raise Fault(f"{sums.buffer} was written before it was waited for")
        a, b = (seen.astype(np.float64) for seen in one.seen)
        made = a @ b.transpose(0, 2, 1)
        rows, columns = _layout(tile)
        added = made[:, rows, columns].reshape(self.threads, tile.sums)
        total = sums.elements[one.at].astype(np.float64) + added
        sums.elements[one.at] = total.astype(sums.elements.dtype)
        waiting = [each.at for each in self.queue if each.sums is sums]
        sums.written[one.at] = True
        for at in waiting:
            sums.written[at] = False

    def end(self) -> None:
        if self.queue:
            raise Fault("a product of warpgroups that nobody waits for")


def _seen(memory: Memory, at: Array) -> Array:
    """What the first thread of each warpgroup reads."""
    if not isinstance(memory, SharedMemory):
        raise Fault(f"a product of {memory.buffer}, which is not shared")
    return memory.seen(at, np.arange(len(at)) * WARPGROUP)


def proxy_fence(memories: Mapping[Buffer, Memory], active: Array | None) -> None:
    for memory in memories.values():
        if isinstance(memory, SharedMemory):
            memory.fence(active)


@cache
def _offsets(matrix: SwizzledMatrix, extent: int, steps: int) -> Array:
    found = [[matrix.offset(other, step) for step in range(steps)] for other in range(extent)]
    return np.array(found)


@cache
def _layout(tile: WarpgroupTile) -> tuple[Array, Array]:
    """Row and column by thread of the warpgroup, and sum."""
    each = [[tile.place(thread, at) for at in range(tile.sums)] for thread in range(WARPGROUP)]
    places = np.array(each)
    return places[..., 0], places[..., 1]
