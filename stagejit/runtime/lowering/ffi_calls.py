"""A custom call of XLA's for one of our programs, where JAX lowers.

Input: a target that is registered, operands as IR values. Output: the results as IR values.
Invariant: what the program may write in place, and in which order axes lie, is said to XLA.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax

# Of operands and of results, each with the fastest axis first.
Layouts = tuple[Sequence[Any], Sequence[Any]]


def ffi_call(
    ctx: Any,
    target: str,
    operands: Sequence[Any],
    aliases: Iterable[tuple[int, int]],
    layouts: Layouts | None,
    **attributes: Any,
) -> list[Any]:
    """aliases: (result, argument) that share memory; layouts: None for row-major."""
    inputs, outputs = (None, None) if layouts is None else layouts
    lower = jax.ffi.ffi_lowering(
        target,
        operand_output_aliases={argument: result for result, argument in aliases},
        operand_layouts=inputs,
        result_layouts=outputs,
    )
    return list(lower(ctx, *operands, **attributes))
