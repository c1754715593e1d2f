"""Updates of single elements that are evaluated together and applied in order: against the
interpreter, on every target; and where each is evaluated alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from tests.codegen.cpu.test_rows_abreast import INDICES, TABLES, abreast, indices, kernel, table
from tests.codegen.regions import Runner
from tests.randomness import RNG

Array = np.ndarray[Any, np.dtype[Any]]
MODES = ["clip", "drop", "promise_in_bounds"]


def tables_of(dtype: Any) -> tuple[Array, Array]:
    return table(9, dtype=dtype), table(50, dtype=dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fn", ["set", "add", "multiply", "min", "max"])
def test_updates_by_what_is_found(runner: Runner, fn: str, mode: str) -> None:
    """Few places, so that neighbours update the same one, and some updates are dropped."""

    def updated(x: Any, y: Any, i: Any, j: Any) -> Any:
        return getattr(x.at[i], fn)(jnp.abs(y[j] * 0.01) + 0.5, mode=mode)

    for count in (128, 133, 1000):
        wanted = indices(9, count)
        if mode == "promise_in_bounds":
            wanted %= 9
        args = *tables_of(np.float32), wanted, indices(50, count)
        assert abreast(kernel(updated, *args))
        runner.check(updated, *args)


@pytest.mark.parametrize("dtype", INDICES, ids=lambda d: np.dtype(d).name)
def test_indices_of_all_types(runner: Runner, dtype: Any) -> None:
    i = indices(9, 300, dtype)
    runner.check(lambda x, i, u: x.at[i].add(u, mode="clip"), table(9), i, table(300))
    runner.check(lambda x, i, u: x.at[i].add(u * 2, mode="drop"), table(9), i, table(300))


@pytest.mark.parametrize("dtype", TABLES, ids=lambda d: np.dtype(d).name)
def test_updates_of_all_types(runner: Runner, dtype: Any) -> None:
    fn = "add" if dtype in (np.float32, np.float64) else "max"
    i, j = indices(9, 300), indices(50, 300)
    runner.check(lambda x, y, i, j: getattr(x.at[i], fn)(y[j]), *tables_of(dtype), i, j)


def test_vectors_of_two_components() -> None:
    i, j, u = indices(7, 400), indices(11, 400), table(400)

    def updated(x: Any, i: Any, j: Any, u: Any) -> Any:
        return x.at[i, j].add(u * u, mode="clip"), x.at[j, i].set(u[::-1])

    f = stagejit.jit(updated, options=stagejit.Options(verify=True))
    args = table(7, 11), i, j, u
    chosen = [choice.reason for choice in f.explain(*args).chosen if choice.name == "abreast"]
    assert len(chosen) == 2
    for got, wanted in zip(f(*args), updated(*map(jnp.asarray, args)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_batches_of_updates(runner: Runner) -> None:
    i, u = indices(7, 400).reshape(2, 200), table(2, 200)
    runner.check(lambda x, i, u: x.at[i].set(u[::-1]), table(7), i, u)
    runner.check(jax.vmap(lambda x, i, u: x.at[i].add(u * u)), table(2, 7), i, u)


def test_what_is_said() -> None:
    made = kernel(lambda x, i, y: x.at[i].add(y * 2), table(9), indices(9, 500), table(500))
    (reason,) = abreast(made)
    assert reason.startswith("8 rows at once: ")
    assert "8 windows abreast" in made.loops


NOT: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "few": (lambda x, i, u: x.at[i].add(u * 2), (table(9), indices(9, 100), table(100))),
    "rows": (lambda x, i, u: x.at[i].add(u * 2), (table(9, 40), indices(9, 300), table(300, 40))),
}


@pytest.mark.parametrize("name", NOT)
def test_each_is_evaluated_alone(runner: Runner, name: str) -> None:
    f, args = NOT[name]
    assert not abreast(kernel(f, *args))
    runner.check(f, *args)


def test_nothing_to_share(runner: Runner) -> None:
    """Indices and updates lie in memory, and are taken as they are."""

    def updated(x: Any, i: Any, u: Any) -> Any:
        return x.at[i].add(u, mode="promise_in_bounds", wrap_negative_indices=False)

    args = table(9), RNG.integers(0, 9, 300).astype(np.int32), table(300)
    made = kernel(updated, *args)
    assert [reason.startswith("one by one: ") for reason in abreast(made)] == [True]
    assert "windows abreast" not in made.loops
    runner.check(updated, *args)
