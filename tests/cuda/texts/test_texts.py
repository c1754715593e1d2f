"""What a person reads beside a kernel: its loops, and the dispatches that launch it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import stagejit
from tests.cuda.machine import compilation_of


def test_dispatches_stand_above_their_kernel_with_their_ranges() -> None:
    def f(x: Any, y: Any) -> Any:
        return x[2:5] * 2 + 1, y.sum(1)

    shown = stagejit.jit(f, backend="cuda-emulated").lower(
        np.ones((6, 4), np.float32), np.ones((8, 40), np.float32)
    ).as_text("cuda")  # fmt: skip
    lines = [line for line in shown.splitlines() if line.startswith("// dispatch @")]
    assert any("reads x[2:5, 0:4]" in line and "writes r0[0:3, 0:4]" in line for line in lines)
    assert any("reads y[0:8, 0:40]" in line for line in lines)


def test_a_kernel_of_many_dispatches_stands_once() -> None:
    def f(xs: Any) -> Any:
        return [x * 2 + 1 for x in xs]

    xs = [np.ones(100, np.float32) + k for k in range(9)]
    shown = stagejit.jit(f, backend="cuda-emulated").lower(xs).as_text("cuda")
    assert shown.count("__global__") == 1
    assert shown.count("// dispatch @") == 3
    assert "// and 6 others\n" in shown


def test_vectors_of_a_row_are_told_together() -> None:
    x = np.ones((64, 1000), np.float32)
    kernels = compilation_of(lambda x: jax.nn.softmax(x, -1), x).run_until("codegen").kernels
    (loops,) = (generated.kernel.loops for generated in kernels.values())
    assert loops.count("vector 0 to 7") == 3
    assert "vector 1\n" not in loops
