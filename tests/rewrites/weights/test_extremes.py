"""store-weights, of the largest numbers, the smallest and none: finite weights stay so."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.rewrites.weights.stored import has_infinities, has_steps, stays_finite

Array = np.ndarray[Any, np.dtype[Any]]

FORMS = ("bf16", "int8", "int4")
LARGEST = float(np.finfo(np.float32).max)
# Of bf16 3.3895e38 is the largest; from 3.3962e38 on numbers are rounded to an Inf.
NUMBERS = [LARGEST, -LARGEST, 3.397e38, -3.396e38, 3.3895e38, 1e37, 1e-38, 1e-44, np.inf, np.nan]
PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda w, x: x @ w[0],
    "transposed": lambda w, x: w[0].T @ x.T,
    "read from behind": lambda w, x: x @ lax.rev(w[0], (0,)),
    "layers": lambda w, x: lax.scan(lambda c, v: (c + x @ v, None), jnp.zeros((5, 48)), w)[0],
    "an embedding": lambda w, x: (w.reshape(-1, 64)[jnp.arange(9) * 5], x @ w.reshape(-1, 64).T),
}
SINGLE = {"product", "transposed", "read from behind"}


def planted(numbers: tuple[float, ...], shape: tuple[int, ...]) -> Array:
    """Each number in another column, and another row of those that are multiplied by zeros."""
    w = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for at, number in enumerate(numbers):
        w[-1, 7 + at, 9 + at] = number
    return w


def argument() -> Array:
    x = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32) * np.float32(0.1)
    x[2:, 7:9] = 0
    return x


def assert_finite_alike(found: Any, wanted: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))


PLANTED = [*((n,) for n in NUMBERS), (np.inf, LARGEST), (np.nan, 3.397e38), (1e37, -LARGEST)]


def message(numbers: tuple[float, ...], form: str) -> str:
    """What an update with such weights is refused with; empty where it is not."""
    if not np.isfinite(numbers).all() and not has_infinities(form):
        return "has an Inf or a NaN, and is stored as"
    finite = max(abs(n) for n in numbers if np.isfinite(n)) if np.isfinite(numbers).any() else 0.0
    return "" if stays_finite(form, finite) else "has a finite number that would be infinite as"


@pytest.mark.some(30)
@pytest.mark.parametrize(
    ("program", "form", "numbers"), list(itertools.product(PROGRAMS, FORMS, PLANTED))
)
def test_results_are_finite_where_those_of_f32_are(
    program: str, form: Any, numbers: tuple[float, ...]
) -> None:
    f, x, shape = PROGRAMS[program], argument(), (1 if program in SINGLE else 3, 64, 48)
    w, plain = planted(numbers, shape), planted((), shape)
    wanted = jax.jit(f)(jnp.asarray(w), x)
    assert_finite_alike(stagejit.bind(f, w, weights=form)(x), wanted)

    bound = stagejit.bind(f, plain, weights=form)
    before = bound(x)
    assert bound.weight_error  # which reads the form
    if refused := message(numbers, form):
        with pytest.raises(stagejit.StagejitError, match=refused):
            bound.update(w)
        assert_finite_alike(bound(x), before)
    else:
        bound.update(w)
        assert_finite_alike(bound(x), wanted)
        assert np.isfinite(list(bound.weight_error.values())).all()


@pytest.mark.parametrize(
    ("form", "number", "steps"),
    [("bf16", 3.4e38, 64), ("bf16", -LARGEST, 64), ("int8", LARGEST, 64), ("int4", LARGEST, 63)],
)
def test_a_weight_that_would_be_infinite_stays_as_it_is(
    form: Any, number: float, steps: int
) -> None:
    """Of an odd number of steps no two are in a byte: they are in 8 bits."""
    w, x = planted((number,), (1, steps, 48))[0], argument()[:, :steps]
    bound = stagejit.bind(lambda w, x: x @ w, w, weights=form)
    np.testing.assert_allclose(bound(x), x @ w, rtol=1e-5, atol=1e-5)
    said = [d for d in bound.plan(x).decisions if d.rewrite == "store-weights"]
    reason = "it has a finite number that would be infinite"
    assert [(d.applied, d.reason) for d in said] == [(False, reason)]
    assert bound.weight_error == {}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-37, 1e-35, 1.0])
def test_a_weight_whose_scale_would_be_no_normal_number_stays_as_it_is(
    form: Any, size: float
) -> None:
    w, x = planted((), (1, 64, 48))[0] * np.float32(size), argument()
    bound = stagejit.bind(lambda w, x: x @ w, w, weights=form)
    steps = {"int8": 127, "int4": 7}.get(form)
    largest = float(np.abs(w).max())
    kept = steps is not None and 0 < largest < steps * 2.0**-126
    (said,) = [d for d in bound.plan(x).decisions if d.rewrite == "store-weights"]
    reason = "all of it is so small that its scale would be no normal number"
    assert (said.applied, said.reason == reason) == (not kept, kept)
    if kept:
        assert bound.weight_error == {}
        np.testing.assert_allclose(bound(x), x @ w, rtol=1e-4, atol=64 * 2.0**-126)
    bound.update(np.ones_like(w))
    np.testing.assert_allclose(bound(x), x @ np.ones_like(w), rtol=1e-2, atol=1e-2)


def test_the_scale_of_numbers_that_do_not_pair_is_that_of_8_bits() -> None:
    size = 100 * 2.0**-126
    assert has_steps("int4", size)
    assert not has_steps("int4", size, paired=False)
    assert has_steps("bf16", size, paired=False)
    assert not has_steps("int8", size)
    assert has_steps("int8", 0.0)
    assert has_steps("int8", 127 * 2.0**-126)


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_what_an_update_with_a_tiny_weight_loses_is_said(form: Any) -> None:
    w = planted((), (1, 64, 48))[0]
    bound = stagejit.bind(lambda w, x: x @ w, w, weights=form)
    bound(argument())
    before = max(bound.weight_error.values())
    bound.update(w * np.float32(1e-38))
    assert max(bound.weight_error.values()) > before + 0.05


@pytest.mark.parametrize("form", FORMS)
def test_what_is_computed_of_weights_would_be_infinite(form: Any) -> None:
    w = planted((LARGEST / 2,), (1, 64, 48))[0]
    bound = stagejit.bind(lambda w, x: x @ (w * 2.0), w, weights=form)
    if stays_finite(form, LARGEST):
        assert np.isfinite(bound(argument())[2:]).all()
        return
    with pytest.raises(stagejit.StagejitError, match=f"that would be infinite as {form}"):
        bound(argument())


@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("size", [1e-34, 1e-36, 1e-37])
def test_the_smallest_channels_keep_what_the_least_scale_can_hold(form: Any, size: float) -> None:
    w = planted((), (1, 64, 48))[0] * np.float32(size)
    bound = stagejit.bind(lambda w, x: x @ w, w, weights=form)
    found = np.asarray(bound(np.eye(64, dtype=np.float32)), np.float64)
    magnitude = np.abs(w.astype(np.float64)).max(0)
    scale = np.maximum(magnitude / (127 if form == "int8" else 7), 2.0**-126)
    # Half a step, and what kernels flush to zero.
    assert (np.abs(found - w) <= 0.51 * scale + 2.0**-126).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_key_that_a_matrix_is_made_of_has_numbers(form: Any) -> None:
    params, x = (jax.random.key(0), jnp.zeros((64, 48))), argument()

    def f(params: Any, x: Any) -> Any:
        key, w = params
        return x @ (w + jax.random.normal(key, w.shape))

    bound = stagejit.bind(f, params, weights=form)
    near = {"bf16": 0.1, "int8": 0.1, "int4": 1.5}[form]
    np.testing.assert_allclose(bound(x), f(params, x), atol=near)
    assert list(bound.weight_error) == ["params[0], params[1]"]
