"""NVRTC, NVIDIA's compiler of CUDA C++ as a library: from source to a cubin, without a GPU.

Input: source that includes nothing, an architecture. Output: a cubin and the compiler's log, or a
`CudaCompileError` with the log. Invariant: nothing of CUDA is loaded before the first compilation;
the library is the one of the package `nvidia-cuda-nvrtc` (extra `cuda`), or the system's.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from stagejit.base.records import record
from stagejit.errors import StagejitError

# The IR says where a product and a sum are one operation; NVRTC's other defaults are those of IEEE.
OPTIONS = ("--std=c++17", "--fmad=false", "--ptxas-options=-v")
OPEN = ("--std=c++17", "--relocatable-device-code=true")  # of what the driver links
_LIBRARIES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
_SUCCESS = 0


class CudaCompileError(StagejitError):
    """NVRTC is missing, or refuses a source."""


@record
class Cubin:
    """Machine code for one architecture, and what the compiler said."""

    code: bytes
    log: str


def is_installed() -> bool:
    """Whether there is a library to compile with."""
    try:
        _library()
    except CudaCompileError:
        return False
    return True


def version() -> tuple[int, int]:
    """Of the compiler, as (13, 0)."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "")
    return major.value, minor.value


def compile_cubin(source: str, arch: str, options: Sequence[str] = OPTIONS) -> Cubin:
    """Compiles for one architecture, such as "sm_90a"."""
    return Cubin(*_compiled(source, arch, options, "CUBIN"))


def compile_ptx(source: str, arch: str, options: Sequence[str] = OPTIONS) -> str:
    """The text that the assembler would make a cubin of."""
    code, _ = _compiled(source, arch, options, "PTX")
    return code.rstrip(b"\0").decode()


def _compiled(source: str, arch: str, options: Sequence[str], what: str) -> tuple[bytes, str]:
    """What is made of a source, and the log."""
    library, program = _library(), ctypes.c_void_p()
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None
    )
    _check(created, "")
    try:
        given = [option.encode() for option in (f"--gpu-architecture={arch}", *options)]
        compiled = library.nvrtcCompileProgram(
            program, len(given), (ctypes.c_char_p * len(given))(*given)
        )
        log = _bytes(library, program, "ProgramLog").rstrip(b"\0").decode()
        _check(compiled, log)
        return _bytes(library, program, what), log
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _bytes(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """What NVRTC hands out by two functions, of its size and of its content."""
    size = ctypes.c_size_t()
    _check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), "")
    content = ctypes.create_string_buffer(size.value)
    _check(getattr(library, f"nvrtcGet{what}")(program, content), "")
    return content.raw


def _check(status: int, log: str) -> None:
    if status == _SUCCESS:
        return
    describe = _library().nvrtcGetErrorString
    describe.restype = ctypes.c_char_p
    reason = describe(status).decode()
    raise CudaCompileError(f"NVRTC: {reason}\n{log}".rstrip())


@cache
def _library() -> ctypes.CDLL:
    tried = [*_of_package(), *_LIBRARIES]
    for path in tried:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise CudaCompileError(
        "there is no NVRTC, which compiles kernels for a GPU",
        next_step="pip install 'stagejit[cuda]'",
    )


def _of_package() -> list[str]:
    """The libraries of `nvidia-cuda-nvrtc`, in whatever folder of `nvidia` they are."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    return [str(path) for folder in folders or () for path in _found(Path(folder))]


def _found(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/lib/libnvrtc.so.[0-9]*"), reverse=True)
