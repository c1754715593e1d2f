"""Pooling, as libraries of layers write it: no window is ever stored, nothing is left to XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.bench.workloads.pooling import average_pool, gradient, max_pool
from stagejit.options import Options
from tests.randomness import RNG


def images(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def exact(f: Callable[..., Any], *args: Any) -> Any:
    with jax.enable_x64(True):
        return f(*(jax.tree.map(lambda x: np.asarray(x, np.float64), arg) for arg in args))


def agrees(f: Callable[..., Any], *args: Any) -> None:
    ours = stagejit.jit(f, options=Options(delegate=False, verify=True))(*args)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(exact(f, *args)), strict=True):
        close = 2e-5 * max(float(np.abs(y).max()), 1.0)
        np.testing.assert_allclose(x, y, rtol=0, atol=close)


POOLS: dict[str, Callable[[Any], Any]] = {
    f"{name}{size}s{stride} {padding} {'nhwc' if last else 'nchw'}": pool(
        size, stride, padding, channels_last=last
    )
    for name, pool in (("max", max_pool), ("mean", average_pool))
    for size, stride in ((2, 2), (3, 2), (3, 1), (7, 3))
    for padding in ("SAME", "VALID")
    for last in (True, False)
}


@pytest.mark.some(3)
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_one_dispatch_without_memory_of_its_own(pool: Callable[[Any], Any]) -> None:
    x = images(2, 13, 19, 16)
    plan = stagejit.jit(pool).plan(x)
    assert len(plan.dispatches) == 1
    assert plan.transient_nbytes == 0
    assert not plan.delegated
    agrees(pool, x)


@pytest.mark.some(6)
@pytest.mark.parametrize("name", POOLS)
def test_gradients_store_no_more_than_what_is_pooled(name: str) -> None:
    """The cotangent, and for each window the number of the element that it chose. Not of means
    whose windows see different numbers of elements between the strides: their cotangents have
    holes."""
    x, pool = images(2, 13, 19, 16), POOLS[name]
    plan = stagejit.jit(gradient(pool)).plan(x)
    assert not plan.delegated
    if not name.startswith(("mean3s2", "mean7s3")):
        assert plan.transient_nbytes <= 2 * pool(x).nbytes
    agrees(gradient(pool), x)


def network(params: Any, x: Any) -> Any:
    """Convolutions, maxima, a mean over what is left, classes."""
    first, second, last = params
    numbers = ("NHWC", "HWIO", "NHWC")
    x = jax.nn.relu(lax.conv_general_dilated(x, first, (1, 1), "SAME", dimension_numbers=numbers))
    x = max_pool(3, 2, "SAME")(x)
    x = jax.nn.relu(lax.conv_general_dilated(x, second, (1, 1), "SAME", dimension_numbers=numbers))
    x = max_pool(2, 2)(x)
    x = lax.reduce_window(x, 0.0, lax.add, (1, *x.shape[1:3], 1), (1, 1, 1, 1), "VALID")
    return jax.nn.log_softmax(x.reshape(x.shape[0], -1) @ last)


def parameters() -> Any:
    return images(3, 3, 3, 8) * 0.3, images(3, 3, 8, 16) * 0.2, images(16, 5) * 0.1


def test_a_network_and_its_gradient() -> None:
    params, x = parameters(), images(4, 17, 21, 3)
    agrees(network, params, x)
    agrees(jax.grad(lambda params, x: -network(params, x)[:, 1].mean()), params, x)


def test_a_network_under_vmap_and_scan() -> None:
    params, x = parameters(), images(3, 2, 12, 12, 3)
    agrees(lambda params, x: jax.vmap(lambda y: network(params, y))(x), params, x)
    agrees(lambda params, x: lax.scan(lambda c, y: (c, network(params, y)), 0, x)[1], params, x)


def test_a_producer_and_what_follows_are_in_the_same_dispatch() -> None:
    def f(x: Any, y: Any) -> Any:
        return max_pool(2, 2)(jax.nn.relu(x + 1)) * 2 + y

    x, y = images(2, 12, 12, 16), images(2, 6, 6, 16)
    assert len(stagejit.jit(f).plan(x, y).dispatches) == 1
    agrees(f, x, y)


def test_a_pooled_value_goes_into_its_place() -> None:
    """Beside another branch, as inception blocks have it: no copy."""

    def f(x: Any) -> Any:
        return jnp.concatenate([max_pool(3, 1, "SAME")(x), average_pool(3, 1, "SAME")(x), x], -1)

    x = images(2, 9, 9, 8)
    plan = stagejit.jit(f).plan(x)
    assert sum(write.nbytes for copy in plan.copies for write in copy.writes) <= x.nbytes
    assert plan.transient_nbytes == 0
    agrees(f, x)


@pytest.mark.parametrize("name", ["fold-pads", "fuse-producers", "fuse-insert", "fuse-pad"])
def test_switching_a_rewrite_off_changes_no_value(name: str) -> None:
    def f(x: Any) -> Any:
        y = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
        return gradient(max_pool(3, 2))(jax.nn.relu(x)) + max_pool(3, 1)(y)

    x = images(2, 11, 11, 8)
    off = stagejit.jit(f, options=Options(disable=(name,)))(x)
    np.testing.assert_array_equal(stagejit.jit(f)(x), off)
