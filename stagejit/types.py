"""Element and tensor types, shared by every stage.

Input: NumPy dtypes (ml_dtypes' bfloat16 included). Output: interned `DType` and `TensorType` values
whose text (`f32[4,8]`) is the one used in every dump. Invariants: a `DType` is unique by name, so
identity and equality agree; it is physical: what a processor computes with, or opaque.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import ml_dtypes
import numpy as np

from stagejit.base.records import record
from stagejit.index.affine import Affine, Index
from stagejit.index.layout import ROW_MAJOR, Layout

if TYPE_CHECKING:
    from stagejit.index.encoding import Encoding

Kind = Literal["bool", "int", "uint", "float", "opaque"]


@record
class DType:
    """One element type. `itemsize` is in bytes as stored (a bool takes one byte)."""

    name: str
    kind: Kind
    bits: int
    itemsize: int

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    def __hash__(self) -> int:
        return hash(self.name)

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
        return self.kind != "opaque"

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
}
_BY_NAME: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64)
}
_FROM_NUMPY = {numpy: _BY_NAME[name] for name, numpy in _TO_NUMPY.items()}


def dtype_named(name: str) -> DType:
    """The dtype whose text is `name`; an unknown name gives an opaque type of no known size."""
    return _BY_NAME.get(name) or DType(name, "opaque", 0, 0)


def from_numpy(dtype: Any) -> DType:
    """The `DType` of anything NumPy accepts as a dtype; others (complex numbers, 4- and 8-bit
    floats, PRNG keys) become opaque types, on which no op is native: see `trace/elements.py`."""
    try:
        found = _FROM_NUMPY.get(np.dtype(dtype))
    except TypeError:
        found = None
    return found or DType(str(dtype), "opaque", 0, 0)


@record
class Storage:
    """What an element of some NumPy dtype is made of, here: `shape` elements of `dtype`."""

    dtype: DType
    shape: tuple[int, ...] = ()

    def array(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The same elements as they are stored, with those of one element along the last axes."""
        target = self.dtype.numpy
        if array.dtype == target:
            return array
        if array.dtype.name in _INTEGERS:
            return array.astype(target)
        stored = np.ascontiguousarray(array).reshape(-1).view(target)
        return stored.reshape(array.shape + self.shape)


# Complex numbers are pairs. Integers of 2 and 4 bits have a byte each, with their sign extended;
# floats of 4 and 8 bits are their bits in a byte.
_INTEGERS = {"int2": i8, "int4": i8, "uint2": u8, "uint4": u8}
_BYTES = (
    "float4_e2m1fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
_STORAGE = {
    "complex64": Storage(f32, (2,)),
    "complex128": Storage(f64, (2,)),
    **{name: Storage(dtype) for name, dtype in _INTEGERS.items()},
    **{name: Storage(u8) for name in _BYTES},
}


@functools.lru_cache(maxsize=256)
def storage_of(dtype: Any) -> Storage:
    """What elements of a NumPy dtype are made of: themselves where they are physical or opaque."""
    return _STORAGE.get(str(dtype)) or Storage(from_numpy(dtype))


@record
class TensorType:
    """Element type and shape of a value, and where its elements lie if it is in memory. encoding:
    what a target decides about that by, later; the layout is then not known yet."""

    dtype: DType
    shape: tuple[int, ...]
    layout: Layout = ROW_MAJOR
    encoding: Encoding | None = None
    _text: ClassVar[str] = ""  # once it is known
    _size: ClassVar[int | None] = None

    def __str__(self) -> str:
        known = self._text
        if not known:
            known = f"{self.dtype.name}[{','.join(map(str, self.shape))}]{self.layout}"
            known += "" if self.encoding is None else str(self.encoding)
            object.__setattr__(self, "_text", known)
        return known

    __repr__ = __str__

    def __hash__(self) -> int:
        return hash((self.dtype.name, self.shape))

    @property
    def of_slice(self) -> TensorType:
        """Of a slice of axis 0, where that is."""
        encoding = None if self.encoding is None else self.encoding.of_slice
        return TensorType(self.dtype, self.shape[1:], self.layout.of_slice, encoding)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        known = self._size
        if known is None:
            known = math.prod(self.shape)
            object.__setattr__(self, "_size", known)
        return known

    @property
    def has_numbers(self) -> bool:
        """Whether all its sizes are known."""
        return all(isinstance(size, int) for size in self.shape)

    @property
    def is_plain(self) -> bool:
        """Whether its elements lie as those of arguments and results do."""
        return self.layout.is_row_major and self.encoding is None

    @property
    def room(self) -> int:
        """Elements that its memory has room for."""
        return self.size if self.layout is ROW_MAJOR else self.layout.room(self.shape)

    @property
    def nbytes(self) -> int:
        """Of its memory."""
        return self.room * self.dtype.itemsize

    def offset(self, index: Index, *, strict: bool = False) -> Affine:
        """Where in its memory the element at `index` lies. strict: as in `Affine.divmod`."""
        return self.layout.offset(index, self.shape, strict=strict)
