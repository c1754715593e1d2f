"""Captures: a graph does what its launches would have done, in any order that their edges leave."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_ulonglong, c_void_p

import numpy as np
import pytest

from tests.cuda.driver.client import Client, DriverError, KernelParams, addresses, packed
from tests.cuda.driver.cubin import emulated_cubin
from tests.cuda.driver.kernels import AXPY

SEEDS = range(20)
N = 100
EMPTY_RESULT = 24  # bytes of CUgraphExecUpdateResultInfo


class Program:
    """y and z from x, on two streams that part and come together: y = x + x, z = 3 x, y += z."""

    def __init__(self, device: Client) -> None:
        self.device = device
        self.function = device.function(emulated_cubin(AXPY), "axpy")
        self.streams = device.stream(), device.stream()
        self.x = device.array(np.arange(N, dtype=np.float32))
        self.y, self.z = device.allocate(4 * N), device.allocate(4 * N)

    def axpy(self, y: int, x: int, a: int, stream: c_void_p) -> None:
        arguments = [c_ulonglong(y), c_ulonglong(x), c_ulonglong(N), c_ulonglong(a)]
        self.device.launch(self.function, stream, arguments, grid=(2, 1, 1), block=(64, 1, 1))

    def queue(self, *, joined: bool = True, ordered: bool = True) -> None:
        device, (first, second) = self.device, self.streams
        nbytes = c_size_t(4 * N)
        device.call("cuMemcpyDtoDAsync_v2", c_ulonglong(self.y), c_ulonglong(self.x), nbytes, first)
        device.after(second, first)
        device.call("cuMemsetD32Async", c_ulonglong(self.z), 0, c_size_t(N), second)
        self.axpy(self.y, self.x, 1, first)
        self.axpy(self.z, self.x, 3, second)
        if ordered:
            device.after(first, second)
        self.axpy(self.y, self.z, 1, first)
        if joined and not ordered:
            device.after(first, second)

    def captured(self, **how: bool) -> c_void_p:
        with self.device.capture(self.streams[0]) as graphs:
            self.queue(**how)
        return graphs[0]

    def result(self) -> np.ndarray:
        self.device.call("cuStreamSynchronize", self.streams[0])
        return self.device.read(self.y, N)

    def clear(self) -> None:
        for address in (self.y, self.z):
            self.device.call("cuMemsetD8_v2", c_ulonglong(address), 0xFF, c_size_t(4 * N))
        self.device.call("cuCtxSynchronize")

    def free(self) -> None:
        self.device.call("cuCtxSynchronize")
        for address in (self.x, self.y, self.z):
            self.device.free(address)


WANTED = 5 * np.arange(N)


def test_a_graph_is_the_launches_that_it_was_captured_of(device: Client) -> None:
    for seed in SEEDS:
        device.library.emulated_seed(c_ulonglong(seed))
        program = Program(device)
        program.queue()
        assert (program.result() == WANTED).all()
        program.clear()
        graph = program.captured()
        assert device.library.emulated_pending() == 0  # nothing was queued
        executable = device.instantiate(graph)
        device.call("cuGraphDestroy", graph)
        for _ in range(3):
            device.call("cuGraphLaunch", executable, program.streams[0])
            assert (program.result() == WANTED).all()
            program.clear()
        device.call("cuGraphExecDestroy", executable)
        program.free()


def test_a_graph_has_the_edges_of_streams_and_events(device: Client) -> None:
    program = Program(device)
    graph = program.captured()
    kinds = []
    for node in device.nodes(graph):
        kind = c_int()
        device.call("cuGraphNodeGetType", node, byref(kind))
        kinds.append(kind.value)
    assert kinds == [1, 2, 0, 0, 0]  # copy, fill, kernels
    assert device.edges(graph) == [(0, 1), (0, 2), (1, 3), (2, 4), (3, 4)]
    program.free()


def test_an_event_that_is_missing_in_a_graph_is_found(device: Client) -> None:
    wrong = []
    for seed in SEEDS:
        device.library.emulated_seed(c_ulonglong(seed))
        program = Program(device)
        program.clear()
        executable = device.instantiate(program.captured(ordered=False))
        device.call("cuGraphLaunch", executable, program.streams[0])
        wrong.append(not np.array_equal(program.result(), WANTED))
        program.free()
    assert set(wrong) == {False, True}


def test_launches_of_a_graph_do_not_overlap(device: Client) -> None:
    for seed in SEEDS:
        device.library.emulated_seed(c_ulonglong(seed))
        program = Program(device)
        with device.capture(program.streams[0]) as graphs:
            program.axpy(program.x, program.x, 1, program.streams[0])
        executable = device.instantiate(graphs[0])
        for stream in (*program.streams, *program.streams):
            device.call("cuGraphLaunch", executable, stream)
        device.call("cuCtxSynchronize")
        assert (device.read(program.x, N) == 16 * np.arange(N)).all()
        program.free()


@pytest.mark.parametrize("as_buffer", [True, False])
def test_a_node_is_given_other_arguments(device: Client, as_buffer: bool) -> None:
    program = Program(device)
    executable = device.instantiate(graph := program.captured())
    other = device.array(np.full(N, 100, np.float32))
    node = device.nodes(graph)[2]
    params = KernelParams()
    device.call("cuGraphKernelNodeGetParams_v2", node, byref(params))
    old = [c_ulonglong.from_address(c_void_p.from_address(params.params + 8 * i).value)
           for i in range(4)]  # fmt: skip
    assert [value.value for value in old] == [program.y, program.x, N, 1]
    assert (tuple(params.grid), tuple(params.block)) == ((2, 1, 1), (64, 1, 1))
    values = [c_ulonglong(program.y), c_ulonglong(other), c_ulonglong(N), c_ulonglong(2)]
    given = packed(b"".join(map(bytes, values))) if as_buffer else addresses(values)
    params.params, params.extra = (None, ctypes.addressof(given)) if as_buffer else (
        ctypes.addressof(given), None)  # fmt: skip
    device.call("cuGraphLaunch", executable, program.streams[0])  # with what it had
    device.call("cuGraphExecKernelNodeSetParams_v2", executable, node, byref(params))
    assert (program.result() == WANTED).all()
    device.call("cuGraphLaunch", executable, program.streams[0])
    assert (program.result() == 4 * np.arange(N) + 200).all()
    device.free(other)
    program.free()


def test_a_graph_takes_what_another_capture_has(device: Client) -> None:
    program = Program(device)
    executable = device.instantiate(program.captured())
    old, program.x = program.x, device.array(np.ones(N, np.float32))
    info = ctypes.create_string_buffer(EMPTY_RESULT)
    device.call("cuGraphExecUpdate_v2", executable, program.captured(), info)
    device.call("cuGraphLaunch", executable, program.streams[0])
    assert (program.result() == 5).all()
    with device.capture(program.streams[0]) as graphs:
        program.axpy(program.x, program.x, 1, program.streams[0])
    with pytest.raises(DriverError, match="GRAPH_EXEC_UPDATE_FAILURE"):
        device.call("cuGraphExecUpdate_v2", executable, graphs[0], info)
    device.free(old)
    program.free()


def test_a_graph_that_is_put_together_by_hand(device: Client) -> None:
    program = Program(device)
    graph = device.made("cuGraphCreate", 0)
    nodes: list[c_void_p] = []
    for a in (1, 2):
        values = [c_ulonglong(program.x), c_ulonglong(program.x), c_ulonglong(N), c_ulonglong(a)]
        given = addresses(values)
        params = KernelParams(function=program.function.value, params=ctypes.addressof(given))
        params.grid[:], params.block[:] = (2, 1, 1), (64, 1, 1)
        before = (c_void_p * len(nodes))(*nodes)
        nodes.append(c_void_p(
            device.made("cuGraphAddKernelNode_v2", graph, before, c_size_t(len(nodes)),
                        byref(params)).value))  # fmt: skip
    device.call("cuGraphLaunch", device.instantiate(graph), program.streams[0])
    device.call("cuStreamSynchronize", program.streams[0])
    assert (device.read(program.x, N) == 6 * np.arange(N)).all()
    assert device.edges(graph) == [(0, 1)]
    program.free()


def test_what_a_capture_says_of_itself(device: Client) -> None:
    program = Program(device)
    status, identity, graph = c_int(), c_ulonglong(), c_void_p()
    after, count = ctypes.POINTER(c_void_p)(), c_size_t()

    def ask(stream: c_void_p) -> int:
        device.call("cuStreamGetCaptureInfo_v2", stream, byref(status), byref(identity),
                    byref(graph), byref(after), byref(count))  # fmt: skip
        return status.value

    assert ask(program.streams[0]) == 0
    with device.capture(program.streams[0]) as graphs:
        program.axpy(program.y, program.x, 1, program.streams[0])
        assert ask(program.streams[0]) == 1
        assert ask(program.streams[1]) == 0
        assert count.value == 1
        last = after[0]
    assert graphs[0].value == graph.value
    assert [node.value for node in device.nodes(graphs[0])] == [last]
    program.free()


# -------------------------------------------------------------------- what is not allowed


def waits(program: Program) -> None:
    program.device.call("cuStreamSynchronize", program.streams[0])


def waits_for_all(program: Program) -> None:
    program.device.call("cuCtxSynchronize")


def allocates(program: Program) -> None:
    program.device.allocate(100)


def copies(program: Program) -> None:
    program.device.read(program.x, 1)


def asks(program: Program) -> None:
    program.device.call("cuStreamQuery", program.streams[0])


def waits_for_what_is_outside(program: Program) -> None:
    event = program.device.event()
    program.device.call("cuEventRecord", event, program.streams[1])
    program.device.call("cuStreamWaitEvent", program.streams[0], event, 0)


def uses_the_legacy_stream(program: Program) -> None:
    stream = program.device.stream(0)
    program.device.after(stream, program.streams[0])
    program.device.call("cuMemsetD8Async", c_ulonglong(program.y), 0, c_size_t(1), None)


FORBIDDEN = [
    (waits, "CAPTURE_UNSUPPORTED"), (waits_for_all, "CAPTURE_UNSUPPORTED"),
    (allocates, "CAPTURE_UNSUPPORTED"), (copies, "CAPTURE_UNSUPPORTED"),
    (asks, "CAPTURE_UNSUPPORTED"), (waits_for_what_is_outside, "CAPTURE_ISOLATION"),
    (uses_the_legacy_stream, "CAPTURE_IMPLICIT"),
]  # fmt: skip


@pytest.mark.parametrize(("act", "message"), FORBIDDEN, ids=[f.__name__ for f, _ in FORBIDDEN])
def test_what_a_capture_does_not_allow(
    device: Client, act: Callable[[Program], None], message: str
) -> None:
    program = Program(device)
    stream = program.streams[0]
    device.call("cuStreamBeginCapture_v2", stream, 1)
    program.axpy(program.y, program.x, 1, stream)
    with pytest.raises(DriverError, match=message):
        act(program)
    with pytest.raises(DriverError, match="CAPTURE_INVALIDATED"):
        program.axpy(program.y, program.x, 1, stream)
    with pytest.raises(DriverError, match="CAPTURE_INVALIDATED"):
        device.call("cuStreamEndCapture", stream, byref(c_void_p()))
    program.queue()  # all is as it was
    assert (program.result() == WANTED).all()
    program.free()


def test_streams_have_to_come_together(device: Client) -> None:
    program = Program(device)
    with pytest.raises(DriverError, match="CAPTURE_UNJOINED"):
        program.captured(ordered=False, joined=False)
    program.queue()
    assert (program.result() == WANTED).all()
    program.free()


def test_a_capture_of_one_thread_leaves_others_alone(device: Client) -> None:
    """And one of the process does not, unless they ask to be left alone."""
    program = Program(device)

    def of_another_thread() -> list[str]:
        said: list[str] = []

        def run() -> None:
            with device.context():
                try:
                    device.free(device.allocate(100))
                except DriverError as error:
                    said.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return said

    for mode, ends_well in ((1, True), (0, False)):
        device.call("cuStreamBeginCapture_v2", program.streams[0], mode)
        said = of_another_thread()
        assert bool(said) != ends_well
        assert all("CAPTURE_UNSUPPORTED" in text for text in said)
        code = device.library.cuStreamEndCapture(program.streams[0], byref(c_void_p()))
        assert code == (0 if ends_well else 901)
    program.free()
