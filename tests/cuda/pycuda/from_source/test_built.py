"""PyCUDA is built from its source, and all of `tests/cuda/pycuda/` holds with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.pycuda.from_source import built

FOLDER = Path(__file__).parents[1]


@pytest.mark.pycuda
@pytest.mark.timeout(3600)  # a minute on a machine that does nothing else
def test_all_holds_with_a_pycuda_that_is_built_here() -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    built.build()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-m", "not gpu and not pycuda",
         str(FOLDER)],
        cwd=FOLDER.parents[2], text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout
