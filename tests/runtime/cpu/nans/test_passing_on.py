"""`Options(check_nans=True)`: what was NaN before, or passes by, is told from what made one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from tests.runtime.cpu.nans import checked
from tests.runtime.cpu.nans.checked import CHECKED, EACH, PASSING_BY, error_of, first_line, line_of


def test_what_was_nan_before_is_named() -> None:
    def f(x: Any, unused: Any, w: Any) -> Any:
        return jnp.sin(x) + w, unused

    nan, one = jnp.full(5, jnp.nan), jnp.ones(5)
    assert "came in by argument `w`" in first_line(error_of(f, one, one, nan))
    assert "came in by argument `x`" in first_line(error_of(f, nan, one, nan))

    def masked(x: Any) -> Any:
        return jnp.where(jnp.isnan(x), 0.0, x)

    assert error_of(masked, nan) == ""


def test_donated_arguments_are_looked_at_before() -> None:
    staged = stagejit.jit(lambda x: jnp.sqrt(x), options=CHECKED, donate_argnums=0)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="first NaN") as caught:
        staged(-jnp.ones(100)).block_until_ready()
    assert "came in" not in str(caught.value)


# What passes on what it is given: none of these makes a NaN.
PASSING: dict[str, Callable[[Any, Any], Any]] = {
    "copy": lambda x, y: (x[::-1], x),
    "transpose": lambda x, y: x.T,
    "concatenation": lambda x, y: jnp.concatenate((y, x)),
    "map": lambda x, y: y + jnp.sin(x),
    "product": lambda x, y: x @ y,
    "update": lambda x, y: y.at[2:3].set(x[:1]),
    "carry": lambda x, y: lax.scan(lambda c, t: (c * 2 + y, c), x, jnp.arange(3)),
    "branch": lambda x, y: lax.cond(y[0, 0] > 0, lambda v: v.T, jnp.sin, x),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("options", [CHECKED, EACH], ids=["fused", "each"])
@pytest.mark.parametrize("name", PASSING)
def test_what_came_in_was_not_made(name: str, options: stagejit.Options) -> None:
    nan, one = jnp.full((4, 4), jnp.nan), jnp.ones((4, 4))
    text = error_of(PASSING[name], nan, one, options=options)
    assert "NaN came in by argument `x`" in first_line(text)
    assert re.search(r"There, @\S+ \(.*\) is the first to write one", text)
    assert "made" not in text
    assert text.count("stagejit program") == 1
    assert error_of(PASSING[name], one, one, options=options) == ""


def test_an_argument_that_is_masked_is_told_of_beside_what_was_made() -> None:
    def f(x: Any, y: Any) -> Any:
        return jnp.where(jnp.isnan(x), 0.0, x), jnp.log(y)  # of negatives

    text = error_of(f, jnp.full(4, jnp.nan), -jnp.ones(4), options=EACH)
    assert "came in by argument `x`" in first_line(text)
    assert "(map: log) is the first to write one, from y" in text


def test_weights_are_named() -> None:
    weights = {"w": jnp.full((4, 4), jnp.nan)}
    bound = stagejit.bind(lambda p, x: jnp.sin(x @ p["w"]), weights, options=CHECKED)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="NaN came in") as caught:
        jax.block_until_ready(bound(jnp.ones((2, 4))))
    assert "weight" in str(caught.value)


def test_what_xla_made_is_named() -> None:
    def f(x: Any) -> Any:
        return jnp.abs(jnp.linalg.eigvals(x)) + 1.0  # by XLA

    text = error_of(f, jnp.full((3, 3), jnp.inf))
    assert "made NaN, in XLA" in text
    assert line_of(text, "by XLA", __file__)


@pytest.mark.parametrize("name", PASSING_BY)
def test_what_no_dispatch_stores_is_seen_with_its_line(name: str) -> None:
    one = jnp.ones(4)
    text = error_of(PASSING_BY[name], one)
    assert "NaN" in first_line(text)
    assert "made" in first_line(text)
    assert line_of(text, "a callback", checked.__file__)
    assert error_of(PASSING_BY[name], 7 * one) == ""
    wanted = stagejit.jit(PASSING_BY[name])(7 * one)
    found = stagejit.jit(PASSING_BY[name], options=CHECKED)(7 * one)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_results_that_are_constants_or_arguments_are_seen() -> None:
    one, nan = jnp.ones(4), jnp.full(4, jnp.nan)
    filled = error_of(lambda x: (x, jnp.full(3, jnp.nan)), one)  # filled
    assert "filled in NaN, in r1[0:3]" in first_line(filled)
    assert line_of(filled, "filled", __file__)
    stored = error_of(lambda x: (x, np.array([1, np.nan], np.float32)), one)
    assert "NaN came in by constant `c0`" in first_line(stored)
    computed = error_of(lambda x: (x, jnp.log(jnp.arange(3.0) - 1)), one)  # computed before
    assert "NaN came in by a constant" in first_line(computed)
    assert line_of(computed, "computed before", __file__)
    for f in (lambda x, y: x, lambda x, y: (x, x, jnp.sin(y)), lambda x, y: x.reshape(2, 2)):
        given = error_of(f, nan, one)
        assert "NaN came in by argument `x`" in first_line(given)
        assert error_of(f, one, one) == ""
    donated = stagejit.jit(lambda x: (x, jnp.sin(x)), options=CHECKED, donate_argnums=0)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="came in by argument"):
        jax.block_until_ready(donated(jnp.full(4, jnp.nan)))
