"""What `stagejit.bind` does not take."""

from __future__ import annotations

import copy
import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.errors import GoneError, OptionsError, StagejitError
from tests.binding.networks import X, array, layers


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


@pytest.mark.parametrize("dtype", ["float64", "int64", "complex128"])
@pytest.mark.parametrize("bound_wide", [False, True])
def test_what_numpy_arrays_become_is_told(dtype: Any, bound_wide: bool) -> None:
    """Which `jax.enable_x64` says, of each call."""
    w = np.ones((4, 3), dtype)
    with jax.enable_x64(bound_wide):
        bound = stagejit.bind(lambda p, x: x * p.sum(), w)
    narrow = {"float64": "float32", "int64": "int32", "complex128": "complex64"}[dtype]
    where = "was where that was bound" if not bound_wide else "is here"
    said = rf"NumPy's {dtype} becomes {narrow} where jax.enable_x64 is off, as it {where}\n"
    with jax.enable_x64(not bound_wide), pytest.raises(OptionsError, match=said) as caught:
        bound.update(w)
    assert "Next: bind and update with jax.enable_x64 alike" in str(caught.value)
    with jax.enable_x64(bound_wide):
        bound.update(w)


@pytest.mark.parametrize(
    "other", [np.ones((4, 3), np.int32), np.ones((3, 3)), jnp.ones((4, 3), jnp.int32)]
)
def test_of_other_arrays_nothing_is_told_of_x64(other: Any) -> None:
    bound = stagejit.bind(lambda p, x: x * p.sum(), np.ones((4, 3), np.float32))
    with jax.enable_x64(True), pytest.raises(OptionsError, match="which is float32") as caught:
        bound.update(other)
    assert "enable_x64" not in str(caught.value)


def test_who_copies_what_is_gone_is_told_so() -> None:
    """No program has anything to do with it."""
    w = jnp.asarray(array(64, 64))
    bound = stagejit.bind(lambda p, x: x @ p, w, weights="int8")
    bound(jnp.ones((2, 64)))
    del w
    gc.collect()
    said = "the weight params is needed as it was bound, and is gone: programs keep what is made"
    with pytest.raises(GoneError, match=said):
        copy.deepcopy(bound)


def test_shapes_in_place_of_arrays_are_refused() -> None:
    shapes = jax.eval_shape(lambda: layers())
    with pytest.raises(OptionsError, match="it is the shape of one"):
        stagejit.bind(lambda p, x: x @ p["w"], shapes)


def test_a_list_in_place_of_an_array_is_told() -> None:
    bound = stagejit.bind(lambda p, x: x @ p["w"], {"w": array(2, 2)})
    with pytest.raises(OptionsError, match=r"params\['w'\] is bound as one leaf, and given as a"):
        bound.update({"w": [[1.0, 2.0], [3.0, 4.0]]})


def test_an_update_inside_of_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for its own thread: here it is called where the first one waits for calls."""
    bound = stagejit.bind(lambda p, x: x @ p, array(8, 4))
    told: list[OptionsError] = []

    def interrupted() -> None:
        with pytest.raises(OptionsError) as caught:
            bound.update(array(8, 4, seed=2))
        told.append(caught.value)

    bound(X)
    monkeypatch.setattr("stagejit.binding.wait_for_calls", interrupted)
    bound.update(array(8, 4, seed=1))
    assert len(told) == 1
    assert "in the middle of an update()" in str(told[0])
    np.testing.assert_allclose(bound(X), X @ array(8, 4, seed=1), rtol=1e-5, atol=1e-5)
