"""The driver API by ctypes: what PyCUDA lacks, in the context that is current.

Input: handles as integers. Output: handles, or a `DeviceError` with the driver's words. Invariant:
the library is the one that PyCUDA has loaded (its name is the same), and the calling thread has the
context that the handles belong to. Structures and functions are those of CUDA 12 and later, those
of conditional nodes of 12.4.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from ctypes import byref, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any

from stagejit.codegen.cuda.device import Limits
from stagejit.errors import StagejitError

_LIBRARY = "libcuda.so.1"
_MEMORY_TYPE, _OF_HOST = 2, 1  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_HOST
# CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, and MAX_THREADS_PER_MULTIPROCESSOR,
# MAX_BLOCKS_PER_MULTIPROCESSOR, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, and _PER_BLOCK_OPTIN
_MULTIPROCESSORS, _LIMITS = 16, (39, 106, 81, 97)
# CU_STREAM_CAPTURE_MODE_RELAXED: other threads do as they like meanwhile, and so does whatever goes
# on this one, whose memory a finalizer gives back.
_RELAXED = 2
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_CONDITIONAL = 13  # CU_GRAPH_NODE_TYPE_CONDITIONAL
_SET = 1  # CU_STREAM_SET_CAPTURE_DEPENDENCIES
_UPDATE_FAILURE = 910  # CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE


class DeviceError(StagejitError):
    """The GPU or its driver refuses something, or a kernel failed."""


class _UpdateResult(ctypes.Structure):
    """CUgraphExecUpdateResultInfo."""

    _fields_ = (("result", c_int), ("node", c_void_p), ("from_node", c_void_p))


class _ConditionalParams(ctypes.Structure):
    """CUDA_CONDITIONAL_NODE_PARAMS."""

    _fields_ = (
        ("handle", c_ulonglong),
        ("type", c_int),
        ("size", c_uint),
        ("graphs", ctypes.POINTER(c_void_p)),
        ("context", c_void_p),
    )


class _NodeParams(ctypes.Structure):
    """CUgraphNodeParams: a union of 232 bytes, of which others than ours are 0."""

    _fields_ = (
        ("type", c_int),
        ("reserved", c_int * 3),
        ("conditional", _ConditionalParams),
        ("rest", ctypes.c_char * (232 - ctypes.sizeof(_ConditionalParams))),
        ("reserved_too", c_ulonglong),
    )


class DriverApi:
    """Functions of `libcuda.so.1`."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_LIBRARY)
        self._launch = self._library.cuGraphLaunch  # once a call: what takes numbers as they are
        self._launch.argtypes = c_void_p, c_void_p

    def version(self) -> tuple[int, int]:
        """The newest CUDA that the driver knows, as (13, 0)."""
        number = c_int()
        self._call("cuDriverGetVersion", byref(number))
        return number.value // 1000, number.value % 1000 // 10

    def cores(self, ordinal: int) -> int:
        """Multiprocessors of a GPU."""
        return self._attribute(ordinal, _MULTIPROCESSORS)

    def limits(self, ordinal: int) -> Limits:
        return Limits(*(self._attribute(ordinal, which) for which in _LIMITS))

    def _attribute(self, ordinal: int, which: int) -> int:
        device, found = c_int(), c_int()
        self._call("cuDeviceGet", byref(device), ordinal)
        self._call("cuDeviceGetAttribute", byref(found), which, device)
        return found.value

    def is_pinned(self, address: int) -> bool:
        """Whether memory of the host is one that the driver copies from directly, and later."""
        kind = c_uint()
        code = self._library.cuPointerGetAttribute(byref(kind), _MEMORY_TYPE, c_ulonglong(address))
        return code == 0 and kind.value == _OF_HOST

    def pop_context(self) -> None:
        self._call("cuCtxPopCurrent_v2", byref(c_void_p()))

    # ---------------------------------------------------------------- events

    def new_event(self) -> int:
        event = c_void_p()
        self._call("cuEventCreate", byref(event), _DISABLE_TIMING)
        return event.value or 0

    def destroy_event(self, event: int) -> None:
        self._call("cuEventDestroy_v2", c_void_p(event))

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", c_void_p(event), c_void_p(stream))

    def wait(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", c_void_p(stream), c_void_p(event), 0)

    # ---------------------------------------------------------------- graphs

    def begin_capture(self, stream: int) -> None:
        self._call("cuStreamBeginCapture_v2", c_void_p(stream), _RELAXED)

    def end_capture(self, stream: int) -> int:
        """The graph."""
        graph = c_void_p()
        self._call("cuStreamEndCapture", c_void_p(stream), byref(graph))
        return graph.value or 0

    def abandon_capture(self, stream: int) -> None:
        """Ends a capture of which nothing is wanted, whatever has become of it."""
        graph = c_void_p()
        self._library.cuStreamEndCapture(c_void_p(stream), byref(graph))
        if graph.value:
            self.destroy_graph(graph.value)

    def destroy_graph(self, graph: int) -> None:
        self._call("cuGraphDestroy", c_void_p(graph))

    def instantiate(self, graph: int) -> int:
        """What can be launched."""
        made = c_void_p()
        self._call("cuGraphInstantiateWithFlags", byref(made), c_void_p(graph), c_ulonglong(0))
        return made.value or 0

    def update(self, executable: int, graph: int) -> bool:
        """Gives an executable graph the parameters of another with the same nodes; False: they are
        not the same."""
        result = _UpdateResult()
        name = "cuGraphExecUpdate_v2"
        function = getattr(self._library, name)
        code: int = function(c_void_p(executable), c_void_p(graph), byref(result))
        if code != _UPDATE_FAILURE:
            self._check(name, code)
        return code == 0

    def destroy_executable(self, executable: int) -> None:
        self._call("cuGraphExecDestroy", c_void_p(executable))

    def launch_graph(self, executable: int, stream: int) -> None:
        if code := self._launch(executable, stream):
            self._check("cuGraphLaunch", code)

    # ---------------------------------------------------------------- conditional nodes

    def captured_graph(self, stream: int) -> int:
        """The graph into which the stream is captured."""
        return self._capture_info(stream)[0]

    def _capture_info(self, stream: int) -> tuple[int, Any, int]:
        """The graph, the nodes that the stream's next one comes after, and how many they are."""
        status, identity, graph, count = c_int(), c_ulonglong(), c_void_p(), ctypes.c_size_t()
        nodes, edges = ctypes.POINTER(c_void_p)(), c_void_p()
        self._call(
            "cuStreamGetCaptureInfo_v3", c_void_p(stream), byref(status), byref(identity),
            byref(graph), byref(nodes), byref(edges), byref(count),
        )  # fmt: skip
        return graph.value or 0, nodes, count.value

    def conditional_handle(self, graph: int) -> int:
        """For a node of the graph; what it says is undefined until a kernel sets it."""
        made = c_ulonglong()
        context = self._context()
        self._call("cuGraphConditionalHandleCreate", byref(made), c_void_p(graph), context, 0, 0)
        return made.value

    @contextlib.contextmanager
    def inside(self, stream: int, inner: int, handle: int, *, loops: bool) -> Iterator[None]:
        """What `inner` is given meanwhile becomes the body of a node, behind what `stream` was
        given; `stream` goes on behind the node."""
        graph, before, count = self._capture_info(stream)
        params = _NodeParams(type=_CONDITIONAL)
        params.conditional = _ConditionalParams(handle, int(loops), 1, None, self._context())
        node = c_void_p()
        self._call(
            "cuGraphAddNode_v2", byref(node), c_void_p(graph), before, None,
            ctypes.c_size_t(count), byref(params),
        )  # fmt: skip
        body = params.conditional.graphs[0]
        self._call(
            "cuStreamBeginCaptureToGraph", c_void_p(inner), c_void_p(body), None, None,
            ctypes.c_size_t(0), _RELAXED,
        )  # fmt: skip
        try:
            yield
        except BaseException:
            self._library.cuStreamEndCapture(c_void_p(inner), byref(c_void_p()))
            raise
        self._call("cuStreamEndCapture", c_void_p(inner), byref(c_void_p()))
        self._call(
            "cuStreamUpdateCaptureDependencies_v2", c_void_p(stream), byref(node), None,
            ctypes.c_size_t(1), _SET,
        )  # fmt: skip

    def _context(self) -> c_void_p:
        context = c_void_p()
        self._call("cuCtxGetCurrent", byref(context))
        return context

    # ---------------------------------------------------------------- errors

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            self._check(name, code)

    def _check(self, name: str, code: int) -> None:
        if code:
            raise DeviceError(f"{name} failed: {self._told('Name', code)}: "
                              f"{self._told('String', code)}")  # fmt: skip

    def _told(self, what: str, code: int) -> str:
        text = ctypes.c_char_p()
        getattr(self._library, f"cuGetError{what}")(code, byref(text))
        return (text.value or b"?").decode(errors="replace")
