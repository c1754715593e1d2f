"""PyCUDA, built from its source for a Python that has none: a minute, on any machine with g++.

There are no wheels of PyCUDA on the package index. Its extension is linked against a driver, for
which the emulated one will do, and compiled with NVIDIA's headers, which are on the index.
`python -m tests.cuda.pycuda.from_source.built` builds it, and says where it is; tests of
`tests/cuda/pycuda/` find it there from then on. `python -m pytest -m pycuda` builds it too, and
runs them.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cuda.driver.build import NAME, library_folder
from tests.cuda.driver.cubin import cached

_VERSION = "2026.1"
_NEEDS = ("pytools", "platformdirs", "mako")
_HEADERS = ("nvidia-cuda-runtime==13.*", "nvidia-cuda-crt==13.*", "nvidia-cuda-profiler-api==13.*")


def folder() -> Path:
    """Where it is, or would be: one for each Python and numpy."""
    import numpy

    return cached("pycuda", "\0".join([sys.version, numpy.__version__, _VERSION]))


def is_importable() -> bool:
    """Whether there is a PyCUDA, installed or built; the latter is imported from now on."""
    if importlib.util.find_spec("pycuda") is None and folder().exists():
        sys.path.append(str(folder()))
    return importlib.util.find_spec("pycuda") is not None


def build() -> Path:
    """Builds it if need be."""
    made = folder()
    if made.exists():
        return made
    with tempfile.TemporaryDirectory(prefix="stagejit-pycuda-") as name:
        work = Path(name)
        _pip("download", f"pycuda=={_VERSION}", "--no-binary", "pycuda", "--no-deps", "-d", name)
        _run(["tar", "xf", *map(str, work.glob("pycuda-*.tar.gz"))], work)
        _pip("install", "--target", str(work / "headers"), "--no-deps", *_HEADERS)
        (include,) = work.glob("headers/nvidia/*/include")
        (work / "lib").mkdir()
        (work / "lib" / "libcuda.so").symlink_to(library_folder() / NAME)
        source = next(path for path in work.glob("pycuda-*") if path.is_dir())
        _run([
            sys.executable, "configure.py", f"--cuda-root={include.parent}",
            f"--cudadrv-lib-dir={work / 'lib'}", "--no-cuda-enable-curand", "--cxxflags=-g0,-O1",
        ], source)  # fmt: skip
        part = made.with_suffix(f".{os.getpid()}")
        _pip("install", "--target", str(part), "--no-deps", str(source))
        _pip("install", "--target", str(part), *_NEEDS)
        part.replace(made)
    return made


def _pip(*arguments: str) -> None:
    _run([sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments], None)


def _run(command: list[str], where: Path | None) -> None:
    done = subprocess.run(command, cwd=where, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    print(build())
