"""JAX's transformations around a compiled function: right values, computed by our kernels.

`native_calls()` counts calls of our code, so that a test fails where XLA ran in our place.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from tests.agreement import close, native_calls
from tests.randomness import RNG

X = RNG.standard_normal((4, 6)).astype(np.float32)
W = RNG.standard_normal((6, 3)).astype(np.float32)


def network(x: Any, w: Any) -> Any:
    h = jnp.tanh(x @ w)
    return jax.nn.softmax(h * 2.0, axis=-1) + jnp.sum(h, axis=0)


def loss(x: Any, w: Any) -> Any:
    return jnp.mean(network(x, w) ** 2)


def test_grad_runs_our_kernels_forward_and_backward() -> None:
    jitted = stagejit.jit(loss)
    expected = jax.grad(loss, argnums=(0, 1))(X, W)
    with native_calls(2):
        close(jax.grad(jitted, argnums=(0, 1))(X, W), expected)
    with native_calls(1):
        close(jax.value_and_grad(jitted, argnums=1)(X, W), jax.value_and_grad(loss, 1)(X, W))


def test_grad_inside() -> None:
    with native_calls(1):
        close(stagejit.jit(jax.grad(loss))(X, W), jax.grad(loss)(X, W))


def test_second_derivatives() -> None:
    f = stagejit.jit(loss)
    with native_calls(1):
        ours = jax.hessian(f, argnums=1)(X, W)
    close(ours, jax.hessian(loss, argnums=1)(X, W), rtol=1e-4)


def test_vmap() -> None:
    xs = np.stack([X, X + 1, X * 2])
    with native_calls(1):
        close(
            jax.vmap(stagejit.jit(network), (0, None))(xs, W), jax.vmap(network, (0, None))(xs, W)
        )
    with native_calls(1):
        close(
            jax.vmap(stagejit.jit(network), (2, None), 1)(np.moveaxis(xs, 0, 2), W),
            jax.vmap(network, (2, None), 1)(np.moveaxis(xs, 0, 2), W),
        )


def test_per_example_gradients() -> None:
    per_example = jax.vmap(jax.grad(lambda x, w: loss(x[None], w), argnums=1), (0, None))
    f = stagejit.jit(lambda x, w: loss(x[None], w))
    with native_calls(2):
        close(jax.vmap(jax.grad(f, argnums=1), (0, None))(X, W), per_example(X, W))


def test_jvp_and_linearize() -> None:
    f = stagejit.jit(network)
    tangents = (np.ones_like(X), W * 0.5)
    with native_calls(1):
        close(jax.jvp(f, (X, W), tangents), jax.jvp(network, (X, W), tangents))
    with native_calls(1):
        value, linear = jax.linearize(f, X, W)
        close(linear(*tangents), jax.jvp(network, (X, W), tangents)[1])
        close(value, network(X, W))
    _, transposed = jax.vjp(f, X, W)
    with native_calls(1):
        close(
            transposed(np.ones((4, 3), np.float32)),
            jax.vjp(network, X, W)[1](np.ones((4, 3), np.float32)),
        )


def test_jacobians() -> None:
    with native_calls(1):
        close(jax.jacrev(stagejit.jit(network))(X, W), jax.jacrev(network)(X, W))
    with native_calls(1):
        close(jax.jacfwd(stagejit.jit(network))(X, W), jax.jacfwd(network)(X, W))


def test_inside_jax_jit() -> None:
    f = stagejit.jit(network)

    def around(x: Any, w: Any) -> Any:
        return jnp.sort(f(x + 1, w), axis=0) * f(x, w)

    with native_calls(2):
        close(
            jax.jit(around)(X, W),
            jax.jit(lambda x, w: jnp.sort(network(x + 1, w), axis=0) * network(x, w))(X, W),
        )


def test_inside_scan() -> None:
    f = stagejit.jit(lambda c, x: (jnp.tanh(c * 0.5 + x), c.sum()))
    start, xs = np.zeros(6, np.float32), X
    with native_calls(4):
        ours = lax.scan(f, start, xs)
    close(ours, lax.scan(lambda c, x: (jnp.tanh(c * 0.5 + x), c.sum()), start, xs))


def test_gradient_of_scan_over_it() -> None:
    def total(step: Callable[..., Any], xs: Any) -> Any:
        return lax.scan(step, jnp.zeros(6), xs)[0].sum()

    def step(c: Any, x: Any) -> Any:
        return jnp.tanh(c * 0.5 + x), None

    with native_calls(8):
        ours = jax.grad(functools.partial(total, stagejit.jit(step)))(X)
    close(ours, jax.grad(functools.partial(total, step))(X))


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_checkpoint(policy: Any) -> None:
    expected = jax.grad(loss)(X, W)
    with native_calls(2):
        close(jax.grad(jax.checkpoint(stagejit.jit(loss), policy=policy))(X, W), expected)
    with native_calls(1):
        close(jax.grad(stagejit.jit(jax.checkpoint(loss, policy=policy)))(X, W), expected)


def test_shard_map_over_two_devices() -> None:
    run_with_two_devices("""
        mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
        f = stagejit.jit(lambda x: jnp.tanh(x) * 2)
        mapped = jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
        before = call_count()
        close(mapped(x), np.tanh(x) * 2)
        assert call_count() - before == 2, call_count() - before
        close(jax.jit(mapped)(x), np.tanh(x) * 2)

        def collective(x):
            return jax.lax.psum(jnp.sum(x ** 2), "d")

        before = call_count()
        g = jax.shard_map(stagejit.jit(collective), mesh=mesh, in_specs=P("d"), out_specs=P())
        close(g(x), np.sum(x ** 2))
        assert call_count() > before
        close(jax.grad(lambda x: jax.shard_map(stagejit.jit(collective), mesh=mesh,
                       in_specs=P("d"), out_specs=P())(x))(x), 2 * x)
        """)


def test_sharded_arguments_without_shard_map() -> None:
    run_with_two_devices("""
        mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
        split = jax.sharding.NamedSharding(mesh, P("d"))
        close(stagejit.jit(lambda x: jnp.tanh(x).sum(0))(jax.device_put(x, split)),
              np.tanh(x).sum(0))
        second = jax.device_put(x, jax.devices()[1])
        out = stagejit.jit(lambda x: x + 1)(second)
        assert out.devices() == {jax.devices()[1]}
        close(out, x + 1)
        """)


def run_with_two_devices(body: str) -> None:
    """Runs `body` in a process of its own, where the CPU counts as two devices."""
    setup = """
        import jax, jax.numpy as jnp, numpy as np, stagejit
        from jax.sharding import PartitionSpec as P
        from stagejit.runtime.cpu.loader import call_count
        x = np.arange(12, dtype=np.float32).reshape(4, 3) / 7
        def close(a, b): np.testing.assert_allclose(a, b, rtol=1e-5)
        assert jax.device_count() == 2
        """
    code = textwrap.dedent(setup) + textwrap.dedent(body)
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
