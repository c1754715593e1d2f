"""What is missing is said, with what to do about it; what there is is known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stagejit.codegen.cuda.device import Limits, device_named
from stagejit.errors import NoDriverError
from stagejit.runtime.cuda.gpus import arch_of, check_versions, imported, require_recent
from stagejit.runtime.cuda.pycuda import PyCudaDriver
from tests.cuda.driver import build
from tests.cuda.pycuda.conftest import Device

ROOT = Path(__file__).resolve().parents[3]


def test_without_pycuda(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pycuda", "pycuda.driver"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NoDriverError, match=r"needs PyCUDA[\s\S]*pip install 'stagejit\[cuda\]'"):
        imported()


PROGRAM = """
from stagejit.runtime.cuda.pycuda import PyCudaDriver
from stagejit.codegen.cuda.device import Limits, device_named
from stagejit.errors import NoDriverError
try:
    driver = PyCudaDriver({})
    print(driver.name, driver.arch, driver.cores)
except NoDriverError as error:
    print(error)
"""


def said(ordinal: int = 0, folder: str = "", **environment: str) -> str:
    """By a process that wants a driver."""
    given = {
        **os.environ,
        "LD_LIBRARY_PATH": folder,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    given |= {f"STAGEJIT_EMULATED_{name}": value for name, value in environment.items()}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM.format(ordinal)],
        env=given, cwd=ROOT, text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert not done.stderr
    return done.stdout


def test_without_a_driver(device: Device) -> None:
    if not device.emulated:
        pytest.skip("this machine has one")
    device.need_pycuda()
    text = said()
    assert "PyCUDA cannot be loaded: libcuda.so.1" in text
    assert "Next: install NVIDIA's driver" in text
    assert "backend='cuda-emulated'" in text


def test_with_a_driver(device: Device) -> None:
    if not device.emulated:
        pytest.skip("for the emulated one")
    device.need_pycuda()
    folder = str(build.library_folder())
    assert said(0, folder) == "Emulated NVIDIA H100 sm_90a 132\n"
    assert said(0, folder, DEVICE="h200") == "Emulated NVIDIA H200 sm_90a 132\n"
    text = said(0, folder, DEVICE="none")
    assert "there is no GPU to use: cuInit failed: no CUDA-capable device is detected" in text
    assert "Next: see what `nvidia-smi`" in text
    text = said(1, folder)
    assert "there is no GPU 1\nNext: choose one of 0 to 0" in text
    text = said(0, folder, VERSION="12040")
    assert "the driver knows CUDA 12.4, and NVRTC is of CUDA 1" in text
    assert "Next: install a newer driver; or, " in text


def test_versions() -> None:
    for driver, compiler in [((13, 0), (13, 5)), ((13, 0), (12, 9)), ((14, 0), (13, 0))]:
        check_versions(driver, compiler)
    with pytest.raises(NoDriverError, match=r"CUDA 12\.9.*[\s\S]*nvidia-cuda-nvrtc-cu12"):
        check_versions((12, 9), (13, 0))


def test_architectures() -> None:
    found = [arch_of(*each) for each in [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]]
    assert found == ["sm_80", "sm_89", "sm_90a", "sm_100", "sm_120"]


def test_a_gpu_that_is_too_old() -> None:
    require_recent("NVIDIA A100-SXM4-40GB", 8, 0)
    require_recent("NVIDIA L40", 8, 9)
    with pytest.raises(NoDriverError, match=r"Tesla T4 is too old: .* sm_80 .* it is sm_75"):
        require_recent("Tesla T4", 7, 5)


def test_what_a_multiprocessor_has(driver: PyCudaDriver) -> None:
    known = device_named(driver.arch)
    assert driver.limits == Limits(
        known.threads_a_core, known.blocks_a_core, known.shared_nbytes, known.block_shared_nbytes
    )
