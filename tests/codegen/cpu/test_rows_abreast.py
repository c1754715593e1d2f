"""Rows of gathers whose places are found together: against the interpreter, on every target; and
where each row finds its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.codegen.generate import kernel_of
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target
from stagejit.trace.translate import graph_of
from tests.codegen.regions import Runner, region_of
from tests.randomness import RNG

Array = np.ndarray[Any, np.dtype[Any]]
TABLES = (np.float32, np.float64, np.int8, np.bool_, np.float16)
INDICES = (np.int32, np.int64, np.uint8, np.int8, np.uint32, np.uint64)
TARGETS = {"host": Target.host, "avx2": Target.avx2, "sse2": Target.sse2}


def table(*shape: int, dtype: Any = np.float32) -> Array:
    return (RNG.standard_normal(shape) * 50).astype(dtype)


def indices(extent: int, rows: int, dtype: Any = np.int32) -> Array:
    """Some before the first and behind the last, where the type has them."""
    info = np.iinfo(dtype)
    some = RNG.integers(max(info.min, -2 * extent), min(info.max, 2 * extent), rows).astype(dtype)
    some[:2] = info.min, info.max
    return some


def kernel(f: Callable[..., Any], *args: Any, target: Target | None = None) -> Kernel:
    return kernel_of(region_of(graph_of(f, *args)), target or Target.host())


def abreast(kernel: Kernel) -> list[str]:
    return [choice.reason for choice in kernel.choices if choice.name == "abreast"]


@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
@pytest.mark.parametrize("dtype", INDICES, ids=lambda d: np.dtype(d).name)
def test_indices_of_all_types(runner: Runner, dtype: Any, mode: str) -> None:
    wanted = indices(9, 131, dtype)
    if mode == "promise_in_bounds":
        wanted %= 9
    assert abreast(kernel(lambda x, i: x.at[i].get(mode=mode), table(9, 4), wanted))
    runner.check(lambda x, i: x.at[i].get(mode=mode), table(9, 4), wanted)


@pytest.mark.parametrize("dtype", TABLES, ids=lambda d: np.dtype(d).name)
def test_rows_of_all_types_and_widths(runner: Runner, dtype: Any) -> None:
    for width, rows in itertools.product((2, 3, 5, 8, 11), (128, 133, 1000)):
        runner.check(lambda x, i: x[i], table(7, width, dtype=dtype), indices(7, rows))


@pytest.mark.parametrize("target", TARGETS)
def test_items_of_some_rows(runner: Runner, target: str) -> None:
    """More rows than an item has, and a last item of fewer than are abreast."""
    args = table(50, 3), indices(50, 40_003)
    made = kernel(lambda x, i: x[i] * 2, *args, target=TARGETS[target]())
    assert made.total > 1
    runner.check(lambda x, i: x[i] * 2, *args)


def test_several_gathers_and_what_is_done_with_them() -> None:
    """Index vectors of two components are one number before."""

    def corners(x: Any, i: Any, j: Any) -> Any:
        return (x[i, j] + x[i + 1, j] + x[i, j + 1]) * 0.5

    args = table(20, 30, 3), indices(10, 300), indices(20, 300)
    (reason,) = (
        choice.reason
        for choice in stagejit.jit(corners).explain(*args).chosen
        if choice.name == "abreast"
    )
    assert "rows at once" in reason
    np.testing.assert_array_equal(stagejit.jit(corners)(*args), jax.jit(corners)(*args))


def test_rows_of_a_matrix_of_indices(runner: Runner) -> None:
    runner.check(lambda x, i: x[i], table(20, 4), indices(20, 900).reshape(3, 300))
    runner.check(lambda x, i: x[:, i], table(3, 20, 4), indices(20, 300))


def test_indices_that_are_gathered(runner: Runner) -> None:
    """The index of the inner gather is a row's; the outer one's is found by vectors."""
    runner.check(lambda x, i, j: x[i[j]], table(20, 4), indices(20, 50), indices(50, 300))
    runner.check(lambda x, i, j: x[i][j], table(20, 4), indices(20, 50), indices(50, 300))


def test_what_is_found_together_is_said() -> None:
    made = kernel(lambda x, i: x[i], table(9, 4), indices(9, 1000), target=Target.avx2())
    (reason,) = abreast(made)
    assert reason.startswith("8 rows at once: ")
    assert "; one by one: " in reason
    assert "8 rows abreast" in made.loops
    assert (
        "4 rows abreast"
        in kernel(lambda x, i: x[i], table(9, 4), indices(9, 1000), target=Target.sse2()).loops
    )


NOT: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "few rows": (lambda x, i: x[i], (table(9, 4), indices(9, 100))),
    "long rows": (lambda x, i: x[i], (table(9, 200), indices(9, 300))),
    "nothing is gathered": (lambda x, y: x * 2 + y[:, None], (table(300, 4), table(300))),
    "all rows at one place": (lambda x, i: x[i] + x, (table(300, 4), indices(9, 4)[3])),
    "elements of rows apart": (
        lambda x, i: jnp.take_along_axis(x, i, 1),
        (table(300, 4), indices(4, 1200).reshape(300, 4)),
    ),
    "much is done": (
        lambda x, i: jnp.tanh(jnp.sin(x[i]) + jnp.exp(jnp.cos(x[i]))),
        (table(9, 4), indices(9, 300)),
    ),
}


@pytest.mark.parametrize("name", NOT)
def test_each_row_finds_its_own(runner: Runner, name: str) -> None:
    f, args = NOT[name]
    assert not abreast(kernel(f, *args))
    runner.check(f, *args)
