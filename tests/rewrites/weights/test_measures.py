"""What is made of weights: of several values of one weight, and of weights of one name, all are
measured; what programs keep is found without looking at all; an update is whole."""

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
from stagejit.errors import OptionsError
from stagejit.rewrites.weights.made import layouts_kept
from stagejit.runtime.cpu.weights import READING
from stagejit.trace.weights import tables_of
from tests.expected.calls import calls_of

VALUES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda w: w,
    "turned": lambda w: w.T,
    "tanh": jnp.tanh,
    "clipped": lambda w: jnp.clip(w, -3, 3),
    "where finite": lambda w: jnp.where(jnp.isfinite(w), w, 0),
    "small": lambda w: w * np.float32(1e-30),
}
PLANTED = (np.inf, -np.inf, np.nan, float(np.finfo(np.float32).max), 3.39e38, 7.0)


def weight(seed: int, *numbers: float) -> np.ndarray[Any, np.dtype[Any]]:
    made = np.random.default_rng(seed).normal(size=(64, 64)).astype(np.float32)
    made[3, 5 : 5 + len(numbers)] = numbers
    return made


def argument() -> np.ndarray[Any, np.dtype[Any]]:
    """So small that no product of it is too large."""
    return np.random.default_rng(2).normal(size=(4, 64)).astype(np.float32) * np.float32(1e-6)


def assert_refused_or_alike(
    bound: Any, update: Callable[[], None], wanted: Callable[[], Any], refused: bool
) -> None:
    """An update changes nothing, or results are finite where those of f32 are. refused: it is."""
    x = argument()
    before = bound(x)
    try:
        update()
    except OptionsError:
        np.testing.assert_array_equal(bound(x), before)
    else:
        assert not refused
        np.testing.assert_array_equal(np.isfinite(bound(x)), np.isfinite(wanted()))


@pytest.mark.some(16)
@pytest.mark.parametrize(
    ("names", "form", "number"),
    list(itertools.product(itertools.permutations(VALUES, 2), ("bf16", "int8", "int4"), PLANTED)),
)
def test_an_update_is_refused_for_any_value_that_its_form_does_not_hold(
    names: tuple[str, str], form: Any, number: float
) -> None:
    def f(w: Any, x: Any) -> Any:
        first, second = (VALUES[name](w) for name in names)
        return x @ first + x @ second

    bound = stagejit.bind(f, weight(0), weights=form)
    new = weight(0, number)
    wanted = lambda: jax.jit(f)(new, argument())  # noqa: E731
    stored = [VALUES[name](np.full((1, 1), number, np.float32)) for name in names]
    refused = form != "bf16" and not np.isfinite(stored).all()
    assert_refused_or_alike(bound, lambda: bound.update(new), wanted, refused)


@pytest.mark.parametrize("form", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("number", PLANTED)
@pytest.mark.parametrize("inner_one", [True, False])
def test_weights_of_one_name_are_two(form: Any, number: float, inner_one: bool) -> None:
    def f(w: Any, x: Any) -> Any:
        return x @ w

    inner = stagejit.bind(f, weight(0), weights=form)
    outer = stagejit.bind(lambda w, x: f(w, inner(x)), weight(1), weights=form)
    changed = inner if inner_one else outer
    new = [weight(0), weight(1)]
    new[not inner_one] = weight(int(not inner_one), number)
    refused = form != "bf16" and not np.isfinite(number)
    wanted = lambda: jax.jit(lambda x: x @ new[0] @ new[1])(argument())  # noqa: E731
    assert_refused_or_alike(outer, lambda: changed.update(new[not inner_one]), wanted, refused)


def test_the_error_of_a_weight_is_the_largest_of_its_values() -> None:
    w, x = weight(0), argument()
    alone = [
        stagejit.bind(lambda w, x, value=value: x @ value(w), w, weights="int4")
        for value in (VALUES["itself"], lambda w: w**5)
    ]
    for bound in alone:
        bound(x)
    wanted = max(error for bound in alone for error in bound.weight_error.values())
    for order in (1, -1):
        powers = (1, 5)[::order]
        both = stagejit.bind(
            lambda w, x, p=powers: x @ w ** p[0] + x @ w ** p[1], w, weights="int4"
        )
        both(x)
        assert both.weight_error == {"params": pytest.approx(wanted, rel=1e-5)}
        assert both.memory_analysis()["weight_error"] == pytest.approx(wanted, rel=1e-5)


def test_bodies_measure_values_apart() -> None:
    def f(w: Any, x: Any) -> Any:
        body = lambda c, v: (jnp.tanh(c @ v) + c @ jnp.tanh(v), None)  # noqa: E731
        return lax.scan(body, x, w)[0] + x @ w[0]

    w = np.stack([weight(0), weight(1)])
    bound = stagejit.bind(f, w, weights="int8")
    new = np.stack([weight(0), weight(1, np.inf)])
    wanted = lambda: jax.jit(f)(new, argument())  # noqa: E731
    assert_refused_or_alike(bound, lambda: bound.update(new), wanted, refused=True)


def test_each_array_is_looked_up_among_what_programs_keep_of_it_alone() -> None:
    def calls(n: int) -> float:
        weights = [jnp.full((2,), i, jnp.float32) for i in range(n)]
        bound = stagejit.bind(lambda p, x: sum(x * w for w in p), weights)
        bound(jnp.ones(2, jnp.float32))
        return calls_of(lambda: [layouts_kept(weight) for weight in bound._weights()]) / n

    assert calls(64) <= 1.3 * calls(16)


def test_an_interrupt_stops_an_update_before_or_after_all_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it waits for calls that still read the old weights."""
    old, new = np.ones((4, 4), np.float32), np.full((4, 4), 2, np.float32)
    bound = stagejit.bind(lambda w, x: x @ w, old)
    arguments = [np.ones((rows, 4), np.float32) for rows in (1, 2, 3)]
    for x in arguments:
        bound(x)
    words = [table.table._word(READING) for table in tables_of(bound._weights())]

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("stagejit.runtime.cpu.weights.time.sleep", interrupted)
        for word in words:
            word.value += 1
        with pytest.raises(KeyboardInterrupt):
            bound.update(new)
        for word in words:
            word.value -= 1
    assert {float(bound(x)[0, 0]) for x in arguments} == {8.0}
    bound.update(old)
    assert {float(bound(x)[0, 0]) for x in arguments} == {4.0}
