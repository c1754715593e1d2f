"""CUDA C++ -> a "cubin" that the emulated driver loads: a library for this machine.

Input: a source with `extern "C"` kernels, which includes nothing. Output: the bytes of the library.
Invariant: kernels are as they are written, but for what `emulated_text` changes.

It stands in the place of NVRTC: `PyCudaDriver` takes it as its compiler.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path

from stagejit.runtime.cuda.emulation.compiling import HEADER, HEADERS, OPTIONS, emulated_text

_FOLDER = Path(__file__).parent / "libcuda"
_INCLUDED = (HEADER, _FOLDER / "cubin.h")
_HEADERS = (*HEADERS, *_INCLUDED, _FOLDER / "kernel.h")
_OPTIONS = (*OPTIONS, "-fno-gnu-unique")  # so that a module can be unloaded
_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\(\s*(?P<most>\d+)[^)]*\)\s*)?'
    r"(?P<name>\w+)\s*\("
)
_MOST_THREADS = 1024


def emulated_cubin(source: str, arch: str = "") -> bytes:
    """Stands for NVRTC; the architecture is that of this machine, whatever is asked for."""
    return _library(_unit(source))


def cached(name: str, key: str, suffix: str = "") -> Path:
    """Where something that is built of `key` is kept: in a folder of this user's."""
    folder = Path(tempfile.gettempdir()) / f"stagejit-{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()}{suffix}"


def _unit(source: str) -> str:
    """The source between what the emulation has for it and what exports its kernels."""
    found = list(_KERNEL.finditer(source))
    if not found:
        raise ValueError('a source without `extern "C" __global__ void ...`')
    kernels = [f"KERNEL({k['name']}, {k['most'] or _MOST_THREADS})" for k in found]
    return "\n".join([
        '#define EMULATED_SHARED "emulated_shared"',
        *(f'#include "{header}"' for header in _INCLUDED),
        '#line 1 "kernel.cu"', emulated_text(source), *kernels, "",
    ])  # fmt: skip


@cache
def _library(text: str) -> bytes:
    key = "\0".join([text, *(header.read_text() for header in _HEADERS), *_OPTIONS])
    path = cached("cubins", key, ".so")
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        command = ["g++", *_OPTIONS, f"-I{_FOLDER}", "-x", "c++", "-", "-o", str(part)]
        done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        if done.returncode:
            raise ValueError(f"{done.stderr[:4000]}\n{text}")
        part.replace(path)
    return path.read_bytes()
