"""JAX's transformations around and inside a compiled function: right values, by our kernels.

`native_calls()` counts calls of our code, so that a test fails where XLA ran in our place.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.runtime.loader import call_count

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 6)).astype(np.float32)
W = RNG.standard_normal((6, 3)).astype(np.float32)


@contextlib.contextmanager
def native_calls(at_least: int) -> Iterator[None]:
    before = call_count()
    yield
    assert call_count() - before >= at_least


def network(x: Any, w: Any) -> Any:
    h = jnp.tanh(x @ w)
    return jax.nn.softmax(h * 2.0, axis=-1) + jnp.sum(h, axis=0)


def loss(x: Any, w: Any) -> Any:
    return jnp.mean(network(x, w) ** 2)


def close(actual: Any, expected: Any, rtol: float = 2e-5) -> None:
    ours, theirs = jax.tree.flatten(actual), jax.tree.flatten(expected)
    assert ours[1] == theirs[1]
    for a, b in zip(ours[0], theirs[0], strict=True):
        assert jnp.asarray(a).dtype == jnp.asarray(b).dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


# ------------------------------------------------------------------ around


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
        from stagejit.runtime.loader import call_count
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


# ------------------------------------------------------------------ inside


def agrees(f: Callable[..., Any], *args: Any, calls: int = 1, rtol: float = 2e-5) -> Any:
    """`stagejit.jit(f)` gives what `jax.jit(f)` gives; returns the result."""
    with native_calls(calls):
        ours = jax.block_until_ready(stagejit.jit(f)(*args))
    close(ours, jax.jit(f)(*args), rtol=rtol)
    return ours


def delegated(f: Callable[..., Any], *args: Any) -> set[str]:
    """The primitives that stay with XLA."""
    return {d.reason.split(":")[0] for d in stagejit.jit(f).plan(*args).delegated}


def test_scan_inside() -> None:
    def f(x: Any, w: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            c = jnp.tanh(c @ w @ w.T + row)
            return c, c.sum()

        carried, sums = lax.scan(step, x[0], x)
        return carried * 2, jnp.cumsum(sums)

    agrees(f, X, W, calls=5)


def test_reversed_and_unrolled_scan_inside() -> None:
    def f(x: Any) -> Any:
        return lax.scan(lambda c, row: (c + row, c * row), x[0] * 0, x, reverse=True, unroll=2)

    agrees(f, X)


def test_while_cond_and_fori_loop_inside() -> None:
    def f(x: Any, n: Any) -> Any:
        total = lax.while_loop(
            lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.sin(s[1]) + s[0]), (0, x)
        )
        chosen = lax.cond(n > 3, lambda y: jnp.exp(-y), lambda y: y * y, x)
        return total[1], chosen, lax.fori_loop(0, 3, lambda i, y: y * 0.5 + i, x)

    for n in (0, 2, 5):
        agrees(f, X, np.int32(n))


def test_switch_inside() -> None:
    branches = [lambda x: x + 1, jnp.tanh, lambda x: x[::-1] * 2]
    for index in (-1, 0, 1, 2, 7):
        agrees(lambda i, x: lax.switch(i, branches, x), np.int32(index), X)


def test_nested_control_flow() -> None:
    def f(x: Any) -> Any:
        def outer(c: Any, row: Any) -> Any:
            def inner(i: Any, y: Any) -> Any:
                return lax.cond(y.sum() > 0, lambda z: jnp.tanh(z), lambda z: z + i, y)

            c = lax.fori_loop(0, 3, inner, c + row)
            return c, lax.while_loop(lambda z: z.max() > 1, lambda z: z / 2, c).max()

        return lax.scan(outer, x[0], x)

    agrees(f, X, calls=4)


def test_gradient_through_control_flow_inside() -> None:
    def f(x: Any, w: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            c = lax.cond(c.sum() > 0, jnp.tanh, lambda z: z * 0.5, c + row @ w)
            return c, c

        return jnp.sum(lax.scan(step, jnp.zeros(3), x)[1] ** 2)

    close(jax.grad(stagejit.jit(f), argnums=(0, 1))(X, W), jax.grad(f, argnums=(0, 1))(X, W))
    close(stagejit.jit(jax.grad(f))(X, W), jax.grad(f)(X, W))


def test_associative_scan_and_map() -> None:
    agrees(lambda x: lax.associative_scan(jnp.add, x, axis=1), X)
    agrees(lambda x: lax.map(lambda row: jnp.outer(row, row).sum(0), x), X)


def test_effects_keep_their_order(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        y = jnp.tanh(x)
        jax.debug.callback(lambda v: seen.append(("sum", float(v))), y.sum(), ordered=True)
        z = jax.experimental.io_callback(
            lambda v: seen.append(("io", float(v[0, 0]))) or v + 1,
            jax.ShapeDtypeStruct(y.shape, y.dtype),
            y,
            ordered=True,
        )
        jax.debug.callback(lambda v: seen.append(("max", float(v))), z.max(), ordered=True)
        return z * 2

    jitted = stagejit.jit(f)
    with native_calls(2):
        out = jax.block_until_ready(jitted(X))
        jax.effects_barrier()
    np.testing.assert_allclose(out, (np.tanh(X) + 1) * 2, rtol=1e-5)
    assert [name for name, _ in seen] == ["sum", "io", "max"]
    assert seen[1][1] == pytest.approx(np.tanh(X[0, 0]), rel=1e-5)
    jitted(X)
    jax.effects_barrier()
    assert [name for name, _ in seen] == ["sum", "io", "max"] * 2


def test_debug_print(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        jax.debug.print("total {t:.2f}", t=jnp.sum(x))
        return x * 2

    close(stagejit.jit(f)(X), X * 2)
    jax.effects_barrier()
    assert f"total {X.sum():.2f}" in capsys.readouterr().out


def test_pure_callback() -> None:
    def f(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda v: np.sin(v), shape, x * 2, vmap_method="sequential") + 1

    with native_calls(2):
        close(stagejit.jit(f)(X), np.sin(X * 2) + 1)


def test_linear_algebra_between_kernels() -> None:
    def f(a: Any) -> Any:
        spd = a @ a.T + 4 * jnp.eye(4)
        factor = jnp.linalg.cholesky(spd)
        return jnp.tanh(factor).sum(0), jnp.linalg.solve(spd, a), jnp.fft.rfft(a * 2).real + 1

    agrees(f, X, calls=2, rtol=1e-4)
    names = delegated(f, X)
    assert {"cholesky", "fft"} <= names
    assert not names & {"dot_general", "tanh", "add", "reduce_sum", "transpose"}


def test_random_numbers_inside() -> None:
    def f(key: Any, x: Any) -> Any:
        first, second = jax.random.split(key)
        noise = jax.random.normal(first, x.shape) + jax.random.uniform(second, x.shape)
        keep = jax.random.bernoulli(first, 0.5, x.shape)
        order = jax.random.randint(second, (4,), 0, 100)
        return jnp.where(keep, x + noise, 0), order

    agrees(f, jax.random.key(3), X)
    agrees(f, jax.random.PRNGKey(3), X)
    close(
        jax.random.key_data(stagejit.jit(lambda k: jax.random.fold_in(k, 5))(jax.random.key(1))),
        jax.random.key_data(jax.random.fold_in(jax.random.key(1), 5)),
    )


# --------------------------------------------------------- arguments, results


def test_donated_argument_is_updated_in_place() -> None:
    f = stagejit.jit(lambda x, y: (x.at[2:4].set(y) * 1.0, y.sum()), donate_argnums=0)
    x = jnp.arange(64.0)
    address = x.unsafe_buffer_pointer()
    out, _ = f(x, jnp.ones(2))
    assert out.unsafe_buffer_pointer() == address
    assert x.is_deleted()
    np.testing.assert_array_equal(out[:5], [0, 1, 1, 1, 4])


def test_donated_slice_update_writes_the_slice_only() -> None:
    f = stagejit.jit(lambda x, y: lax.dynamic_update_slice(x, y, (3, 0)), donate_argnums=0)
    x, y = jnp.zeros((512, 64)), jnp.ones((2, 64))
    plan = f.plan(x, y)
    assert sum(w.nbytes for d in plan.dispatches for w in d.writes) == y.nbytes
    address = x.unsafe_buffer_pointer()
    out = f(x, y)
    assert out.unsafe_buffer_pointer() == address
    assert float(out.sum()) == 128
    assert float(out[3:5].sum()) == 128


def test_argument_without_donation_is_left_alone() -> None:
    f = stagejit.jit(lambda x: x.at[0].set(9.0))
    x = jnp.zeros(8)
    assert float(f(x)[0]) == 9
    assert float(x[0]) == 0


def test_donated_argument_read_after_the_write() -> None:
    """The result lies in the argument's memory, which another result still has to read."""
    f = stagejit.jit(lambda x: (jnp.flip(x), x.sum(), x[::2] * 2), donate_argnums=0)
    x = np.arange(12, dtype=np.float32)
    close(f(jnp.asarray(x)), (np.flip(x), x.sum(), x[::2] * 2))


def test_swapped_donations() -> None:
    f = stagejit.jit(lambda x, y: (y * 1, x * 1), donate_argnums=(0, 1))
    close(
        f(jnp.arange(4.0), jnp.arange(4.0) + 10),
        (np.arange(4, dtype=np.float32) + 10, np.arange(4, dtype=np.float32)),
    )
    g = stagejit.jit(lambda x, y: (y, x), donate_argnums=(0, 1))
    close(
        g(jnp.arange(4.0), jnp.arange(4.0) + 10),
        (np.arange(4, dtype=np.float32) + 10, np.arange(4, dtype=np.float32)),
    )


def test_static_arguments_and_pytrees() -> None:
    @functools.partial(stagejit.jit, static_argnames="n")
    def f(tree: Any, *, n: int) -> Any:
        return {"out": [tree["a"] * n, (tree["b"] + 1,)], "none": None}

    close(f({"a": X, "b": W}, n=3), {"out": [X * 3, (W + 1,)], "none": None})
    close(f({"a": X, "b": W}, n=4), {"out": [X * 4, (W + 1,)], "none": None})


def test_wide_types() -> None:
    with jax.enable_x64(True):
        x = np.linspace(-3, 3, 13)
        agrees(
            lambda x: (jnp.exp(x), jnp.sum(x), jnp.tanh(x) @ x, x.astype(jnp.int64) * 3),
            x,
            rtol=1e-13,
        )
        agrees(lambda n: (n * n, n // 3, n >> 5), np.arange(5, dtype=np.int64) << 40)


def test_weak_types_stay_weak() -> None:
    f = stagejit.jit(lambda x: x * 2.0)
    assert f(1).dtype == jax.jit(lambda x: x * 2.0)(1).dtype
    assert f(1).weak_type == jax.jit(lambda x: x * 2.0)(1).weak_type
    assert f(jnp.bfloat16(1)).dtype == jnp.bfloat16
    assert stagejit.jit(lambda: 3)().weak_type


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_integers_wrap(dtype: Any) -> None:
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 0, 1, info.max // 2 + 1], dtype)

    def f(x: Any) -> Any:
        return x + x, x * x, -x, x - jnp.asarray(3, dtype), abs(x), jnp.sum(x, dtype=dtype), x**3

    agrees(f, x)


def test_division_by_zero_and_overflow_of_integers() -> None:
    x = np.array([7, -7, np.iinfo(np.int32).min, 0], np.int32)
    y = np.array([0, 0, -1, 0], np.int32)
    agrees(lambda x, y: (lax.div(x, y), lax.rem(x, y), x // y, x % y), x, y)
    agrees(
        lambda x, y: (lax.shift_left(x, y), lax.shift_right_logical(x, y)),
        x,
        np.array([32, 40, 1, -1], np.int32),
    )


def test_zero_size_arrays() -> None:
    empty = np.zeros((0, 3), np.float32)
    f = stagejit.jit(
        lambda x: (
            x + 1,
            x.sum(0),
            x @ x.T,
            jnp.concatenate([x, x]),
            x.T @ x,
            jnp.pad(x, ((1, 1), (0, 0)), constant_values=2),
        )
    )
    close(f(empty), jax.jit(f.__wrapped__)(empty))


def test_scalars_and_literals() -> None:
    agrees(lambda x: x + 1, np.float32(2))
    close(stagejit.jit(lambda x: (1, 2.5, True, x))(X), (1, 2.5, True, X))
    close(
        stagejit.jit(lambda: (jnp.zeros((2, 3)), jnp.arange(4)))(),
        (np.zeros((2, 3), np.float32), np.arange(4, dtype=np.int32)),
    )
    assert stagejit.jit(lambda x: None)(X) is None
    assert stagejit.jit(lambda: ())() == ()


def test_results_that_are_arguments_or_repeat() -> None:
    close(stagejit.jit(lambda x, y: (x, y, x))(X, W), (X, W, X))

    def f(x: Any) -> Any:
        y = x * 2
        return y, y, x, y.reshape(-1), y.T, jnp.reshape(x, (6, 4))

    agrees(f, X)


def test_large_closed_over_constants() -> None:
    table = RNG.standard_normal((300, 500)).astype(np.float32)
    device = jnp.asarray(table) * 2
    agrees(
        lambda x: (x @ table).sum(0) + device[3],
        RNG.standard_normal((2, 300)).astype(np.float32),
        rtol=1e-4,
    )


def test_custom_derivatives() -> None:
    @jax.custom_jvp
    def cube(x: Any) -> Any:
        return x**3

    @cube.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return cube(primals[0]), tangents[0] * 7

    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return jnp.tanh(x)

    clipped.defvjp(lambda x: (clipped(x), x), lambda x, g: (g * jnp.where(x > 0, 1.0, 0.5),))

    def f(x: Any) -> Any:
        return jnp.sum(cube(x) + clipped(x))

    with native_calls(2):
        close(jax.grad(stagejit.jit(f))(X), 7 + np.where(X > 0, 1.0, 0.5).astype(np.float32))
    agrees(f, X)
    agrees(jax.grad(f), X)


def test_many_results() -> None:
    agrees(lambda x: [x * i + jnp.sum(x) for i in range(100)], X)


def test_many_arguments() -> None:
    agrees(lambda *xs: sum(xs), *[X + i for i in range(60)])


def test_numpy_and_python_scalars_as_arguments() -> None:
    for value in (3, 2.5, True, np.int8(4), np.float64(1.5), np.bool_(False)):
        agrees(lambda v: jnp.where(v > 1, v, v + 2), value)


def test_nested_stagejit_functions_are_one_program() -> None:
    inner = stagejit.jit(lambda x: jnp.tanh(x) * 2)
    before = call_count()
    close(stagejit.jit(lambda x: inner(x) + inner(x + 1))(X), np.tanh(X) * 2 + np.tanh(X + 1) * 2)
    assert call_count() - before == 1


def test_calls_with_other_shapes_compile_again() -> None:
    f = stagejit.jit(lambda x: jnp.tanh(x).sum(-1))
    for shape in ((3,), (2, 3), (1, 1), (5, 0), (2, 3, 4)):
        x = RNG.standard_normal(shape).astype(np.float32)
        with native_calls(1):
            close(f(x), np.tanh(x).sum(-1), rtol=1e-5)


def test_arrays_of_unusual_layout() -> None:
    f = stagejit.jit(lambda x: x + 1)
    for x in (X.T, X[::2], X[:, ::-1], np.broadcast_to(X[0], (3, 6)), np.asfortranarray(X)):
        close(f(x), x + 1)
