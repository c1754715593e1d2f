"""Sums of products: `contract` and `conv`. The attribute `zeros` of a `contract` is the number
of an operand that may well be zero in many steps of the sums: a hint, which changes no result. The
attribute `precision`, of products of f32 only, is "tf32" where the program says that operands may
be rounded to that, see Note [Short floats] of `codegen/ir/grid/matrix_tiles.py`: a permission, of
which a target without such products makes no use.

The interpreter's part is written for clarity and from the definitions, not from any kernel that it
is meant to check: floats are multiplied in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from stagejit.graph.definition import Attrs, OpDef, Types, define, require
from stagejit.graph.dims import ConvDims, dilated
from stagejit.graph.ir import Op
from stagejit.graph.meaning.evaluator import Array, Evaluator
from stagejit.graph.ops.moving.splits import present
from stagejit.graph.ops.reductions import signed
from stagejit.types import DType, TensorType, bool_, f32

Axes = tuple[tuple[int, ...], tuple[int, ...]]  # of the left operand, of the right one


def contract_type(operands: Types, attrs: Attrs) -> TensorType:
    """Of the products of two operands, summed over their contracting axes."""
    lhs, rhs = operands
    _require_product(lhs, rhs, attrs)
    (lhs_k, rhs_k), (lhs_b, rhs_b) = attrs["contracting"], attrs["batch"]
    for side, axes in ((lhs, (*lhs_b, *lhs_k)), (rhs, (*rhs_b, *rhs_k))):
        require(
            len(set(axes)) == len(axes) and set(axes) <= set(range(side.rank)),
            f"axes {axes} of {side}",
        )
    require(attrs.get("zeros", 0) in (0, 1), "there are operands 0 and 1")
    for a, b in zip((*lhs_b, *lhs_k), (*rhs_b, *rhs_k), strict=True):
        require(lhs.shape[a] == rhs.shape[b], f"dimension {a} of lhs and {b} of rhs differ")
    free = [size for axis, size in enumerate(lhs.shape) if axis not in (*lhs_b, *lhs_k)]
    free += [size for axis, size in enumerate(rhs.shape) if axis not in (*rhs_b, *rhs_k)]
    return TensorType(attrs["dtype"], (*(lhs.shape[axis] for axis in lhs_b), *free))


def _conv(operands: Types, attrs: Attrs) -> TensorType:
    lhs, rhs = operands
    _require_product(lhs, rhs, attrs)
    if "border" in attrs:
        _require_border(lhs.dtype, attrs["border"])
    dims = ConvDims.of(attrs)
    if dims.split is not None:
        _require_split(dims, rhs)
    return TensorType(attrs["dtype"], dims.result_shape(lhs.shape, rhs.shape))


def _require_split(dims: ConvDims, rhs: TensorType) -> None:
    assert dims.split is not None
    axis, tile = dims.split
    require(axis in dims.rhs_spec[1:], f"axis {axis} of the kernel is not summed over")
    require(0 < tile < rhs.shape[axis], f"{rhs.shape[axis]} elements have no parts of {tile}")
    summed = dims.rhs_spec.index(axis)
    if summed == 1:
        require(dims.feature_groups == 1, "the features of several groups are not split")
    else:
        require(dims.lhs_dilation[summed - 2] == 1, "taps that meet holes are not split")


def _require_border(dtype: DType, border: Any) -> None:
    """Exactly an element of the operand; zero has one spelling, which is no attribute at all."""
    if not dtype.is_float:
        info = np.iinfo(dtype.numpy)
        exact = type(border) is int and info.min <= border <= info.max
    elif exact := type(border) is float:
        with np.errstate(over="ignore"):
            exact = border != border or np.asarray(border, dtype.numpy).item() == border
    require(exact, f"border {border!r} is no {dtype}")
    require(border != 0, "a border of zeros is left out")


def _require_product(lhs: TensorType, rhs: TensorType, attrs: Attrs) -> None:
    if "precision" in attrs:
        require(attrs["precision"] == "tf32", f"no precision {attrs['precision']!r}")
        require(lhs.dtype is f32, f"{attrs['precision']} is no precision of {lhs.dtype}")
    require(lhs.dtype is rhs.dtype, "operands differ in element type")
    require(
        lhs.dtype.is_float == attrs["dtype"].is_float and lhs.dtype is not bool_,
        f"no products of {lhs.dtype} in {attrs['dtype']}",
    )


# ------------------------------------------------------------------ meaning


def _value_of_contract(evaluator: Evaluator, op: Op, lhs: Array, rhs: Array) -> Array:
    lhs, rhs = _product_operands(op, lhs, rhs)
    return contracted(lhs, rhs, op.attrs["contracting"], op.attrs["batch"])


def contracted(lhs: Array, rhs: Array, contracting: Axes, batch: Axes) -> Array:
    """Sums of products in the type of the operands."""
    (lhs_k, rhs_k), (lhs_b, rhs_b) = contracting, batch
    lhs_free = [axis for axis in range(lhs.ndim) if axis not in (*lhs_b, *lhs_k)]
    rhs_free = [axis for axis in range(rhs.ndim) if axis not in (*rhs_b, *rhs_k)]
    a = lhs.transpose(*lhs_b, *lhs_free, *lhs_k)
    b = rhs.transpose(*rhs_b, *rhs_k, *rhs_free)
    outer, k = a.shape[: len(lhs_b)], math.prod(a.shape[lhs.ndim - len(lhs_k) :])
    m_shape, n_shape = (lhs.shape[i] for i in lhs_free), (rhs.shape[i] for i in rhs_free)
    shape = (*outer, *m_shape, *n_shape)
    m = math.prod(lhs.shape[axis] for axis in lhs_free)
    n = math.prod(rhs.shape[axis] for axis in rhs_free)
    left, right = a.reshape(*outer, m, k), b.reshape(*outer, k, n)
    product: Array = np.matmul(left, right)
    if k and product.dtype.kind == "f" and (product == 0).any():
        product = signed(product, _all_terms_are_minus_zero(left, right))
    return product.reshape(shape)


def _all_terms_are_minus_zero(left: Array, right: Array) -> Array:
    """Where every product of a row and a column is -0."""
    count: Array = np.zeros((*left.shape[:-1], right.shape[-1]))
    for plus in (False, True):  # a factor of either sign with one of the other, one of them zero
        x, y = (np.signbit(side) == sign for side, sign in ((left, plus), (right, not plus)))
        count += np.matmul(x.astype(np.float64), y.astype(np.float64))
        count -= np.matmul((x & (left != 0)).astype(float), (y & (right != 0)).astype(float))
    return np.asarray(count == left.shape[-1])


def _value_of_conv(evaluator: Evaluator, op: Op, lhs: Array, rhs: Array) -> Array:
    dims = ConvDims.of(op.attrs)
    lhs, rhs = _product_operands(op, lhs, rhs)
    x = _spread(lhs.transpose(dims.lhs_spec), dims)
    kernel = rhs.transpose(dims.rhs_spec)
    shape = dims.of_one(dims.result_shape(lhs.shape, rhs.shape))
    sizes = tuple(shape[axis] for axis in dims.out_spec)
    if dims.split is None:
        return _summed(x, kernel, sizes, dims)
    parts = [_summed(*part, sizes, dims) for part in _parts(x, kernel, dims)]
    return np.stack(parts)


def _parts(x: Array, kernel: Array, dims: ConvDims) -> Iterator[tuple[Array, Array]]:
    """What each part of a split convolution sums over."""
    assert dims.split is not None
    axis, tile = dims.rhs_spec.index(dims.split[0]), dims.split[1]
    for start in range(0, kernel.shape[axis], tile):
        own: list[Any] = [slice(None)] * kernel.ndim
        own[axis] = slice(start, start + tile)
        moved: list[Any] = [slice(None)] * x.ndim
        moved[axis] = own[axis]
        if axis > 1:  # a window's taps lie where they did
            count = kernel[tuple(own)].shape[axis]
            step = dims.rhs_dilation[axis - 2]
            last = (kernel.shape[axis] - start - count) * step
            moved[axis] = slice(start * step, x.shape[axis] - last)
        yield x[tuple(moved)], kernel[tuple(own)]


def _summed(x: Array, kernel: Array, sizes: tuple[int, ...], dims: ConvDims) -> Array:
    """All groups, with the axes of the result in its order."""
    result = np.zeros(sizes, x.dtype)
    groups = max(dims.feature_groups, dims.batch_groups)
    for group in range(groups):
        features = _part(sizes[1], groups, group)
        piece = x[_part(x.shape[0], dims.batch_groups, group)]
        piece = piece[:, _part(x.shape[1], dims.feature_groups, group)]
        result[:, features] = _one_group(piece, kernel[features], sizes[2:], dims)
    inverse = np.argsort(dims.out_spec)
    return result.transpose(inverse)


def _one_group(x: Array, kernel: Array, spatial: tuple[int, ...], dims: ConvDims) -> Array:
    """Sum over kernel positions of (batch, in) x (out, in) products at shifted windows."""
    total = np.zeros((x.shape[0], kernel.shape[0], *spatial), x.dtype)
    if not total.size:
        return total
    for position in itertools.product(*(range(size) for size in kernel.shape[2:])):
        window = tuple(
            slice(at * dilation, at * dilation + (size - 1) * stride + 1, stride)
            for at, dilation, stride, size in zip(
                position, dims.rhs_dilation, dims.strides, spatial, strict=True
            )
        )
        place: Any = (slice(None), slice(None), *position)
        # Not `tensordot`: BLAS may leave out a factor of zero, whose product with NaN is NaN.
        shifted = x[(slice(None), slice(None), *window)]
        total += np.einsum("nc...,oc->no...", shifted, kernel[place])
    return total


def _spread(x: Array, dims: ConvDims) -> Array:
    """`x` with its border, or cropped where padding is negative; holes are zero."""
    holes = []
    for axis, ((low, high), step) in enumerate(
        zip(dims.padding, dims.lhs_dilation, strict=True), start=2
    ):
        size = x.shape[axis]
        source, inside_hole = np.divmod(np.arange(-low, dilated(size, step) + high), step)
        around = [(0, int(other == axis)) for other in range(x.ndim)]
        x = np.pad(x, around, constant_values=dims.border)  # the last element is the border
        x = x.take(np.where((source >= 0) & (source < size), source, size), axis)
        holes.append(inside_hole)
    for axis, hole in enumerate(holes, start=2):
        x[(slice(None),) * axis + (hole != 0,)] = 0
    return x


def _part(size: int, groups: int, group: int) -> slice:
    """The share of one group; all of it where this axis is not split."""
    if groups == 1:
        return slice(None)
    share = size // groups
    return slice(group * share, (group + 1) * share)


def _product_operands(op: Op, lhs: Array, rhs: Array) -> tuple[Array, Array]:
    """Floats in float64; integers in the result's type, in which products wrap."""
    dtype = op.attrs["dtype"]
    target = np.dtype(np.float64) if dtype.is_float else dtype.numpy
    return lhs.astype(target), rhs.astype(target)


# --------------------------------------------------------------------- cost


def _contract_flops(op: Op) -> int:
    axes: tuple[int, ...] = op.attrs["contracting"][0]
    lhs, whole = op.operands[0], present(op.operands[0])
    depth = math.prod(lhs.shape[axis] for axis in axes)
    if lhs is not whole and lhs.type.size:  # the last part lacks some steps
        return 2 * op.result.type.size * depth * whole.type.size // lhs.type.size
    return 2 * op.result.type.size * depth


def _separate(op: Op, axis: int) -> tuple[int | None, int | None]:
    """Result dimensions are those of the batch, then the free ones of each side."""
    contracting, batch = op.attrs["contracting"], op.attrs["batch"]
    if axis < len(batch[0]):
        return batch[0][axis], batch[1][axis]
    free = [
        (side, each)
        for side, operand in enumerate(op.operands)
        for each in range(operand.type.rank)
        if each not in (*contracting[side], *batch[side])
    ]
    side, own = free[axis - len(batch[0])]
    return (own, None) if side == 0 else (None, own)


def _pair_of(op: Op, operand: int, axis: int) -> tuple[int | None, ...] | None:
    for pair in zip(*op.attrs["contracting"], strict=True):
        if pair[operand] == axis:
            return pair
    return None


def _conv_flops(op: Op) -> int:
    rhs = op.operands[1].type
    features: int = rhs.shape[op.attrs["rhs_spec"][0]]
    each = op.result.type.size // ConvDims.of(op.attrs).parts(rhs.shape)
    return 2 * each * (rhs.size // features if features else 0)


define(
    OpDef(
        kind="contract",
        infer=contract_type,
        interpret=_value_of_contract,
        separate=_separate,
        summed=_pair_of,
        implied=frozenset({"dtype"}),
        accumulates=True,
        is_product=True,
        flops=_contract_flops,
    )
)
define(
    OpDef(
        kind="conv",
        infer=_conv,
        interpret=_value_of_conv,
        implied=frozenset({"dtype"}),
        accumulates=True,
        is_product=True,
        is_windowed=True,
        flops=_conv_flops,
    )
)
