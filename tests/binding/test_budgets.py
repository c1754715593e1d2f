"""How much may be made of weights."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import stagejit
from stagejit.errors import OptionsError
from stagejit.trace.weights import Weight, tables_of
from tests.binding.networks import X, array, assert_close


def test_what_grows_is_not_made() -> None:
    def tiled(params: Any, x: Any) -> Any:
        return x + jnp.broadcast_to(params[:, None], (64, 512)) + jnp.arange(512)

    w = jnp.asarray(array(64))
    bound = stagejit.bind(tiled, w)
    x = jnp.zeros((64, 512))
    assert_close(bound(x), tiled(w, x))
    assert bound.memory_analysis()["made_nbytes"] == 0
    bound = stagejit.bind(lambda p, x: x @ (p[:, None] * p[None, :]), w)
    declined = [d.reason for d in bound.plan(x.T).decisions if d.rewrite == "evaluate-weights"]
    assert declined == ["16384 bytes would be read instead of 256"]


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        ({"budget_ms": 0.0}, "takes some 0 ms, of a budget of 0 ms"),
        ({"budget_nbytes": 100}, "128 bytes would be kept, of at most 100"),
    ],
)
def test_a_budget(budget: dict[str, Any], reason: str) -> None:
    w = jnp.asarray(array(8, 4))
    bound = stagejit.bind(lambda p, x: x @ jnp.exp(p), w, **budget)
    assert_close(bound(X), X @ jnp.exp(w))
    assert bound.memory_analysis()["made_nbytes"] == 0
    decisions = [d for d in bound.plan(X).decisions if d.rewrite == "evaluate-weights"]
    assert [(d.applied, d.reason) for d in decisions] == [(False, reason)]


def beside(inner: Any, w: Any) -> Any:
    other = stagejit.bind(lambda q, x: x @ jnp.sin(q), w + 1)
    return stagejit.jit(lambda x: (inner(x), other(x)))


NESTED: dict[str, Any] = {
    "inside of another": lambda inner, w: stagejit.bind(
        lambda q, x: inner(x) @ jnp.sin(q).T, w + 1
    ),
    "around another": lambda inner, w: stagejit.bind(lambda q, x: inner(x @ jnp.sin(q)), w @ w.T),
    "beside another": beside,
    "in one value with another": lambda inner, w: stagejit.bind(
        lambda q, x: (inner(x), x @ inner.given(q)), w + 1
    ),
}


@pytest.mark.parametrize("nbytes", [0, 100, 128, 256, None])
@pytest.mark.parametrize("how", NESTED)
def test_a_budget_is_kept_inside_of_others(how: str, nbytes: int | None) -> None:
    """What is made of a function's weights, also together with those of others, is within its
    budget with those that are read; budgets of others change nothing."""
    w = jnp.asarray(array(8, 4))
    inner: Any = stagejit.bind(lambda p, x: x @ jnp.exp(p), w, budget_nbytes=nbytes)
    factor = stagejit.bind(lambda p: jnp.cos(p), w, budget_nbytes=nbytes)
    inner.given = lambda q: jnp.sin(q) * factor()
    outer = NESTED[how](inner, w)
    assert_close(outer(X), NESTED[how](_Plain(w), w)(X))
    has_made = set()
    for bound in (inner, factor):
        for table in tables_of(bound._weights()):
            named = table.named_arrays()
            own = [s for s, _ in named if not set(bound._weights()).isdisjoint(_behind(s))]
            made = [source for source in own if not isinstance(source, Weight)]
            kept = sum(
                source.nbytes if isinstance(source, Weight) else source.type.nbytes
                for source in own
            )
            assert not made or nbytes is None or kept <= nbytes
            has_made |= {bound} if made else set()
    assert (inner in has_made) == (nbytes is None or nbytes >= 128)


def _behind(source: Any) -> tuple[Weight, ...]:
    return (source,) if isinstance(source, Weight) else source.weights


class _Plain:
    def __init__(self, w: Any) -> None:
        self.w = w

    def __call__(self, x: Any) -> Any:
        return x @ jnp.exp(self.w)

    def given(self, q: Any) -> Any:
        return jnp.sin(q) * jnp.cos(self.w)


@pytest.mark.parametrize("budget", [{"budget_ms": -1.0}, {"budget_nbytes": -1}, {"budget_ms": "1"}])
def test_what_is_no_budget_is_refused(budget: dict[str, Any]) -> None:
    with pytest.raises(OptionsError, match=r"budget_\w+ is .*[1']") as caught:
        stagejit.bind(lambda p, x: p @ x, jnp.eye(2), **budget)
    assert caught.value.loc.file == __file__
    assert "Next: give a number, at least 0" in str(caught.value)
