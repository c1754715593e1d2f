"""What `PyCudaDriver` uses of PyCUDA, by ctypes: for a Python for which nobody has built PyCUDA.

Input: none. Output: modules `pycuda.driver` and `pycuda.tools` for `sys.modules`. Invariant: what
goes wrong with PyCUDA goes wrong with this: a thread without the context cannot give back what
belongs to it (PyCUDA warns and leaks it, this remembers it in `leaked`), and a pool that holds
memory must not go without it. With PyCUDA the same tests run on the real thing.
"""

from __future__ import annotations

import contextlib
import sys
from ctypes import byref, c_char_p, c_size_t, c_uint, c_ulonglong, c_void_p
from types import ModuleType
from typing import Any

import numpy as np

from tests.cuda.driver import build
from tests.cuda.driver.client import Client, DriverError, packed

leaked: list[str] = []


class Error(Exception):
    """As pycuda.driver.Error."""


class MemoryError(Error):
    """As pycuda.driver.MemoryError, which is none of Python's."""


def _client() -> Client:
    return Client(build.load())


def _call(function: str, *arguments: Any) -> None:
    try:
        _client().call(function, *arguments)
    except DriverError as error:
        raise (MemoryError if error.code == 2 else Error)(str(error)) from None


def _made(function: str, *arguments: Any, kind: type[Any] = c_void_p) -> Any:
    value = kind()
    _call(function, byref(value), *arguments)
    return value.value


def _current() -> int:
    return _made("cuCtxGetCurrent") or 0


def _handle(stream: Any) -> c_void_p:
    return c_void_p(stream.handle if stream is not None else None)


class _OfContext:
    """Something that goes back to the context that is current when it is made."""

    _destroy = ""

    def __init__(self, handle: int) -> None:
        self.handle, self._context = handle, _current()

    def __del__(self) -> None:
        if _current() != self._context:
            leaked.append(type(self).__name__)
            return
        with contextlib.suppress(Error):  # of a context that is broken; PyCUDA prints it
            _call(self._destroy, c_void_p(self.handle))


class Context:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def push(self) -> None:
        _call("cuCtxPushCurrent_v2", c_void_p(self._handle))

    @staticmethod
    def pop() -> None:
        _call("cuCtxPopCurrent_v2", None)

    def detach(self) -> None:
        """As PyCUDA: the context stays on the driver's stack."""
        if _current() != self._handle:
            self.push()
        _call("cuDevicePrimaryCtxRelease_v2", 0)


class Device:
    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal

    @staticmethod
    def count() -> int:
        return int(_made("cuDeviceGetCount", kind=c_uint))

    def name(self) -> str:
        text = (c_char_p * 25)()
        _call("cuDeviceGetName", text, 200, self._ordinal)
        return bytes(text).split(b"\0")[0].decode()

    def compute_capability(self) -> tuple[int, int]:
        major, minor = c_uint(), c_uint()
        _call("cuDeviceComputeCapability", byref(major), byref(minor), self._ordinal)
        return major.value, minor.value

    def retain_primary_context(self) -> Context:
        return Context(_made("cuDevicePrimaryCtxRetain", self._ordinal))


class Stream(_OfContext):
    _destroy = "cuStreamDestroy_v2"

    def __init__(self, flags: int = 0) -> None:
        super().__init__(_made("cuStreamCreate", flags))

    def synchronize(self) -> None:
        _call("cuStreamSynchronize", _handle(self))

    def wait_for_event(self, event: Event) -> None:
        _call("cuStreamWaitEvent", _handle(self), _handle(event), 0)


class Event(_OfContext):
    _destroy = "cuEventDestroy_v2"

    def __init__(self, flags: int = 0) -> None:
        super().__init__(_made("cuEventCreate", flags))

    def record(self, stream: Stream | None = None) -> None:
        _call("cuEventRecord", _handle(self), _handle(stream))

    def synchronize(self) -> None:
        _call("cuEventSynchronize", _handle(self))

    def time_since(self, start: Event) -> float:
        return _client().milliseconds(_handle(start), _handle(self))


class Module(_OfContext):
    _destroy = "cuModuleUnload"

    def get_function(self, name: str) -> Function:
        return Function(self, _made("cuModuleGetFunction", _handle(self), name.encode()))


class Function:
    def __init__(self, module: Module, handle: int) -> None:
        self._module, self.handle = module, handle

    def set_attribute(self, attribute: int, value: int) -> None:
        _call("cuFuncSetAttribute", _handle(self), attribute, value)

    def _launch_kernel(
        self, grid: tuple[int, ...], block: tuple[int, ...], arguments: bytes, shared: int,
        stream: Stream | None,
    ) -> None:  # fmt: skip
        _call("cuLaunchKernel", _handle(self), *grid, *block, shared, _handle(stream), None,
              packed(arguments))  # fmt: skip


class function_attribute:
    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


class PointerHolderBase:
    pass


def init() -> None:
    _client()


def module_from_buffer(code: bytes) -> Module:
    return Module(_made("cuModuleLoadData", code))


def memcpy_htod_async(to: int, array: np.ndarray, stream: Stream | None = None) -> None:
    address, nbytes = c_void_p(array.ctypes.data), c_size_t(array.nbytes)
    _call("cuMemcpyHtoDAsync_v2", c_ulonglong(to), address, nbytes, _handle(stream))


def memcpy_dtoh_async(array: np.ndarray, source: int, stream: Stream | None = None) -> None:
    address, nbytes = c_void_p(array.ctypes.data), c_size_t(array.nbytes)
    _call("cuMemcpyDtoHAsync_v2", address, c_ulonglong(source), nbytes, _handle(stream))


def memcpy_dtod_async(to: int, source: int, nbytes: int, stream: Stream | None = None) -> None:
    _call("cuMemcpyDtoDAsync_v2", c_ulonglong(to), c_ulonglong(source), c_size_t(nbytes),
          _handle(stream))  # fmt: skip


def _memset(bits: int) -> Any:
    def fill(to: int, value: int, count: int, stream: Stream | None = None) -> None:
        name = f"cuMemsetD{bits}Async"
        _call(name, c_ulonglong(to), c_uint(value), c_size_t(count), _handle(stream))

    return fill


class _Pinned:
    def __init__(self, nbytes: int) -> None:
        self.address = _made("cuMemHostAlloc", c_size_t(nbytes), 0)

    def __del__(self) -> None:
        _call("cuMemFreeHost", c_void_p(self.address))


def pagelocked_empty(count: int, dtype: Any) -> np.ndarray:
    dtype = np.dtype(dtype)
    memory = _Pinned(count * dtype.itemsize)
    told = {"version": 3, "shape": (count,), "typestr": dtype.str, "data": (memory.address, False)}
    memory.__array_interface__ = told  # type: ignore[attr-defined]
    return np.asarray(memory)


class _Piece:
    """Memory of a pool."""

    def __init__(self, pool: DeviceMemoryPool, address: int, size: int) -> None:
        self._pool, self._address, self._size = pool, address, size

    def __int__(self) -> int:
        return self._address

    def free(self) -> None:
        self._pool._back(self._address, self._size)


class DeviceMemoryPool:
    """Sizes are rounded up, and what came back last goes out first."""

    def __init__(self) -> None:
        self._held: dict[int, list[int]] = {}
        self._stopped = False

    def allocate(self, nbytes: int) -> _Piece:
        size = max(1 << (nbytes - 1).bit_length(), 256)
        held = self._held.get(size)
        if held:
            return _Piece(self, held.pop(), size)
        try:
            return _Piece(self, _made("cuMemAlloc_v2", c_size_t(size), kind=c_ulonglong), size)
        except MemoryError:
            self.free_held()
            return _Piece(self, _made("cuMemAlloc_v2", c_size_t(size), kind=c_ulonglong), size)

    def _back(self, address: int, size: int) -> None:
        if self._stopped:
            _call("cuMemFree_v2", c_ulonglong(address))
        else:
            self._held.setdefault(size, []).append(address)

    def free_held(self) -> None:
        for held in self._held.values():
            while held:
                _call("cuMemFree_v2", c_ulonglong(held.pop()))

    def stop_holding(self) -> None:
        self._stopped = True
        self.free_held()

    def __del__(self) -> None:
        if any(self._held.values()):
            leaked.append("a pool")  # PyCUDA ends the process


def install() -> None:
    """In the place of PyCUDA."""
    package, driver, tools = map(ModuleType, ("pycuda", "pycuda.driver", "pycuda.tools"))
    for name, value in globals().items():
        if not name.startswith("_"):
            setattr(driver, name, value)
    for bits in (8, 16, 32):
        setattr(driver, f"memset_d{bits}_async", _memset(bits))
    vars(tools)["DeviceMemoryPool"] = DeviceMemoryPool
    vars(package).update(driver=driver, tools=tools, __path__=[])
    for module in (package, driver, tools):
        sys.modules[module.__name__] = module
