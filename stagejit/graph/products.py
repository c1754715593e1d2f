"""Reductions, contractions and convolutions in NumPy, for the interpreter.

Input: an op and its operands. Output: the result, floats in float64 and not yet rounded. Invariant:
written for clarity and from the definitions, not from any kernel that it is meant to check.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from stagejit.graph.dims import ConvDims, dilated
from stagejit.graph.functions import identity
from stagejit.graph.ir import Op

Array = np.ndarray[Any, np.dtype[Any]]

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "logaddexp": np.logaddexp,
}  # fmt: skip
# Whether a zero is -0, from which of the elements are: NumPy's sums start at +0, and its extrema
# leave open which of two zeros is the larger one.
_MINUS: dict[str, np.ufunc] = {
    "add": np.logical_and, "max": np.logical_and, "min": np.logical_or,
}  # fmt: skip


def reduce(op: Op, x: Array) -> Array:
    fn, axes = op.attrs["fn"], op.attrs["axes"]
    x = accumulated(x)
    if fn in ("argmax", "argmin"):
        search = np.argmax if fn == "argmax" else np.argmin
        return np.asarray(search(x, axis=axes[0]))
    initial = identity(fn, op.operands[0].type.dtype)
    result = np.asarray(_UFUNCS[fn].reduce(x, axis=axes, initial=initial, dtype=x.dtype))
    if fn not in _MINUS or x.dtype.kind != "f" or not x.size:
        return result
    return _signed(result, _MINUS[fn].reduce(_minus(fn, x), axis=axes))


def _minus(fn: str, x: Array) -> Array:
    """Where an element counts as -0: a sum that is zero is so if all terms are -0, a maximum if no
    element is +0, a minimum if one is -0."""
    return np.signbit(x) if fn == "max" else np.signbit(x) & (x == 0)


def _signed(result: Array, minus: Array) -> Array:
    return np.where(result == 0, np.where(minus, -0.0, 0.0), result)


def cumulative(op: Op, x: Array) -> Array:
    axis = op.attrs["axis"]
    x = accumulated(x)
    if op.attrs["reverse"]:
        x = np.flip(x, axis)
    fn = op.attrs["fn"]
    result = _UFUNCS[fn].accumulate(x, axis=axis, dtype=x.dtype) if x.size else x
    if fn in _MINUS and x.dtype.kind == "f" and x.size:
        result = _signed(result, _MINUS[fn].accumulate(_minus(fn, x), axis=axis))
    return np.flip(result, axis) if op.attrs["reverse"] else result


def accumulated(x: Array) -> Array:
    """`x` in the type that this interpreter accumulates in: floats in float64."""
    return x if x.dtype.kind in "biu" else x.astype(np.float64)


def contract(op: Op, lhs: Array, rhs: Array) -> Array:
    (lhs_k, rhs_k), (lhs_b, rhs_b) = op.attrs["contracting"], op.attrs["batch"]
    lhs, rhs = _product_operands(op, lhs, rhs)
    lhs_free = [axis for axis in range(lhs.ndim) if axis not in (*lhs_b, *lhs_k)]
    rhs_free = [axis for axis in range(rhs.ndim) if axis not in (*rhs_b, *rhs_k)]
    a = lhs.transpose(*lhs_b, *lhs_free, *lhs_k)
    b = rhs.transpose(*rhs_b, *rhs_k, *rhs_free)
    batch, k = a.shape[: len(lhs_b)], math.prod(a.shape[lhs.ndim - len(lhs_k) :])
    m_shape, n_shape = (lhs.shape[i] for i in lhs_free), (rhs.shape[i] for i in rhs_free)
    shape = (*batch, *m_shape, *n_shape)
    m = math.prod(lhs.shape[axis] for axis in lhs_free)
    n = math.prod(rhs.shape[axis] for axis in rhs_free)
    left, right = a.reshape(*batch, m, k), b.reshape(*batch, k, n)
    product: Array = np.matmul(left, right)
    if k and product.dtype.kind == "f" and (product == 0).any():
        product = _signed(product, _all_terms_are_minus_zero(left, right))
    return product.reshape(shape)


def _all_terms_are_minus_zero(left: Array, right: Array) -> Array:
    """Where every product of a row and a column is -0."""
    count: Array = np.zeros((*left.shape[:-1], right.shape[-1]))
    for plus in (False, True):  # a factor of either sign with one of the other, one of them zero
        x, y = (np.signbit(side) == sign for side, sign in ((left, plus), (right, not plus)))
        count += np.matmul(x.astype(np.float64), y.astype(np.float64))
        count -= np.matmul((x & (left != 0)).astype(float), (y & (right != 0)).astype(float))
    return np.asarray(count == left.shape[-1])


def conv(op: Op, lhs: Array, rhs: Array) -> Array:
    dims = ConvDims.of(op.attrs)
    lhs, rhs = _product_operands(op, lhs, rhs)
    x = _spread(lhs.transpose(dims.lhs_spec), dims)
    kernel = rhs.transpose(dims.rhs_spec)
    shape = dims.result_shape(lhs.shape, rhs.shape)
    sizes = tuple(shape[axis] for axis in dims.out_spec)
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
