"""Products of matrices of bytes: the interpreter against NumPy, machine code against that."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stagejit.codegen.cpu.instructions import has_matrices
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.byte_matrices import ByteMatrices, Rows
from stagejit.codegen.ir.interpreter.run import interpret
from stagejit.codegen.ir.nodes import I1, I32, Function
from stagejit.codegen.ir.verifier import verify
from stagejit.codegen.target import Target
from stagejit.errors import VerificationError

HOST = Target.host()


def product(shape: ByteMatrices, steps: int, *, adds: bool) -> Function:
    b = Builder()
    x, y = (b.buffer(name, I32, readonly=True) for name in "xy")
    z = b.buffer("z", I32)
    zero = b.const(0)
    b.multiply_bytes(shape, (x, zero), (y, zero), (z, zero), steps, b.const(adds, I1))
    return b.finish()


def drawn(seed: int) -> tuple[ByteMatrices, int, list[Any]]:
    r, rng = random.Random(seed), np.random.default_rng(seed)
    rows, columns = r.choice(((1, 1), (16, 16), (32, 32), (17, 25), (5, 48), (32, 7), (9, 33)))
    depth, steps = r.choice((1, 3, 8, 15, 16)), r.choice((1, 2, 5))
    signed = r.random() < 0.5, r.random() < 0.5
    left = Rows(depth * steps + r.choice((0, 3)), depth)
    right = Rows(columns + r.choice((0, 5)), 0)
    right = Rows(right.row, depth * right.row)
    sums = Rows(columns + r.choice((0, 1)))
    shape = ByteMatrices(rows, columns, depth, left, right, sums, signed)
    sizes = (rows * left.row, depth * steps * right.row, rows * sums.row)
    arrays = [rng.integers(0, 256, 4 * size, np.uint8).view(np.int32) for size in sizes]
    return shape, steps, arrays


def wanted(shape: ByteMatrices, steps: int, arrays: list[Any], *, adds: bool) -> Any:
    kinds = [np.int8 if sign else np.uint8 for sign in shape.signed]
    x, y, z = arrays
    z = z.copy()
    for row in range(shape.rows):
        for column in range(shape.columns):
            total = int(z[row * shape.sums.row + column]) if adds else 0
            for word in range(steps * shape.depth):
                a = x[row * shape.left.row + word : row * shape.left.row + word + 1]
                at = word * shape.right.row + column
                pair = (a.view(kinds[0]), y[at : at + 1].view(kinds[1]))
                total += int((pair[0].astype(int) * pair[1].astype(int)).sum())
            z[row * shape.sums.row + column] = np.int64(total).astype(np.int32)
    return z


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_products_of_matrices(seed: int, adds: bool, compile_kernel: Callable[..., Any]) -> None:
    shape, steps, arrays = drawn(seed)
    function = product(shape, steps, adds=adds)
    verify(function)
    found, expected = arrays[2].copy(), wanted(shape, steps, arrays, adds=adds)
    interpret(function, [*arrays[:2], found])
    np.testing.assert_array_equal(found, expected)
    if has_matrices(HOST):
        compile_kernel(function, HOST)(arrays, [], 0, 1)
        np.testing.assert_array_equal(arrays[2], expected)


def test_what_has_no_room_in_registers_is_refused() -> None:
    shape = ByteMatrices(33, 32, 16, Rows(16), Rows(32), Rows(32), (True, True))
    with pytest.raises(VerificationError, match=r"no room for m33n32k64\.s8\.s8"):
        verify(product(shape, 1, adds=False))
