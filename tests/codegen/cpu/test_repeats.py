"""Maps that store elements several times: evaluated once, against the interpreter on every target;
and where each step evaluates its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.codegen.generate import kernel_of
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target
from stagejit.trace.translate import graph_of
from tests.codegen.regions import Runner, region_of
from tests.randomness import RNG
from tests.schedule.planning import check

Array = np.ndarray[Any, np.dtype[Any]]


def array(*shape: int, dtype: Any = np.float32) -> Array:
    return (RNG.standard_normal(shape) * 5).astype(dtype)


def kernel(f: Callable[..., Any], *args: Any) -> Kernel:
    return kernel_of(region_of(graph_of(f, *args)), Target.avx512())


def repeats(kernel: Kernel) -> list[str]:
    return [choice.reason for choice in kernel.choices if choice.name == "repeat"]


def larger(g: Any, *times: int) -> Any:
    """Each element as often along each axis."""
    for axis, count in enumerate(times):
        g = jnp.repeat(g, count, axis)
    return g


def pooled(x: Any, size: int) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, (1, size, size, 1), (1, size, size, 1), "VALID")


SHARED: dict[str, tuple[Callable[..., Any], tuple[Array, ...], int]] = {
    "pixels": (lambda g: larger(g * 2, 1, 2, 2, 1), (array(2, 5, 7, 40),), 4),
    "pixels, channels first": (lambda g: larger(g * 2, 1, 1, 2, 2), (array(2, 3, 5, 40),), 4),
    "uneven": (lambda g: larger(g * 2, 3, 2), (array(7, 37),), 6),
    "many": (lambda g: larger(g * 2, 16, 1), (array(9, 70),), 16),
    "copies": (lambda g: larger(g, 1, 3, 1), (array(9, 5, 40),), 3),
    "transcendentals": (lambda g: larger(jnp.exp(g), 1, 3, 1), (array(9, 5, 40),), 3),
    "its own part is small": (
        lambda g, x: larger(jnp.exp(g), 1, 3, 1) * x, (array(9, 5, 40), array(9, 15, 40)), 3,
    ),
    "windows": (lambda x: larger(pooled(x, 2) * 2, 1, 2, 2, 1), (array(1, 6, 8, 40),), 4),
    "bytes": (lambda g: larger(g + 1, 1, 2, 1), (array(9, 5, 140, dtype=np.int8),), 2),
    "bools": (lambda g: larger(g > 0, 1, 2, 1), (array(9, 5, 140),), 2),
    "rows that are gathered": (
        lambda x, i: larger(x[i] * 2, 2, 1), (array(9, 40), np.arange(300, dtype=np.int32) % 11), 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_what_is_stored_often_is_evaluated_once(runner: Runner, name: str) -> None:
    f, args, times = SHARED[name]
    made = kernel(f, *args)
    (reason,) = repeats(made)
    assert f"{times} stores" in reason
    assert f"store {times} times" in made.loops
    runner.check(f, *args)


def test_code_of_a_function_stands_once() -> None:
    f, args, _ = SHARED["transcendentals"]
    once, often = (
        len(kernel(g, *args).loops.splitlines())
        for g in (jnp.exp, f)
    )  # fmt: skip
    assert often < 1.5 * once


OWN: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "nothing is repeated": (lambda g: g * 2, (array(9, 5, 40),)),
    "too often": (lambda g: larger(g * 2, 17, 1), (array(9, 70),)),
    "most is its own": (
        lambda g, x: larger(g, 1, 3, 1) * jnp.exp(jnp.sin(x)), (array(9, 5, 40), array(9, 15, 40)),
    ),
    "only what all lanes share": (
        lambda x: jnp.where((jnp.arange(5) * 3 + 1 < 9)[:, None, None], x, x + 1),
        (array(5, 4, 40),),
    ),
    "turned in registers": (
        lambda g: jnp.transpose(larger(g * 2, 1, 2, 1), (0, 2, 1)), (array(3, 40, 70),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_each_step_evaluates_its_own(runner: Runner, name: str) -> None:
    f, args = OWN[name]
    assert not repeats(kernel(f, *args))
    runner.check(f, *args)


def mean_gradient(size: int, between: Callable[[Any], Any] = lambda y: y**2) -> Any:
    return jax.grad(lambda x: between(pooled(x, size) / size**2).sum())


@pytest.mark.parametrize(
    ("f", "dispatches"),
    [
        pytest.param(mean_gradient(2), 1, id="four times"),
        pytest.param(mean_gradient(3), 1, id="nine times"),
        pytest.param(lambda x: larger(pooled(x, 2) / 3, 1, 5, 5, 1), 2, id="too often"),
        pytest.param(mean_gradient(4), 2, id="a window as dear as a transcendental"),
        pytest.param(mean_gradient(2, jnp.sin), 2, id="a transcendental"),
        pytest.param(
            lambda x: larger(pooled(x, 2) / 3, 1, 2, 2, 1).sum((1, 2)), None, id="summed up"
        ),
    ],
)
def test_the_gradient_of_a_mean_is_one_dispatch(f: Any, dispatches: int | None) -> None:
    """Nothing is stored to save evaluations where there are none more."""
    plan = check(f, array(4, 48, 48, 64))
    if dispatches is not None:
        assert len(plan.dispatches) == dispatches
    assert (plan.transient_nbytes == 0) == (dispatches == 1)
