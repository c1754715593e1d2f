"""Memory of the device: what is in it, where it ends, and when it is there."""

from __future__ import annotations

import ctypes
from ctypes import c_longlong, c_size_t, c_ulonglong, c_void_p

import numpy as np
import pytest

from tests.cuda.driver.client import Client, DriverError
from tests.cuda.driver.cubin import emulated_cubin
from tests.cuda.driver.kernels import WRITES_OUTSIDE

SEEDS = range(20)


def write(device: Client, y: int, at: int, stream: c_void_p | None = None) -> None:
    """y[at] = 1, and waits."""
    function = device.function(emulated_cubin(WRITES_OUTSIDE), "writes_outside")
    device.launch(function, stream, [c_ulonglong(y), c_longlong(at)])
    device.call("cuCtxSynchronize")


def test_new_memory_is_nan(device: Client) -> None:
    x = device.allocate(100)
    assert np.isnan(device.read(x, 25)).all()
    assert np.isnan(device.read(x, 12, np.float64)).all()
    device.free(x)


def test_addresses_are_aligned_and_never_used_again(device: Client) -> None:
    seen = []
    for nbytes in [1, 100, 256, 4096, 5000, 1 << 20] * 3:
        seen.append(device.allocate(nbytes))
        device.free(seen[-1])
    assert all(address % 256 == 0 for address in seen)
    assert len(set(seen)) == len(seen)


FAR = 1 << 40  # where no process has memory

# The places of one array of 25 floats (and 156 bytes up to a page that nobody may touch).
PLACES = [(0, ""), (24, ""), (25, "a store beside"), (63, "a store beside"),
          (64, "an access outside"), (-1, "a store beside"), (-960, "a store beside"),
          (-961, "an access outside"), (FAR, "an access outside")]  # fmt: skip


@pytest.mark.parametrize(("at", "message"), PLACES)
def test_an_access_outside_an_allocation_is_found(client: Client, at: int, message: str) -> None:
    with client.context():
        x = client.allocate(100)
        if message:
            with pytest.raises(DriverError, match=f"ILLEGAL_ADDRESS.*writes_outside: {message}"):
                write(client, x, at)
        else:
            write(client, x, at)
            client.free(x)


def test_a_fault_breaks_the_context_until_it_is_made_anew(client: Client) -> None:
    with client.context():
        x = client.allocate(100)
        with pytest.raises(DriverError, match="ILLEGAL_ADDRESS"):
            write(client, x, FAR)
        for _ in range(2):
            with pytest.raises(DriverError, match="ILLEGAL_ADDRESS"):
                client.allocate(100)
    with client.context():
        client.free(client.allocate(100))
    assert client.library.emulated_used_nbytes() == 0


def test_freed_memory_is_not_there(client: Client) -> None:
    with client.context():
        x = client.allocate(100)
        client.free(x)
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            client.free(x)
        with pytest.raises(DriverError, match="an access outside"):
            write(client, x, 0)


def test_memory_of_a_stream_is_there_in_its_order(device: Client) -> None:
    for seed in SEEDS:
        device.library.emulated_seed(c_ulonglong(seed))
        stream = device.stream()
        x = device.made("cuMemAllocAsync", c_size_t(100), stream, kind=c_ulonglong).value
        write(device, x, 3, stream)
        device.call("cuMemFreeAsync", c_ulonglong(x), stream)
        device.call("cuStreamSynchronize", stream)
    assert device.library.emulated_used_nbytes() == 0


@pytest.mark.parametrize("freed", [False, True])
def test_another_stream_needs_an_event_for_it(client: Client, freed: bool) -> None:
    """Before it is there, and after it has gone."""
    faults = []
    for seed in SEEDS:
        with client.context():
            client.library.emulated_seed(c_ulonglong(seed))
            own, other = client.stream(), client.stream()
            x = client.made("cuMemAllocAsync", c_size_t(100), own, kind=c_ulonglong).value
            if freed:
                client.after(other, own)
                client.call("cuMemFreeAsync", c_ulonglong(x), own)
            try:
                write(client, x, 3, other)
                faults.append(False)
            except DriverError as error:
                assert "an access outside" in str(error)  # noqa: PT017  not with each seed
                faults.append(True)
    assert set(faults) == {False, True}


def test_a_copy_of_freed_memory_is_found(client: Client) -> None:
    found = []
    for seed in SEEDS:
        with client.context():
            client.library.emulated_seed(c_ulonglong(seed))
            first, second = client.stream(), client.stream()
            x = client.made("cuMemAllocAsync", c_size_t(100), first, kind=c_ulonglong).value
            client.call("cuMemsetD8Async", c_ulonglong(x), 0, c_size_t(100), second)
            found.append(client.library.cuCtxSynchronize())
    assert set(found) == {0, 700}


def test_there_is_no_more_than_there_is(device: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEJIT_EMULATED_NBYTES", "10000")
    x = device.allocate(6000)
    with pytest.raises(DriverError, match="OUT_OF_MEMORY"):
        device.allocate(6000)
    device.free(x)
    device.free(device.allocate(6000))
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        device.allocate(0)


def test_whose_memory_an_address_is_of(device: Client) -> None:
    x, host = device.allocate(100), device.made("cuMemHostAlloc", c_size_t(100), 0)
    array = np.zeros(25, np.float32)
    kinds = []
    for address in (x, host.value, array.ctypes.data):
        kind = ctypes.c_uint()
        code = device.library.cuPointerGetAttribute(ctypes.byref(kind), 2, c_ulonglong(address))
        kinds.append((code, kind.value))
    assert kinds == [(0, 2), (0, 1), (1, 0)]
    device.call("cuMemFreeHost", host)
    device.free(x)
