"""Devices, contexts and threads."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from ctypes import byref, c_int, c_size_t, c_void_p
from pathlib import Path

import pytest

from stagejit.codegen.cuda.text.printer import cuda_source
from stagejit.runtime.cuda.code import nvrtc
from tests.codegen.ir.grid.kernels import block_sum
from tests.cuda.driver import build
from tests.cuda.driver.client import Client, DriverError

ROOT = Path(__file__).resolve().parents[3]


def test_the_device(device: Client) -> None:
    name = ctypes.create_string_buffer(100)
    device.call("cuDeviceGetName", name, 100, 0)
    assert name.value == b"Emulated NVIDIA H100"
    values = []
    for which in (1, 8, 10, 16, 39, 75, 76, 97):
        value = c_int()
        device.call("cuDeviceGetAttribute", byref(value), which, 0)
        values.append(value.value)
    assert values == [1024, 49152, 32, 132, 2048, 9, 0, 232448]


def test_a_thread_needs_a_context(client: Client) -> None:
    for call in ("cuMemAlloc_v2", "cuStreamCreate", "cuEventCreate"):
        with pytest.raises(DriverError, match="INVALID_CONTEXT"):
            client.made(call, c_size_t(8))
    with client.context():
        said: list[str] = []

        def elsewhere() -> None:
            try:
                client.stream()
            except DriverError as error:
                said.append(str(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert "INVALID_CONTEXT" in said[0]


def test_the_primary_context_is_one(client: Client) -> None:
    with client.context() as first:
        with client.context() as second:
            assert first.value == second.value
            x = client.allocate(100)
        client.free(x)
        current = client.made("cuCtxGetCurrent")
        assert current.value == first.value
        x = client.allocate(100)
    assert client.library.emulated_used_nbytes() == 0  # nobody retains it any more
    with client.context(), pytest.raises(DriverError, match="INVALID_VALUE"):
        client.free(x)


def test_contexts_have_their_own_things(client: Client) -> None:
    with client.context():
        stream = client.stream()
        other = client.made("cuCtxCreate_v2", 0, 0)
        with pytest.raises(DriverError, match="INVALID_HANDLE"):
            client.call("cuStreamSynchronize", stream)
        client.call("cuCtxDestroy_v2", other)
        client.call("cuStreamSynchronize", stream)
        client.call("cuStreamDestroy_v2", stream)
        with pytest.raises(DriverError, match="INVALID_HANDLE"):
            client.call("cuStreamSynchronize", stream)
    with pytest.raises(DriverError, match="INVALID_CONTEXT"):
        client.call("cuCtxPushCurrent_v2", other)
    with pytest.raises(DriverError, match="INVALID_CONTEXT"):
        client.call("cuCtxPopCurrent_v2", None)


def test_functions_by_their_names(device: Client) -> None:
    found, status = c_void_p(), c_int()
    device.call("cuGetProcAddress_v2", b"cuMemAlloc", byref(found), 12000, 0, byref(status))
    made = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t)(found.value)
    address = ctypes.c_ulonglong()
    assert made(ctypes.addressof(address), 100) == 0
    device.free(address.value)
    with pytest.raises(DriverError, match="NOT_FOUND"):
        device.call("cuGetProcAddress_v2", b"cuNothing", byref(found), 12000, 0, byref(status))


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [
        ("DEVICE", "h100", "0 Emulated NVIDIA H100 13000"),
        ("DEVICE", "h200", "0 Emulated NVIDIA H200 13000"),
        ("DEVICE", "none", "100 13000"),
        ("VERSION", "12040", "0 Emulated NVIDIA H100 12040"),
    ],
)
def test_the_environment_says_which_device_it_is(
    client: Client, variable: str, value: str, wanted: str
) -> None:
    program = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
name, version = ctypes.create_string_buffer(100), ctypes.c_int()
code = cuda.cuInit(0)
if code == 0: cuda.cuDeviceGetName(name, 100, 0)
cuda.cuDriverGetVersion(ctypes.byref(version))
print(code, name.value.decode(), version.value)
"""
    environment = {"LD_LIBRARY_PATH": str(build.library_folder())}
    environment[f"STAGEJIT_EMULATED_{variable}"] = value
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, cwd=ROOT,
        text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == wanted.split()


@pytest.mark.usefixtures("client")
@pytest.mark.skipif(not nvrtc.is_installed(), reason="needs `nvidia-cuda-nvrtc`")
def test_nvrtc_compiles_beside_it() -> None:
    """It asks the driver of the process, if there is one, for what it knows."""
    assert nvrtc.compile_cubin(cuda_source(block_sum(64).finish(), "kernel"), "sm_90a").code
