"""Regions that differ in nothing that matters to a kernel share one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
