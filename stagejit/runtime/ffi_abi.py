"""Byte offsets of XLA's FFI structs (xla/ffi/api/c_api.h, API 0.1 to 0.3), and IR to reach them.

Input: names of fields. Output: lines of LLVM IR. Invariant: the offsets hold on every LP64
platform, where each field has its natural alignment. Measured against jaxlib 0.10.2 and 0.12.0.
"""

from __future__ import annotations

# XLA_FFI_CallFrame
FRAME_STRUCT_SIZE = 0
FRAME_EXTENSION = 8
FRAME_API = 16
FRAME_CONTEXT = 24
FRAME_STAGE = 32
FRAME_ARGS_COUNT = 56
FRAME_ARGS = 72
FRAME_RESULTS_COUNT = 96
FRAME_RESULTS = 112
FRAME_MIN_NBYTES = 120  # up to and including the results, which is all that handlers read
FRAME_ATTRS_COUNT = 136
FRAME_ATTRS_TYPES = 144
FRAME_ATTRS_VALUES = 160

# XLA_FFI_Scalar, and XLA_FFI_AttrType
SCALAR_VALUE = 8
ATTRIBUTE_SCALAR = 3

# The same in a frame that we make. Each of args, results and attributes begins with its size and
# an extension, then has a count and its tables.
FRAME_ATTRS = 120
FRAME_NBYTES = 176  # with the future that an asynchronous handler would set
TABLE_COUNT, TABLE_TYPES, TABLE_ITEMS = 16, 24, 32
ATTRS_NAMES, ATTRS_VALUES = 32, 40
TYPE_BUFFER = 1
TYPE_SCALAR = 3

# XLA_FFI_Buffer
BUFFER_DTYPE = 16
BUFFER_DATA = 24
BUFFER_RANK = 32
BUFFER_DIMS = 40
BUFFER_NBYTES = 48

# XLA_FFI_DataType, by the names of `types`
DATA_TYPES = {
    "bool": 1, "i8": 2, "i16": 3, "i32": 4, "i64": 5, "u8": 6, "u16": 7, "u32": 8, "u64": 9,
    "f16": 10, "f32": 11, "f64": 12, "bf16": 16,
}  # fmt: skip

# XLA_FFI_Api: a table of functions
API_MIN_NBYTES = 152  # up to and including ThreadPool_NumThreads
API_VERSION_MAJOR = 32  # followed by the minor version
API_ERROR_CREATE = 48
API_ERROR_DESTROY = 64
API_STREAM_GET = 80
API_STATE_SET = 104
API_STATE_GET = 112
API_POOL_SCHEDULE = 136
API_POOL_NUM_THREADS = 144
API_RUN_ID_GET = 176  # not in all

# XLA_FFI_Extension_Base and XLA_FFI_Metadata
EXTENSION_TYPE = 8
EXTENSION_METADATA = 24
EXTENSION_TYPE_METADATA = 1
METADATA_API_VERSION = 8  # {struct_size, extension_start, major, minor}
METADATA_TRAITS = 32
METADATA_STATE_TYPE_ID = 40  # only where the caller's struct has it
METADATA_NBYTES_WITH_STATE = 48
API_VERSION_NBYTES = 24

STAGE_INSTANTIATE = 0
STAGE_EXECUTE = 3

# XLA_FFI_Error_Code, numbered like absl::StatusCode
INVALID_ARGUMENT = 3
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
INTERNAL = 13


def field(name: str, base: str, offset: int) -> str:
    """`name = base + offset` as an address."""
    return f"  {name} = getelementptr i8, ptr {base}, i64 {offset}\n"


def load(name: str, kind: str, base: str, offset: int) -> str:
    """`name` = the `kind` at `base + offset`."""
    return field(f"{name}.p", base, offset) + f"  {name} = load {kind}, ptr {name}.p\n"


def store(kind: str, value: str, base: str, offset: int, temporary: str) -> str:
    """Store `value` at `base + offset`; `temporary` names the address and must be new."""
    return field(temporary, base, offset) + f"  store {kind} {value}, ptr {temporary}\n"


def fill(base: str, fields: list[tuple[int, str, str]]) -> str:
    """Store (offset, kind, value) triples into the struct at `base`."""
    prefix = f"{base}.f"
    return "".join(
        store(kind, value, base, offset, f"{prefix}{offset}") for offset, kind, value in fields
    )
