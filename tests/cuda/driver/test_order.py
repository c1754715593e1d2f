"""The order of work: what streams and events fix, and that nothing else does."""

from __future__ import annotations

import ctypes
import threading
from ctypes import byref, c_float, c_longlong, c_size_t, c_ulonglong, c_void_p

import numpy as np
import pytest

from tests.cuda.driver.client import Client, DriverError
from tests.cuda.driver.cubin import emulated_cubin
from tests.cuda.driver.kernels import SCALE_AND_ADD

SEEDS = range(20)
N = 100


def scaled(device: Client, y: int, x: int, stream: c_void_p | None, a: float = 2) -> None:
    """y = a * x + 1, sometime."""
    function = device.function(emulated_cubin(SCALE_AND_ADD), "scale_and_add")
    arguments = [c_ulonglong(y), c_ulonglong(x), c_float(a), c_float(1), c_longlong(N)]
    device.launch(function, stream, arguments, grid=(2, 1, 1), block=(64, 1, 1))


def chain(device: Client, seed: int, *, with_event: bool = True) -> np.ndarray:
    """x -> y on one stream, y -> z on another."""
    device.library.emulated_seed(c_ulonglong(seed))
    x = device.array(np.arange(N, dtype=np.float32))
    y, z = device.allocate(4 * N), device.allocate(4 * N)
    first, second = device.stream(), device.stream()
    scaled(device, y, x, first)
    if with_event:
        device.after(second, first)
    scaled(device, z, y, second)
    device.call("cuStreamSynchronize", second)
    found = device.read(z, N)
    for address in (x, y, z):
        device.free(address)
    return found


def test_events_order_streams(device: Client) -> None:
    for seed in SEEDS:
        assert (chain(device, seed) == 2 * (2 * np.arange(N) + 1) + 1).all()


def test_a_missing_event_is_found(device: Client) -> None:
    found = [chain(device, seed, with_event=False) for seed in SEEDS]
    wrong = [array for array in found if np.isnan(array).all()]
    assert 0.2 < len(wrong) / len(found) < 0.9


def test_a_seed_says_the_order(device: Client) -> None:
    once = [np.isnan(chain(device, seed, with_event=False)).all() for seed in SEEDS]
    again = [np.isnan(chain(device, seed, with_event=False)).all() for seed in SEEDS]
    assert once == again


def test_work_is_late(device: Client) -> None:
    """A host that does not wait reads what was there before, with one seed or another."""
    late = []
    for seed in SEEDS:
        device.library.emulated_seed(c_ulonglong(seed))
        stream, x = device.stream(), device.array(np.ones(N, np.float32))
        scaled(device, x, x, stream)
        late.append(device.library.emulated_pending() > 0)
        device.call("cuStreamSynchronize", stream)
        assert device.read(x, 1)[0] == 3
        device.free(x)
    assert any(late)
    assert not all(late)


def test_a_stream_keeps_its_order(device: Client) -> None:
    for seed in SEEDS:
        device.library.emulated_seed(c_ulonglong(seed))
        stream, x = device.stream(), device.array(np.zeros(N, np.float32))
        for _ in range(5):
            scaled(device, x, x, stream)
        device.call("cuStreamSynchronize", stream)
        assert (device.read(x, N) == 31).all()
        device.free(x)


@pytest.mark.parametrize("blocking", [True, False])
def test_the_legacy_stream_waits_for_blocking_streams(device: Client, blocking: bool) -> None:
    found = []
    for seed in SEEDS:
        device.library.emulated_seed(c_ulonglong(seed))
        stream = device.stream(0 if blocking else 1)
        x = device.array(np.ones(N, np.float32))
        scaled(device, x, x, stream)
        found.append(device.read(x, 1)[0])
        device.call("cuCtxSynchronize")
        device.free(x)
    assert set(found) == ({3} if blocking else {1, 3})


def test_an_event_stands_for_what_was_queued_when_it_was_recorded(device: Client) -> None:
    for seed in SEEDS:
        device.library.emulated_seed(c_ulonglong(seed))
        first, second = device.stream(), device.stream()
        x = device.array(np.ones(N, np.float32))
        y = device.allocate(4 * N)
        event = device.event()
        scaled(device, x, x, first)
        device.call("cuEventRecord", event, first)
        device.call("cuStreamWaitEvent", second, event, 0)
        device.call("cuEventRecord", event, second)  # anew: the wait is for what it was
        scaled(device, y, x, second)
        device.call("cuStreamSynchronize", second)
        assert device.read(y, 1)[0] == 7
        device.free(x)
        device.free(y)


def test_an_event_has_a_time_once_it_is_reached(device: Client) -> None:
    stream, start, end = device.stream(), device.event(), device.event()
    x = device.array(np.ones(N, np.float32))
    device.call("cuEventRecord", start, stream)
    scaled(device, x, x, stream)
    device.call("cuEventRecord", end, stream)
    device.call("cuEventSynchronize", end)
    assert device.milliseconds(start, end) >= 0
    device.free(x)
    with pytest.raises(DriverError, match="INVALID_HANDLE"):
        device.milliseconds(start, device.event())
    no_time = device.event(2)
    device.call("cuEventRecord", no_time, stream)
    with pytest.raises(DriverError, match="INVALID_HANDLE"):
        device.milliseconds(start, no_time)


def test_queries_do_not_wait_and_come_to_an_end(device: Client) -> None:
    not_ready = []
    for seed in SEEDS:
        device.library.emulated_seed(c_ulonglong(seed))
        stream, event = device.stream(), device.event()
        x = device.array(np.ones(N, np.float32))
        for _ in range(4):
            scaled(device, x, x, stream)
        device.call("cuEventRecord", event, stream)
        asked = 0
        while device.library.cuEventQuery(event) == 600:
            asked += 1
        assert device.library.cuEventQuery(event) == 0
        not_ready.append(asked)
        device.free(x)
    assert max(not_ready) > 1


def test_functions_of_the_host_run_in_order_and_may_wait(device: Client) -> None:
    stream, x = device.stream(), device.array(np.ones(N, np.float32))
    seen = []

    def look(_: int) -> None:
        other = threading.Thread(target=lambda: seen.append(device.library.emulated_pending()))
        other.start()  # it needs the driver, and Python
        other.join()

    function = ctypes.CFUNCTYPE(None, c_void_p)(look)
    scaled(device, x, x, stream)
    device.call("cuLaunchHostFunc", stream, function, None)
    scaled(device, x, x, stream)
    device.call("cuStreamSynchronize", stream)
    assert len(seen) == 1
    assert device.read(x, 1)[0] == 7
    device.free(x)


# -------------------------------------------------------------------- copies


def pinned(device: Client, count: int) -> tuple[c_void_p, np.ndarray]:
    memory = device.made("cuMemHostAlloc", c_size_t(4 * count), 0)
    array = np.frombuffer((ctypes.c_char * (4 * count)).from_address(memory.value), np.float32)
    return memory, array


def test_pinned_memory_is_read_when_the_stream_gets_there(device: Client) -> None:
    found = []
    for seed in SEEDS:
        device.library.emulated_seed(c_ulonglong(seed))
        stream, x = device.stream(), device.allocate(4 * N)
        memory, array = pinned(device, N)
        array[...] = 1
        device.call("cuMemcpyHtoDAsync_v2", c_ulonglong(x), memory, c_size_t(4 * N), stream)
        array[...] = 2
        device.call("cuStreamSynchronize", stream)
        found.append(device.read(x, 1)[0])
        device.call("cuMemFreeHost", memory)
        device.free(x)
    assert set(found) == {1, 2}


def test_pageable_memory_is_read_at_once(device: Client) -> None:
    for seed in SEEDS:
        device.library.emulated_seed(c_ulonglong(seed))
        stream, x, array = device.stream(), device.allocate(4 * N), np.ones(N, np.float32)
        device.call("cuMemcpyHtoDAsync_v2", c_ulonglong(x), array.ctypes, c_size_t(4 * N), stream)
        array[...] = 2
        device.call("cuStreamSynchronize", stream)
        assert device.read(x, 1)[0] == 1
        device.free(x)


def test_a_copy_that_blocks_need_not_have_arrived(device: Client) -> None:
    """NVIDIA's documentation says so: a stream that is not blocking may come before it."""
    found = []
    for seed in SEEDS:
        device.library.emulated_seed(c_ulonglong(seed))
        stream, x = device.stream(), device.allocate(4 * N)
        y = device.allocate(4 * N)
        given = np.ones(N, np.float32)
        device.call("cuMemcpyHtoD_v2", c_ulonglong(x), given.ctypes, c_size_t(4 * N))
        scaled(device, y, x, stream)
        device.call("cuStreamSynchronize", stream)
        found.append(np.isnan(device.read(y, 1)[0]))
        device.free(x)
        device.free(y)
    assert set(found) == {True, False}


def test_fills(device: Client) -> None:
    x = device.array(np.arange(24, dtype=np.float32))
    device.call("cuMemsetD2D32_v2", c_ulonglong(x), c_size_t(24), 0, c_size_t(2), c_size_t(4))
    device.call("cuMemsetD8_v2", c_ulonglong(x + 16), 0, c_size_t(4))
    found = device.read(x, 24).reshape(4, 6)
    wanted = np.arange(24, dtype=np.float32).reshape(4, 6)
    wanted[:, :2] = 0
    wanted[0, 4] = 0
    assert (found == wanted).all()
    device.call("cuMemsetD16Async", c_ulonglong(x), 0x4040, c_size_t(4), None)
    assert device.read(x, 2, np.uint16).tolist() == [0x4040, 0x4040]
    device.free(x)


def test_copies_stay_within_an_allocation(device: Client) -> None:
    x, y = device.allocate(100), device.allocate(100)
    for to, source, nbytes in [(x, y, 101), (x + 1, y, 100), (x, y + 100, 1), (16, y, 4)]:
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            device.call("cuMemcpyDtoD_v2", c_ulonglong(to), c_ulonglong(source), c_size_t(nbytes))
    device.call("cuMemcpyDtoD_v2", c_ulonglong(x), c_ulonglong(y), c_size_t(100))
    base, size = c_ulonglong(), c_size_t()
    device.call("cuMemGetAddressRange_v2", byref(base), byref(size), c_ulonglong(x + 99))
    assert (base.value, size.value) == (x, 100)
    device.free(x)
    device.free(y)
