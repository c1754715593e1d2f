"""`Options(check_nans=True)`, where a constant is the NaN: the line that makes it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

import stagejit
from tests.runtime.cpu.nans.checked import CHECKED, EACH, error_of, first_line, line_of


def by_a_function(x: Any) -> Any:
    c = jnp.log(jnp.float32(-1.0))  # a logarithm
    return x * 2 + c


def of_a_constant(x: Any) -> Any:
    z = jnp.zeros(())
    c = z / z  # a quotient
    d = c + 1
    return jnp.sin(x) * d


def by_infinities(x: Any) -> Any:
    i = jnp.float32(jnp.inf)
    c = i - i  # a difference
    return jnp.sin(x) * c


def as_it_stands(x: Any) -> Any:
    y = x * 2
    return y * jnp.nan  # a literal


def of_an_array(x: Any) -> Any:
    c = jnp.log(jnp.arange(4.0) - 1)  # of an array
    return c + x


def as_a_border(x: Any) -> Any:
    y = jnp.pad(x, 1, constant_values=jnp.nan)  # a border
    return y * 2


def as_a_carry(x: Any) -> Any:
    return lax.scan(lambda c, t: (c + t, c), jnp.float32(jnp.nan), x)  # a carry


PLACES = {
    by_a_function: "a logarithm",
    of_a_constant: "a quotient",
    by_infinities: "a difference",
    as_it_stands: "a literal",
    of_an_array: "of an array",
    as_a_border: "a border",
    as_a_carry: "a carry",
}


@pytest.mark.parametrize("options", [CHECKED, EACH], ids=["fused", "each"])
@pytest.mark.parametrize("function", PLACES)
def test_a_constant_that_is_nan_is_told_by_the_line_that_makes_it(
    function: Callable[[Any], Any], options: stagejit.Options
) -> None:
    text = error_of(function, jnp.ones(4), options=options)
    first_place = text[text.index("  -->") :].split("\n")[0] + "\n"
    assert line_of(first_place, PLACES[function], __file__), text


def test_an_infinity_that_is_only_compared_is_told_of_nobody() -> None:
    def f(x: Any) -> Any:
        y = jnp.where(jnp.isinf(x), 0.0, jnp.minimum(x, jnp.inf))
        return jnp.log(x - 1.0) + y

    text = error_of(f, jnp.ones(4), options=stagejit.Options(check_infs=True))
    assert "by a constant" not in text
    assert "made the first" in first_line(text)


def test_what_a_body_reads_is_called_as_around_it() -> None:
    def f(x: Any, w: Any) -> Any:
        return lax.scan(lambda c, t: (jnp.sqrt(c + t) * w, c), x[0] * 0, x)

    text = error_of(f, -jnp.ones((3, 5)), jnp.ones(5))
    assert "x0 (x)" in text
    assert "const0 (w)" in text


def test_without_checks_it_is_folded_as_ever() -> None:
    lowered = stagejit.jit(by_a_function).lower(jnp.ones(4))
    assert "log" not in lowered.as_text("graph")
    checked = stagejit.jit(by_a_function, options=CHECKED).lower(jnp.ones(4))
    assert "log" in checked.as_text("graph")
    explained = str(stagejit.jit(by_a_function, options=CHECKED).explain(jnp.ones(4)))
    assert "it makes a NaN or an infinity, which the checks tell of" in explained
