"""Matrix products and convolutions of complex numbers, as one of real numbers.

Input: `dot_general` and `conv_general_dilated` with complex operands or results. Output: one
`contract` or `conv` whose sums go over the parts of one operand, too. Invariant: the operand with
fewer elements is the one that is written twice, as the real 2 x 2 matrices ((c, d), (-d, c)) that
multiply as its elements do; the other one and the result stay pairs.
"""

from __future__ import annotations

from typing import Any

from stagejit.graph.ir import Value
from stagejit.trace import products
from stagejit.trace.complex.parts import as_complex, is_complex, joined, pair_of
from stagejit.trace.emitter import Emitter
from stagejit.trace.translation import Site, Unsupported, integers
from stagejit.types import DType, TensorType

PARAMETERS: dict[str, tuple[str, ...]] = {
    name: tuple(found.params | found.ignored) for name, found in products.TRANSLATIONS.items()
}


def _operand(emit: Emitter, x: Value, aval: Any, dtype: DType) -> Value:
    """The operand as pairs of the result's type."""
    real = emit.convert(x, dtype)
    return real if is_complex(aval) else as_complex(emit, real)


def _matrices(emit: Emitter, x: Value) -> Value:
    """Pairs (c, d)  -->  ((c, d), (-d, c)) along two last axes: of a factor's part, of the
    product's."""
    c, d = pair_of(emit, x)
    rows = [joined(emit, row) for row in ((c.value, d.value), ((-d).value, c.value))]
    shape = x.type.shape
    result = emit.empty(TensorType(x.type.dtype, (*shape[:-1], 2, 2)))
    for at, row in enumerate(rows):
        source = emit.reshape(row, (*shape[:-1], 1, 2))
        result = emit.insert(source, result, (*(0,) * (len(shape) - 1), at, 0))
    return result


def _dot_general(emit: Emitter, site: Site, lhs: Value, rhs: Value) -> Value:
    if not is_complex(site.outputs[0]):
        raise Unsupported("complex operands and a real result")
    products.check_precision(site.params["precision"])
    if not (lhs.type.size and rhs.type.size):
        return emit.full(0, site.result)
    dtype = site.result.dtype
    pairs = [_operand(emit, x, aval, dtype) for x, aval in zip((lhs, rhs), site.inputs)]  # noqa: B905
    contracting, batch = (tuple(map(integers, axes)) for axes in site.params["dimension_numbers"])
    if pairs[0].type.size < pairs[1].type.size:
        return _product_from_right(emit, site, pairs, contracting, batch)
    made = _contract(emit, site, pairs[0], _matrices(emit, pairs[1]), contracting, batch)
    return emit.reshape(made, site.result.shape)


def _contract(
    emit: Emitter, site: Site, pairs: Value, matrices: Value, contracting: Any, batch: Any
) -> Value:
    """Batch axes, then those of the pairs, those of the matrices, and the parts."""
    first, second = pairs.type.rank - 1, matrices.type.rank - 2
    contracting = (*contracting[0], first), (*contracting[1], second)
    dtype = site.result.dtype
    shape = [pairs.type.shape[axis] for axis in batch[0]]
    for x, known in ((pairs, (0, contracting[0])), (matrices, (1, contracting[1]))):
        used = {*batch[known[0]], *known[1]}
        shape += [size for axis, size in enumerate(x.type.shape) if axis not in used]
    result = TensorType(dtype, tuple(shape))
    return emit.emit(
        "contract", (pairs, matrices), result, contracting=contracting, batch=batch, dtype=dtype,
        **products.tolerance(site.params["precision"], pairs, result),
    )  # fmt: skip


def _product_from_right(
    emit: Emitter, site: Site, pairs: list[Value], contracting: Any, batch: Any
) -> Value:
    """The same with the left operand as matrices: its axes come first afterwards."""
    lhs, rhs = pairs
    made = _contract(emit, site, rhs, _matrices(emit, lhs), contracting[::-1], batch[::-1])
    shared = len(batch[0])
    own = rhs.type.rank - 1 - shared - len(contracting[1])
    axes = range(made.type.rank)
    order = (*axes[:shared], *axes[shared + own : -1], *axes[shared : shared + own], axes[-1])
    return emit.transpose(made, order)


def _conv(emit: Emitter, site: Site, lhs: Value, rhs: Value) -> Value:
    """The parts of a feature are features; those of the kernel's elements are its matrices."""
    if not is_complex(site.outputs[0]):
        raise Unsupported("complex operands and a real result")
    if not (lhs.type.size and rhs.type.size):
        return emit.full(0, site.result)
    numbers, dtype = site.params["dimension_numbers"], site.result.dtype
    pairs, kernel = (_operand(emit, x, aval, dtype) for x, aval in zip((lhs, rhs), site.inputs))  # noqa: B905
    outer, inner = numbers.rhs_spec[:2]
    matrices = _matrices(emit, kernel)
    rank = matrices.type.rank - 2
    # Each matrix is of the factor's part and the product's: of input and of output features.
    matrices = _merged(emit, matrices, [(outer, rank + 1), (inner, rank)])
    features = numbers.out_spec[1]
    shape = list(site.result.shape[:-1])
    shape[features] *= 2
    real = site.of(TensorType(dtype, tuple(shape)))
    made = products.conv(emit, real, _merged(emit, pairs, [(numbers.lhs_spec[1], rank)]), matrices)
    split = (*shape[:features], shape[features] // 2, 2, *shape[features + 1 :])
    axes = range(len(split))
    order = [axis for axis in axes if axis != features + 1] + [features + 1]
    return emit.transpose(emit.reshape(made, split), order)


def _merged(emit: Emitter, x: Value, pairs: list[tuple[int, int]]) -> Value:
    """Each of the last axes merged into the axis that it belongs to, as its inner one."""
    after = dict(pairs)
    order: list[int] = []
    for axis in range(x.type.rank - len(pairs)):
        order += [axis, *([after[axis]] if axis in after else [])]
    shape = [
        size * (2 if axis in after else 1)
        for axis, size in enumerate(x.type.shape[: x.type.rank - len(pairs)])
    ]
    return emit.reshape(emit.transpose(x, order), shape)


RULES: dict[str, Any] = {"dot_general": _dot_general, "conv_general_dilated": _conv}
