"""Attention on a GPU: tiles of which a mask leaves nothing are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.codegen.cuda.attention.shapes import Shape
from stagejit.codegen.generate import forget_kernels
from stagejit.types import f32
from tests.cuda.attention.programs import (
    BF16,
    PROGRAMS,
    _forced,
    causal,
    causal_divided,
    chosen,
    close,
    exact,
    scores,
    three,
)
from tests.cuda.machine import run


@pytest.mark.parametrize("name", ["causal", "causal, finite", "window", "causal, more keys"])
def test_tiles_of_which_nothing_is_left_are_left_out(name: str) -> None:
    assert "passes" in chosen(*PROGRAMS[name])


@pytest.mark.parametrize("name", ["mask", "segments", "bias of all", "no batch", "where"])
def test_dont_leave_out_what_positions_do_not_tell(name: str) -> None:
    assert "passes" not in chosen(*PROGRAMS[name])


def test_dont_ask_where_there_is_one_tile() -> None:
    assert "passes" not in chosen(causal, three(20, 20, 8, 8))


def offset(*args: Any, fn: Callable[[Any, Any], Any], low: float = -np.inf) -> Any:
    q, k, v = args
    s = scores(q, k)
    rows, keys = (jax.lax.broadcasted_iota(jnp.int32, s.shape, s.ndim - at) for at in (2, 1))
    return jax.nn.softmax(jnp.where(fn(rows, keys), s, low), -1) @ v


MASKS: dict[str, Callable[[Any, Any], Any]] = {
    "before": lambda row, key: key < row + 1,
    "after": lambda row, key: key >= row,
    "near": lambda row, key: (key - row < 3) & (row - key < 3),
    "far": lambda row, key: (key - row > 3) | (row - key > 3),
    "not": lambda row, key: ~(key > row),
    "one": lambda row, key: key == row,
    "others": lambda row, key: key != row,
    "length": lambda row, key: key < 40,
    "none at first": lambda row, key: key < row - 20,
    "wraps": lambda row, key: (key + 2147483600 > row) | (key < row),
}


@pytest.mark.parametrize("low", [-np.inf, -1e30, -5.0])
@pytest.mark.parametrize("name", MASKS)
def test_masks_of_positions(name: str, low: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they leave of which tiles, and however little they take away."""
    _forced(monkeypatch, Shape(16, 32, 16, 16, 64, f32, 256, None))
    args = three(50, 100, 8, 8)

    def function(*args: Any) -> Any:
        return offset(*args, fn=MASKS[name], low=low)

    close(run(function, *args), exact(function, args))
    forget_kernels()


@pytest.mark.parametrize("worst", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_values_that_are_left_out_are_looked_at(worst: float, dtype: Any) -> None:
    """0 times NaN is NaN."""
    q, k, v = three(140, 140, 16, 16, dtype=dtype)
    v[130, 3] = worst
    (found,), (wanted,) = run(causal, q, k, v), exact(causal, (q, k, v))
    assert np.isnan(wanted[:130, 3]).all()
    close([found], [wanted])


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_weights_that_are_left_out_may_be_no_numbers(dtype: Any) -> None:
    """0 divided by 0."""
    by = np.ones(133, dtype)
    args = (*three(40, 133, 16, 16, dtype=dtype), by)
    assert "passes" not in chosen(causal_divided, args)
    by[-1] = 0
    (found,) = run(causal_divided, *args)
    assert np.isnan(found.astype(np.float32)).all()
