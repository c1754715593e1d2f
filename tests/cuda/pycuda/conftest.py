"""A `PyCudaDriver` for a test: on the emulated driver, and on a GPU with `-m gpu`.

PyCUDA comes from the extra `cuda`, or is built from its source (`built.py`); where it is neither, a
stand-in (`standin.py`) has what the driver uses of it, and tests of the rest are skipped.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from stagejit.runtime.cuda.code.cubins import Compiler, nvrtc_compiler
from stagejit.runtime.cuda.pycuda import PyCudaDriver
from tests.cuda.driver import build
from tests.cuda.driver.cubin import emulated_cubin
from tests.cuda.pycuda import standin
from tests.cuda.pycuda.from_source.built import is_importable

EMULATED = Compiler("g++", emulated_cubin)
_INSTALL = "`python -m tests.cuda.pycuda.from_source.built`, once, or the extra `cuda`"


@dataclass(frozen=True)
class Device:
    """What a test asks of the device beside its driver."""

    compiler: Compiler
    emulated: bool
    stands_in: bool = False

    def need_pycuda(self) -> None:
        """Skips the test where there is a stand-in for it."""
        if self.stands_in:
            pytest.skip(f"needs PyCUDA: {_INSTALL}")

    def seed(self, number: int) -> None:
        """Of the order in which the emulated device works."""
        if self.emulated:
            build.load().emulated_seed(number)

    def context_depth(self) -> int:
        """How many contexts the calling thread has."""
        return int(build.load().emulated_context_depth()) if self.emulated else 0

    def used_nbytes(self) -> int:
        return int(build.load().emulated_used_nbytes()) if self.emulated else 0


@pytest.fixture(scope="session", params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    """PyCUDA can be imported from now on."""
    if request.param == "gpu":
        if not is_importable():
            pytest.skip(f"needs PyCUDA: {_INSTALL}")
        return Device(nvrtc_compiler(), emulated=False)
    if build.has_other_driver():
        pytest.skip("this machine has a driver of its own: `-m gpu` tests that one")
    if shutil.which("g++") is None:
        pytest.skip("the emulated driver needs g++")
    build.load()
    if stands_in := not is_importable():
        standin.install()
    return Device(EMULATED, emulated=True, stands_in=stands_in)


@pytest.fixture
def driver(device: Device) -> Iterator[PyCudaDriver]:
    """One for a test, of which nothing is left over."""
    gc.collect()  # what earlier tests left in cycles
    before = device.used_nbytes()
    standin.leaked.clear()
    made = PyCudaDriver(compiler=device.compiler)
    yield made
    made.close()
    assert device.context_depth() == 0
    assert device.used_nbytes() == before
    assert not standin.leaked
