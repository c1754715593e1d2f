"""Regions that differ in nothing that matters to a kernel share one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.options import Options
from stagejit.pipeline import Compilation


def compiled(f: Any, *args: Any) -> Compilation:
    traced = stagejit.jit(f, options=Options(delegate=False)).trace(*args)
    compilation: Compilation = traced.compilation.run_until("host")
    return compilation


def symbols(compilation: Compilation) -> list[str]:
    return [generated.symbol for generated in compilation.kernels.values()]


def right(f: Any, *args: Any) -> None:
    got = stagejit.jit(f, options=Options(delegate=False))(*args)
    np.testing.assert_allclose(got, jax.jit(f)(*args), rtol=1e-4, atol=1e-4)


W, V, X = (np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16) / n for n in (1, 2, 3))


def test_the_order_of_inputs_does_not_matter() -> None:
    """The second product reads an argument before what the first one made."""

    def f(x: Any, w: Any, v: Any) -> Any:
        return (x @ w) @ v

    assert len(set(symbols(compiled(f, X, W, V)))) == 1
    right(f, X, W, V)


def test_dont_exchange_operands() -> None:
    """`x @ w` is not `w @ x`, and `x - w` not `w - x`."""
    for f in (
        lambda x, w, v: ((x @ w) @ v, v @ (x @ w)),
        lambda x, w, v: (jnp.cumsum(x - w), jnp.cumsum(w - x)),
    ):
        for number in range(2):
            right(lambda *args, f=f, number=number: f(*args)[number], X, W, V)


def test_maps_share_the_kernel_of_the_one_that_overwrites() -> None:
    """The first of the chain reads an argument, others write over what they read."""

    def f(x: Any) -> Any:
        for _ in range(360):
            x = jnp.sin(x * 1.5)
        return x

    compilation = compiled(f, X)
    *long, _ = compilation.kernels.values()
    assert compilation.schedule.overwritten
    assert len(long) > 1
    assert len({generated.symbol for generated in long}) == 1
    assert not any(buffer.readonly for buffer in long[0].kernel.function.buffers)
    right(f, X)


def test_a_map_alone_reads_what_nobody_writes() -> None:
    compilation = compiled(lambda x: jnp.sin(x) * 2, X)
    (generated,) = compilation.kernels.values()
    assert any(buffer.readonly for buffer in generated.kernel.function.buffers)


def softmaxes(x: Any, y: Any, w: Any) -> Any:
    for _ in range(4):
        x = jax.nn.softmax(x, -1) @ w
    return x + y


def sums_of_products(x: Any, y: Any, w: Any) -> Any:
    for _ in range(4):
        x = jnp.cumsum(x, 0)
        y = y + x @ w
    return y


@pytest.mark.parametrize(("f", "kind"), [(softmaxes, "reduce"), (sums_of_products, "contract")])
@pytest.mark.parametrize("donated", [(), (0,), (1,)])
def test_rows_and_products_share_the_kernel_of_those_that_overwrite(
    f: Callable[..., Any], kind: str, donated: tuple[int, ...]
) -> None:
    """The first reads an argument, which it may overwrite only if the caller gives it up."""
    x, y, w = (np.float32(each * 8) for each in (X, W, np.sin(V * 40)))
    jitted = stagejit.jit(f, options=Options(verify=True), donate_argnums=donated)
    compilation = jitted.trace(x, y, w).compilation.run_until("host")
    of_kind = [region for region in compilation.kernels if region.kind == kind]
    overwriting = [bool(compilation.schedule.overwritten.get(region)) for region in of_kind]
    if not donated:
        assert overwriting == [False, True, True, True]
    symbols = {compilation.kernels[region].symbol for region in of_kind[:4]}
    assert len(symbols) == 1
    with jax.enable_x64(True):
        expected = f(*(jnp.asarray(each, jnp.float64) for each in (x, y, w)))
    got = jitted(*map(jnp.array, (x, y, w)))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------- repeated steps

ROW = np.linspace(-1, 1, 16, dtype=np.float32)
LINES: dict[str, Callable[[float], Callable[[Any, Any], Any]]] = {
    "scaled": lambda c: lambda x, row: x * c,
    "moved": lambda c: lambda x, row: jnp.sin(x) + c,
    "halved": lambda c: lambda x, row: x / 2 + jnp.tanh(x) * c,
    "chosen": lambda c: lambda x, row: jnp.where(x > c, x, c * x),
    "divided": lambda c: lambda x, row: c / (2 + x * x),
    "counted": lambda c: lambda x, row: x + jnp.arange(16, dtype=jnp.float32) * c,
    "row added": lambda c: lambda x, row: x - row,
    "row computed": lambda c: lambda x, row: x * jnp.exp(row) + c,
    "reversed row": lambda c: lambda x, row: jnp.maximum(x, row[::-1]),
}


def random_step(rng: random.Random) -> Callable[[Any, Any, Any], Any]:
    """Products and running sums, each with some lines of constants and a row after it."""
    starts = [rng.choice(["product", "running sum"]) for _ in range(rng.randint(1, 2))]
    lines = [
        [
            LINES[rng.choice(sorted(LINES))](rng.choice([0.25, 0.5, 0.7]))
            for _ in range(rng.randint(1, 5))
        ]
        for _ in starts
    ]

    def step(x: Any, w: Any, row: Any) -> Any:
        for start, each in zip(starts, lines, strict=True):
            x = x @ w if start == "product" else jnp.cumsum(x, 0) / 16
            for line in each:
                x = line(x, row)
        return x

    return step


@pytest.mark.parametrize("seed", range(10))
def test_repeated_steps_share_kernels_from_the_first_one_on(seed: int) -> None:
    """In the first one stands what the others find already, constants and what is made of a row."""
    step = random_step(random.Random(seed))

    def steps(count: int) -> Callable[..., Any]:
        def f(x: Any, w: Any, row: Any) -> Any:
            for _ in range(count):
                x = step(x, w, row)
            return x

        return f

    few, more = (
        {made.symbol for region, made in compilation.kernels.items() if region.kind != "map"}
        for compilation in (compiled(steps(count), X, W, ROW) for count in (3, 10))
    )
    assert len(more) == len(few) <= 2
    right(steps(3), X, W, ROW)
