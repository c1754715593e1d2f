"""How the operands and the result of a product are encoded, and which products are.

Input: a `contract` or a `conv`. Output: an `Encoding` for each array, or a reason. Invariant:
decided from the op alone, so that whoever asks later is told the same.
"""

from __future__ import annotations

import math

from stagejit.base.records import record
from stagejit.graph.dims import ConvDims
from stagejit.graph.ir import Op
from stagejit.index.encoding import Encoding

FEWEST_PARALLEL = 64  # results of one product of a batch; for fewer no tile pays


@record
class Encodings:
    """Those of one product; None for what has no tiles: windows of a convolution overlap."""

    operands: tuple[Encoding | None, Encoding | None]
    result: Encoding


def encodings_of(op: Op) -> Encodings:
    """Of a product that is not refused."""
    types = (*(value.type.dtype.name for value in op.operands), op.result.type.dtype.name)
    lhs, rhs, result = _conv_axes(op) if op.definition.is_windowed else _contract_axes(op)
    minor = "m" if result.endswith("m") else "n"
    kinds = (types[0], types[1], types[2])
    left = None if lhs is None else Encoding("lhs", lhs, kinds, minor)
    right = Encoding("rhs", rhs, kinds, minor)
    return Encodings((left, right), Encoding("result", result, kinds, minor))


def refuse(op: Op, *, at_bind: bool = False) -> str:
    """Why a product has no tiles, whatever the target; empty where it may have. at_bind: its matrix
    is packed before any call, so that one reads tiles as often as they are packed."""
    if op.definition.applies:
        return "attention multiplies parts of what it reads, one after the other"
    if not all(value.type.has_numbers for value in (*op.operands, op.result)):
        return "its sizes are symbols"
    if op.definition.is_windowed:
        dims = ConvDims.of(op.attrs)
        if dims.feature_groups > 1 or dims.batch_groups > 1:
            return "the groups of a convolution do not share their weights"
        if dims.split is not None:
            return "its sums are split into parts"
    axes = encodings_of(op).result.axes
    rows, columns = (results_along(op, axes, kind) for kind in "mn")
    if min(rows, columns) <= 1 and not at_bind:
        return "it is a product of a matrix and a vector, which reads each element once"
    if rows * columns < FEWEST_PARALLEL:
        return f"it has {rows * columns} results, under {FEWEST_PARALLEL}, too few for tiles"
    return ""


def results_along(op: Op, axes: str, kind: str) -> int:
    """Results along the axes of one kind."""
    return math.prod(n for n, axis in zip(op.result.shape, axes, strict=True) if axis == kind)


def _contract_axes(op: Op) -> tuple[str, str, str]:
    lhs, rhs = (
        "".join("b" if d in batch else "k" if d in summed else free for d in range(value.type.rank))
        for value, free, batch, summed in zip(
            op.operands, "mn", op.attrs["batch"], op.attrs["contracting"], strict=True
        )
    )
    return lhs, rhs, "b" * lhs.count("b") + "m" * lhs.count("m") + "n" * rhs.count("n")


def _conv_axes(op: Op) -> tuple[None, str, str]:
    dims = ConvDims.of(op.attrs)
    rhs = "".join("n" if axis == dims.rhs_spec[0] else "k" for axis in range(len(dims.rhs_spec)))
    feature, parts = dims.out_spec[1], "" if dims.split is None else "b"
    out = "".join("n" if axis == feature else "m" for axis in range(len(dims.out_spec)))
    return None, rhs, parts + out
