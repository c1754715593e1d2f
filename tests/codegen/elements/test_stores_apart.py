"""Stores whose lanes stand apart: each element of the destination is written, whatever the stride,
the number of stores that share it, and the width of a vector."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.codegen.elements.phases import Place, WaitingStores
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import F32
from stagejit.errors import InternalError
from tests.codegen.regions import Runner
from tests.randomness import RNG

WIDTHS = [np.float32, np.float64, np.int8, np.int16]


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, np.dtype[Any]]:
    return (RNG.standard_normal(shape) * 20).astype(dtype)


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 33])
def test_stacks(runner: Runner, count: int, dtype: Any) -> None:
    def fn(x: Any) -> Any:
        return jnp.stack([x * np.array(k, dtype) for k in range(1, count + 1)], -1)

    runner.check(fn, array(37, dtype=dtype))


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("missing", [0, 3, 8])
def test_stacks_with_a_hole(runner: Runner, missing: int, dtype: Any) -> None:
    """Phases that are never complete go lane by lane."""

    def fn(x: Any) -> Any:
        out = jnp.zeros((x.size, 9), dtype)
        for k in range(9):
            if k != missing:
                out = lax.dynamic_update_slice(out, (x * np.array(k, dtype))[:, None], (0, k))
        return out

    runner.check(fn, array(37, dtype=dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", [2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33])
def test_rows_of_any_length(runner: Runner, length: int, dtype: Any) -> None:
    def fn(x: Any) -> Any:
        return x - x.max(1, keepdims=True), x / (1 + abs(x).sum(1, keepdims=True))

    runner.check(fn, array(35, length, dtype=dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", [2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33])
def test_columns_stored_as_rows(runner: Runner, length: int, dtype: Any) -> None:
    runner.check(lambda x: x.T - x.T.max(1, keepdims=True), array(length, 100, dtype=dtype))


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("width", [2, 3, 5, 8, 12, 16, 17])
def test_transposed_maps(runner: Runner, width: int, dtype: Any) -> None:
    x = array(width, 29, dtype=dtype)
    runner.check(lambda x: (x.T + x.T, x.T * x.T), x)
    runner.check(lambda x: jnp.transpose(x[:, None] * x[None], (2, 1, 0)), x)


def test_a_store_that_is_never_written_is_refused() -> None:
    class Forgetful(WaitingStores):
        def _transposed(self, place: Place, phases: list[Any]) -> None:
            pass

    b = Builder()
    place = Place(b.buffer("y", F32), b.const(0), 4, 4)
    waiting = Forgetful(b, 8)
    for phase in range(8):
        waiting.add(place, phase, b.const(0.0, F32.with_lanes(4)))
    with pytest.raises(InternalError, match="8 stores were never written"):
        waiting.write()


def test_a_phase_is_stored_once() -> None:
    b = Builder()
    place = Place(b.buffer("y", F32), b.const(0), 4, 4)
    waiting = WaitingStores(b, 8)
    waiting.add(place, 1, b.const(0.0, F32.with_lanes(4)))
    with pytest.raises(InternalError, match="twice"):
        waiting.add(place, 1, b.const(0.0, F32.with_lanes(4)))


@pytest.mark.parametrize("every", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("shape", [(20, 7), (17, 33), (4, 4), (3, 16), (37, 5)], ids=str)
def test_a_transposed_read_beside_one_with_gaps(
    runner: Runner, shape: tuple[int, int], every: int
) -> None:
    """Rows of a square that is read transposed are loaded for each row, also where the position of
    the square is a number."""
    rows, columns = shape
    for phase in (0, every - 1):
        runner.check(
            lambda x, y, phase=phase: x.T + y[:, :, phase],
            np.arange(rows * columns, dtype=np.float32).reshape(columns, rows),
            np.arange(rows * columns * every, dtype=np.float32).reshape(rows, columns, every),
        )
