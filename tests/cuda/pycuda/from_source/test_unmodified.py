"""PyCUDA as it is, without a line of ours, on the emulated driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.driver import build
from tests.cuda.driver.cubin import emulated_cubin
from tests.cuda.driver.kernels import SCALE_AND_ADD
from tests.cuda.pycuda.conftest import Device

PROGRAM = """
import sys
import numpy as np
import pycuda.{context}
import pycuda.driver as cuda
from pycuda import gpuarray
from pycuda.tools import DeviceMemoryPool, PageLockedMemoryPool

with open(sys.argv[1], "rb") as file:
    function = cuda.module_from_buffer(file.read()).get_function("scale_and_add")
function.prepare("PPffq")
pool, pinned = DeviceMemoryPool(), PageLockedMemoryPool()
x = gpuarray.to_gpu(np.arange(100, dtype=np.float32), allocator=pool.allocate)
y = gpuarray.empty(100, np.float32, allocator=pool.allocate)
first, second = cuda.Stream(), cuda.Stream()
start, ready, end = cuda.Event(), cuda.Event(), cuda.Event()
start.record(first)
function.prepared_async_call((2, 1), (64, 1, 1), first, y.gpudata, x.gpudata, 2, 1, 100)
ready.record(first)
second.wait_for_event(ready)
function.prepared_async_call((2, 1), (64, 1, 1), second, x.gpudata, y.gpudata, 3, 0, 100)
end.record(second)
host = pinned.allocate((100,), np.float32)
cuda.memcpy_dtoh_async(host, x.gpudata, second)
second.synchronize()
assert (host == 6 * np.arange(100) + 3).all()
function(y, x, np.float32(2), np.float32(0), np.int64(100), block=(64, 1, 1), grid=(2, 1))
assert (y.get() == 2 * host).all()
assert end.time_since(start) >= 0
assert function.max_threads_per_block == 64
view = gpuarray.GPUArray((10, 10), np.float32, gpudata=y.gpudata)
assert (view[3:5].get() == 2 * host.reshape(10, 10)[3:5]).all()
free, total = cuda.mem_get_info()
assert 0 < total - free <= 2048
print(cuda.Context.get_device().name())
del x, y, view, host  # PyCUDA ends the process where a pool goes later than the context
pool.stop_holding()
pinned.stop_holding()
"""


@pytest.mark.parametrize("context", ["autoprimaryctx", "autoinit"])
@pytest.mark.parametrize("seed", range(4))
def test_a_program(device: Device, tmp_path: Path, context: str, seed: int) -> None:
    if not device.emulated:
        pytest.skip("for the emulated driver")
    device.need_pycuda()
    path = tmp_path / "kernels.cubin"
    path.write_bytes(emulated_cubin(SCALE_AND_ADD))
    environment = {
        "LD_LIBRARY_PATH": str(build.library_folder()),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "STAGEJIT_EMULATED_SEED": str(seed),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM.format(context=context), str(path)],
        env={**os.environ, **environment}, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("Emulated NVIDIA H100\n", "")
