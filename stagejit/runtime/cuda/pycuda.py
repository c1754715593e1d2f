"""`PyCudaDriver`: a `Driver` of an NVIDIA GPU.

Input: what a `Driver` is asked. Output: work on the GPU, in its primary context, which JAX uses,
too. Invariants: outside of `current()` no thread has a context of ours; what belongs to the context
is given back inside of it, whoever dropped it and on whatever thread (`handles.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from stagejit.base.threads.locks import new_lock, new_rlock, remembered
from stagejit.codegen.cuda.device import Limits
from stagejit.runtime.cuda.arrays.gpu_arrays import GpuArrays
from stagejit.runtime.cuda.code import nvrtc
from stagejit.runtime.cuda.code.cubins import Compiler, cubins, key_of, nvrtc_compiler
from stagejit.runtime.cuda.conditions import DECIDE, OLDEST, Conditions
from stagejit.runtime.cuda.driver import Array, Event, Function, Graph, Source, Stream, T
from stagejit.runtime.cuda.driver_api import DeviceError, DriverApi
from stagejit.runtime.cuda.gpus import arch_of, check_versions, gpu, imported
from stagejit.runtime.cuda.handles import Owned, let_go, told
from stagejit.runtime.objects.object_cache import ObjectCache, cache_in

_BLOCKING, _NON_BLOCKING = 0, 1  # CU_STREAM_DEFAULT: in order with the default stream


class PyCudaDriver:
    """One GPU. ordinal: which. compiler: of kernels, NVRTC if none is given; store: where code is
    kept on disk.

    Raises NoDriverError where there is no PyCUDA, no driver or no such GPU, or one that is too old
    for the compiler; CudaCompileError where there is no compiler.
    """

    def __init__(
        self,
        ordinal: int = 0,
        *,
        compiler: Compiler | None = None,
        store: ObjectCache | None = None,
    ) -> None:
        self._cuda: Any = imported()
        device = gpu(ordinal)
        self._api, self._store = DriverApi(), store
        if compiler is None:
            compiler = nvrtc_compiler()
            check_versions(self._api.version(), nvrtc.version())
        self._compiler = compiler
        self._name, self._arch = str(device.name()), arch_of(*device.compute_capability())
        self._cores, self._limits = self._api.cores(ordinal), self._api.limits(ordinal)
        self._lock, self._depth, self._process = new_rlock(), 0, os.getpid()
        self._dropped: deque[Callable[[], object]] = deque()
        self._functions: weakref.WeakValueDictionary[str, Owned] = weakref.WeakValueDictionary()
        self._pieces: dict[int, Any] = {}
        self._context = device.retain_primary_context()
        with self.current():
            from pycuda.tools import DeviceMemoryPool

            self._pool = DeviceMemoryPool()
            self._main = self._new_stream(_BLOCKING)
            self._follower = self._api.new_event()
        atexit.register(self.close)

    @property
    def name(self) -> str:
        return self._name

    @property
    def arch(self) -> str:
        return self._arch

    @property
    def cores(self) -> int:
        return self._cores

    @property
    def limits(self) -> Limits | None:
        return self._limits

    @property
    def main(self) -> Stream:
        return Stream(self._main)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """What PyCUDA raises inside of it becomes a `DeviceError`, or a MemoryError."""
        with self._lock:
            if self._depth:
                yield
                return
            self._enter()
            try:
                while self._dropped:
                    self._dropped.popleft()()
                yield
            except self._cuda.Error as error:
                raise self._told(error) from error
            finally:
                self._leave()

    def within(self, work: Callable[[], T]) -> T:
        with self._lock:
            if self._depth:
                return work()
            self._enter()
            try:
                while self._dropped:
                    self._dropped.popleft()()
                return work()
            except self._cuda.Error as error:
                raise self._told(error) from error
            finally:
                self._leave()

    def _enter(self) -> None:
        if self._process != os.getpid():
            raise DeviceError(
                f"{self._name} belongs to the process that this one was forked from",
                next_step="start processes with multiprocessing's method 'spawn', or use the GPU "
                "in the forked ones alone",
            )
        self._context.push()
        self._depth = 1

    def _leave(self) -> None:
        self._depth = 0
        self._context.pop()

    def _told(self, error: Exception) -> Exception:
        if isinstance(error, self._cuda.MemoryError):
            return MemoryError(f"{self._name}: {error}")
        return told(error)

    def close(self) -> None:
        """Gives all memory back, and the context. Nothing works after it. A driver that nobody
        closes lives as long as the process."""
        atexit.unregister(self.close)
        with self._lock:
            if self._context is None or self._process != os.getpid():
                return
            with contextlib.suppress(DeviceError, MemoryError), self.current():
                self._pieces.clear()
                self._pool.stop_holding()
                self._pool = None  # PyCUDA ends the process where a pool goes without a context
                self._api.destroy_event(self._follower)
                del self._main
                while self._dropped:
                    self._dropped.popleft()()
            self._context.push()
            self._context.detach()  # which takes the context from PyCUDA's stack, and leaves it on
            self._api.pop_context()  # the driver's
            self._context = None

    def _owned(self, inner: Any, handle: int = 0, drop: Callable[[], object] | None = None) -> Any:
        made = Owned(inner, handle)
        # Whatever calls `drop` also lets go of the last reference to `inner`.
        weakref.finalize(made, self._dropped.append, drop or partial(let_go, inner))
        return made

    # ---------------------------------------------------------------- kernels

    def load(
        self, sources: Sequence[Source], cache_dir: str | None = None
    ) -> Mapping[str, Function]:
        store = self._store if cache_dir is None else cache_in(cache_dir)
        keys = {one.name: key_of(one.text, self._arch, self._compiler) for one in sources}
        found = {name: self._functions.get(_of(key, name)) for name, key in keys.items()}
        missing = [source for source in sources if found[source.name] is None]
        texts = [source.text for source in missing]
        codes = cubins(texts, self._arch, self._compiler, store)
        for source, code in zip(missing, codes, strict=True):
            made = self._owned(self._loaded(source, code))
            found[source.name] = self._functions[_of(keys[source.name], source.name)] = made
        for source in sources:
            if source.shared_nbytes:
                self._allow_shared(found[source.name], source.shared_nbytes)
        return {name: Function(one) for name, one in found.items()}

    def _loaded(self, source: Source, code: bytes) -> Any:
        return self._cuda.module_from_buffer(code).get_function(source.name)

    def _allow_shared(self, function: Any, nbytes: int) -> None:
        """More than 48 KiB are to be asked for. The most that a kernel was asked for stays."""
        if nbytes > function.handle:
            attribute = self._cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            function.inner.set_attribute(attribute, nbytes)
            function.handle = nbytes

    def launch(
        self,
        function: Function,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_nbytes: int,
        stream: Stream,
        arguments: bytes,
    ) -> None:
        kernel, queue = cast(Owned, function).inner, cast(Owned, stream).inner
        kernel._launch_kernel(grid, block, arguments, shared_nbytes, queue)

    # ---------------------------------------------------------------- memory

    def allocate(self, nbytes: int) -> int:
        piece = self._pool.allocate(max(nbytes, 1))
        address = int(piece)
        self._pieces[address] = piece
        return address

    def free(self, address: int) -> None:
        self._pieces.pop(address).free()

    def free_later(self, addresses: Sequence[int]) -> None:
        for address in addresses:
            self._dropped.append(partial(self.free, address))

    def trim(self) -> None:
        """Gives memory that nobody uses back to the device."""
        self._pool.free_held()

    def copy_in(self, address: int, array: Array, stream: Stream) -> None:
        given = _bytes(array)
        if given.size and self._api.is_pinned(given.ctypes.data):
            given = given.copy()  # pinned memory would be read later
        if given.size:
            self._cuda.memcpy_htod_async(address, given, cast(Owned, stream).inner)

    def copy_out(self, array: Array, address: int, stream: Stream) -> None:
        queue = cast(Owned, stream).inner
        if array.size:
            self._cuda.memcpy_dtoh_async(_bytes(array), address, queue)
        queue.synchronize()

    def copy(self, to: int, source: int, nbytes: int, stream: Stream) -> None:
        if nbytes:
            self._cuda.memcpy_dtod_async(to, source, nbytes, cast(Owned, stream).inner)

    def fill(self, address: int, byte: int, nbytes: int, stream: Stream) -> None:
        if nbytes:
            self._cuda.memset_d8_async(address, byte, nbytes, cast(Owned, stream).inner)

    def store(self, address: int, value: int, nbytes: int, stream: Stream) -> None:
        queue, bits = cast(Owned, stream).inner, value % (1 << 8 * nbytes)
        if nbytes == 8:  # there is no fill of 8 bytes
            low, high = bits % (1 << 32), bits >> 32
            if low == high:
                self._cuda.memset_d32_async(address, low, 2, queue)
                return
            self._cuda.memset_d32_async(address, low, 1, queue)
            self._cuda.memset_d32_async(address + 4, high, 1, queue)
            return
        getattr(self._cuda, f"memset_d{8 * nbytes}_async")(address, bits, 1, queue)

    def array(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object = None
    ) -> Any:
        """A GPUArray in a piece of the pool, or in memory of the owner. PyCUDA's functions use the
        default stream, which is in order with `main`; who uses other streams is told so by
        `__cuda_array_interface__`. PyCUDA wants a context for most of what it does with such an
        array: `import pycuda.autoprimaryctx` gives the thread this one."""
        return self._arrays.made(address, shape, dtype, owner, self._back)

    @remembered
    def _arrays(self) -> GpuArrays:
        return GpuArrays(self._cuda)

    def delete(self, array: object) -> None:
        self._arrays.delete(array)

    def _back(self, address: int) -> None:
        """From anywhere, as finalizers are."""
        self._dropped.append(partial(self.free, address))

    # ---------------------------------------------------------------- order

    def new_stream(self) -> Stream:
        return Stream(self._new_stream())

    def _new_stream(self, kind: int = _NON_BLOCKING) -> Owned:
        stream = self._cuda.Stream(kind)
        return cast(Owned, self._owned(stream, stream.handle))

    def new_event(self) -> Event:
        return Event(self._owned(self._cuda.Event()))

    def record(self, event: Event, stream: Stream) -> None:
        cast(Owned, event).inner.record(cast(Owned, stream).inner)

    def wait(self, stream: Stream, event: Event) -> None:
        cast(Owned, stream).inner.wait_for_event(cast(Owned, event).inner)

    def seconds(self, start: Event, end: Event) -> float:
        last = cast(Owned, end).inner
        last.synchronize()
        return float(last.time_since(cast(Owned, start).inner)) / 1e3

    def synchronize(self, stream: Stream) -> None:
        cast(Owned, stream).inner.synchronize()

    def handle(self, stream: Stream) -> int:
        return cast(Owned, stream).handle

    def follow(self, stream: Stream, handle: int) -> None:
        self._api.record(self._follower, handle)
        self._api.wait(cast(Owned, stream).handle, self._follower)

    def lead(self, handle: int, stream: Stream) -> None:
        self._api.record(self._follower, cast(Owned, stream).handle)
        self._api.wait(handle, self._follower)

    # ---------------------------------------------------------------- graphs

    def capture(self, stream: Stream, queue: Callable[[], None], old: Graph | None = None) -> Graph:
        handle = cast(Owned, stream).handle
        self._api.begin_capture(handle)
        try:
            queue()
        except BaseException:
            self._api.abandon_capture(handle)
            raise
        graph = self._api.end_capture(handle)
        try:
            if old is not None and self._api.update(cast(Owned, old).handle, graph):
                return old
            made = self._api.instantiate(graph)
        finally:
            self._api.destroy_graph(graph)
        return Graph(self._owned(None, made, partial(self._api.destroy_executable, made)))

    @remembered
    def has_conditions(self) -> bool:
        return self._api.version() >= OLDEST and self._decide is not None

    @remembered
    def _decide(self) -> Any:
        compile = self._compiler.compile_open or self._compiler.compile
        code = compile(DECIDE.text, self._arch)
        return self._owned(self._loaded(DECIDE, code))

    @remembered
    def _conditions(self) -> Conditions:
        def launch(stream: Stream, arguments: bytes) -> None:
            self.launch(Function(self._decide), (1, 1, 1), (32, 1, 1), 0, stream, arguments)

        return Conditions(self._api, self.handle, launch)

    def repeat(
        self, stream: Stream, inner: Stream, predicate: int, queue: Callable[[Stream], None]
    ) -> None:
        self._conditions.repeat(stream, inner, predicate, queue)

    def choose(
        self,
        stream: Stream,
        inner: Stream,
        index: int,
        nbytes: int,
        queues: Sequence[Callable[[Stream], None]],
    ) -> None:
        self._conditions.choose(stream, inner, index, nbytes, queues)

    def replay_for(self, handle: int, graph: Graph) -> None:
        self._api.launch_graph(cast(Owned, graph).handle, handle)

    def replay(self, graph: Graph, stream: Stream) -> None:
        self._api.launch_graph(cast(Owned, graph).handle, cast(Owned, stream).handle)


# -------------------------------------------------------------------- one for each GPU

_drivers: dict[int, PyCudaDriver] = {}
_drivers_lock = new_lock()


def pycuda_driver(ordinal: int = 0, store: ObjectCache | None = None) -> PyCudaDriver:
    """The driver of a GPU, one in a process. store: of the first who asks."""
    with _drivers_lock:
        if ordinal not in _drivers:
            _drivers[ordinal] = PyCudaDriver(ordinal, store=store)
        return _drivers[ordinal]


def _of(key: str, name: str) -> str:
    return f"{name} {key}"


def _bytes(array: Array) -> Array:
    """Of a contiguous array; types of elements that buffers do not know are no trouble."""
    return array.reshape(-1).view(np.uint8)
