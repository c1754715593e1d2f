"""The memory of one region's run: buffers between guards, poisoned but for what the region reads.

Input: a region, a reference. Output: `Frame`s, one for each kernel
of the region: an image of all memory with the places of buffers in it; and, from the image after
the run, the first fault. Invariant: a kernel may change the elements that the region stores, and
its scratch; every other byte of the image is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stagejit.codegen.ir.interpreter.arithmetic import DTYPES
from stagejit.codegen.kernel import Kernel
from stagejit.dispatch.regions import Region, Store
from stagejit.graph.ir import Value
from stagejit.graph.ops.control import memory_of
from tests.expected.placing import slices_of
from tests.fuzz.kernels.reference import Reference

Array = np.ndarray[Any, np.dtype[Any]]

GUARD_NBYTES = 256
LINE_NBYTES = 64


@dataclass(frozen=True)
class Frame:
    """One run of one kernel: `chunks` are [lo, hi) in the order of execution. Places are offsets in
    `image`, which starts on a cache line. params: of each launch (`Kernel.passes`). workspaces:
    places and bytes of the buffers behind the arguments, which nobody looks at afterwards."""

    image: Array
    buffers: tuple[int, ...]
    params: tuple[tuple[int, ...], ...]
    chunks: tuple[tuple[int, int], ...]
    scratch: int
    scratch_nbytes: int
    poison: int
    fault: int | None
    workspaces: tuple[tuple[int, int], ...] = ()


@dataclass
class _Buffer:
    """place: of the first byte in the image. written: which elements the region stores."""

    place: int
    value: Value
    before: Array
    expected: Array = field(init=False)
    allowed: Array | None = field(init=False)
    written: Array = field(init=False)

    def __post_init__(self) -> None:
        self.expected = self.before.copy()
        self.written = np.zeros(self.before.shape, bool)
        is_float = self.value.type.dtype.is_float
        self.allowed = np.zeros(self.before.shape) if is_float else None


class Scene:
    """See the module's docstring.

    over: by the memory of a result the operand whose memory it takes. poison: the byte that
    unwritten memory holds. shift: elements by which buffers miss the start of a cache line.
    """

    def __init__(
        self,
        region: Region,
        reference: Reference,
        *,
        over: Mapping[Value, Value],
        poison: int,
        shift: int = 0,
    ) -> None:
        self.region, self.poison = region, poison
        self._reference = reference
        self._over, self._shift, self._end = over, shift, 0
        self._homes: dict[Value, _Buffer] = {}  # by memory
        self._reads()
        for store, result in zip(region.stores, region.results, strict=True):
            self._expect(store, result)
        self._image = np.full(self._end, poison, np.uint8)
        for buffer in self._homes.values():
            raw = buffer.before.reshape(-1).view(np.uint8)
            self._image[buffer.place : buffer.place + raw.size] = raw

    # ---------------------------------------------------------------- buffers

    def _reads(self) -> None:
        contents: dict[Value, Value] = {}
        anchor = self.region.anchor
        if anchor is not None and anchor.definition.is_scatter:
            root = memory_of(self.region.results[0])
            self._homes[root] = self._buffer(anchor.result, anchor.operands[0])
        for value in self.region.operands:  # of several in one memory the latest is there
            root = memory_of(value)
            if root not in contents or value.op.id > contents[root].op.id:
                contents[root] = value
        for root, value in contents.items():
            if root not in self._homes:
                self._homes[root] = self._buffer(root, value)

    def _buffer(self, owner: Value, contents: Value | None) -> _Buffer:
        """Memory for the buffer of `owner` with the elements of `contents`, or with poison."""
        dtype, count = owner.type.dtype.numpy, owner.type.size
        shift = self._shift * dtype.itemsize
        start = _behind(self._end) + shift
        self._end = start + count * dtype.itemsize + GUARD_NBYTES
        if contents is None:
            before = np.full(count * dtype.itemsize, self.poison, np.uint8).view(dtype)
        else:
            before = np.array(self._reference.declared[contents], dtype, order="C").reshape(-1)
        return _Buffer(start, owner, before.copy())

    def _home(self, value: Value) -> _Buffer:
        root = memory_of(value)
        if root not in self._homes:
            taken = self._over.get(root)
            if taken is None:
                self._homes[root] = self._buffer(value, None)
            else:  # the same bytes, seen as other elements
                old = self._homes[memory_of(taken)]
                same = old.before.view(value.type.dtype.numpy)
                self._homes[root] = _Buffer(old.place, value, same.copy())
        return self._homes[root]

    def _expect(self, store: Store, result: Value) -> None:
        buffer = self._home(result)
        shape, value = store.into.shape, store.value
        place: tuple[Any, ...] = (...,)
        views = [buffer.expected.reshape(shape), buffer.written.reshape(shape)]
        if buffer.allowed is not None:
            views.append(buffer.allowed.reshape(shape))
        for insert in reversed(store.inserts):
            place = slices_of(insert, views[0].shape, self._reference.declared)
            views = [view[place] for view in views]
        news: list[Any] = [self._reference.declared[value], True, self._reference.tolerance(value)]
        for view, new in zip(views, news, strict=False):
            view[...] = new.reshape(view.shape) if isinstance(new, np.ndarray) else new

    # ---------------------------------------------------------------- running

    def frame(self, kernel: Kernel, chunks: Sequence[tuple[int, int]], *, verify: bool) -> Frame:
        """The memory for one run of `kernel`."""
        scratch = _behind(self._end)
        end = scratch + kernel.function.scratch_nbytes
        own: list[tuple[int, int]] = []
        for nbytes in kernel.workspaces:
            own.append((_behind(end), nbytes))
            end = sum(own[-1])
        fault = _behind(end)
        image = np.full(fault + LINE_NBYTES, self.poison, np.uint8)
        image[: self._end] = self._image
        image[fault : fault + 8] = 0
        places, params = list[int](), list[int]()
        for arg in kernel.args:
            buffer = self._homes[memory_of(arg.value)]
            places.append(buffer.place + arg.offset * arg.value.type.dtype.itemsize)
        places += [place for place, _ in own]
        if verify:
            params += [arg.value.type.size - arg.offset for arg in kernel.args]
            params += [array.size for array in workspaces_in(image, own, kernel)]
            params.append(0)
            places.append(fault)
        return Frame(
            image, tuple(places), tuple((*each, *params) for each in kernel.passes), tuple(chunks),
            scratch, kernel.function.scratch_nbytes, self.poison, fault if verify else None,
            tuple(own),
        )  # fmt: skip

    def fault(self, frame: Frame, after: Array) -> str:
        """What is wrong with the memory after the run; empty where nothing is."""
        if frame.fault is not None:
            number = int(after[frame.fault : frame.fault + 8].view(np.int64)[0])
            if number >= len(frame.buffers):
                return "the kernel left its scratch, or read of it what it had not written"
            if number:
                return f"the kernel left the buffer of its argument {number - 1}"
        touched = np.zeros(after.shape, bool)
        touched[frame.scratch : frame.scratch + frame.scratch_nbytes] = True
        for place, nbytes in frame.workspaces:
            touched[place : place + nbytes] = True
        for buffer in self._homes.values():
            raw = np.repeat(buffer.written, buffer.before.itemsize)
            touched[buffer.place : buffer.place + raw.size] |= raw
        strange = np.flatnonzero((after != frame.image) & ~touched)
        if strange.size and (frame.fault is None or strange[0] < frame.fault):
            return self._stray(int(strange[0]), frame)
        return next(filter(None, (_wrong(b, after) for b in self._homes.values())), "")

    def _stray(self, at: int, frame: Frame) -> str:
        for start, nbytes in reversed([(frame.scratch, frame.scratch_nbytes), *frame.workspaces]):
            if at >= start - GUARD_NBYTES:
                return f"byte {at - start} of scratch [0, {nbytes}) was written"
        near = min(self._homes.values(), key=lambda b: abs(at - b.place - b.before.nbytes // 2))
        return (
            f"byte {at - near.place} of {near.value} [0, {near.before.nbytes}) was written, "
            "which the region does not store"
        )


def _behind(end: int) -> int:
    """Where a buffer begins behind another one."""
    return -(-(end + GUARD_NBYTES) // LINE_NBYTES) * LINE_NBYTES


def workspaces_in(image: Array, places: Sequence[tuple[int, int]], kernel: Kernel) -> list[Array]:
    """The kernel's workspaces, as arrays of what it has there."""
    declared = [buffer for buffer in kernel.function.buffers if buffer.space == "arg"]
    return [
        image[place : place + nbytes].view(DTYPES[buffer.elem.elem])
        for (place, nbytes), buffer in zip(places, declared[len(kernel.args) :], strict=False)
    ]


def _wrong(buffer: _Buffer, after: Array) -> str:
    if not buffer.written.any():
        return ""
    size = buffer.before.nbytes
    raw = after[buffer.place : buffer.place + size]
    dtype = buffer.value.type.dtype
    if dtype.kind == "bool":
        got, want = raw, buffer.expected.astype(np.uint8)
        bad = got != want
    else:
        got, want = raw.view(dtype.numpy), buffer.expected
        bad = got != want
    if buffer.allowed is not None and bad.any():
        a, b = got.astype(np.float64), want.astype(np.float64)
        with np.errstate(all="ignore"):
            near = np.abs(a - b) <= buffer.allowed
        bad &= ~(near | (np.isnan(a) & np.isnan(b)) | np.isinf(buffer.allowed))
    bad &= buffer.written
    if not bad.any():
        return ""
    first = int(np.flatnonzero(bad)[0])
    where = tuple(int(i) for i in np.unravel_index(first, buffer.value.shape or (1,)))
    return (
        f"{int(bad.sum())} of {int(buffer.written.sum())} elements of {buffer.value.type} are "
        f"wrong, first {where}: {got[first]} instead of {want[first]}"
    )
