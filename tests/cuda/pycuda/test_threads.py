"""Several threads use one driver, and things of the device go on any of them."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stagejit.runtime.cuda.driver_api import DriverApi
from stagejit.runtime.cuda.pycuda import PyCudaDriver
from tests.cuda.pycuda.conftest import Device
from tests.cuda.pycuda.kernels import N, axpy

ROOT = Path(__file__).resolve().parents[3]
THREADS = 6


def on_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Raises what one of them raised."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


def test_threads_share_a_driver(driver: PyCudaDriver, device: Device) -> None:
    def work(number: int) -> None:
        for turn in range(10):
            with driver.current(), driver.current():
                array = np.full(N, number, np.float32)
                x = driver.allocate(array.nbytes)
                driver.copy_in(x, array, driver.main)
                axpy(driver, x, x, turn, driver.main)
                driver.copy_out(array, x, driver.main)
                driver.free(x)
            assert (array == number * (1 + turn)).all()
            assert device.context_depth() == 0

    on_threads(work)


def test_handles_go_on_any_thread(driver: PyCudaDriver, device: Device) -> None:
    """Without a warning of PyCUDA's, which would fail the test."""
    made: list[object] = []
    with driver.current():
        x = driver.allocate(4 * N)
        axpy(driver, x, x, 1, driver.main)
        made += [driver.new_stream(), driver.new_event()]
        made.append(driver.capture(driver.main, lambda: axpy(driver, x, x, 1, driver.main)))
        driver.free(x)

    def work(_: int) -> None:
        made.clear()
        gc.collect()
        assert device.context_depth() == 0

    on_threads(work, 1)
    with driver.current():
        pass
    assert not driver._dropped


def test_a_thread_keeps_its_own_context(driver: PyCudaDriver, device: Device) -> None:
    import pycuda.driver as cuda

    theirs = cuda.Device(0).retain_primary_context()
    theirs.push()
    with driver.current():
        driver.free(driver.allocate(100))
    stream = cuda.Stream()  # their context is current again
    stream.synchronize()
    del stream
    theirs.detach()
    DriverApi().pop_context()  # PyCUDA leaves a primary context there


def test_an_error_leaves_no_context_behind(driver: PyCudaDriver, device: Device) -> None:
    for error in (ValueError, KeyboardInterrupt):
        try:
            with driver.current(), driver.current():
                raise error
        except error:
            pass
        assert device.context_depth() == 0
    with driver.current():
        driver.free(driver.allocate(100))


def test_memory_is_given_back_from_anywhere(driver: PyCudaDriver, device: Device) -> None:
    """By finalizers, too, which run on any thread, and wherever that is."""
    with driver.current():
        addresses = [driver.allocate(1000) for _ in range(3)]
    on_threads(lambda _: driver.free_later([addresses.pop()]), 2)
    driver.free_later(addresses)
    with driver.current():
        assert not driver._pieces


FORKS = """
import os, warnings
warnings.simplefilter("ignore")  # of Python and JAX, that this process has threads
from tests.cuda.pycuda.conftest import EMULATED
from tests.cuda.driver import build
from stagejit.runtime.cuda.pycuda import PyCudaDriver
build.load()
driver = PyCudaDriver(compiler=EMULATED)
if not os.fork():
    try:
        with driver.current():
            print("it worked")
    except Exception as error:
        print(error)
    raise SystemExit  # with what is done at the end of a process
os.wait()
with driver.current():
    driver.free(driver.allocate(100))
print("the parent goes on")
"""


def test_a_forked_child_is_told(device: Device) -> None:
    """CUDA does not work there, and what the parent has is the parent's to give back."""
    if not device.emulated:
        pytest.skip("for the emulated driver")
    device.need_pycuda()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-u", "-c", FORKS],
        cwd=ROOT, env=environment, text=True, capture_output=True, check=True,
    )  # fmt: skip
    told, _, rest = done.stdout.partition("the parent goes on")
    assert "belongs to the process that this one was forked from\nNext: start processes" in told
    assert (rest, done.stderr) == ("\n", "")


def test_memory_may_go_back_while_a_graph_is_captured(driver: PyCudaDriver) -> None:
    """That of others, whose finalizers run on any thread at any time."""
    theirs = ctypes.c_ulonglong()

    def queue(x: int) -> None:
        axpy(driver, x, x, 1, stream)
        driver._api._call("cuMemFree_v2", theirs)

    with driver.current():
        driver._api._call("cuMemAlloc_v2", ctypes.byref(theirs), ctypes.c_size_t(100))
        x, found, stream = driver.allocate(4 * N), np.ones(N, np.float32), driver.new_stream()
        driver.copy_in(x, found, driver.main)
        graph = driver.capture(stream, lambda: queue(x))
        driver.replay(graph, driver.main)
        driver.copy_out(found, x, driver.main)
        assert (found == 2).all()
        driver.free(x)
