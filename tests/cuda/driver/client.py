"""A client of the driver API by ctypes, of the emulated driver or of NVIDIA's.

Input: names of functions and their arguments. Output: what they hand out, or a `DriverError` with
the code. Invariant: nothing is hidden; a test reads like a program in C.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from ctypes import byref, c_float, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

import numpy as np

NON_BLOCKING = 1
Array = np.ndarray[Any, np.dtype[Any]]


class DriverError(Exception):
    """A function returned something else than success."""

    def __init__(self, function: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{function}: {name}: {text}")
        self.code = code


class KernelParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("function", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("params", c_void_p),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    ]


class Client:
    """Calls with what is handed out in the place of what is passed by reference."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.call("cuInit", 0)

    def call(self, function: str, *arguments: Any) -> None:
        code = getattr(self.library, function)(*arguments)
        if code:
            raise DriverError(function, code, self._told("Name", code), self._told("String", code))

    def _told(self, what: str, code: int) -> str:
        text = ctypes.c_char_p()
        getattr(self.library, f"cuGetError{what}")(code, byref(text))
        return (text.value or b"").decode()

    def made(self, function: str, *arguments: Any, kind: type[Any] = c_void_p) -> Any:
        """What a function stores in its first argument."""
        value = kind()
        self.call(function, byref(value), *arguments)
        return value

    # ---------------------------------------------------------------- contexts

    @contextlib.contextmanager
    def context(self) -> Iterator[c_void_p]:
        """The primary context, current on this thread."""
        context = self.made("cuDevicePrimaryCtxRetain", 0)
        self.call("cuCtxPushCurrent_v2", context)
        try:
            yield context
        finally:
            self.call("cuCtxPopCurrent_v2", None)
            self.call("cuDevicePrimaryCtxRelease_v2", 0)

    # ---------------------------------------------------------------- memory

    def array(self, array: Array) -> int:
        """The address of a copy."""
        address = self.allocate(array.nbytes)
        self.call("cuMemcpyHtoD_v2", c_ulonglong(address), array.ctypes, c_size_t(array.nbytes))
        self.call("cuStreamSynchronize", None)
        return address

    def allocate(self, nbytes: int) -> int:
        return int(self.made("cuMemAlloc_v2", c_size_t(nbytes), kind=c_ulonglong).value)

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", c_ulonglong(address))

    def read(self, address: int, count: int, dtype: Any = np.float32) -> Array:
        """After all that blocking streams do."""
        array = np.empty(count, dtype)
        self.call("cuMemcpyDtoH_v2", array.ctypes, c_ulonglong(address), c_size_t(array.nbytes))
        return array

    # ---------------------------------------------------------------- streams

    def stream(self, flags: int = NON_BLOCKING) -> c_void_p:
        return c_void_p(self.made("cuStreamCreate", flags).value)

    def event(self, flags: int = 0) -> c_void_p:
        return c_void_p(self.made("cuEventCreate", flags).value)

    def after(self, later: c_void_p, earlier: c_void_p) -> None:
        """What one stream is given from now on comes after what the other was given."""
        event = self.event()
        self.call("cuEventRecord", event, earlier)
        self.call("cuStreamWaitEvent", later, event, 0)
        self.call("cuEventDestroy_v2", event)

    def milliseconds(self, start: c_void_p, end: c_void_p) -> float:
        return float(self.made("cuEventElapsedTime_v2", start, end, kind=c_float).value)

    # ---------------------------------------------------------------- kernels

    def function(self, cubin: bytes, name: str) -> c_void_p:
        module = c_void_p(self.made("cuModuleLoadData", cubin).value)
        return c_void_p(self.made("cuModuleGetFunction", module, name.encode()).value)

    def launch(
        self,
        function: c_void_p,
        stream: c_void_p | None,
        arguments: Sequence[Any],
        *,
        grid: tuple[int, ...] = (1, 1, 1),
        block: tuple[int, ...] = (32, 1, 1),
        shared: int = 0,
    ) -> None:
        """arguments: ctypes values, which are passed by their addresses."""
        pointers = addresses(arguments)
        self.call("cuLaunchKernel", function, *grid, *block, shared, stream, pointers, None)

    def launch_packed(
        self, function: c_void_p, stream: c_void_p | None, arguments: bytes,
        block: tuple[int, ...] = (32, 1, 1),
    ) -> None:  # fmt: skip
        extra = packed(arguments)
        self.call("cuLaunchKernel", function, 1, 1, 1, *block, 0, stream, None, extra)

    # ---------------------------------------------------------------- graphs

    @contextlib.contextmanager
    def capture(self, stream: c_void_p, mode: int = 1) -> Iterator[list[c_void_p]]:
        """A list that holds the graph, once the capture has ended. mode: of this thread alone."""
        graphs: list[c_void_p] = []
        self.call("cuStreamBeginCapture_v2", stream, mode)
        try:
            yield graphs
        finally:
            graph = c_void_p()
            self.call("cuStreamEndCapture", stream, byref(graph))
            graphs.append(graph)

    def instantiate(self, graph: c_void_p) -> c_void_p:
        return c_void_p(self.made("cuGraphInstantiateWithFlags", graph, c_ulonglong(0)).value)

    def nodes(self, graph: c_void_p) -> list[c_void_p]:
        count = c_size_t()
        self.call("cuGraphGetNodes", graph, None, byref(count))
        found = (c_void_p * count.value)()
        self.call("cuGraphGetNodes", graph, found, byref(count))
        return [c_void_p(node) for node in found]

    def edges(self, graph: c_void_p) -> list[tuple[int, int]]:
        """By the numbers of nodes."""
        numbers = {node.value: number for number, node in enumerate(self.nodes(graph))}
        count = c_size_t()
        self.call("cuGraphGetEdges_v2", graph, None, None, None, byref(count))
        start, end = (c_void_p * count.value)(), (c_void_p * count.value)()
        self.call("cuGraphGetEdges_v2", graph, start, end, None, byref(count))
        return sorted((numbers[a], numbers[b]) for a, b in zip(start, end, strict=True))


def addresses(arguments: Sequence[Any]) -> Any:
    """What `kernelParams` is."""
    array = (c_void_p * len(arguments))(*(ctypes.addressof(value) for value in arguments))
    array.kept = arguments  # type: ignore[attr-defined]
    return array


def packed(arguments: bytes) -> Any:
    """What `extra` is: the address and the size of a buffer."""
    buffer, size = ctypes.create_string_buffer(arguments, len(arguments)), c_size_t(len(arguments))
    array = (c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    array.kept = buffer, size  # type: ignore[attr-defined]
    return array
