"""Modules and launches: what kernels are given, and what a launch may ask for."""

from __future__ import annotations

import ctypes
import re
import struct
from ctypes import (
    byref,
    c_byte,
    c_double,
    c_float,
    c_int,
    c_longlong,
    c_short,
    c_ubyte,
    c_ulonglong,
)

import numpy as np
import pytest

from tests.cuda.driver.client import Client, DriverError
from tests.cuda.driver.cubin import emulated_cubin
from tests.cuda.driver.kernels import (
    ARGUMENTS,
    DYNAMIC_SUM,
    SCALE_AND_ADD,
    TWO_KERNELS,
    WAITS_AT_DIFFERENT_BARRIERS,
)

MOST_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
GIVEN = (-3, -300, 70000, 5, -(1 << 40), 0.5, 200, 1e300)


def test_arguments_by_their_addresses(device: Client) -> None:
    function = device.function(emulated_cubin(ARGUMENTS), "arguments")
    y = device.allocate(64)
    kinds = (c_byte, c_short, c_int, c_byte, c_longlong, c_float, c_ubyte, c_double)
    values = [kind(value) for kind, value in zip(kinds, GIVEN, strict=True)]
    device.launch(function, None, [c_ulonglong(y), *values])
    assert tuple(device.read(y, 8, np.float64)) == GIVEN
    device.free(y)


def test_arguments_packed(device: Client) -> None:
    """As C lays out a structure, without its end."""
    function = device.function(emulated_cubin(ARGUMENTS), "arguments")
    y = device.allocate(64)
    device.launch_packed(function, None, struct.pack("@Qbhibqf B d".replace(" ", ""), y, *GIVEN))
    assert tuple(device.read(y, 8, np.float64)) == GIVEN
    device.free(y)


@pytest.mark.parametrize("nbytes", [0, 8, 39, 40, 55, 57, 64])
def test_arguments_of_another_size_are_refused(device: Client, nbytes: int) -> None:
    function = device.function(emulated_cubin(ARGUMENTS), "arguments")
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        device.launch_packed(function, None, bytes(nbytes))


def test_arguments_are_read_when_the_launch_is_queued(device: Client) -> None:
    for seed in range(10):
        device.library.emulated_seed(c_ulonglong(seed))
        function = device.function(emulated_cubin(SCALE_AND_ADD), "scale_and_add")
        stream, x = device.stream(), device.array(np.ones(10, np.float32))
        factor = c_float(2)
        device.launch(
            function, stream, [c_ulonglong(x), c_ulonglong(x), factor, c_float(0), c_longlong(10)]
        )
        factor.value = 100
        device.call("cuStreamSynchronize", stream)
        assert (device.read(x, 10) == 2).all()
        device.free(x)


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((0, 1, 1), (1, 1, 1)),
        ((1, 65536, 1), (1, 1, 1)),
        ((1, 1, 1), (65, 1, 1)),  # its launch bounds are 64
        ((1, 1, 1), (1, 1, 65)),
        ((1, 1, 1), (8, 8, 2)),
    ],
)
def test_grids_that_a_device_does_not_have(
    device: Client, grid: tuple[int, ...], block: tuple[int, ...]
) -> None:
    function = device.function(emulated_cubin(SCALE_AND_ADD), "scale_and_add")
    arguments = [c_ulonglong(0), c_ulonglong(0), c_float(0), c_float(0), c_longlong(0)]
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        device.launch(function, None, arguments, grid=grid, block=block)


# -------------------------------------------------------------------- shared memory


def dynamic_sum(device: Client, threads: int, given: int, shared: int) -> float:
    function = device.function(emulated_cubin(DYNAMIC_SUM), "dynamic_sum")
    x, y = device.array(np.ones(threads, np.float32)), device.allocate(4)
    arguments = [c_ulonglong(y), c_ulonglong(x), c_int(given)]
    device.launch(function, None, arguments, block=(threads, 1, 1), shared=shared)
    found = float(device.read(y, 1)[0])
    device.free(x)
    device.free(y)
    return found


def test_shared_memory_that_a_launch_adds(device: Client) -> None:
    assert dynamic_sum(device, 64, 64, 256) == 64
    assert np.isnan(dynamic_sum(device, 64, 65, 512))  # nobody wrote the last one


def test_an_access_outside_of_it_is_found(client: Client) -> None:
    with client.context(), pytest.raises(DriverError, match="an access outside"):
        dynamic_sum(client, 64, 64, 128)


def test_more_than_48_kib_are_to_be_asked_for(device: Client) -> None:
    function = device.function(emulated_cubin(DYNAMIC_SUM), "dynamic_sum")
    x, y = device.array(np.ones(32, np.float32)), device.allocate(4)
    arguments = [c_ulonglong(y), c_ulonglong(x), c_int(32)]
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        device.launch(function, None, arguments, shared=49 << 10)
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        device.call("cuFuncSetAttribute", function, MOST_DYNAMIC_SHARED, 228 << 10)
    device.call("cuFuncSetAttribute", function, MOST_DYNAMIC_SHARED, 227 << 10)
    device.launch(function, None, arguments, shared=227 << 10)
    assert device.read(y, 1)[0] == 32
    device.free(x)
    device.free(y)


def test_a_kernel_that_fails_says_how(client: Client) -> None:
    with client.context():
        function = client.function(emulated_cubin(WAITS_AT_DIFFERENT_BARRIERS), "divergent")
        client.launch(function, None, [c_ulonglong(client.allocate(4))])
        message = "LAUNCH_FAILED.*kernel divergent: threads wait at different places"
        with pytest.raises(DriverError, match=message):
            client.call("cuCtxSynchronize")


# -------------------------------------------------------------------- modules


def test_kernels_of_one_module(device: Client) -> None:
    module = device.made("cuModuleLoadData", emulated_cubin(TWO_KERNELS))
    y = device.allocate(4)
    for name in (b"first", b"second", b"second"):
        device.launch(device.made("cuModuleGetFunction", module, name), None, [c_ulonglong(y)])
    assert device.read(y, 1, np.int32)[0] == 5
    with pytest.raises(DriverError, match="NOT_FOUND"):
        device.made("cuModuleGetFunction", module, b"third")
    device.free(y)
    device.call("cuModuleUnload", module)


def test_a_module_that_is_gone(device: Client) -> None:
    module = device.made("cuModuleLoadData", emulated_cubin(TWO_KERNELS))
    function = device.made("cuModuleGetFunction", module, b"first")
    device.call("cuModuleUnload", module)
    with pytest.raises(DriverError, match="INVALID_HANDLE"):
        device.launch(function, None, [c_ulonglong(0)])


def test_many_modules_of_one_source_are_apart(device: Client) -> None:
    source = TWO_KERNELS + "\n// loaded twice"
    loaded = [device.made("cuModuleLoadData", emulated_cubin(source)) for _ in range(3)]
    assert len({module.value for module in loaded}) == 3
    for module in loaded:
        device.call("cuModuleUnload", module)


@pytest.mark.parametrize("image", [b"PTX" + bytes(100), b"\x7fELF" + bytes(100)])
def test_what_is_no_cubin_of_the_emulation(device: Client, image: bytes) -> None:
    with pytest.raises(DriverError, match="INVALID_IMAGE"):
        device.made("cuModuleLoadData", image)


def test_attributes_of_a_kernel(device: Client) -> None:
    source = re.sub(r"extern __shared__ float part\[\]", "__shared__ float part[100]", DYNAMIC_SUM)
    function = device.function(emulated_cubin(source), "dynamic_sum")
    values = []
    for which in (0, 1, MOST_DYNAMIC_SHARED):
        value = ctypes.c_int()
        device.call("cuFuncGetAttribute", byref(value), which, function)
        values.append(value.value)
    assert values == [1024, 400, (48 << 10) - 400]
