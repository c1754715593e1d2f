"""`PyCudaDriver` does what `Driver` promises: kernels, memory, order, graphs."""

from __future__ import annotations

import ctypes
import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from stagejit.runtime.cuda.code.cubins import Compiler
from stagejit.runtime.cuda.driver import Source
from stagejit.runtime.cuda.driver_api import DeviceError
from stagejit.runtime.cuda.pycuda import PyCudaDriver
from stagejit.runtime.objects.object_cache import ObjectCache
from tests.cuda.driver.kernels import AXPY
from tests.cuda.pycuda.conftest import Device
from tests.cuda.pycuda.kernels import (
    AXPY_SOURCE,
    WRITES_OUTSIDE_SOURCE,
    N,
    axpy,
    sum_source,
)

SEEDS = range(12)


def read(
    driver: PyCudaDriver, address: int, count: int = N, dtype: type = np.float32
) -> np.ndarray:
    found = np.empty(count, dtype)
    driver.copy_out(found, address, driver.main)
    return found


def given(driver: PyCudaDriver, array: np.ndarray) -> int:
    address = driver.allocate(array.nbytes)
    driver.copy_in(address, array, driver.main)
    return address


# -------------------------------------------------------------------- kernels


def test_a_kernel_is_launched(driver: PyCudaDriver) -> None:
    with driver.current():
        x, y = given(driver, np.arange(N, dtype=np.float32)), given(driver, np.ones(N, np.float32))
        axpy(driver, y, x, 3, driver.main)
        assert (read(driver, y) == 3 * np.arange(N) + 1).all()
        driver.free(x)
        driver.free(y)


def test_kernels_are_compiled_once(device: Device, tmp_path: Path) -> None:
    """In a process, and with what is on disk in all of them."""
    compiled: list[tuple[str, str]] = []

    def compile(source: str, arch: str) -> bytes:
        compiled.append((source, arch))
        return device.compiler.compile(source, arch)

    def loaded(identity: str) -> None:
        store = ObjectCache(tmp_path / "cache")
        driver = PyCudaDriver(compiler=Compiler(identity, compile, compile), store=store)
        with driver.current():
            first = driver.load([AXPY_SOURCE, sum_source(0)])
            assert driver.load([AXPY_SOURCE])["axpy"] is first["axpy"]
        driver.close()

    loaded("one")
    assert sorted(compiled) == sorted((text, compiled[0][1])
                                      for text in (AXPY, sum_source(0).text))  # fmt: skip
    assert compiled[0][1].startswith("sm_")
    loaded("one")
    assert len(compiled) == 2
    loaded("another")
    assert len(compiled) == 4


def test_one_source_may_have_many_names(driver: PyCudaDriver) -> None:
    text = AXPY + AXPY.replace("axpy", "again").replace("y[i] +", "1 +")
    sources = [Source("axpy", text, (64,)), Source("again", text, (64,))]
    with driver.current():
        found = driver.load(sources)
        x = given(driver, np.ones(N, np.float32))
        arguments = struct.pack("4Q", x, x, N, 1)
        for name in ("axpy", "again"):
            driver.launch(found[name], (2, 1, 1), (64, 1, 1), 0, driver.main, arguments)
        assert (read(driver, x) == 3).all()
        driver.free(x)


@pytest.mark.parametrize("kib", [1, 48, 100, 227])
def test_shared_memory_that_a_launch_adds(driver: PyCudaDriver, kib: int) -> None:
    nbytes = kib << 10
    with driver.current():
        function = driver.load([sum_source(nbytes)])["dynamic_sum"]
        x, y = given(driver, np.ones(256, np.float32)), driver.allocate(4)
        arguments = struct.pack("QQq", y, x, 256)
        driver.launch(function, (1, 1, 1), (256, 1, 1), nbytes, driver.main, arguments)
        assert read(driver, y, 1)[0] == 256
        driver.free(x)
        driver.free(y)


def test_a_kernel_that_fails_is_told_of(device: Device) -> None:
    if not device.emulated:
        pytest.skip("it would break the context for all tests after it")
    driver = PyCudaDriver(compiler=device.compiler)
    said = r"illegal memory access.*writes_outside: an access outside[\s\S]*Next: start the process"
    with driver.current():
        y = driver.allocate(4)
        function = driver.load([WRITES_OUTSIDE_SOURCE])["writes_outside"]
        arguments = struct.pack("Qq", y, 1 << 40)
        driver.launch(function, (1, 1, 1), (32, 1, 1), 0, driver.main, arguments)
    with pytest.raises(DeviceError, match=said), driver.current():
        driver.synchronize(driver.main)
    assert device.context_depth() == 0
    del function
    driver.close()
    assert device.context_depth() == 0
    build_anew = PyCudaDriver(compiler=device.compiler)
    with build_anew.current():
        build_anew.free(build_anew.allocate(4))
    build_anew.close()


# -------------------------------------------------------------------- memory


def test_memory_is_used_again(driver: PyCudaDriver) -> None:
    with driver.current():
        first = driver.allocate(1000)
        other = driver.allocate(1000)
        assert first != other
        assert first % 16 == other % 16 == 0
        driver.free(first)
        assert driver.allocate(1000) == first
        driver.free(first)
        driver.free(other)
        driver.free(driver.allocate(0))


def test_what_is_not_used_goes_back(driver: PyCudaDriver, device: Device) -> None:
    before = device.used_nbytes()
    with driver.current():
        driver.free(driver.allocate(1 << 16))
        if device.emulated:
            assert device.used_nbytes() > before
        driver.trim()
    assert device.used_nbytes() == before


def test_there_is_no_more_than_there_is(driver: PyCudaDriver) -> None:
    with pytest.raises(MemoryError, match=r"NVIDIA.*memory"), driver.current():
        driver.allocate(1 << 45)
    with driver.current():
        driver.free(driver.allocate(100))


@pytest.mark.parametrize("array", [
    np.arange(7, dtype=np.int8), np.arange(6, dtype=np.complex64).reshape(2, 3),
    np.zeros((3, 0), np.float32), np.array(2.5), np.array([True, False]),
    np.broadcast_to(np.float32(3), 1).copy(),
], ids=lambda array: f"{array.dtype}{array.shape}")  # fmt: skip
def test_arrays_come_and_go(driver: PyCudaDriver, array: np.ndarray) -> None:
    with driver.current():
        address = driver.allocate(array.nbytes)
        driver.copy_in(address, array, driver.main)
        found = np.zeros_like(array)
        driver.copy_out(found, address, driver.main)
        assert np.array_equal(found, array)
        driver.free(address)


def test_elements_without_a_buffer_of_their_own(driver: PyCudaDriver) -> None:
    import ml_dtypes

    array = np.arange(8).astype(ml_dtypes.bfloat16)
    with driver.current():
        address = driver.allocate(array.nbytes)
        driver.copy_in(address, array, driver.main)
        found = np.zeros_like(array)
        driver.copy_out(found, address, driver.main)
        assert (found == array).all()
        driver.free(address)


@pytest.mark.parametrize("pinned", [False, True])
def test_an_array_may_change_as_soon_as_it_is_copied(
    driver: PyCudaDriver, device: Device, pinned: bool
) -> None:
    import pycuda.driver as cuda

    for seed in SEEDS:
        device.seed(seed)
        with driver.current():
            array = cuda.pagelocked_empty(N, np.float32) if pinned else np.empty(N, np.float32)
            array[...] = 1
            address = driver.allocate(array.nbytes)
            driver.copy_in(address, array, driver.main)
            array[...] = 2
            driver.copy_out(array, address, driver.main)
            assert (array == 1).all()
            driver.free(address)
            del array


@pytest.mark.parametrize("nbytes", [1, 2, 4, 8])
@pytest.mark.parametrize("value", [0, 1, -1, -2, 100, 0x1234567812345678, 0x0102030405060708])
def test_integers_are_stored(driver: PyCudaDriver, value: int, nbytes: int) -> None:
    with driver.current():
        address = driver.allocate(16)
        driver.fill(address, 0x55, 16, driver.main)
        driver.store(address, value, nbytes, driver.main)
        found = read(driver, address, 16, np.uint8).tobytes()
        driver.free(address)
    assert found[:nbytes] == (value % (1 << 8 * nbytes)).to_bytes(nbytes, "little")
    assert found[nbytes:] == b"\x55" * (16 - nbytes)


def test_copies_inside_of_the_device(driver: PyCudaDriver) -> None:
    with driver.current():
        x, y = given(driver, np.arange(N, dtype=np.float32)), driver.allocate(4 * N)
        driver.fill(y, 0, 4 * N, driver.main)
        driver.copy(y + 40, x, 4 * (N - 10), driver.main)
        driver.copy(y, x, 0, driver.main)
        assert (read(driver, y) == np.r_[np.zeros(10), np.arange(N - 10)]).all()
        driver.free(x)
        driver.free(y)


# -------------------------------------------------------------------- order


def chain(driver: PyCudaDriver, *, with_event: bool = True) -> np.ndarray:
    """Fills y on one stream, adds x to it on another."""
    with driver.current():
        other = driver.new_stream()
        x, y = given(driver, np.ones(N, np.float32)), driver.allocate(4 * N)
        driver.fill(y, 0, 4 * N, driver.main)
        if with_event:
            event = driver.new_event()
            driver.record(event, driver.main)
            driver.wait(other, event)
        axpy(driver, y, x, 1, other)
        driver.synchronize(other)
        found = np.empty(N, np.float32)
        driver.copy_out(found, y, other)
        driver.synchronize(driver.main)
        driver.free(x)
        driver.free(y)
        return found


def test_events_order_streams(driver: PyCudaDriver, device: Device) -> None:
    for seed in SEEDS:
        device.seed(seed)
        assert (chain(driver) == 1).all()


def test_a_missing_event_is_found(driver: PyCudaDriver, device: Device) -> None:
    if not device.emulated:
        pytest.skip("a GPU may do the right thing by chance")
    wrong = []
    for seed in SEEDS:
        device.seed(seed)
        wrong.append(not (chain(driver, with_event=False) == 1).all())
    assert set(wrong) == {True, False}


def test_the_time_between_events(driver: PyCudaDriver) -> None:
    with driver.current():
        x = given(driver, np.ones(N, np.float32))
        start, end = driver.new_event(), driver.new_event()
        driver.record(start, driver.main)
        axpy(driver, x, x, 1, driver.main)
        driver.record(end, driver.main)
        assert 0 <= driver.seconds(start, end) < 10
        driver.free(x)


@pytest.mark.parametrize("handle", [1, 2, None])
def test_a_stream_of_somebody_else_is_followed(
    driver: PyCudaDriver, device: Device, handle: int | None
) -> None:
    import pycuda.driver as cuda

    for seed in SEEDS:
        device.seed(seed)
        with driver.current():
            theirs = cuda.Stream()
            x, y = given(driver, np.ones(N, np.float32)), driver.allocate(4 * N)
            driver.synchronize(driver.main)
            if handle is None:
                cuda.memset_d8_async(y, 0, 4 * N, theirs)
                driver.follow(driver.main, theirs.handle)
            else:
                library = ctypes.CDLL("libcuda.so.1")
                code = library.cuMemsetD8Async(ctypes.c_ulonglong(y), 0, ctypes.c_size_t(4 * N),
                                               ctypes.c_void_p(handle))  # fmt: skip
                assert code == 0
                driver.follow(driver.main, handle)
            axpy(driver, y, x, 1, driver.main)
            assert (read(driver, y) == 1).all()
            driver.free(x)
            driver.free(y)
            del theirs


# -------------------------------------------------------------------- graphs


def queue(driver: PyCudaDriver, x: int, y: int, z: int) -> None:
    """z = 3 x, y = 2 x + z on two streams."""
    other, parted, joined = driver.new_stream(), driver.new_event(), driver.new_event()
    driver.record(parted, driver.main)
    driver.wait(other, parted)
    driver.fill(z, 0, 4 * N, other)
    axpy(driver, z, x, 3, other)
    driver.fill(y, 0, 4 * N, driver.main)
    axpy(driver, y, x, 2, driver.main)
    driver.record(joined, other)
    driver.wait(driver.main, joined)
    axpy(driver, y, z, 1, driver.main)


def test_a_graph_is_its_launches(driver: PyCudaDriver, device: Device) -> None:
    for seed in SEEDS:
        device.seed(seed)
        with driver.current():
            x = given(driver, np.arange(N, dtype=np.float32))
            y, z = driver.allocate(4 * N), driver.allocate(4 * N)
            queue(driver, x, y, z)
            direct = read(driver, y)
            driver.fill(y, 0xFF, 4 * N, driver.main)
            graph = driver.capture(driver.main, partial(queue, driver, x, y, z))
            assert np.isnan(read(driver, y)).all()  # nothing of it ran
            for _ in range(3):
                driver.replay(graph, driver.main)
                assert np.array_equal(read(driver, y), direct)
                driver.fill(y, 0xFF, 4 * N, driver.main)
            assert (direct == 5 * np.arange(N)).all()
            for address in (x, y, z):
                driver.free(address)
            del graph


def test_a_graph_is_given_other_arguments(driver: PyCudaDriver) -> None:
    with driver.current():
        pieces = [given(driver, np.full(N, k, np.float32)) for k in (1, 2)]
        y, z = driver.allocate(4 * N), driver.allocate(4 * N)
        graph = driver.capture(driver.main, lambda: queue(driver, pieces[0], y, z))
        driver.replay(graph, driver.main)
        again = driver.capture(driver.main, lambda: queue(driver, pieces[1], y, z), graph)
        assert again is graph
        driver.replay(graph, driver.main)
        assert (read(driver, y) == 10).all()
        smaller = driver.capture(driver.main, lambda: axpy(driver, y, y, 1, driver.main), graph)
        assert smaller is not graph
        driver.replay(smaller, driver.main)
        assert (read(driver, y) == 20).all()
        for address in (*pieces, y, z):
            driver.free(address)


def test_a_capture_that_fails_leaves_all_as_it_was(driver: PyCudaDriver) -> None:
    def fails(x: int) -> None:
        axpy(driver, x, x, 1, driver.main)
        raise RuntimeError("no more")

    with driver.current():
        x = given(driver, np.ones(N, np.float32))
        with pytest.raises(RuntimeError, match="no more"):
            driver.capture(driver.main, lambda: fails(x))
        assert (read(driver, x) == 1).all()
    with pytest.raises(DeviceError, match="capturing"), driver.current():
        driver.capture(driver.main, lambda: driver.synchronize(driver.main))
    with driver.current():
        axpy(driver, x, x, 1, driver.main)
        assert (read(driver, x) == 2).all()
        driver.free(x)
