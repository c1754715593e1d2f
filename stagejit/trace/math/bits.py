"""The bits of elements of one size as elements of another.

Input: a `bitcast_convert_type` between sizes. Output: shifts of unsigned integers. Invariant: the
first of several smaller elements has the lowest bits, as in the memory of a CPU.
"""

from __future__ import annotations

from stagejit.graph.ir import Value
from stagejit.trace.emitter import Emitter
from stagejit.trace.reductions import reduce
from stagejit.types import DType, TensorType, dtype_named


def split_bits(emit: Emitter, x: Value, target: DType) -> Value:
    """f32[3] as u16  -->  u16[3,2]"""
    whole, part = _unsigned(x.type.dtype), _unsigned(target)
    shape = (*x.type.shape, whole.bits // part.bits)
    spread = emit.broadcast(emit.bitcast(x, whole), shape, range(x.type.rank))
    shifted = emit.map("shift_right_logical", spread, _shifts(emit, whole, part, shape))
    return emit.bitcast(emit.convert(shifted, part), target)


def joined_bits(emit: Emitter, x: Value, target: DType) -> Value:
    """u16[3,2] as f32  -->  f32[3]"""
    part, whole = _unsigned(x.type.dtype), _unsigned(target)
    wide = emit.convert(emit.bitcast(x, part), whole)
    shifted = emit.map("shift_left", wide, _shifts(emit, whole, part, x.type.shape))
    return emit.bitcast(reduce(emit, "or", shifted, (x.type.rank - 1,)), target)


def _unsigned(dtype: DType) -> DType:
    return dtype_named(f"u{dtype.bits}")


def _shifts(emit: Emitter, whole: DType, part: DType, shape: tuple[int, ...]) -> Value:
    """Where each part lies in the whole."""
    which = emit.iota(TensorType(whole, shape), len(shape) - 1)
    return emit.map("mul", which, emit.const(part.bits, whole))
