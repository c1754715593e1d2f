"""Translations of `dot_general` and `conv_general_dilated` to `contract` and `conv`.

Input: JAX's dimension numbers. Output: one `contract` or `conv` whose operands have one element
type; sums are kept in `accumulator` of the wider of operand and result type, and rounded to
`dtype` once.
Invariant: all dimension lists are plain ints, and a contraction without elements gives zeros.

Note [What a precision allows]: f32 operands are multiplied as f32, whatever a target could do
faster, unless the program says that less is enough: `Precision.HIGH`, which is what
`jax.default_matmul_precision("tensorfloat32")` means, or the algorithm TF32_TF32_F32. JAX itself
takes an f32 product on a GPU without any precision for one of tf32; here it keeps its promise.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from stagejit.graph.ir import Value
from stagejit.trace.emitter import Emitter
from stagejit.trace.translation import Site, Translation, Unsupported, integers, translation
from stagejit.types import DType, TensorType, bool_, f32, from_numpy, i32

# The algorithms that JAX lowers on a CPU, and those of a GPU that f32 products are as exact as. All
# others are errors.
_SHORT = jax.lax.DotAlgorithmPreset.TF32_TF32_F32
_ALGORITHMS = (
    _SHORT,
    jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3,
    jax.lax.DotAlgorithmPreset.DEFAULT,
    jax.lax.DotAlgorithmPreset.F16_F16_F16,
    jax.lax.DotAlgorithmPreset.F32_F32_F32,
    jax.lax.DotAlgorithmPreset.F64_F64_F64,
    jax.lax.DotAlgorithmPreset.BF16_BF16_F32,
    jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3,
    jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X6,
)


def _dot_general(emit: Emitter, site: Site, lhs: Value, rhs: Value) -> Value:
    contracting, batch = site.params["dimension_numbers"]
    result = site.result
    if (precision := site.params["precision"]) in _ALGORITHMS:
        lhs, rhs, result = _as_algorithm_says(emit, precision, lhs, rhs, result)
    else:
        check_precision(precision)
    if not (lhs.type.size and rhs.type.size):
        return emit.full(0, site.result)
    own = lhs.type.dtype
    if rhs.type.dtype is own and own.is_float and not result.dtype.is_float:
        result = TensorType(own.accumulator, result.shape)  # the sum is converted, not its terms
    elif result.dtype is bool_:  # "any of the pairwise ands": count them
        lhs, rhs = (emit.convert(x, bool_) for x in (lhs, rhs))
        result = TensorType(i32, result.shape)
    lhs, rhs = _same_dtype(emit, result, lhs, rhs)
    if _is_elementwise(lhs, rhs, contracting, batch):
        product = _of_elements(emit, result, lhs, rhs, batch)
        return emit.convert(product, site.result.dtype)
    product = emit.emit(
        "contract", (lhs, rhs), result,
        contracting=(integers(contracting[0]), integers(contracting[1])),
        batch=(integers(batch[0]), integers(batch[1])),
        dtype=result.dtype, **tolerance(precision, lhs, result),
    )  # fmt: skip
    return emit.convert(product, site.result.dtype)


def _is_elementwise(lhs: Value, rhs: Value, contracting: Any, batch: Any) -> bool:
    """Whether nothing is summed up, and each element of a side is multiplied by one of the other.
    Others stay products: what they multiply may be a weight that is kept in few bytes."""
    sums = math.prod(lhs.type.shape[axis] for axis in contracting[0])
    places = math.prod(lhs.type.shape[axis] for axis in batch[0])
    return bool(sums == 1 and lhs.type.size == places == rhs.type.size)


def _of_elements(emit: Emitter, result: TensorType, lhs: Value, rhs: Value, batch: Any) -> Value:
    """Products that are not summed up, as those of a sparse matrix: a map, which joins what makes
    its operands and what reads it. They are rounded once, as a sum of one is."""
    own, wanted = lhs.type.dtype, result.dtype
    wide = max(own.accumulator, wanted.accumulator, key=lambda dtype: dtype.bits)
    dtype = wide if wanted.is_float and own is not wanted else wanted

    def side(x: Value, shared: Any) -> Value:
        others = [axis for axis in range(x.type.rank) if axis not in shared]  # of one element each
        ordered = emit.transpose(emit.convert(x, dtype), (*shared, *others))
        return emit.reshape(ordered, result.shape)

    return emit.convert(emit.map("mul", side(lhs, batch[0]), side(rhs, batch[1])), wanted)


def conv(emit: Emitter, site: Site, lhs: Value, rhs: Value) -> Value:
    params = site.params
    check_precision(params["precision"])
    dimensions = params["dimension_numbers"]
    if site.result.dtype is bool_:
        raise Unsupported("a convolution of bools")
    if not (lhs.type.size and rhs.type.size):
        return emit.full(0, site.result)
    lhs, rhs = _same_dtype(emit, site.result, lhs, rhs)
    return emit.emit(
        "conv", (lhs, rhs), site.result,
        lhs_spec=integers(dimensions.lhs_spec),
        rhs_spec=integers(dimensions.rhs_spec),
        out_spec=integers(dimensions.out_spec),
        strides=integers(params["window_strides"]),
        padding=tuple(integers(pair) for pair in params["padding"]),
        lhs_dilation=integers(params["lhs_dilation"]),
        rhs_dilation=integers(params["rhs_dilation"]),
        feature_groups=int(params["feature_group_count"]),
        batch_groups=int(params["batch_group_count"]),
        dtype=site.result.dtype,
        **tolerance(params["precision"], lhs, site.result),
    )  # fmt: skip


def tolerance(precision: Any, operand: Value, result: TensorType) -> dict[str, str]:
    """The attribute `precision` of a product, where operands may be rounded to tf32. See Note [What
    a precision allows]."""
    high = (jax.lax.Precision.HIGH,) * 2
    is_short = precision is _SHORT or precision in (high, high[0])
    return {"precision": "tf32"} if is_short and operand.type.dtype is f32 is result.dtype else {}


def _same_dtype(emit: Emitter, result: TensorType, lhs: Value, rhs: Value) -> tuple[Value, Value]:
    """Operands of one type: their own where they agree, else the result's."""
    dtype, wanted = lhs.type.dtype, result.dtype
    fits = dtype is not bool_ and dtype.is_float == wanted.is_float
    if rhs.type.dtype is dtype and fits:
        return lhs, rhs
    return emit.convert(lhs, wanted), emit.convert(rhs, wanted)


def _as_algorithm_says(
    emit: Emitter, algorithm: jax.lax.DotAlgorithmPreset, lhs: Value, rhs: Value, result: TensorType
) -> tuple[Value, Value, TensorType]:
    """Operands and result in the first type that the algorithm takes, where it does not take their
    own. That is all it means on a CPU: an f32 operand of `BF16_BF16_F32` is not rounded."""

    def taken(own: DType, taking: tuple[Any, ...] | None) -> DType:
        fits = taking is None or own.numpy in [np.dtype(dtype) for dtype in taking]
        return own if fits or taking is None else from_numpy(np.dtype(taking[0]))

    left = taken(lhs.type.dtype, algorithm.supported_lhs_types)
    right = taken(rhs.type.dtype, algorithm.supported_rhs_types)
    wanted = taken(result.dtype, algorithm.supported_output_types(left.numpy, right.numpy))
    return emit.convert(lhs, left), emit.convert(rhs, right), TensorType(wanted, result.shape)


def check_precision(precision: Any) -> None:
    """Every `Precision` is met, since operands are never rounded. Algorithms that JAX refuses on a
    CPU, and those that are given by their types, are its business."""
    values = precision if isinstance(precision, tuple) else (precision,)
    if not all(value is None or isinstance(value, jax.lax.Precision) for value in values):
        raise Unsupported(f"precision {precision}")


TRANSLATIONS: dict[str, Translation] = {
    "dot_general": translation(
        _dot_general,
        "dimension_numbers",
        "precision",
        "preferred_element_type",
        ignored=("out_sharding",),
    ),
    "conv_general_dilated": translation(
        conv,
        "window_strides",
        "padding",
        "lhs_dilation",
        "rhs_dilation",
        "dimension_numbers",
        "feature_group_count",
        "batch_group_count",
        "precision",
        "preferred_element_type",
        ignored=("out_sharding",),
    ),
}
