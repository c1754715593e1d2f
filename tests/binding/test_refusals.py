"""What `stagejit.bind` does not take."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import stagejit
from stagejit.errors import OptionsError, StagejitError
from tests.binding.networks import X, layers


def test_traced_parameters_are_refused() -> None:
    with pytest.raises(StagejitError, match="params is a traced value"):
        jax.jit(lambda w: stagejit.bind(jnp.dot, w)(X))(jnp.ones((8, 2)))


def test_what_is_no_function_is_refused_at_its_line() -> None:
    with pytest.raises(OptionsError, match="got 3 as a function") as caught:
        stagejit.bind(3, layers())  # type: ignore[arg-type]
    assert caught.value.loc.file == __file__
    assert "Next: give the function first" in str(caught.value)
    assert "stagejit.bind(3, layers())" in str(caught.value)


def test_what_is_given_in_place_of_a_function_is_told_in_short() -> None:
    with pytest.raises(OptionsError, match=r"got .{1,80} as a function") as caught:
        stagejit.bind({"w": jnp.ones((300, 3))}, layers())  # type: ignore[arg-type]
    assert len(str(caught.value)) < 400


def test_a_keyword_that_there_is_not_is_told_with_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"^bind\(\) got .* 'budget': did you mean 'budget_ms'\?"):
        stagejit.bind(lambda p, x: x, layers(), budget=3)
    with pytest.raises(TypeError, match="'static_argnum': did you mean 'static_argnums'"):
        stagejit.bind(lambda p, x: x, layers(), static_argnum=0)
