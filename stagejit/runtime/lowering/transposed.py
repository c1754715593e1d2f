"""Transposes next to a call of ours, which it takes as layouts of its operands and results.

Input: IR values of StableHLO. Output: what a `stablehlo.transpose` is made of, and in which order
that lies where the transpose is row-major. Invariant: a call reads the same bytes.

Without this, XLA, which gives what a program takes its default layout first, copies an argument
that lies otherwise, and transposes the copy; or makes a kernel of a transpose that moves nothing.
Two transposes of a result, there and back, are none for XLA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from stagejit.base.records import record
from stagejit.compat import shaped_like

Order = tuple[int, ...]


@record
class Turned:
    """value, aval: an array whose axes lie in `order`, the slowest first; None for a result."""

    value: Any
    aval: Any
    order: Order


def fastest_first(arrays: Sequence[Turned | None]) -> list[tuple[int, ...] | None]:
    """Layouts as XLA writes them; None for row-major."""
    return [None if turned is None else turned.order[::-1] for turned in arrays]


def before_transpose(value: Any, aval: Any) -> Turned | None:
    """What a value is a transpose of; None where it is none."""
    owner = getattr(value, "owner", None)
    operation = getattr(owner, "operation", None)  # there is none of an argument's block
    if operation is None or operation.name != "stablehlo.transpose":
        return None
    order = tuple(ir.DenseI64ArrayAttr(operation.attributes["permutation"]))
    return Turned(operation.operands[0], _before(aval, order), order)


def after_transpose(aval: Any, order: Order | None) -> Turned | None:
    """A result that XLA is given as what `aval` is a transpose of; None where there is no order."""
    return None if order is None else Turned(None, _before(aval, order), order)


def _before(aval: Any, order: Order) -> Any:
    shape = [0] * len(order)
    for extent, axis in zip(aval.shape, order, strict=True):
        shape[axis] = extent
    return shaped_like(aval, tuple(shape))


def transposed(ctx: Any, value: Any, aval: Any, order: Sequence[int]) -> Any:
    """A value of `aval` with its axes in that order: a bitcast where they lie so."""
    turned = shaped_like(aval, tuple(aval.shape[axis] for axis in order))
    kind = mlir.aval_to_ir_type(ctx.module_context, turned)
    permutation = ir.DenseI64ArrayAttr.get(list(order))
    return stablehlo.transpose(value, permutation, results=[kind])
