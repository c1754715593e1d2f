"""The emulated driver against NVIDIA's declarations, where `nvidia-cuda-runtime` is installed."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cuda.driver.build import sources


def header_folder() -> Path | None:
    """Where `cuda.h` is."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for found in Path(folder).glob("*/include/cuda.h"):
            return found.parent
    return None


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_functions_are_those_that_cuda_declares(path: Path) -> None:
    folder = header_folder()
    if folder is None:
        pytest.skip("needs `cuda.h`: pip install nvidia-cuda-runtime")
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    command = ["g++", "-std=c++17", "-fsyntax-only", "-DEMULATED_WITH_CUDA_H", f"-I{folder}"]
    done = subprocess.run([*command, str(path)], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
