"""Element and tensor types, shared by every stage.

Input: NumPy dtypes (ml_dtypes' bfloat16 included). Output: interned `DType` and `TensorType` values
whose text (`f32[4,8]`) is the one used in every dump. Invariant: a `DType` is unique by name, so
identity and equality agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

Kind = Literal["bool", "int", "uint", "float", "complex", "opaque"]


@dataclass(frozen=True)
class DType:
    """One element type. `itemsize` is in bytes as stored (a bool takes one byte)."""

    name: str
    kind: Kind
    bits: int
    itemsize: int

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, False for bool."""
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return self.kind in ("int", "float")

    @property
    def is_native(self) -> bool:
        """True where kernels can be generated for elements of this type."""
        return self.name in _NATIVE

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype (ml_dtypes' for bf16). Raises KeyError for an opaque type."""
        return _TO_NUMPY[self.name]

    @property
    def accumulator(self) -> DType:
        """The type that reductions accumulate in: f32 for 16-bit floats, itself otherwise."""
        return f32 if self.is_float and self.bits < 32 else self


bool_ = DType("bool", "bool", 1, 1)
i8 = DType("i8", "int", 8, 1)
i16 = DType("i16", "int", 16, 2)
i32 = DType("i32", "int", 32, 4)
i64 = DType("i64", "int", 64, 8)
u8 = DType("u8", "uint", 8, 1)
u16 = DType("u16", "uint", 16, 2)
u32 = DType("u32", "uint", 32, 4)
u64 = DType("u64", "uint", 64, 8)
f16 = DType("f16", "float", 16, 2)
bf16 = DType("bf16", "float", 16, 2)
f32 = DType("f32", "float", 32, 4)
f64 = DType("f64", "float", 64, 8)
c64 = DType("c64", "complex", 64, 8)
c128 = DType("c128", "complex", 128, 16)

_TO_NUMPY: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
}
_NATIVE = frozenset(name for name in _TO_NUMPY if not name.startswith("c"))
_BY_NAME: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, c64, c128)
}
_FROM_NUMPY = {numpy: _BY_NAME[name] for name, numpy in _TO_NUMPY.items()}


def dtype_named(name: str) -> DType:
    """The dtype whose text is `name`; an unknown name gives an opaque type of no known size."""
    return _BY_NAME.get(name) or DType(name, "opaque", 0, 0)


def from_numpy(dtype: Any) -> DType:
    """The `DType` of anything NumPy accepts as a dtype; extended dtypes (PRNG keys, int4, fp8)
    become opaque types, on which no op is native."""
    try:
        found = _FROM_NUMPY.get(np.dtype(dtype))
    except TypeError:
        found = None
    return found or DType(str(dtype), "opaque", 0, 0)


@dataclass(frozen=True)
class TensorType:
    """Element type and shape of a value."""

    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    __repr__ = __str__

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize
