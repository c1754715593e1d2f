"""Builds the emulated `libcuda.so.1`, and loads it into this process.

An emulated driver of CUDA, for machines without a GPU. What a program calls by the names of the
driver API does here what it does there, as far as a CPU can: `libcuda.so.1` has contexts, memory,
streams, events, kernels, graphs and their capture, so that PyCUDA runs on it unmodified, and
anything else that knows the driver API.

What it finds, beside wrong results:

- an order that a program relies on and never asked for: work that is queued runs when somebody
  waits for it, in any order that streams and events leave open (`work.cpp`). The order is drawn by
  a seed (`STAGEJIT_EMULATED_SEED`, or `emulated_seed`), so a fault comes again;
- accesses outside of an allocation, of freed memory, and of memory that a stream has not allocated
  yet: each allocation has pages of its own, with pages beside it that nobody may touch, and is full
  of NaN (`memory.cpp`). A kernel that fails breaks its context for good, as on a GPU;
- calls on a thread without a context, launches with arguments of another size, too many threads or
  too much shared memory, what a capture does not allow: these give the driver's own error codes.

To read, in `libcuda/`: `cuda_api.h`, what of `cuda.h` is used (no CUDA is needed to build);
`state.h`, what the parts share; `work.cpp`, `streams.cpp`, `memory.cpp`, `copies.cpp`,
`contexts.cpp`, `graphs.cpp`; `modules.cpp` with `kernel.h`, `cubin.h` and `cubin.py`, where a
"cubin" is a library for this machine, made of CUDA C++ by g++ with the package's own header for
that. `client.py` calls the driver by ctypes. What PyCUDA names and is not here says "not supported"
(`unsupported.cpp`).

Environment: STAGEJIT_EMULATED_DEVICE (h100, h200, none), STAGEJIT_EMULATED_NBYTES of memory,
STAGEJIT_EMULATED_VERSION of the driver, STAGEJIT_EMULATED_SEED. For PyCUDA in a shell:
`LD_LIBRARY_PATH=$(python -m tests.cuda.driver.build) python program.py`.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from tests.cuda.driver.cubin import cached

NAME = "libcuda.so.1"
_FOLDER = Path(__file__).parent / "libcuda"
_COMPILE = ("g++", "-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
_LINK = ("g++", "-shared", f"-Wl,-soname,{NAME}", "-Wl,--no-undefined")


def sources() -> list[Path]:
    """The files of the driver."""
    return sorted(_FOLDER.glob("*.cpp"))


@cache
def library_folder() -> Path:
    """The folder with `libcuda.so.1`, which is built if need be (10 s)."""
    texts = [path.read_text() for path in [*sources(), *sorted(_FOLDER.glob("*.h"))]]
    folder = cached("libcuda", "\0".join([*texts, *_COMPILE, *_LINK]))
    if not (folder / NAME).exists():
        folder.mkdir(exist_ok=True)
        part = folder / f"{NAME}.{os.getpid()}"
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda path: _object(path, folder), sources()))
        _run([*_LINK, *map(str, objects), "-ldl", "-pthread", "-o", str(part)])
        for path in objects:
            path.unlink()
        part.replace(folder / NAME)
    return folder


def load() -> ctypes.CDLL:
    """Into this process: what asks the loader for `libcuda.so.1` from now on gets this one."""
    return ctypes.CDLL(str(library_folder() / NAME), ctypes.RTLD_GLOBAL)


def has_other_driver() -> bool:
    """Whether this machine has a driver of its own, beside which this one cannot be loaded."""
    try:
        other = ctypes.CDLL(NAME)
    except OSError:
        return False
    return not hasattr(other, "emulated_seed")


def _object(path: Path, folder: Path) -> Path:
    made = folder / f"{path.stem}.{os.getpid()}.o"
    _run([*_COMPILE, "-c", str(path), "-o", str(made)])
    return made


def _run(command: list[str]) -> None:
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[:4000])


if __name__ == "__main__":
    print(library_folder())
