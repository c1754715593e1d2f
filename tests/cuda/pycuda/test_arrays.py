"""GPUArrays come in and go out without a copy."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from stagejit.runtime.cuda.device_arrays import device_array
from stagejit.runtime.cuda.pycuda import PyCudaDriver
from tests.cuda.pycuda.conftest import Device
from tests.cuda.pycuda.kernels import N, axpy


@pytest.mark.parametrize("seed", range(5))
def test_a_gpu_array_is_read_where_it_is(driver: PyCudaDriver, device: Device, seed: int) -> None:
    device.need_pycuda()
    from pycuda import gpuarray

    device.seed(seed)
    with driver.current():
        theirs = gpuarray.to_gpu(np.arange(N, dtype=np.float32))
        found = device_array(theirs)
        assert (found.address, found.shape, found.dtype) == (int(theirs.gpudata), (N,), np.float32)
        assert found.strides is None
        driver.follow(driver.main, found.stream or 1)
        axpy(driver, found.address, found.address, 1, driver.main)
        driver.synchronize(driver.main)
        assert (theirs.get() == 2 * np.arange(N)).all()
        transposed = gpuarray.to_gpu(np.zeros((2, 3), np.float32)).T
        assert device_array(transposed).strides == (4, 12)
        del theirs, found, transposed


def test_a_gpu_array_is_made_of_a_piece_of_memory(driver: PyCudaDriver, device: Device) -> None:
    device.need_pycuda()
    with driver.current():
        address = driver.allocate(4 * N)
        driver.copy_in(address, np.arange(N, dtype=np.float32), driver.main)
        driver.synchronize(driver.main)
        array = driver.gpu_array(address, (10, N // 10), np.dtype(np.float32))
        assert (array.get() == np.arange(N).reshape(10, -1)).all()
        assert device_array(array).address == address
        part = array[2:4]
    del array
    gc.collect()
    with driver.current():
        assert driver.allocate(4 * N) != address  # a part of it is still held
        assert (part.get() == np.arange(20, 40).reshape(2, -1)).all()
    del part
    gc.collect()
    with driver.current():
        assert driver.allocate(4 * N) == address
