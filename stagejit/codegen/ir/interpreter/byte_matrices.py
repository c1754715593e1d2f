"""What `multiply_bytes` reads and writes, and what it gives, on NumPy arrays.

Input: a shape, how many steps there are. Output: places of words, from the starts of operands and
sums; the products of what lies there. Invariant: as `codegen/ir/byte_matrices.py` declares it.
"""

from __future__ import annotations

import numpy as np

from stagejit.codegen.ir.byte_matrices import ByteMatrices
from stagejit.codegen.ir.interpreter.rounding import Array


def places(shape: ByteMatrices, steps: int) -> tuple[Array, Array, Array]:
    """One row each, as of a kernel without threads."""
    rows, columns = np.arange(shape.rows), np.arange(shape.columns)
    step, word = np.arange(steps)[:, None], np.arange(shape.depth)
    along = (step * shape.left.step + word).reshape(-1)
    down = (step * shape.right.step + word * shape.right.row).reshape(-1)
    left = rows[:, None] * shape.left.row + along
    right = down[:, None] + columns
    sums = rows[:, None] * shape.sums.row + columns
    return left.reshape(1, -1), right.reshape(1, -1), sums.reshape(1, -1)


def products(shape: ByteMatrices, left: Array, right: Array) -> Array:
    """The sums of all steps."""
    a, b = (
        words.reshape(-1)[:, None].view(np.int8 if signed else np.uint8).astype(np.int64)
        for words, signed in zip((left, right), shape.signed, strict=True)
    )
    a = a.reshape(shape.rows, -1)
    b = b.reshape(-1, shape.columns, 4).swapaxes(1, 2).reshape(-1, shape.columns)
    total: Array = (a @ b).astype(np.int32).reshape(1, -1)
    return total
