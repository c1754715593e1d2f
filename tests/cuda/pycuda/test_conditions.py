"""Loops and branches of graphs whose condition only the device knows, as nodes of the driver's."""

from __future__ import annotations

import numpy as np
import pytest

import stagejit
from stagejit.options import Options
from stagejit.runtime.cuda.code import nvrtc
from stagejit.runtime.cuda.code.cubins import nvrtc_compiler
from stagejit.runtime.cuda.conditions import DECIDE
from stagejit.runtime.cuda.drivers import using
from stagejit.runtime.cuda.pycuda import PyCudaDriver
from tests.cuda.pycuda.conftest import Device
from tests.cuda.pycuda.kernels import AXPY_SOURCE, N, axpy
from tests.cuda.pycuda.test_driver import given, read
from tests.runtime.cuda.decided import DECIDED, exact, is_close

SEEDS = range(5)


def test_a_kernel_decides_which_case_is_done(driver: PyCudaDriver, device: Device) -> None:
    """By integers of any width, negative ones and those beyond the last case."""
    with driver.current():
        if not driver.has_conditions:
            pytest.skip("needs a driver of CUDA 12.4")
        kept = driver.load([AXPY_SOURCE])
        main, inner = driver.new_stream(), driver.new_stream()
        ones, x = given(driver, np.ones(N, np.float32)), driver.allocate(4 * N)
        index = driver.allocate(8)
        for nbytes in (1, 2, 4, 8):

            def queue(nbytes: int = nbytes) -> None:
                driver.fill(x, 0, 4 * N, main)
                cases = [
                    lambda stream, factor=factor: axpy(driver, x, ones, factor, stream)
                    for factor in (1, 2, 3)
                ]
                driver.choose(main, inner, index, nbytes, cases)
                axpy(driver, x, ones, 10, main)

            graph = driver.capture(main, queue)
            for seed in SEEDS:
                device.seed(seed)
                for value, wanted in ((-5, 11), (0, 11), (1, 12), (2, 13), (100, 13)):
                    driver.store(index, value, nbytes, driver.main)
                    driver.replay(graph, driver.main)
                    assert set(read(driver, x)) == {wanted}
            del graph
        for address in (ones, x, index):
            driver.free(address)
        del kept


@pytest.mark.some(4)
@pytest.mark.parametrize("name", DECIDED)
def test_both_ways_give_the_same(
    driver: PyCudaDriver, device: Device, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, arguments = DECIDED[name]
    options = Options(target="cuda", cache_dir="")
    executable = stagejit.jit(function, options=options).trace(arguments[0])
    with using(driver):
        made = executable.compilation.run_until("load").executable
    wanted = [exact(function, x) for x in arguments]
    for conditions in (True, False):
        with driver.current():
            if conditions and not driver.has_conditions:
                continue
            driver.__dict__["has_conditions"] = conditions
        loaded = made.on(driver)
        for seed in SEEDS:
            device.seed(seed)
            for x, right in zip(arguments, wanted, strict=True):
                assert is_close(loaded.on_host([x]), right)
        assert bool(loaded.graphs) is conditions
        made.loaded.clear()
        del loaded


def test_an_older_driver_is_not_asked(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    if not device.emulated:
        pytest.skip("a GPU has the driver that it has")
    for version, has in (("12030", False), ("12040", True)):
        monkeypatch.setenv("STAGEJIT_EMULATED_VERSION", version)
        made = PyCudaDriver(compiler=device.compiler)
        with made.current():
            assert made.has_conditions is has
        made.close()


@pytest.mark.skipif(not nvrtc.is_installed(), reason="needs `nvidia-cuda-nvrtc`")
def test_what_the_driver_links_in_is_named_in_ptx() -> None:
    for arch in ("sm_80", "sm_90a", "sm_100"):
        compile_open = nvrtc_compiler().compile_open
        assert compile_open is not None
        text = compile_open(DECIDE.text, arch).decode()
        assert ".extern .func cudaGraphSetConditional" in " ".join(text.split())
        assert ".visible .entry stagejit_decide(" in text
