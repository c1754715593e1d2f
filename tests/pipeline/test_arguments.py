"""Arguments, results and constants of compiled functions: every kind that JAX has."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.codegen.elements.elements import Elements
from stagejit.dispatch.groups.state import State
from stagejit.errors import InternalError
from stagejit.index.coordinates import coordinates, variables
from stagejit.runtime.cpu.loader import call_count
from tests.agreement import agrees, close, native_calls
from tests.randomness import RNG

X = RNG.standard_normal((4, 6)).astype(np.float32)
W = RNG.standard_normal((6, 3)).astype(np.float32)


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


def test_a_compile_is_the_same_whatever_is_forgotten_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if others asked for thousands of shapes all the time: equal indices stay equal."""

    def f(x: Any, w: Any) -> Any:
        y = jnp.exp(x @ w)
        z = y - y.mean(-1, keepdims=True)
        return jnp.pad(z, 1), z.reshape(-1) * 2, jnp.concatenate([z.T.reshape(z.shape), z])

    def compiled() -> tuple[str, list[str]]:
        options = stagejit.Options(verify=True, cache_dir="")
        compilation = stagejit.jit(f, options=options).trace(X, W).compilation
        compilation.run_until("codegen")
        symbols = [generated.symbol for generated in compilation.kernels.values()]
        return compilation.plan.as_text(), symbols

    def forgetting(owner: Any, name: str) -> None:
        kept = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            variables.cache_clear()
            coordinates.cache_clear()
            return kept(*args, **options)

        monkeypatch.setattr(owner, name, call)

    expected = compiled()
    for owner, name in ((State, "settle"), (Elements, "value")):
        forgetting(owner, name)
    assert compiled() == expected


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


def test_dont_run_until_a_step_that_there_is_not() -> None:
    compilation = stagejit.jit(lambda x: x + 1).trace(np.ones(3, np.float32)).compilation
    with pytest.raises(InternalError, match="no step 'codgen', but trace, "):
        compilation.run_until("codgen")
    assert not compilation.seconds
