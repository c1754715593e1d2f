"""What XLA compiles in tests is what it compiles for users, in less time."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax._src.interpreters import mlir

from tests.harness import xla


def subtracted(x: Any, at: Any, updates: Any) -> Any:
    numbers = lax.ScatterDimensionNumbers((0,), (), (0,))
    return lax.scatter_sub(x, at, updates, numbers, mode="clip")


def test_windows_at_narrow_indices_are_written_within_bounds() -> None:
    """Without emitters, they are written beside an array of 300 elements."""
    at = np.array([[-2], [3], [100]], np.int8)
    found = jax.jit(subtracted)(np.zeros(300), at, np.ones((150, 3)))
    wanted = np.zeros(300)
    for start in (0, 3, 100):
        wanted[start : start + 150] -= 1
    np.testing.assert_array_equal(found, wanted)


def test_what_needs_emitters_has_them() -> None:
    with jax.enable_x64(True):
        z = np.array([1 + 1j, 2 - 1j])
        np.testing.assert_array_equal(jax.jit(lax.clamp)(z, z, z), z)


def mapped(*batched: Any) -> Any:
    return lax.map(lambda args: jax.jit(subtracted)(*args), batched)


@pytest.mark.parametrize("scatters", [jax.vmap(subtracted), mapped])
def test_scatters_are_seen_wherever_they_are(scatters: Any) -> None:
    args = np.zeros((2, 9)), np.zeros((2, 1, 1), int), np.ones((2, 4, 1))
    assert xla.has_scatter(jax.jit(scatters).lower(*args).compiler_ir())
    assert not xla.has_scatter(jax.jit(lambda x: x[::2] + 1).lower(args[0]).compiler_ir())


def test_programs_of_a_module_share_a_context_and_nested_ones_another() -> None:
    outer, again = mlir.make_ir_context(), mlir.make_ir_context()
    assert outer is again
    with outer:
        inner = mlir.make_ir_context()
        assert inner is not outer
        assert inner is mlir.make_ir_context()
    with mlir.ir.Context():
        assert mlir.make_ir_context() not in (outer, inner)


def test_threads_have_contexts_of_their_own() -> None:
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(mlir.make_ir_context()))
    thread.start()
    thread.join()
    assert made[0] is not mlir.make_ir_context()
