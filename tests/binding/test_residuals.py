"""Gradients of bound functions: no program hands weights to another, and values are plain JAX's."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.runtime.gradients.alone import jaxprs_in
from stagejit.trace.weights import weight_p
from tests.binding.networks import array

N, H = 37, 41  # no other array has these sizes
Net = Callable[[Any, Any], Any]


def shapes() -> dict[str, Any]:
    made = {"a": array(N, H), "c": array(H, N, seed=1), "g": array(H, seed=2), "q": array(N, 4)}
    layers = {"la": array(3, N, H, seed=3), "lc": array(3, H, N, seed=4)}
    layers["lg"] = array(3, H, seed=5)
    return {name: jnp.asarray(0.2 * value) for name, value in (made | layers).items()}


def mlp(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["a"] + p["g"]) @ p["c"]


def derived(p: Any, x: Any) -> Any:
    w = p["a"] * jnp.exp(p["g"]) * np.tri(N, H, dtype=np.float32)
    return jnp.tanh(x @ w) @ w.T


def layers(p: Any, x: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        return x + jnp.tanh(x @ w[0]) @ w[1], None

    return lax.scan(layer, x, (p["la"], p["lc"]))[0]


def transposed_layers(p: Any, x: Any) -> Any:
    layer = lambda x, w: (x + jnp.tanh(x @ w[1].T) @ w[0].T, None)  # noqa: E731
    return lax.scan(layer, x, (p["la"], p["lc"]))[0]


def scaled_layers(p: Any, x: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        return x + jnp.tanh(x @ (w[0] * jnp.exp(p["g"]))) @ w[1], None

    return lax.scan(layer, x, (p["la"], p["lc"]))[0]


def layers_read_twice(p: Any, x: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        made = w[0] * jnp.exp(w[1])
        return x + jnp.tanh(x @ made) @ made.T, None

    return lax.scan(layer, x, (p["la"], p["lg"]))[0]


def branches(p: Any, x: Any) -> Any:
    def step(x: Any, i: Any) -> Any:
        odd = lax.cond(i % 2 == 1, lambda x: jnp.sin(x @ p["c"].T), lambda x: x @ p["a"], x)
        return odd @ p["c"], None

    return lax.scan(step, x, jnp.arange(3))[0]


def picked(p: Any, x: Any) -> Any:
    return lax.cond(x.sum() > 0, lambda x: x @ p["a"], lambda x: jnp.cos(x @ p["c"].T), x)


def counted(p: Any, x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, x: mlp(p, x), x)


@jax.custom_vjp
def product(x: Any, w: Any) -> Any:
    return x @ w


product.defvjp(lambda x, w: (x @ w, (x, w)), lambda r, t: (t @ r[1].T, r[0].T @ t))


def custom(p: Any, x: Any) -> Any:
    return product(jnp.tanh(product(x, p["a"])), p["c"])


def checkpointed(p: Any, x: Any) -> Any:
    return jax.checkpoint(lambda x: jnp.sin(mlp(p, x)))(x)


def nested(p: Any, x: Any) -> Any:
    return jax.jit(lambda p, x: jnp.sin(x @ (2 * p["a"])) @ p["c"])(p, x)


def embedded(p: Any, x: Any) -> Any:
    rows = jnp.clip(jnp.abs(3 * x[:, 0]).astype(int), 0, N - 1)
    return (p["a"][rows] + jnp.sin(x @ p["a"])) @ p["a"].T


def low_rank(p: Any, x: Any) -> Any:
    return jnp.sin(x @ (p["a"] + p["q"] @ p["q"].T @ p["a"]))


NETS = [mlp, derived, layers, transposed_layers, scaled_layers, layers_read_twice,
        branches, picked, counted, custom, checkpointed, nested, embedded, low_rank]  # fmt: skip


def loss(f: Any) -> Any:
    return lambda x: (f(x) ** 2).sum()


def pulled(f: Any, x: Any) -> Any:
    y, back = jax.vjp(f, x)
    return y, back(jnp.cos(y))


def pulled_later(f: Any, x: Any) -> Any:
    y, back = jax.jit(lambda x: jax.vjp(f, x))(x)
    return jax.jit(lambda back, t: back(t))(back, jnp.cos(y))


def linearized(f: Any, x: Any) -> Any:
    y, linear = jax.linearize(f, x)
    return y, linear(jnp.sin(x))


def in_scan(f: Any, x: Any) -> Any:
    return lax.scan(lambda x, _: (x - jax.grad(loss(f))(x), None), x, None, length=2)[0]


def of_scan(f: Any, x: Any) -> Any:
    def total(x: Any) -> Any:
        return lax.scan(lambda x, _: (x + f(x).sum(), f(x).sum()), x, None, length=2)[0].sum()

    return jax.grad(total)(x)


def of_branch(f: Any, x: Any) -> Any:
    return jax.grad(lambda x: lax.cond(x[0, 0] > 9, jnp.sum, loss(f), x))(x)


def of_vmap(f: Any, x: Any) -> Any:
    return jax.grad(lambda x: (jax.vmap(f)(x) ** 2).sum())(jnp.stack([x, -x]))


def saved(f: Any, x: Any) -> Any:
    policy = jax.checkpoint_policies.everything_saveable
    return jax.grad(loss(jax.checkpoint(f, policy=policy)))(x)


TRANSFORMATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda f, x: jax.grad(loss(f))(x),
    "jit grad": lambda f, x: jax.jit(jax.value_and_grad(loss(f)))(x),
    "grad jit": lambda f, x: jax.grad(loss(stagejit.jit(lambda x: jnp.sin(f(x)))))(x),
    "vjp": pulled,
    "vjp out of jit": pulled_later,
    "linearize": linearized,
    "hessian": lambda f, x: jax.jit(jax.hessian(lambda t: f(x * t).sum()))(1.0),
    "vmap grad": lambda f, x: jax.vmap(jax.grad(loss(f)))(jnp.stack([x, -x])),
    "grad vmap": of_vmap,
    "in scan": in_scan,
    "of scan": of_scan,
    "of branch": of_branch,
    "checkpoint": lambda f, x: jax.grad(loss(jax.checkpoint(lambda x: jnp.sin(f(x)))))(x),
    "saved": saved,
}


def has_weights(jaxpr: Any) -> bool:
    return any(
        equation.primitive is weight_p or any(map(has_weights, jaxprs_in(equation.params)))
        for equation in jaxpr.eqns
    )


def handed_on(jaxpr: Any) -> Iterator[Any]:
    """The types of results of equations with weights in them that are as large as one."""
    for equation in jaxpr.eqns:
        if any(map(has_weights, jaxprs_in(equation.params))):
            for v in equation.outvars:
                if {N, H} <= set(v.aval.shape):
                    yield equation.primitive.name, v.aval
            if equation.params.get("compiler_options_kvs", ()) == ():  # not in programs of ours
                for inner in jaxprs_in(equation.params):
                    yield from handed_on(inner)


@pytest.mark.parametrize("net", NETS)
def test_no_program_returns_weights(net: Net) -> None:
    bound, x = stagejit.bind(net, shapes()), jnp.asarray(array(3, N, seed=9))
    with jax.enable_checks(True):
        found = {
            name: list(handed_on(jax.make_jaxpr(lambda x, t=transformed: t(bound, x))(x).jaxpr))
            for name, transformed in TRANSFORMATIONS.items()
        }
    assert not any(found.values()), found


CASES = [
    (mlp, "jit grad"), (derived, "vjp"), (layers, "jit grad"), (branches, "jit grad"),
    (picked, "grad vmap"), (checkpointed, "linearize"), (nested, "of scan"), (embedded, "saved"),
    (custom, "checkpoint"), (transposed_layers, "of scan"), (transposed_layers, "hessian"),
    (layers_read_twice, "jit grad"), (layers_read_twice, "of scan"),
    (scaled_layers, "jit grad"), (scaled_layers, "checkpoint"), (branches, "of scan"),
    (low_rank, "vjp out of jit"), (counted, "of branch"),
]  # fmt: skip


@pytest.mark.parametrize(("net", "name"), CASES)
def test_gradients_are_those_of_plain_jax_whoever_has_the_weights(net: Net, name: str) -> None:
    params, x = shapes(), jnp.asarray(array(40, N, seed=9))
    halved, transformed = _halved(params), TRANSFORMATIONS[name]
    wanted = [transformed(lambda x, p=p: net(p, x), x) for p in (params, halved)]
    bound = stagejit.bind(net, params)
    bound(x)
    del params
    gc.collect()  # what no program reads is gone
    _assert_close(transformed(bound, x), wanted[0])
    memory = bound.memory_analysis()
    assert memory["kept_nbytes"] <= 1.2 * memory["weight_nbytes"], memory
    bound.update(halved)
    _assert_close(transformed(bound, x), wanted[1])


def stored(p: Any, x: Any) -> Any:
    """Layers of 8-bit integers with scales."""

    def layer(x: Any, w: Any) -> Any:
        wide = w[0].astype(jnp.float32) * w[1]
        return x + jnp.tanh(x @ wide) @ wide.T, None

    return lax.scan(layer, x, (p["bytes"], p["scales"]))[0]


def test_scanned_layers_hand_on_no_slices_and_nothing_computed_of_them() -> None:
    numbers = np.round(30 * array(3, N, H)).clip(-127, 127).astype(np.int8)
    params = {"bytes": jnp.asarray(numbers), "scales": jnp.asarray(0.003 * array(3, H, seed=1))}
    x = jnp.asarray(array(40, N, seed=9))
    bound = stagejit.bind(stored, params)
    gradient = jax.jit(jax.grad(loss(bound)))
    assert not list(handed_on(jax.make_jaxpr(gradient)(x).jaxpr))
    _assert_close(gradient(x), jax.grad(loss(lambda x: stored(params, x)))(x))
    memory = bound.memory_analysis()
    assert memory["programs"] == 2
    assert memory["kept_nbytes"] <= 1.2 * memory["weight_nbytes"], memory  # as bytes, in both


def _halved(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value / 2 for name, value in params.items()}


def _assert_close(found: Any, wanted: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4 * np.abs(other).max())


# -- moments --------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", [jax.jit, lambda f: f])
def test_an_update_while_a_gradient_is_computed_changes_nothing_or_is_an_error(
    monkeypatch: pytest.MonkeyPatch, outer: Any
) -> None:
    monkeypatch.setattr("stagejit.binding.wait_for_calls", lambda: None)  # for the call around it
    params = shapes()
    bound, x = stagejit.bind(mlp, params), jnp.asarray(array(3, N, seed=9))
    updates = [_halved(params)]

    def updating(y: Any) -> Any:
        if updates:
            thread = threading.Thread(target=bound.update, args=(updates.pop(),))
            thread.start()
            thread.join()
        return np.asarray(y)

    @jax.custom_jvp
    def called(y: Any) -> Any:
        return jax.pure_callback(updating, y, y)

    called.defjvp(lambda primals, tangents: (called(*primals), *tangents))
    function = outer(jax.grad(lambda x: (called(bound(x)) ** 2).sum()))
    if outer is jax.jit:
        with pytest.raises(Exception, match="mlp: its weights were updated between") as raised:
            jax.block_until_ready(function(x))
        assert "stagejit.jit(jax.grad(...)) around it" in str(raised.value)
    else:
        _assert_close(function(x), jax.grad(loss(lambda x: mlp(params, x)))(x))
    assert not updates
    _assert_close(function(x), jax.grad(loss(lambda x: mlp(_halved(params), x)))(x))


def test_only_the_function_that_is_updated_has_another_moment() -> None:
    params, x = shapes(), jnp.asarray(array(3, N, seed=9))
    one, other = stagejit.bind(mlp, params), stagejit.bind(mlp, params)
    y, back = jax.jit(lambda x: jax.vjp(one, x))(x)
    other.update(_halved(params))
    wanted = jax.vjp(lambda x: mlp(params, x), x)[1](y)
    _assert_close(jax.jit(lambda back, y: back(y))(back, y), wanted)


def test_branches_of_a_batch_check_the_moments_of_their_own_functions() -> None:
    params, x = shapes(), jnp.asarray(array(6, N, seed=9))
    f, g = stagejit.bind(mlp, params), stagejit.bind(mlp, _halved(params))

    def picked(f: Any, g: Any) -> Any:
        return jax.vmap(jax.grad(lambda x: lax.cond(x[0] > 0, f, g, x[None]).sum()))

    wanted = picked(lambda x: mlp(params, x), lambda x: mlp(_halved(params), x))(x)
    _assert_close(jax.jit(picked(f, g))(x), wanted)
    _assert_close(
        jax.jit(picked(f, g))(jnp.abs(x)),
        jax.vmap(jax.grad(lambda x: mlp(params, x[None]).sum()))(jnp.abs(x)),
    )
