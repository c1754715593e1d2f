"""Kernels of each kind on a GPU (`-m gpu`), or on the emulated driver through PyCUDA (`-m slow`).

These are the tests that run by the package's emulation elsewhere, collected here once more: whole
functions, and grid kernels one by one against the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import pytest

import stagejit
from stagejit.codegen.cuda.text.printer import cuda_source
from stagejit.codegen.ir.interpreter.grid import simulate
from stagejit.codegen.ir.nodes import Function
from stagejit.options import Options
from stagejit.runtime.cuda.driver import Source
from stagejit.runtime.cuda.drivers import using
from stagejit.runtime.cuda.pycuda import PyCudaDriver
from tests.codegen.ir.grid import kernels
from tests.cuda import test_maps
from tests.cuda.emulation import test_grid_kernels
from tests.cuda.emulation.checked import Array, require_same
from tests.cuda.emulation.emulated import NAME
from tests.cuda.machine import as_held
from tests.cuda.products import test_convolutions, test_products
from tests.cuda.pycuda.conftest import Device
from tests.cuda.pycuda.kernels import launch_on

pytestmark = pytest.mark.slow
_OF_FUNCTIONS = (test_maps, test_products, test_convolutions)


@pytest.fixture(scope="module")
def of_module(device: Device) -> Any:
    """A driver that keeps what it has compiled."""
    driver = PyCudaDriver(compiler=device.compiler)
    yield driver
    driver.close()


@pytest.fixture(autouse=True)
def _on_device(of_module: PyCudaDriver, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(function: Callable[..., Any], *args: Any, **how: Any) -> list[Any]:
        found = stagejit.jit(function, options=Options(target="cuda"))(*args)
        return [as_held(leaf) for leaf in jax.tree.leaves(found)]

    def launched(
        function: Function, arrays: Sequence[Array], params: Sequence[int] = (), lo: int = 0,
        hi: int = 0, *, blocks: Sequence[int], **how: Any,
    ) -> None:  # fmt: skip
        copies = [array.copy() for array in arrays]
        simulate(function, arrays, params, lo, hi, blocks=blocks, **how)
        source = Source(NAME, cuda_source(function, NAME), function.threads)
        launch_on(of_module, source, copies, [*params, lo, hi], blocks)
        require_same(function, copies, arrays)

    for module in _OF_FUNCTIONS:
        monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(kernels, "simulate", launched)
    with using(of_module):
        yield


def _collect(module: ModuleType, prefix: str) -> None:
    for name, test in vars(module).items():
        if name.startswith("test_") and callable(test):
            globals()[f"test_{prefix}_{name.removeprefix('test_')}"] = test


for _module in _OF_FUNCTIONS:
    _collect(_module, _module.__name__.rpartition("test_")[2])
_collect(test_grid_kernels, "grid")
