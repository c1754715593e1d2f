"""Two programs that read one weight: neither its elements nor what is kept of it depends on which
of them is compiled first."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.errors import GoneError
from tests.randomness import RNG

Array = Any
PARAMS = {
    name: RNG.normal(size=shape).astype(np.float32)
    for name, shape in {"w": (96, 64), "v": (64, 96), "s": (96,)}.items()
}
X = jnp.asarray(RNG.normal(size=(8, 96)).astype(np.float32))


def loop(p: Any, x: Array) -> Array:
    return lax.fori_loop(0, 2, lambda i, y: y @ p["w"] @ p["v"] / 96, x)


def loop_of_others(p: Any, x: Array) -> Array:
    return lax.fori_loop(0, 2, lambda i, y: jnp.tanh(y) + (y @ p["w"]).sum() * p["w"].sum(), x)


def returned_by_a_branch(p: Any, x: Array) -> Array:
    kept = lax.cond(x[0, 0] > 0, lambda: p["w"], lambda: jnp.zeros_like(p["w"]))
    return x @ kept + (x @ p["w"])


READERS: dict[str, Callable[[Any, Array], Any]] = {
    "product": lambda p, x: x @ p["w"],
    "row": lambda p, x: x[:1] @ p["w"],
    "batch": lambda p, x: jax.vmap(lambda r: r @ p["w"])(x),
    "two products": lambda p, x: (x @ p["w"]) @ p["v"],
    "product of a product": lambda p, x: x @ (p["w"] @ p["v"]),
    "product and sum": lambda p, x: x @ p["w"] + p["w"].sum(),
    "sum": lambda p, x: x + p["w"].sum(1),
    "magnitudes": lambda p, x: x @ jnp.abs(p["w"]),
    "itself": lambda p, x: (x @ p["w"], p["w"]),
    "rows": lambda p, x: p["w"][jnp.arange(x.shape[0])] + x[:, :64],
    "multiple": lambda p, x: x @ (p["w"] * p["s"][:, None]),
    "part": lambda p, x: x @ p["w"][:, :32],
    "gradient of a sum": lambda p, x: jax.grad(lambda x: (x @ p["w"]).sum())(x),
    "loop": loop,
    "loop of others": loop_of_others,
    "returned by a branch": returned_by_a_branch,
}


@pytest.mark.some(24)
@pytest.mark.parametrize("form", ["int8", "int4", "bf16"])
@pytest.mark.parametrize("pair", list(itertools.combinations(READERS, 2)), ids=" and ".join)
def test_neither_order_is_another_one(pair: tuple[str, str], form: Any) -> None:
    found = []
    for order in (pair, pair[::-1]):
        bound = stagejit.bind(read, PARAMS, weights=form, static_argnums=0)
        for how in order:
            bound(how, X)
        values = {how: jax.tree.map(np.asarray, bound(how, X)) for how in order}
        gc.collect()
        memory = bound.memory_analysis()
        found.append((values, {name: memory[name] for name in ("kept_nbytes", "weight_error")}))
        # whatever is kept, it is of the weights that there are now
        others = {**PARAMS, "w": 2 * PARAMS["w"]}
        bound.update(others)
        after = {how: bound(how, X) for how in order}
        fresh = stagejit.bind(read, others, weights=form, static_argnums=0)
        for how in order:
            fresh(how, X)
        jax.tree.map(np.testing.assert_array_equal, after, {how: fresh(how, X) for how in order})
    (one, kept), (other, kept_by_other) = found
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert kept == kept_by_other


def read(params: Any, how: str, x: Array) -> Any:
    return READERS[how](params, x)


def test_what_is_overruled_is_kept_until_it_is_compiled_anew() -> None:
    """Also where the caller has let go of it, and no other program reads it."""
    given = jax.tree.map(jnp.asarray, PARAMS)
    bound = stagejit.bind(read, given, weights="int8", static_argnums=0)
    bound("product", X)
    bound("gradient of a sum", X)
    del given
    gc.collect()
    np.testing.assert_allclose(bound("product", X), X @ PARAMS["w"], rtol=1e-5, atol=1e-4)
    assert bound.weight_error == {}


def test_who_comes_too_late_overrules_nobody() -> None:
    given = jax.tree.map(jnp.asarray, PARAMS)
    bound = stagejit.bind(read, given, weights="int8", static_argnums=0)
    known = bound("product", X)
    del given
    gc.collect()
    with pytest.raises(GoneError):
        bound("product and sum", X)
    np.testing.assert_array_equal(bound("product", X), known)


def loop_of(f: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda w, x: lax.fori_loop(0, 2, lambda i, y: y + f(w, x).sum() / 99, jnp.zeros(()))


USES: dict[str, Callable[[Array, Array], Array]] = {
    "forwards": lambda w, x: x[:, : w.shape[0]] @ w,
    "backwards": lambda w, x: x[:, : w.shape[1]] @ w.T,
    "rows": lambda w, x: w[jnp.arange(3)],
    "row": lambda w, x: w @ x[0, : w.shape[1]],
    "of all pairs": lambda w, x: jnp.einsum("b,ik->bik", x[0, :3], w),
    "gradient": lambda w, x: jax.grad(lambda y: jnp.sin(y @ w).sum())(x[:, : w.shape[0]]),
}
USES |= {f"loop of {name}": loop_of(USES[name]) for name in ("forwards", "backwards")}


@pytest.mark.parametrize("shape", [(96, 64), (64, 96), (64, 64), (96, 33)])
@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize(
    "names",
    [
        ("forwards", "backwards", "rows"),
        ("row", "forwards"),
        ("gradient", "backwards"),
        ("of all pairs", "forwards", "backwards"),
        ("loop of forwards", "backwards"),
        ("forwards", "loop of backwards"),
        ("loop of forwards", "loop of backwards"),
    ],
    ids=" and ".join,
)
def test_the_order_of_equations_decides_nothing(
    names: tuple[str, ...], form: Any, shape: tuple[int, int]
) -> None:
    w = RNG.normal(size=shape).astype(np.float32) * np.logspace(0, 1, shape[1], dtype=np.float32)
    found = []
    for order in itertools.permutations(names):
        bound = stagejit.bind(
            lambda w, x, order=order: {name: USES[name](w, x) for name in order}, w, weights=form
        )
        results = bound(X)
        (weight,) = bound._weights()
        memory = bound.memory_analysis()
        found.append((results, weight.axes, memory["kept_nbytes"], memory["weight_error"]))
    first, *others = found
    for results, *rest in others:
        assert rest == list(first[1:])
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), results, first[0]
        )
    scales = {math.prod(shape[axis] for axis in channels) for channels, _ in first[1].values()}
    assert scales == {max(shape)}
