"""Attention on a GPU: right values under emulation, also of infinite and absent scores."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.cuda.attention.programs import (
    PROGRAMS,
    biased,
    chosen,
    close,
    exact,
    heads,
    kinds,
    library,
    normal,
    scores,
    three,
)
from tests.cuda.machine import run


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str) -> None:
    function, args = PROGRAMS[name]
    with jax.enable_x64(args[0].dtype == np.float64):
        close(run(function, *args, resources=True), exact(function, args))
        if name != "one key":  # whose softmax is 1
            assert "attend" in kinds(function, args)


@pytest.mark.parametrize("low", [-np.inf, np.float32(-3e38)])
def test_rows_without_an_element(low: float) -> None:
    """NaN where all scores are -inf, the mean of all values where they are equal numbers."""
    q, k, v = three(20, 80, 8, 8)
    mask = normal(20, 80) > 0
    mask[[0, 7]], mask[3, :70] = False, False

    def function(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(jnp.where(mask, scores(q, k), low), -1) @ v

    (found,), wanted = run(function, q, k, v), exact(function, (q, k, v))
    close([found], wanted)
    assert np.isnan(found[[0, 7]]).all() == np.isinf(low)


def test_rows_of_which_nothing_is_present_are_zero() -> None:
    """And NaN where all that is present is -inf."""
    args = (*three(20, 80, 8, 8), normal(20, 80) > 0, np.zeros((20, 80), np.float32))
    args[3][[0, 7]], args[4][5] = False, -np.inf

    def function(q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
        return jax.nn.softmax(scores(q, k) + bias, -1, where=mask) @ v

    (found,) = run(function, *args)
    close([found], exact(function, args))
    assert (found[[0, 7]] == 0).all()
    assert np.isnan(found[5]).all()


def test_infinite_scores_are_as_in_numpy() -> None:
    q, k, v = three(20, 80, 8, 8)
    bias = np.zeros((20, 80), np.float32)
    bias[2, 70], bias[4, 3] = np.inf, np.nan
    args = (q, k, v, bias)
    close(run(biased, *args), exact(biased, args))


def test_grouped_heads_have_several_rows_of_a_position() -> None:
    args = heads(1, 70, 70, 6, 2, 8)

    def function(*args: Any) -> Any:
        return library(*args, is_causal=True)

    close(run(function, *args), exact(function, args))
    assert "passes" in chosen(function, args)
