"""What `stagejit.bind` gives is called, transformed and looked at as the function is."""

from __future__ import annotations

import inspect
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.runtime.cpu.loader import call_count
from tests.binding.networks import X, array, assert_close, layers, network

TRANSFORMED = {
    "call": lambda f: f(X),
    "jit": lambda f: jax.jit(lambda x: f(x) + 1)(X),
    "ours around": lambda f: stagejit.jit(lambda x: f(x) + f(2 * x))(X),
    "grad": lambda f: jax.grad(lambda x: (f(x) ** 2).sum())(X),
    "jitted grad": lambda f: stagejit.jit(jax.grad(lambda x: (f(x) ** 2).sum()))(X),
    "jax's jitted grad": lambda f: jax.jit(jax.grad(lambda x: (f(x) ** 2).sum()))(X),
    "jvp": lambda f: jax.jvp(f, (X,), (X + 1,)),
    "hessian": lambda f: jax.hessian(lambda x: f(x).sum())(X[:1]),
    "vmap": lambda f: jax.vmap(f)(jnp.stack([X, 2 * X])),
    "vmap of grad": lambda f: jax.vmap(jax.grad(lambda x: f(x).sum()))(X),
    "checkpoint": lambda f: jax.grad(lambda x: (jax.checkpoint(f)(x) ** 2).sum())(X),
    "scan": lambda f: lax.scan(lambda c, x: (c + f(x[None]).sum(), f(x[None])), 0.0, X),
    "scan of ours": lambda f: stagejit.jit(
        lambda x: lax.scan(lambda c, x: (c + f(x[None]).sum(), f(x[None])), 0.0, x)
    )(X),
    "grad of scan": lambda f: stagejit.jit(
        jax.grad(lambda x: lax.scan(lambda c, x: (c + f(x[None]).sum(), None), 0.0, x)[0])
    )(X),
    "while": lambda f: stagejit.jit(
        lambda x: lax.while_loop(
            lambda c: (c[0] < 3) & (f(c[1]).sum() < 1e9),
            lambda c: (c[0] + 1, c[1] + f(c[1]).sum()),
            (0, x),
        )
    )(X),
    "cond": lambda f: stagejit.jit(
        lambda p, x: lax.cond(p, lambda x: f(x) * 2, lambda x: f(x * 2), x)
    )(True, X),
    "without jit": lambda f: _without_jit(f),
}


def _without_jit(f: Any) -> Any:
    with jax.disable_jit():
        return f(X)


@pytest.mark.some(2)
@pytest.mark.parametrize("how", TRANSFORMED)
def test_transformations_of_a_bound_function_are_those_of_the_function(how: str) -> None:
    params = layers()
    bound = stagejit.bind(network, params)
    transformed = TRANSFORMED[how]
    assert_close(transformed(bound), transformed(lambda x: network(params, x)))
    other = layers(seed=5)
    bound.update(other)
    assert_close(transformed(bound), transformed(lambda x: network(other, x)))


def test_a_call_runs_our_program() -> None:
    bound = stagejit.bind(network, layers())
    bound(X)
    before = call_count()
    bound(X).block_until_ready()
    assert call_count() == before + 1


@pytest.mark.parametrize("backend", [None, "cuda-emulated"])
def test_it_has_the_signature_and_the_caches_of_a_jitted_function(backend: str | None) -> None:
    def model(params: Any, x: Any, *, double: bool = False) -> Any:
        traced.append(double)
        return x @ params * (1 + double)

    traced: list[bool] = []
    target = {"backend": backend} if backend else {}
    bound = stagejit.bind(model, array(8, 4), static_argnames="double", **target)
    assert str(inspect.signature(bound)) == "(x: 'Any', *, double: 'bool' = False) -> 'Any'"
    assert bound.eval_shape(X, double=True).shape == (3, 4)
    bound.clear_cache()
    bound.eval_shape(X, double=True)
    assert traced == [True, True]


def test_switched_off_values_are_the_same() -> None:
    params = layers()
    options = stagejit.Options(disable=("evaluate-weights",), verify=True)
    bound = stagejit.bind(network, params, options=options)
    assert_close(bound(X), network(params, X))
    assert bound.memory_analysis()["made_nbytes"] == 0


def test_verified() -> None:
    params = layers()
    bound = stagejit.bind(network, params, options=stagejit.Options(verify=True))
    assert_close(bound(X), network(params, X))


def test_arguments_are_counted_without_the_parameters() -> None:
    def power(params: Any, x: Any, cache: Any, exponent: int = 2) -> Any:
        return params * x**exponent, cache + x

    bound = stagejit.bind(power, jnp.float32(3), static_argnames="exponent", donate_argnums=1)
    found, cache = bound(X, jnp.ones_like(X), exponent=3)
    assert_close((found, cache), (3 * X**3, X + 1))
    plan = bound.plan(X, jnp.ones_like(X), exponent=3)
    assert [b.name for b in plan.buffers if b.kind == "argument"] == ["x", "cache"]
    assert plan.buffer("cache").result == 0  # as JAX pairs them


def test_stages_show_weights() -> None:
    bound = stagejit.bind(network, layers())
    plan = bound.plan(X)
    assert {b.name for b in plan.buffers if b.kind == "weight"} == {
        "params_w", "params_b", "made_of_params_v", "params_k",
    }  # fmt: skip
    assert "made_of_params__v__: f32[4,16] bound" in bound.lower(X).as_text("graph") or (
        "bound" in bound.lower(X).as_text("graph")
    )
    assert "evaluate-weights" in str(bound.explain(X))
    compiled = bound.lower(X).compile()
    assert_close(compiled(X), bound(X))


def _integer(params: Any, x: Any) -> Any:
    return x[params["at"]] + params["n"], lax.dynamic_slice(x, (params["n"], 0), (1, 4))


KINDS = {
    "integers": (_integer, lambda: {"at": jnp.array([2, 0]), "n": jnp.int32(1)}),
    "complex": (lambda p, x: (x * p["c"]).real, lambda: {"c": jnp.complex64(1 + 2j) * jnp.ones(8)}),
    "bf16": (
        lambda p, x: x @ p["w"].astype(np.float32),
        lambda: {"w": jnp.ones((8, 4), "bfloat16")},
    ),
    "int4": (lambda p, x: x @ p["w"].astype(np.float32), lambda: {"w": jnp.ones((8, 4), "int4")}),
    "bool": (lambda p, x: jnp.where(p["m"], x, 0), lambda: {"m": jnp.arange(8) > 3}),
    "key": (
        lambda p, x: x + jax.random.normal(p["key"], x.shape),
        lambda: {"key": jax.random.key(3)},
    ),
    "returned": (lambda p, x: (p, p["w"].T, x), lambda: {"w": jnp.asarray(array(4, 3))}),
    "unused": (lambda p, x: x + 1, lambda: {"w": jnp.asarray(array(4, 3))}),
    "empty": (lambda p, x: x @ p["w"], lambda: {"w": jnp.ones((8, 0))}),
    "left to XLA": (
        lambda p, x: (jnp.linalg.eig(p["w"])[0], x @ lax.reduce_precision(p["w"], 5, 3)),
        lambda: {"w": jnp.asarray(array(8, 8))},
    ),
    "float64": (lambda p, x: x * p["w"], lambda: {"w": jnp.asarray(array(8), np.float32)}),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_weights(kind: str) -> None:
    f, params = KINDS[kind]
    bound = stagejit.bind(f, params())
    assert_close(bound(X), jax.jit(f)(params(), X))


@pytest.mark.skipif(shutil.which("g++") is None, reason="kernels of a GPU are emulated with g++")
def test_a_program_for_a_gpu_has_its_weights_too() -> None:
    params, other = layers(), layers(seed=5)
    options = stagejit.Options(target="cuda-emulated:sm_90a")
    bound = stagejit.bind(network, params, options=options)
    assert_close(bound(X), network(params, X))
    bound.update(other)
    assert_close(bound(X), network(other, X))


def test_arrays_of_numpy_are_bound_inside_of_a_jit() -> None:
    w = np.arange(12, dtype=np.float32).reshape(3, 4)

    @jax.jit
    def f(x: Any) -> Any:
        return stagejit.bind(lambda w, x: x @ w, w)(x) + 1

    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(f(x), x @ w + 1)
