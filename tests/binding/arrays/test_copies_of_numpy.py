"""NumPy's arrays that are bound: copied, kept no longer than JAX's, asked for again."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.errors import GoneError
from stagejit.runtime.bound import evaluation_counts
from tests.binding.networks import array

N = 64
X = np.asarray(array(2, N, seed=1))
MOST = {None: 1.0, "bf16": 0.51, "int8": 0.33, "int4": 0.22}  # with scales; of the arrays' bytes
ATOL = {None: 1e-4, "bf16": 0.1, "int8": 0.5, "int4": 5.0}


def readers(p: Any, x: Any, how: str) -> Any:
    w = p["w"]
    return {"product": lambda: x @ w, "sum": lambda: x + (w * w).sum(0)}[how]()


def bound_to(params: Any, form: Any) -> Any:
    return stagejit.bind(readers, params, weights=form, static_argnames="how")


@pytest.mark.parametrize("form", MOST)
def test_copies_are_kept_no_longer_than_arrays_of_jax(form: Any) -> None:
    params = {"w": array(N, N)}
    for given in (params, jax.tree.map(jnp.asarray, params)):
        bound = bound_to(given, form)
        bound(X, how="product")
        assert bound.memory_analysis()["kept_nbytes"] <= MOST[form] * 4 * N * N
        bound.update(given)
        assert bound.memory_analysis()["kept_nbytes"] <= MOST[form] * 4 * N * N


@pytest.mark.parametrize("form", MOST)
@pytest.mark.parametrize("then", ["as it was", "written to", "gone"])
def test_a_program_that_comes_later_reads_what_was_bound_or_fails(form: Any, then: str) -> None:
    """Whether it reads the elements, which no product has, or not; also after an update."""
    params = {"w": array(N, N)}
    bound = bound_to(params, form)
    bound(X, how="product")
    for _ in range(2):
        w = params["w"].copy()
        if then == "written to":
            params["w"][3, 5] += 1
        elif then == "gone":
            del params["w"]
            gc.collect()
        np.testing.assert_allclose(bound(X, how="product"), X @ w, atol=ATOL[form])
        np.testing.assert_allclose(bound(X[:1], how="product"), X[:1] @ w, atol=ATOL[form])
        if form is None or then == "as it was":
            np.testing.assert_allclose(bound(X, how="sum"), X + (w * w).sum(0), rtol=1e-5)
        else:
            with pytest.raises(GoneError, match=r"params\['w'\] is needed"):
                bound(X, how="sum")
        params["w"] = array(N, N, seed=2)
        bound.update(params)
        bound.clear_cache()
        bound(X, how="product")


OWNERS = {"C": array(N, N), "F": np.asfortranarray(array(N, N)), "larger": array(2 * N, 2 * N)}
VIEWS: dict[str, Callable[[], Any]] = {
    "whole": lambda: OWNERS["C"][:],
    "reshaped": lambda: OWNERS["C"].reshape(N, N),
    "transposed": lambda: OWNERS["C"].T,
    "of Fortran's order": lambda: OWNERS["F"][:],
    "backwards": lambda: OWNERS["C"][::-1, ::-1],
    "box": lambda: OWNERS["larger"][3 : N + 3, 5 : N + 5],
    "steps": lambda: OWNERS["larger"][1::2, ::2],
    "other type": lambda: OWNERS["C"].view(np.int32).view(np.float32),
    "repeated": lambda: np.broadcast_to(OWNERS["C"][3], (N, N)),
}


@pytest.mark.parametrize("form", MOST)
@pytest.mark.parametrize("name", VIEWS)
def test_whoever_keeps_the_memory_keeps_a_view(name: str, form: Any) -> None:
    """The view itself is forgotten."""
    w = VIEWS[name]().copy()
    bound = bound_to({"w": VIEWS[name]()}, form)
    bound(X, how="product")
    gc.collect()
    assert bound.memory_analysis()["kept_nbytes"] <= MOST[form] * 4 * N * N
    np.testing.assert_allclose(bound(X, how="sum"), X + (w * w).sum(0), rtol=1e-5)


class Tensor:
    """Somebody else's, which NumPy can read."""

    shape, dtype = (N, N), np.dtype(np.float32)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.full(self.shape, 2, self.dtype)


def test_an_update_takes_what_numpy_can_read() -> None:
    bound = bound_to({"w": array(N, N)}, None)
    bound(X, how="product")
    bound.update({"w": Tensor()})
    np.testing.assert_allclose(bound(X, how="product"), X @ np.asarray(Tensor()), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.float32])
@pytest.mark.parametrize("bound_with", [False, True])
def test_what_is_copied_again_has_the_type_of_before(dtype: Any, bound_with: bool) -> None:
    """Whatever `jax.enable_x64` says by then, a copy of the function included."""
    w = (8 * array(N, N)).astype(dtype)
    with jax.enable_x64(bound_with):
        bound = bound_to({"w": w}, None)
        wanted = bound(X, how="sum")
    gc.collect()
    with jax.enable_x64(not bound_with):
        other = copy.deepcopy(bound)
        assert [leaf.aval for leaf in other._weights()] == [leaf.aval for leaf in bound._weights()]
    with jax.enable_x64(bound_with):
        np.testing.assert_array_equal(other(X, how="sum"), wanted)


@pytest.mark.parametrize("form", MOST)
def test_arrays_that_are_bound_twice_are_made_once(form: Any) -> None:
    params = {"w": array(N, N)}
    first = bound_to(params, form)
    wanted = first(X, how="product")
    before = evaluation_counts()
    second = bound_to(params, form)
    np.testing.assert_array_equal(second(X, how="product"), wanted)
    assert evaluation_counts() == before
    params["w"][0] = 0
    third = bound_to(params, form)
    np.testing.assert_allclose(third(X, how="product"), X @ params["w"], atol=ATOL[form])
    np.testing.assert_array_equal(second(X, how="product"), wanted)


@pytest.mark.parametrize("form", MOST)
def test_copies_of_the_function_take_the_arrays(form: Any) -> None:
    params = {"w": array(N, N)}
    bound = bound_to(params, form)
    wanted = bound(X, how="product")
    np.testing.assert_array_equal(copy.deepcopy(bound)(X, how="product"), wanted)


@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("form", MOST)
def test_a_gradient_reads_what_was_there_when_it_began_or_fails(
    form: Any, is_written: bool
) -> None:
    """Its second program is compiled after the update."""
    params = {"w": array(N, N)}
    w = params["w"].copy()
    bound = stagejit.bind(lambda p, x: jnp.tanh(x @ p["w"]), params, weights=form)
    y, back = jax.vjp(bound, X)
    if is_written:
        params["w"] *= -1
        bound.update(params)
    else:
        bound.update({"w": -w})
    if is_written and form is not None:
        with pytest.raises(jax.errors.JaxRuntimeError, match="GoneError"):
            back(jnp.ones_like(y))
        return
    _, wanted = jax.vjp(lambda x: jnp.tanh(x @ w), X)
    np.testing.assert_allclose(
        back(jnp.ones_like(y))[0], wanted(jnp.ones_like(y))[0], atol=ATOL[form]
    )
