"""Products by NVIDIA's cuBLAS, to compare with.

Input: a stream, addresses of matrices row by row. Output: a product that is queued. Invariant:
nothing is loaded before somebody asks; f32 is multiplied in f32, 16-bit floats are summed in f32.
"""

from __future__ import annotations

import ctypes
import importlib.util
from ctypes import byref, c_float, c_int, c_void_p
from pathlib import Path
from typing import Any

from stagejit.errors import StagejitError

_LIBRARIES = ("libcublas.so.13", "libcublas.so.12", "libcublas.so")
_PLAIN, _DEFAULT, _IN_F32 = 0, -1, 68  # CUBLAS_OP_N, CUBLAS_GEMM_DEFAULT, CUBLAS_COMPUTE_32F
TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # cudaDataType


class NoCublasError(StagejitError):
    """There is none on this machine, or it refuses something."""


def library() -> Any:
    """cuBLAS, of the package `nvidia-cublas` or the system's. Raises NoCublasError."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations if spec else None) or ()
    packaged = [
        str(path)
        for folder in folders
        for path in sorted(Path(folder).glob("*/lib/libcublas.so.[0-9]*"), reverse=True)
    ]
    for path in (*packaged, *_LIBRARIES):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise NoCublasError("there is no cuBLAS", next_step="pip install nvidia-cublas")


class Cublas:
    """Its products on one stream, by the stream's CUDA handle, in the context that is current."""

    def __init__(self, stream: int, found: Any = None) -> None:
        self._library, self._handle = found or library(), c_void_p()
        self._call("cublasCreate_v2", byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, c_void_p(stream))

    def close(self) -> None:
        self._call("cublasDestroy_v2", self._handle)

    def product(self, c: int, a: int, b: int, sizes: tuple[int, int, int], dtype: str) -> None:
        """c[m, n] = a[m, k] b[k, n], sizes being (m, k, n): column by column, which is how cuBLAS
        reads memory, that is c^T = b^T a^T."""
        (m, k, n), kind = sizes, TYPES[dtype]
        one, zero = c_float(1), c_float(0)
        self._call(
            "cublasGemmEx", self._handle, _PLAIN, _PLAIN, n, m, k, byref(one),
            c_void_p(b), kind, n, c_void_p(a), kind, k, byref(zero),
            c_void_p(c), kind, n, c_int(_IN_F32), c_int(_DEFAULT),
        )  # fmt: skip

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise NoCublasError(f"{name} failed with {code}")
