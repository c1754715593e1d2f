"""Shared memory of a block beyond 48 KiB: where buffers lie, what a launch asks for, what goes
wrong."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from stagejit.codegen.cuda.text.printer import cuda_source
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.grid.shared_memory import dynamic_nbytes, places, shared_nbytes
from stagejit.codegen.ir.nodes import F32, I64, Buffer, Function
from stagejit.runtime.cuda.code.nvrtc import compile_cubin, is_installed
from stagejit.runtime.cuda.code.resources import resources
from stagejit.runtime.cuda.driver import Source
from stagejit.runtime.cuda.emulation.driver import EmulatedDriver
from stagejit.runtime.cuda.emulation.memory import EmulationError
from tests.cuda.emulation.checked import ARCHITECTURES, checked
from tests.cuda.emulation.emulated import NAME, emulate, launch

LARGE = 9000  # elements of f32


def reversed_by(size: int, *, read: int = 0) -> Function:
    """64 elements, reversed at the end of one buffer, and behind them 64 of another one. read:
    how far behind."""
    b = GridBuilder([64])
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    first, second = b.shared("first", F32, size), b.shared("second", I64, size, alignment=1024)
    thread = b.thread_id()
    b.store(b.load(x, thread), first, size - 1 - thread)
    b.store(thread * 3, second, thread)
    b.barrier()
    b.store(b.load(first, size - 64 + thread + read), y, thread)
    b.store(b.cast("sitofp", b.load(second, 63 - thread), "f32"), y, thread + 64)
    return b.finish()


@pytest.mark.parametrize("size", [64, LARGE])
def test_arrays_of_any_size(size: int) -> None:
    function, x, y = reversed_by(size), np.arange(64, dtype=np.float32), np.zeros(128, np.float32)
    assert dynamic_nbytes(function.buffers) == (0 if size == 64 else 107 << 10)
    checked(function, [x, y], blocks=[1])
    np.testing.assert_array_equal(y, [*x[::-1], *x[::-1] * 3])


def test_buffers_do_not_overlap_and_are_aligned() -> None:
    sizes = (100, 3, 1000, 1)
    buffers = [
        Buffer(f"b{k}", F32, "shared", size=size, alignment=1024 * (k % 2))
        for k, size in enumerate(sizes)
    ]
    first = places([Buffer("a", F32, "arg"), *buffers])
    assert [first[b] for b in buffers] == [0, 1024, 1040, 5120]
    assert shared_nbytes(buffers) == 6144
    assert dynamic_nbytes(buffers) == 0


@pytest.mark.skipif(not is_installed(), reason="there is no NVRTC")
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_gpu_is_asked_for_what_the_source_does_not_declare(arch: str) -> None:
    source = cuda_source(reversed_by(LARGE), NAME)
    assert "alignas(1024) extern __shared__ u8 shared_memory[];" in source
    assert resources(compile_cubin(source, arch).log)[NAME].shared_nbytes == 0


def test_it_is_full_of_nan_at_first() -> None:
    b = GridBuilder([32])
    y, shared = b.buffer("y", F32), b.shared("s", F32, 20000)
    at = b.thread_id() + 19968
    b.store(b.load(shared, at), y, b.block_id() * 32 + b.thread_id())
    b.store(b.const(1.0, F32), shared, at)
    found = np.zeros(64, np.float32)
    emulate(b.finish(), [found], blocks=[2])
    assert np.isnan(found).all()


def test_an_index_outside_an_array_is_found() -> None:
    arrays = [np.zeros(64, np.float32), np.zeros(128, np.float32)]
    with pytest.raises(EmulationError, match=r"an index outside an array .* thread 63 0 0"):
        emulate(reversed_by(LARGE, read=1), arrays, blocks=[1])


def test_a_launch_that_asks_for_too_little_is_found() -> None:
    function = reversed_by(LARGE)
    arrays = [np.zeros(64, np.float32), np.zeros(128, np.float32)]
    with pytest.raises(EmulationError, match="an access outside the arrays"):
        launch(cuda_source(function, NAME), function.threads, arrays, [0, 0], [1], "forward",
               35 << 10)  # fmt: skip


def test_a_driver_gives_what_was_asked_for_and_no_more() -> None:
    function, driver = reversed_by(LARGE), EmulatedDriver()
    nbytes, text = dynamic_nbytes(function.buffers), cuda_source(reversed_by(LARGE), NAME)
    x, y = np.arange(64, dtype=np.float32), np.zeros(128, np.float32)
    with driver.current():
        places = driver.allocate(x.nbytes), driver.allocate(y.nbytes)
        driver.copy_in(places[0], x, driver.main)
        words = struct.pack("4Q", *places, 0, 0)
        for known in (0, nbytes):
            loaded = driver.load([Source(NAME, text, (64,), known)])[NAME]
            if not known:
                with pytest.raises(EmulationError, match="was not loaded for as much"):
                    driver.launch(loaded, (1, 1, 1), (64, 1, 1), nbytes, driver.main, words)
        driver.launch(loaded, (1, 1, 1), (64, 1, 1), nbytes, driver.main, words)
        driver.copy_out(y, places[1], driver.main)
        np.testing.assert_array_equal(y[:64], x[::-1])
        with pytest.raises(EmulationError, match="more than a block of H200 may have"):
            driver.load([Source(NAME, text, (64,), 228 << 10)])
