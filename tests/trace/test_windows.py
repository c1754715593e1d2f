"""Reductions over windows, selections in them, and their gradients, against their definitions."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.lax import windowed_reductions

import stagejit
from stagejit.options import Options
from tests.expected import windows
from tests.expected.windows import JAX, NUMPY, Config

BFLOAT16 = np.dtype(jnp.bfloat16)
DTYPES = [np.dtype(np.float32)] * 4 + [
    BFLOAT16, *map(np.dtype, ("f2", "f8", "i4", "i1", "u1", "u2", "i8", "?")),
]  # fmt: skip


def native(f: Callable[..., Any], *args: Any) -> Any:
    """The results of our kernels; nothing is left to XLA."""
    return stagejit.jit(f, options=Options(delegate=False, verify=True))(*args)


def same(ours: Any, expected: Any, dtype: Any) -> None:
    assert ours.dtype == dtype
    assert ours.shape == expected.shape
    if not jnp.issubdtype(dtype, np.floating):
        np.testing.assert_array_equal(ours, expected)
        return
    close = 2e-2 if dtype.itemsize == 2 else 1e-4
    np.testing.assert_allclose(np.asarray(ours, np.float64), expected, rtol=close, atol=close)


@pytest.mark.some(2)
@pytest.mark.parametrize("seed", range(60))
def test_random_windows(seed: int) -> None:
    rng = random.Random(seed)
    large = seed % 6 == 0
    shape, config = windows.drawn(rng, large=large)
    dtype = rng.choice(DTYPES)
    fn = rng.choice(["max", "min"] if dtype == np.bool_ else ["add", "max", "min"])
    if not large and rng.random() < 0.2 and dtype != np.bool_:
        fn = "mul"
    x = windows.elements(rng, shape, dtype, special=fn in ("max", "min"))
    init = windows.neutral(fn, dtype)
    if rng.random() < 0.2:  # what is no identity counts once, and not where there is padding
        init = np.asarray(2 if dtype != np.bool_ else not init, dtype)[()]
    with jax.enable_x64(dtype.itemsize == 8):
        ours = native(lambda x: lax.reduce_window(x, init, JAX[fn], *config.arguments), x)
    with np.errstate(all="ignore"):
        expected = windows.reduced(x, init, NUMPY[fn], config)
    same(np.asarray(ours), expected, dtype)


@pytest.mark.some(3)
@pytest.mark.parametrize("fn", [lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor])
@pytest.mark.parametrize("dtype", ["i4", "u1", "?"])
@pytest.mark.parametrize("size", [3, 70])
def test_bits(fn: Any, dtype: str, size: int) -> None:
    x = windows.elements(random.Random(size), (150,), dtype, special=False)
    config = Config((size,), (2,), ((1, 1),), (1,), (1,))
    init = np.asarray(0 if fn is not lax.bitwise_and else ~np.zeros((), dtype), dtype)[()]
    numpy = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    ours = native(lambda x: lax.reduce_window(x, init, fn, *config.arguments), x)
    name = fn.__name__.removeprefix("bitwise_")
    same(np.asarray(ours), windows.reduced(x, init, numpy[name], config), np.dtype(dtype))


@pytest.mark.parametrize("size", [3, 9])
def test_any_function_takes_elements_in_their_order(size: int) -> None:
    """Of 81 elements, in a loop."""
    x = windows.elements(random.Random(1), (11, 10), np.float32, special=False)
    config = Config((size, size), (1, 2), ((2, 1), (0, 3)), (1, 2), (1, 1))

    def body(a: Any, b: Any) -> Any:
        return 0.5 * a + b

    ours = native(lambda x: lax.reduce_window(x, np.float32(3), body, *config.arguments), x)
    same(np.asarray(ours), windows.reduced(x, 3, body, config), np.dtype("f4"))


def test_several_operands_at_once() -> None:
    """The largest element of each window, and how many there are, in one pass."""
    rng = random.Random(2)
    x = windows.elements(rng, (9, 7), np.float32, special=False)
    config = Config((3, 2), (2, 1), ((1, 1), (0, 1)), (1, 1), (1, 1))

    def body(a: Any, b: Any) -> Any:
        return jnp.maximum(a[0], b[0]), a[1] + b[1]

    inits = np.float32(-np.inf), np.int32(0)
    ones = np.ones(x.shape, np.int32)
    ours = native(lambda *xs: lax.reduce_window(xs, inits, body, *config.arguments), x, ones)
    same(np.asarray(ours[0]), windows.reduced(x, -np.inf, np.maximum, config), np.dtype("f4"))
    same(np.asarray(ours[1]), windows.reduced(ones, 0, np.add, config), np.dtype("i4"))


def pooling(config: Config, largest: bool) -> Callable[[Any], Any]:
    fn = "max" if largest else "min"

    def f(x: Any) -> Any:
        init = windows.neutral(fn, x.dtype)
        return lax.reduce_window(x, init, JAX[fn], *config.arguments)

    return f


def drawn_pooling(rng: random.Random) -> tuple[tuple[int, ...], Config]:
    """Windows that JAX has gradients for, all of which have elements."""
    shape, config = windows.drawn(rng)
    shape = tuple(size + 3 for size in shape)
    padding = tuple(
        (rng.randrange(min(size, 3)), rng.randrange(min(size, 3))) for size in config.sizes
    )
    ones = (1,) * len(shape)
    return shape, Config(config.sizes, config.strides, padding, ones, ones)


@pytest.mark.some(5)
@pytest.mark.parametrize("seed", range(24))
def test_gradients_of_pooling_go_to_the_first_of_equals(seed: int) -> None:
    rng = random.Random(seed)
    shape, config = drawn_pooling(rng)
    largest, dtype = rng.random() < 0.5, rng.choice([np.dtype(np.float32)] * 3 + [BFLOAT16])
    x = np.round(windows.elements(rng, shape, np.float64, special=False)).astype(dtype)
    source = windows.elements(rng, config.counts(shape), np.int32, special=False).astype(dtype)
    ours = native(lambda x, s: jax.vjp(pooling(config, largest), x)[1](s)[0], x, source)
    keeps = np.greater_equal if largest else np.less_equal
    same(np.asarray(ours), windows.scattered(x, source, keeps, config), dtype)


@pytest.mark.some(2)
@pytest.mark.parametrize("sizes", [(6, 5), (20, 1), (1, 18), (3, 20)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
def test_gradients_of_large_windows(sizes: Any, strides: Any) -> None:
    """More windows around an element than a kernel asks: a loop goes over them."""
    padding = tuple((size // 2, (size - 1) // 2) for size in sizes)
    config = Config(sizes, strides, padding, (1, 1), (1, 1))
    rng = random.Random(10)
    x = np.round(windows.elements(rng, (23, 21), np.dtype(np.float32), special=False))
    source = windows.elements(rng, config.counts(x.shape), np.dtype(np.int32), special=False)
    source = source.astype(np.float32)
    ours = native(lambda x, s: jax.vjp(pooling(config, True), x)[1](s)[0], x, source)
    same(np.asarray(ours), windows.scattered(x, source, np.greater_equal, config), x.dtype)


@pytest.mark.some(3)
@pytest.mark.parametrize("seed", range(16))
def test_derivatives_are_those_of_jax(seed: int) -> None:
    """Forward, twice, mapped. (Which element is selected beside NaN depends on the order.)"""
    rng = random.Random(seed)
    shape, config = drawn_pooling(rng)
    pool = pooling(config, rng.random() < 0.5)
    x = windows.elements(rng, shape, np.float32, special=seed % 2 == 0)
    x = np.where(np.isfinite(x), x, np.float32(9))
    t = windows.elements(rng, shape, np.float32, special=False)

    def squares(x: Any) -> Any:
        return (pool(x) ** 2).sum()

    programs: list[Callable[..., Any]] = [
        lambda x, t: jax.jvp(pool, (x,), (t,))[1],
        lambda x, t: jax.vjp(pool, x)[1](pool(t))[0],
        lambda x, t: jax.jvp(jax.grad(squares), (x,), (t,))[1],
        lambda x, t: jax.vmap(lambda s: jax.vjp(pool, x)[1](s)[0])(jnp.stack([pool(t), pool(x)])),
    ]
    f = programs[seed // 2 % 4]
    np.testing.assert_allclose(native(f, x, t), jax.jit(f)(x, t), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strides", [(2, 2), (1, 3)])
def test_the_gradient_of_an_average(strides: tuple[int, int]) -> None:
    x = windows.elements(random.Random(3), (2, 9, 8, 3), np.float32, special=False)

    def average(x: Any) -> Any:
        window = (1, 3, 2, 1), (1, *strides, 1), "SAME"
        count = lax.reduce_window(jnp.ones_like(x), 0.0, lax.add, *window)
        return lax.reduce_window(x, 0.0, lax.add, *window) / count

    f = jax.grad(lambda x: (average(x) ** 3).sum())
    with jax.enable_x64(True):
        exact = f(x.astype(np.float64))
    np.testing.assert_allclose(native(f, x), exact, rtol=1e-5, atol=1e-5)


def test_select_and_scatter_with_functions_of_ones_own() -> None:
    rng = random.Random(4)
    x = windows.elements(rng, (2, 7, 6), np.float32, special=False)

    def program(x: Any, init: Any) -> Any:
        pads, sizes, strides = ((0, 0), (1, 1), (0, 1)), (1, 3, 2), (1, 2, 1)
        source = lax.reduce_window(x, np.float32(0), lax.add, sizes, strides, pads)
        made: Any = windowed_reductions._select_and_scatter(
            x, lambda a, b: a * a >= b * b, sizes, strides, pads, source, init, lax.max
        )
        return made

    init = np.float32(0.25)
    np.testing.assert_allclose(native(program, x, init), jax.jit(program)(x, init), rtol=1e-6)


def test_complex_sums() -> None:
    x = windows.elements(random.Random(5), (6, 5), np.float32, special=False)

    def f(x: Any) -> Any:
        z = lax.complex(x, 2 * x)
        return jnp.abs(lax.reduce_window(z, np.complex64(0), lax.add, (2, 2), (1, 2), "SAME"))

    np.testing.assert_allclose(stagejit.jit(f)(x), jax.jit(f)(x), rtol=1e-5)


@pytest.mark.parametrize("fn", ["max", "min"])
def test_complex_numbers_are_ordered_by_their_real_parts(fn: str) -> None:
    parts = [windows.elements(random.Random(k), (6, 5), np.float32, special=False) for k in (5, 6)]

    def f(x: Any, y: Any) -> Any:
        z, init = lax.complex(jnp.round(x), y), np.complex64(-np.inf if fn == "max" else np.inf)
        largest = lax.reduce_window(z, init, JAX[fn], (2, 2), (1, 2), "SAME")
        above = lax.reduce_window(z, np.complex64(1 + 2j), JAX[fn], (3, 1), (1, 1), "VALID")
        return lax.real(largest), lax.imag(largest), lax.real(above), lax.imag(above)

    for ours, theirs in zip(native(f, *parts), jax.jit(f)(*parts), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_bools_are_selected_and_scattered() -> None:
    x = windows.elements(random.Random(7), (6, 9), np.dtype(bool), special=False)
    sizes, pads = (2, 2), ((0, 0), (1, 0))
    source = windows.elements(random.Random(8), (5, 9), np.dtype(bool), special=False)

    def f(source: Any, x: Any) -> Any:
        made: Any = windowed_reductions._select_and_scatter_add(
            source, x, lax.ge_p, sizes, (1, 1), pads
        )
        return made

    config = Config(sizes, (1, 1), pads, (1, 1), (1, 1))
    expected = windows.scattered(x, source, np.greater_equal, config) > 0
    np.testing.assert_array_equal(native(f, source, x), expected)


def test_pooling_is_one_dispatch_without_memory_of_its_own() -> None:
    x = np.ones((2, 8, 8, 16), np.float32)
    pool = pooling(Config((1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4, (1,) * 4, (1,) * 4), True)
    plan = stagejit.jit(lambda x: jnp.tanh(pool(jnp.maximum(x + 1, 0)))).plan(x)
    assert len(plan.dispatches) == 1
    assert not plan.delegated
    assert plan.transient_nbytes == 0


def test_windows_in_a_loop_leave_nothing_to_xla() -> None:
    x = windows.elements(random.Random(6), (12, 5), np.float32, special=False)

    def f(x: Any) -> Any:
        def step(x: Any, _: Any) -> Any:
            return lax.reduce_window(x, -jnp.inf, lax.max, (3, 1), (1, 1), "SAME") * 0.5, x.sum()

        return lax.scan(step, x, None, length=4)

    for ours, theirs in zip(native(f, x), jax.jit(f)(x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
