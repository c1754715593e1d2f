"""A custom call of XLA's for one of our programs, where JAX lowers.

Input: a target that is registered, operands as IR values. Output: the results as IR values.
Invariant: what the program may write in place, and in which order axes lie, is said to XLA.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

# Of operands and of results, each with the fastest axis first.
Layouts = tuple[Sequence[Any], Sequence[Any]]


def ffi_call(
    ctx: Any,
    target: str,
    operands: Sequence[Any],
    aliases: Iterable[tuple[int, int]],
    layouts: Layouts | None,
    *,
    has_effects: bool = False,
    **attributes: Any,
) -> list[Any]:
    """aliases: (result, argument) that share memory; layouts: None for row-major. has_effects: XLA
    neither leaves it out nor makes one of two."""
    inputs, outputs = (None, None) if layouts is None else layouts
    lower = jax.ffi.ffi_lowering(
        target,
        operand_output_aliases={argument: result for result, argument in aliases},
        operand_layouts=inputs,
        result_layouts=outputs,
        has_side_effect=has_effects,
    )
    return list(lower(ctx, *operands, **attributes))


# Note [Work for XLA]: XLA has code for products of matrices, and compiles some for whatever is
# elementwise, which takes it 30 ms. It evaluates once what is made of constants alone, unless there
# is a barrier before, and makes a matrix of one number by code of its own; so this is neither. For
# floats it has a second library, whose calls take longer.


def with_work(
    ctx: Any, operands: Sequence[Any], layouts: Layouts | None, size: int
) -> tuple[Any, list[Any], Layouts | None]:
    """The same with an operand more, for which XLA has to multiply matrices of `size` rows and
    columns. See Note [Work for XLA]."""
    factor = np.eye(size, dtype=np.int32)
    aval = jax.core.ShapedArray(factor.shape, factor.dtype)
    constant = mlir.ir_constant(factor)
    (hidden,) = stablehlo.OptimizationBarrierOp([constant]).results
    axes = stablehlo.DotDimensionNumbers.get([], [], [1], [0])
    made = stablehlo.dot_general(constant.type, hidden, constant, axes)
    if layouts is not None:
        layouts = ([*layouts[0], (1, 0)], layouts[1])
    return ctx.replace(avals_in=[*ctx.avals_in, aval]), [*operands, made], layouts
