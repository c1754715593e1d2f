"""Attention on a GPU: tiles of any shape, without spills, barriers that are needed."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from stagejit.codegen.cuda.attention.shapes import Shape
from stagejit.codegen.generate import forget_kernels
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.grid.matrix_tiles import M16N8K16_BF16
from stagejit.runtime.cuda.code.nvrtc import is_installed
from stagejit.types import bf16, f32
from tests.cuda.attention.programs import (
    BF16,
    PROGRAMS,
    _forced,
    causal,
    close,
    exact,
    kernels,
    plain,
    three,
)
from tests.cuda.emulation.checked import ARCHITECTURES, require_resources
from tests.cuda.emulation.emulated import NAME, ORDERS, EmulationError
from tests.cuda.machine import GPU, launch, run


def _shapes(dtype: Any, tile: Any) -> list[Shape]:
    """Small chunks, so that small arrays have several of each."""
    if tile is not None:
        return [Shape(16 * w, 32, 16, 32, 16, dtype, 32 * w, tile) for w in (1, 2)]
    return [
        Shape(16 * r, 16 * c, 16, s, 64, dtype, 256, None)
        for r, c, s in ((1, 2, 16), (2, 4, 32), (4, 2, 32), (4, 4, 64))
    ]


@pytest.mark.parametrize("number", range(4))
def test_any_shape_gives_the_same(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _forced(monkeypatch, _shapes(f32, None)[number])
    args = three(70, 140, 40, 70)
    close(run(causal, *args), exact(causal, args))
    forget_kernels()


@pytest.mark.parametrize("number", range(2))
def test_any_shape_of_tensor_cores(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _forced(monkeypatch, _shapes(bf16, M16N8K16_BF16)[number])
    args = three(40, 70, 40, 24, dtype=BF16)
    close(run(causal, *args), exact(causal, args))
    forget_kernels()


def test_shapes_fit_the_shared_memory_of_a_block() -> None:
    for name in ("deep", "wide", "bf16, deep", "f64"):
        function, args = PROGRAMS[name]
        with jax.enable_x64(name == "f64"):
            texts = [kernel.text for kernel in kernels(function, args)]
        declared = [line for text in texts for line in text.splitlines() if "__shared__" in line]
        sizes = {"float": 4, "double": 8, "__nv_bfloat16": 2, "bf16": 2, "u32": 4}
        nbytes = sum(
            sizes[line.split("__shared__ ")[1].split()[0]] * int(line.split("[")[1].split("]")[0])
            for line in declared
        )
        assert 0 < nbytes <= GPU.static_shared_nbytes


LARGE = {
    "f32": (causal, 8, 64, np.float32), "f32, wide": (plain, 32, 128, np.float32),
    "bf16": (causal, 64, 64, BF16), "bf16, wide": (causal, 64, 128, BF16),
    "bf16, wider": (plain, 16, 256, BF16),
}  # fmt: skip


@pytest.mark.skipif(not is_installed(), reason="NVRTC is not installed")
@pytest.mark.parametrize("name", LARGE)
def test_large_tiles_spill_nothing(name: str) -> None:
    function, batch, width, dtype = LARGE[name]
    (kernel,) = kernels(function, tuple(np.zeros((batch, 2048, width), dtype) for _ in range(3)))
    source = kernel.text.replace(kernel.symbol, NAME)
    for arch in ARCHITECTURES:
        require_resources(source, kernel.kernel.function.threads, arch)


# Barriers of a tile in the order in which they are written; see Note [Barriers].
MUTATED = {
    "threads": ((33, 70, 40, 8), Shape(16, 32, 16, 16, 64, f32, 256, None), 4, np.float32),
    "tensor cores": ((33, 70, 40, 8), Shape(32, 32, 16, 32, 16, bf16, 64, M16N8K16_BF16), 3, BF16),
    "queries stay": ((33, 70, 16, 8), Shape(16, 32, 16, 32, 64, f32, 256, None), 2, np.float32),
    "passes": ((33, 70, 16, 8, 2), Shape(16, 32, 16, 32, 64, f32, 256, None), 3, np.float32),
}


@pytest.mark.parametrize("name", MUTATED)
def test_a_missing_barrier_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, shape, barriers, dtype = MUTATED[name]
    args, function = three(*sizes, dtype=dtype), causal if name == "passes" else plain
    if name == "passes":  # the second batch needs what the first one does not, as one warp knows
        args[2][1, 65, 0] = np.nan
    (wanted,) = exact(function, args)
    for which in range(barriers):
        build, calls = GridBuilder.barrier, []

        def barrier(b: GridBuilder) -> None:
            calls.append(b)  # noqa: B023
            if len(calls) != which + 1:  # noqa: B023
                build(b)  # noqa: B023

        with monkeypatch.context() as changed:
            _forced(changed, shape)
            changed.setattr(GridBuilder, "barrier", barrier)
            (kernel,) = kernels(function, args)
        forget_kernels()
        assert len(calls) == barriers
        wrong = []
        for order in ORDERS:
            out = np.zeros(wanted.shape, dtype)
            source = kernel.text.replace(kernel.symbol, NAME)
            pointers = [args[arg.value.op.attrs["index"]].ctypes.data
                        for arg in kernel.kernel.args if not arg.written]  # fmt: skip
            words = [*pointers, out.ctypes.data, 0, kernel.kernel.total]
            try:
                launch(source, kernel.kernel.function.threads, words, 1, order)
            except EmulationError:  # threads part at another barrier
                wrong.append(True)
                continue
            wrong.append(not np.allclose(out.astype(float), wanted, 3e-2, 3e-2, equal_nan=True))
        assert any(wrong), f"barrier {which}"
