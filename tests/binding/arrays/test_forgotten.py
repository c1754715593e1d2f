"""The caller forgets what was bound: the function is called as before, in other ways, and anew."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from tests.binding.networks import array

N = 128
X = jnp.asarray(array(2, N, seed=1))
PARAMS = {"w": array(N, N), "v": array(N, N, seed=2), "s": array(N, seed=3)}


def layers(p: Any, x: Any) -> Any:
    stacked = jnp.stack([p["w"], p["v"]])
    return lax.scan(lambda y, w: (jnp.tanh(y @ w / 9), None), x, stacked)[0]


def weight_norm(p: Any, x: Any) -> Any:
    return x @ (p["w"] / jnp.sqrt((p["w"] ** 2).sum(0) + 0.01) * p["s"])


def sums(p: Any, x: Any) -> Any:
    return x @ (p["w"] + p["v"]) - x @ (p["w"] - p["v"])


def in_branches(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Under `vmap` there are no branches left, and what they read is read in another order."""
    return lambda p, x: lax.cond(x[0, 0] > -1e9, lambda x: f(p, x), lambda x: f(p, x) * 2, x)


def in_cases(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def chosen(p: Any, x: Any) -> Any:
        cases = [lambda x: f(p, x) * 3, lambda x: f(p, x), lambda x: f(p, x) * 2]
        return lax.switch(jnp.int32(x[0, 0] > -1e9), cases, x)

    return chosen


# Products of them, and of what is computed of them, of which programs keep nothing else.
NETWORKS: dict[str, Callable[[Any, Any], Any]] = {
    "products": lambda p, x: jnp.tanh(x @ p["w"] / 9 + p["s"]) @ p["v"],
    "turned": lambda p, x: jnp.tanh(x @ p["w"].T / 9) @ p["w"],
    "scaled": lambda p, x: jnp.tanh((x @ p["w"]) * p["s"]),
    "divided": lambda p, x: jnp.tanh((x @ p["w"] + p["s"]) / (1 + p["s"] ** 2)) @ p["v"],
    "normed": lambda p, x: (x * p["s"]) @ p["w"],
    "rows": lambda p, x: p["w"][jnp.full(x.shape[0], 3)] * p["s"] + x @ p["w"].T,
    "multiple": lambda p, x: x @ (2 * p["w"] + p["v"]),
    "part": lambda p, x: x @ p["w"][:, :64] + (x @ p["w"][:, 64:]) * p["s"][:64],
    "layers": layers,
    "loop": lambda p, x: lax.fori_loop(0, 3, lambda i, y: jnp.tanh(y @ p["w"] / 9 + p["s"]), x),
    "weight norm": weight_norm,
    "sums": sums,
}
NETWORKS |= {
    f"{name}, {how}": wrapped(NETWORKS[name])
    for how, wrapped in (("in branches", in_branches), ("in cases", in_cases))
    for name in ("products", "scaled", "multiple", "part", "layers", "weight norm", "sums")
}


def others(bound: Any) -> dict[str, Callable[[], Any]]:
    """Each gives what `bound(X)` does."""

    def cleared() -> Any:
        bound.clear_cache()
        gc.collect()
        return bound(X)

    def cleared_everywhere() -> Any:
        jax.clear_caches()
        gc.collect()
        return bound(X)

    return {
        "another shape": lambda: jnp.concatenate([bound(X[:1]), bound(X[1:])]),
        "mapped": lambda: jax.vmap(bound)(X[:, None])[:, 0],
        "looped": lambda: lax.map(lambda x: bound(x[None])[0], X),
        "of another program": lambda: stagejit.jit(lambda x: bound(x) * 1)(X),
        "of one of JAX": lambda: jax.jit(lambda x: bound(x) * 1)(X),
        "cleared": cleared,
        "cleared everywhere": cleared_everywhere,
    }


def forget(params: Any, how: str) -> None:
    spoil = jax.jit(lambda p: jax.tree.map(lambda leaf: leaf * np.nan, p), donate_argnums=0)
    if how == "deleted":
        jax.tree.map(lambda leaf: leaf.delete(), params)
    elif how == "donated":
        jax.block_until_ready(spoil(params))
    params.clear()
    gc.collect()


@pytest.mark.some(12)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("how", ["as NumPy's", "as JAX's", "deleted", "donated"])
@pytest.mark.parametrize("form", [None, "bf16", "int8", "int4"])
@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_called_in_other_ways(name: str, form: Any, how: str) -> None:
    """Also after an update, of which nothing was compiled."""
    kind: Any = np.array if how == "as NumPy's" else jnp.array
    params = jax.tree.map(kind, PARAMS)
    bound = stagejit.bind(NETWORKS[name], params, weights=form)
    bound(X)
    for _ in range(2):
        forget(params, how)
        wanted = bound(X)
        for way, call in others(bound).items():
            np.testing.assert_allclose(call(), wanted, rtol=2e-4, atol=2e-3, err_msg=way)
        assert str(bound.explain(X))
        params = jax.tree.map(lambda leaf: kind(leaf[::-1]), PARAMS)
        bound.update(params)


@pytest.mark.parametrize("kind", [np.array, jnp.array], ids=["numpy", "jax"])
@pytest.mark.parametrize("form", [None, "bf16", "int8", "int4"])
@pytest.mark.parametrize("name", ["products", "turned", "normed", "loop"])
def test_gradients_are_those_of_what_it_reads(name: str, form: Any, kind: Any) -> None:
    params = jax.tree.map(kind, PARAMS)
    kept = stagejit.bind(NETWORKS[name], params, weights=form)
    bound = stagejit.bind(NETWORKS[name], jax.tree.map(kind, PARAMS), weights=form)
    for each in (kept, bound):
        each(X)
    gc.collect()
    gradients = [jax.grad(lambda x, f=f: jnp.sin(f(x)).sum())(X) for f in (bound, kept)]
    np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("form", [None, "bf16", "int8", "int4"])
def test_what_stays_is_little(form: Any) -> None:
    params = {"w": array(256, 256), "s": array(256), "b": array(256)}
    bound = stagejit.bind(lambda p, x: (x @ p["w"] + p["b"]) * p["s"], params, weights=form)
    bound(jnp.ones((2, 256)))
    stored = {None: 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}[form] * 256 * 256
    assert bound.memory_analysis()["kept_nbytes"] <= 1.2 * stored
    bound.clear_cache()
    assert bound.memory_analysis()["kept_nbytes"] <= 1.2 * stored
