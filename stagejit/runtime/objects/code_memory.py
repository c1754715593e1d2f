"""Memory for machine code: few large mappings, handed out in pages, given back when code goes.

Input: sizes. Output: `Block`s, each with pages for code and constants, which are written and then
sealed (readable and executable, no longer writable), and room for data that stays writable, near
enough for 32-bit relative addresses. Invariant: no page is writable and executable at once; a
block's memory belongs to nobody else until it is freed.

Note [Few mappings]: Linux allows 65,530 mappings a process, and LLVM's own memory manager takes
three for each object: a process with some ten thousand kernels died. Sealed pages that lie side by
side are one mapping, so a chunk is two or three, however many kernels lie in it.

Note [Freeing at any moment]: blocks are freed by finalizers, which run in the middle of anything,
also in a thread that is allocating here. So `free` queues, and a thread that is at it already works
the queue off later. Locks are only taken by `with`, where no signal comes between.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import deque
from functools import cache
from typing import Any

from stagejit.base.records import record
from stagejit.base.threads.locks import new_rlock

PAGE_NBYTES = mmap.PAGESIZE
_CHUNK_NBYTES = 4 << 20
_DATA_NBYTES = 64 << 10  # of each chunk, for writable data
_LINE_NBYTES = 64
_PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_READ_EXECUTE = mmap.PROT_READ | mmap.PROT_EXEC
_DONTNEED = 4  # MADV_DONTNEED: the pages go back to the system and read as zeros
_FAILED = ctypes.c_void_p(-1).value


@record
class Block:
    """`code` and `data` are addresses; sizes are in bytes, whole pages and lines."""

    code: int
    code_nbytes: int
    data: int
    data_nbytes: int

    def seal(self) -> None:
        """Make the code executable. From here on its pages cannot be written."""
        _protect(self.code, self.code_nbytes, _READ_EXECUTE)


class _Room:
    """Free intervals of an address range, first fit, neighbours merged."""

    def __init__(self, start: int, size: int) -> None:
        self.size = size
        self.free = [(start, start + size)]

    def take(self, size: int) -> int | None:
        for i, (lo, hi) in enumerate(self.free):
            if hi - lo >= size:
                self.free[i : i + 1] = [(lo + size, hi)] if hi - lo > size else []
                return lo
        return None

    def give(self, start: int, size: int) -> None:
        if not size:
            return
        merged: list[tuple[int, int]] = []
        for lo, hi in sorted([*self.free, (start, start + size)]):
            if merged and merged[-1][1] == lo:
                merged[-1] = (merged[-1][0], hi)
            else:
                merged.append((lo, hi))
        self.free = merged

    @property
    def is_empty(self) -> bool:
        return sum(hi - lo for lo, hi in self.free) == self.size


class _Chunk:
    """One mapping: code from its start, writable data at its end."""

    def __init__(self, nbytes: int) -> None:
        start = _libc().mmap(None, nbytes, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
        if start == _FAILED:
            raise _memory_error("mmap")
        self.start, self.nbytes = int(start), nbytes
        self.code = _Room(self.start, nbytes - _DATA_NBYTES)
        self.data = _Room(self.start + nbytes - _DATA_NBYTES, _DATA_NBYTES)

    def allocate(self, code_nbytes: int, data_nbytes: int) -> Block | None:
        code = self.code.take(code_nbytes)
        if code is None:
            return None
        data = self.data.take(data_nbytes) if data_nbytes else 0
        if data is None:
            self.code.give(code, code_nbytes)
            return None
        return Block(code, code_nbytes, data, data_nbytes)

    @property
    def is_empty(self) -> bool:
        return self.code.is_empty and self.data.is_empty


class CodeMemory:
    """Use the process's one instance, `code_memory()`; safe to call from any thread."""

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self._to_free: deque[Block] = deque()
        self._lock = new_rlock()
        self._is_busy = False

    def allocate(self, code_nbytes: int, data_nbytes: int = 0) -> Block:
        """A block to write and seal, its data zeroed. Raises MemoryError where there is none."""
        code_nbytes = -(-max(code_nbytes, 1) // PAGE_NBYTES) * PAGE_NBYTES
        data_nbytes = -(-data_nbytes // _LINE_NBYTES) * _LINE_NBYTES
        if data_nbytes > _DATA_NBYTES:
            raise MemoryError(f"{data_nbytes} bytes of writable data are too many")
        with self._lock:
            self._is_busy = True
            try:
                self._work_off()
                block = self._allocate(code_nbytes, data_nbytes)
            finally:
                self._is_busy = False
        _protect(block.code, block.code_nbytes, _READ_WRITE)
        if block.data_nbytes:
            ctypes.memset(block.data, 0, block.data_nbytes)
        return block

    def free(self, block: Block) -> None:
        """Take a block back; see Note [Freeing at any moment]. Nobody may run its code any more."""
        self._to_free.append(block)
        with self._lock:
            if not self._is_busy:
                self._is_busy = True
                try:
                    self._work_off()
                finally:
                    self._is_busy = False

    @property
    def nbytes(self) -> int:
        """Address space held."""
        return sum(chunk.nbytes for chunk in self._chunks)

    @property
    def used_nbytes(self) -> int:
        """Bytes of code pages that belong to blocks."""
        return sum(
            chunk.code.size - sum(hi - lo for lo, hi in chunk.code.free) for chunk in self._chunks
        )

    def after_fork_in_child(self) -> None:
        """Another thread may have been at it; memory is private, so the blocks stay ours."""
        self._is_busy = False

    def _allocate(self, code_nbytes: int, data_nbytes: int) -> Block:
        for chunk in self._chunks:
            block = chunk.allocate(code_nbytes, data_nbytes)
            if block is not None:
                return block
        room = -(-(code_nbytes + _DATA_NBYTES) // _CHUNK_NBYTES) * _CHUNK_NBYTES
        chunk = _Chunk(room)
        self._chunks.append(chunk)
        block = chunk.allocate(code_nbytes, data_nbytes)
        assert block is not None
        return block

    def _work_off(self) -> None:
        while self._to_free:
            block = self._to_free.popleft()
            chunk = next(c for c in self._chunks if c.start <= block.code < c.start + c.nbytes)
            _libc().madvise(block.code, block.code_nbytes, _DONTNEED)
            chunk.code.give(block.code, block.code_nbytes)
            chunk.data.give(block.data, block.data_nbytes)
            if chunk.is_empty and len(self._chunks) > 1:
                self._chunks.remove(chunk)
                _libc().munmap(chunk.start, chunk.nbytes)


@cache
def code_memory() -> CodeMemory:
    """The code memory of this process."""
    memory = CodeMemory()
    os.register_at_fork(after_in_child=memory.after_fork_in_child)
    return memory


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    for name in ("mprotect", "madvise"):
        getattr(libc, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _protect(start: int, nbytes: int, protection: int) -> None:
    if _libc().mprotect(start, nbytes, protection):
        raise _memory_error("mprotect")


def _memory_error(call: str) -> MemoryError:
    return MemoryError(f"{call}: {os.strerror(ctypes.get_errno())}")
