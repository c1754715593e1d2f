"""GPUArrays come in and go out without a copy."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import stagejit
from stagejit.runtime.cuda.arrays.device_arrays import device_array
from stagejit.runtime.cuda.drivers import using
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
        driver.follow(driver.main, found.stream)
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
        array = driver.array(address, (10, N // 10), np.dtype(np.float32))
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


@pytest.mark.parametrize("in_order", [True, False])
def test_a_function_takes_gpu_arrays_and_returns_them(
    driver: PyCudaDriver, device: Device, in_order: bool
) -> None:
    """PyCUDA returns from a copy to the device before that is there, as NVIDIA's driver does; and
    nobody waits for a call before its results are read on the default stream."""
    device.need_pycuda()
    if not (in_order or device.emulated):
        pytest.skip("a GPU may do the right thing by chance")
    from pycuda import gpuarray

    if not in_order:
        with driver.current():
            driver._main = driver._new_stream()
    array, right = np.arange(N, dtype=np.float32), []
    with using(driver):
        function = stagejit.jit(lambda x: (x * 2, x.sum()), backend="cuda")
        for seed in range(12):
            device.seed(seed)
            with driver.current():
                doubled, total = function(gpuarray.to_gpu(array))
                assert isinstance(doubled, gpuarray.GPUArray)
                right.append((doubled.get() == 2 * array).all() and total.get() == array.sum())
                again, _ = function(doubled)
                assert device_array(again).stream == 1
                right[-1] &= (again.get() == 2 * doubled.get()).all()
                del doubled, total, again
    assert set(right) == ({True} if in_order else {True, False})


def test_a_donated_array_is_written_in_place_and_invalid(
    driver: PyCudaDriver, device: Device
) -> None:
    device.need_pycuda()
    from pycuda import gpuarray

    array = np.arange(N, dtype=np.float32)
    with using(driver), driver.current():
        function = stagejit.jit(lambda x: x.at[0].set(9), backend="cuda", donate_argnums=0)
        given = gpuarray.to_gpu(array)
        address = int(given.gpudata)
        for _ in range(3):  # of what the call before it returned
            found = function(given)
            assert int(found.gpudata) == address
            with pytest.raises(RuntimeError, match="deleted"):
                device_array(given)
            with pytest.raises(RuntimeError, match="deleted"):
                given.get()
            given = found
        assert found.get()[:2].tolist() == [9, 1]
        del given, found


def test_memory_of_a_result_is_used_again_after_it_was_read(
    driver: PyCudaDriver, device: Device
) -> None:
    """Somebody reads it on the default stream, and lets it go before that is done."""
    device.need_pycuda()
    import pycuda.driver as cuda
    from pycuda import gpuarray

    with using(driver):
        function = stagejit.jit(lambda x: x * 2, backend="cuda")
        for seed in range(12):
            device.seed(seed)
            with driver.current():
                ones = gpuarray.to_gpu(np.ones(N, np.float32))
                kept = gpuarray.empty(N, np.float32)
                for factor in (1, 2, 3):
                    given = gpuarray.to_gpu(np.full(N, factor, np.float32))
                    found = function(given)
                    cuda.memcpy_dtod_async(kept.gpudata, found.gpudata, 4 * N)
                    del found
                    function(ones)
                    assert (kept.get() == 2 * factor).all()
                    del given
                del ones, kept
