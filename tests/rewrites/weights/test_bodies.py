"""What weights determine in the bodies of loops and branches is made before any call."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

import stagejit
from stagejit import Options

Function = Callable[..., Any]


def array(*shape: int, seed: int = 0) -> Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def parameters(size: int = 24) -> dict[str, Array]:
    return {
        "w": array(size, size, seed=1) / size**0.5,
        "g": 0.1 * array(size, seed=2),
        "v": array(size, size, seed=3) / size**0.5,
    }


def matrix(params: Any) -> Array:
    made: Array = params["w"] * jnp.exp(params["g"])
    return made


def in_scan(params: Any, x: Array) -> Any:
    def one(c: Array, _: None) -> tuple[Array, Array]:
        c = jnp.tanh(c @ matrix(params))
        return c, c.sum(1)

    return lax.scan(one, x, length=4)


def in_while(params: Any, x: Array) -> Any:
    """The condition reads weights, too."""

    def goes_on(state: Any) -> Array:
        return (state[0] < 4) & (jnp.abs(state[1]).max() < 100 * jnp.exp(params["g"]).sum())

    return lax.while_loop(goes_on, lambda s: (s[0] + 1, jnp.tanh(s[1] @ matrix(params))), (0, x))


def in_branches(params: Any, x: Array) -> Any:
    """Two loops and a branch, inside of each other; one weight is read outside, too."""

    def inner(j: Any, c: Array) -> Array:
        return lax.cond(
            j > 1, lambda c: c @ matrix(params), lambda c: jnp.tanh(c @ jnp.sin(params["v"])), c
        )

    c = lax.fori_loop(0, 2, lambda i, c: lax.fori_loop(0, 3, inner, c), x)
    return c @ jnp.sin(params["v"])


def in_switch(params: Any, x: Array) -> Any:
    """A branch that updates what it is handed; one branch reads no weight."""

    def moved(c: Array) -> Array:
        return c.at[0].set(c[0] @ matrix(params))

    def one(i: Any, c: Array) -> Array:
        return lax.switch(i % 3, [moved, lambda c: c * 2.0, lambda c: c @ matrix(params)], c)

    return lax.fori_loop(0, 5, one, x)


def carried_as_it_is(params: Any, x: Array) -> Any:
    def one(i: Any, state: Any) -> Any:
        params, c = state
        return params, jnp.tanh(c @ matrix(params))

    return lax.fori_loop(0, 3, one, (params, x))[1]


PROGRAMS: dict[str, Function] = {
    f.__name__: f for f in (in_scan, in_while, in_branches, in_switch, carried_as_it_is)
}
SWITCHES = ("evaluate-weights", "simplify-loops", "data-tiling")


def weights_in(plan: Any) -> list[str]:
    return sorted(buffer.name for buffer in plan.buffers if buffer.kind == "weight")


def assert_close(found: Any, wanted: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), found, wanted)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_weights_determine_in_a_body_is_made_once(name: str) -> None:
    f, params, x = PROGRAMS[name], parameters(), array(8, 24)
    bound = stagejit.bind(f, params, options=Options(verify=True, delegate=False))
    plan = bound.plan(x)
    assert all(buffer.startswith("made_of_") for buffer in weights_in(plan)), weights_in(plan)
    assert "exp" not in str(plan)
    assert "sin" not in str(plan)
    assert_close(bound(x), f(params, x))


@pytest.mark.some(2)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    "off", [c for n in (1, 2) for c in itertools.combinations(SWITCHES, n)], ids="+".join
)
def test_switched_off_values_are_the_same(name: str, off: tuple[str, ...]) -> None:
    f, params, x = PROGRAMS[name], parameters(), array(8, 24)
    bound = stagejit.bind(f, params, options=Options(verify=True, delegate=False, disable=off))
    assert_close(bound(x), f(params, x))
    if "evaluate-weights" in off:
        assert not any(buffer.startswith("made_of_") for buffer in weights_in(bound.plan(x)))


def test_update_is_seen_in_bodies() -> None:
    params, x = parameters(), array(8, 24)
    bound = stagejit.bind(in_branches, params)
    bound(x)
    other = jax.tree.map(lambda p: 0.5 * p, params)
    bound.update(other)
    assert_close(bound(x), in_branches(other, x))


def test_equal_values_of_several_bodies_are_one() -> None:
    plan = stagejit.bind(in_branches, parameters()).plan(array(8, 24))
    assert weights_in(plan) == ["made_of_params_v", "made_of_params_w__params_g"]


def test_dont_make_what_a_loop_changes() -> None:
    def f(params: Any, x: Array) -> Any:
        def one(i: Any, state: Any) -> Any:
            w, c = state
            return 0.5 * w, jnp.tanh(c @ jnp.exp(w))

        return lax.fori_loop(0, 3, one, (params["w"], x))[1]

    params, x = parameters(), array(8, 24)
    bound = stagejit.bind(f, params, options=Options(verify=True))
    assert weights_in(bound.plan(x)) == ["params_w"]
    assert "exp" in str(bound.plan(x))
    assert_close(bound(x), f(params, x))


def test_dont_make_of_a_slice_that_is_another_one_each_time() -> None:
    def f(params: Any, x: Array) -> Any:
        return lax.scan(lambda c, w: (jnp.tanh(c + jnp.exp(w)), None), x, params["w"])[0]

    params, x = parameters(), array(24)
    bound = stagejit.bind(f, params, options=Options(verify=True))
    assert_close(bound(x), f(params, x))


def halved(w: Array) -> Array:
    """By a loop that would not end for a weight of NaN, or an infinite one."""
    made: Array = lax.while_loop(lambda v: ~(jnp.abs(v).max() <= 1), lambda v: v / 2, w)
    return made


PERHAPS: dict[str, Function] = {
    "a branch": lambda w, x: lax.cond(
        jnp.isfinite(x).all(), lambda: x, lambda: x @ halved(w)
    ),
    "a loop": lambda w, x: lax.while_loop(
        lambda s: ~jnp.isfinite(s).all(), lambda s: s @ halved(w), x
    ),
    "a loop in a branch": lambda w, x: lax.cond(
        jnp.isfinite(x).all(), lambda: x,
        lambda: lax.fori_loop(0, 3, lambda _, c: c @ halved(w), x),
    ),
    "a branch in a loop": lambda w, x: lax.fori_loop(
        0, 3,
        lambda _, c: lax.cond(jnp.isfinite(c).all(), lambda: c, lambda: c @ halved(w)), x,
    ),
}  # fmt: skip
SURELY: dict[str, Function] = {
    "each call": lambda w, x: x @ halved(w),
    "each iteration": lambda w, x: lax.fori_loop(0, 3, lambda _, c: c @ halved(w), x),
}


@pytest.mark.parametrize("name", PERHAPS)
def test_dont_make_by_a_loop_that_may_not_end_what_no_call_may_need(name: str) -> None:
    w, x = jnp.full((24, 24), 9.0), array(8, 24)
    bound = stagejit.bind(PERHAPS[name], w)
    assert_close(bound(x), x)
    assert bound.memory_analysis()["made_nbytes"] == 0
    bound.update(jnp.full((24, 24), jnp.nan))
    assert_close(bound(x), x)


@pytest.mark.parametrize("name", SURELY)
def test_what_a_loop_makes_that_each_call_runs_is_made_once(name: str) -> None:
    w, x = jnp.full((24, 24), 9.0), array(8, 24)
    bound = stagejit.bind(SURELY[name], w)
    assert_close(bound(x), SURELY[name](w, x))
    assert bound.memory_analysis()["made_nbytes"] == w.nbytes


def test_dont_make_what_grows() -> None:
    def f(params: Any, x: Array) -> Any:
        wide = lambda: jnp.exp(params["g"])[:, None] * jnp.sin(params["g"])  # noqa: E731
        return lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ wide()), x)

    params = {"g": array(200)}
    bound = stagejit.bind(f, params, options=Options(verify=True))
    assert max(b.nbytes for b in bound.plan(array(8, 200)).buffers if b.kind == "weight") == 800


def array_of_the_body(kind: str) -> Array:
    """Of constants alone, so that it becomes an array of constants in a body."""
    counted = jnp.arange(24.0)
    return {
        "sum": jnp.cumsum(counted) / 300,
        "square": counted**2 / 600,
        "row": jnp.eye(24)[3] / 4 + 0.5,
    }[kind]


@pytest.mark.parametrize("kind", ["sum", "square", "row"])
@pytest.mark.parametrize("form", ["counted", "scanned", "while", "branch", "nested"])
def test_several_values_of_one_loop_are_made_each_with_a_body_of_its_own(
    form: str, kind: str
) -> None:
    """Kernels of one are made from its body, which is changed for that."""

    def step(c: Any) -> tuple[Array, Array]:
        return jnp.sin(c[0]) * array_of_the_body(kind) + c[1], jnp.cos(c[1]) + array_of_the_body(
            kind
        )

    def f(params: Any, x: Array) -> Any:
        start = params["w"], params["v"]
        if form == "counted":
            made = lax.fori_loop(0, 3, lambda i, c: step(c), start)
        elif form == "scanned":
            made = lax.scan(lambda c, w: (step((c[0], c[1] + w)), None), start, params["w"][:3])[0]
        elif form == "while":
            made = lax.while_loop(
                lambda c: c[0] < 3, lambda c: (c[0] + 1, *step(c[1:])), (jnp.int32(0), *start)
            )[1:]
        elif form == "branch":
            made = lax.cond(params["g"][0] > 0, step, lambda c: (c[1], c[0]), start)
        else:
            made = lax.fori_loop(
                0, 2, lambda i, c: lax.fori_loop(0, 2, lambda j, c: step(c), c), start
            )
        return x @ made[0], x @ made[1]

    params, x = parameters(), array(8, 24)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bound = stagejit.bind(f, params, options=Options(verify=True))
        assert_close(bound(x), f(params, x))
        bound.update(parameters() | {"w": params["v"]})
        assert_close(bound(x), f(params | {"w": params["v"]}, x))
