"""Sums that a mask drops are left out, and no others, whatever the mask, the shapes and the views.

Inputs are small integers, as in `test_contract.py`, with NaN and infinities among them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import Array, lax

from stagejit.codegen.kernel import Kernel
from tests.codegen.cpu.contract.test_contract import TARGETS, array
from tests.codegen.regions import Runner
from tests.randomness import RNG

STEPS = 80  # of the reduction: enough for any mask here
ASKED = "if some of it is stored"


@pytest.fixture(params=TARGETS)
def runner(request: pytest.FixtureRequest, compile_kernel: Any) -> Runner:
    return Runner(compile_kernel, TARGETS[request.param]())


def special(*shape: int) -> np.ndarray[Any, Any]:
    """With rows and columns that make NaN of all that they meet."""
    made = array(*shape)
    flat = made.reshape(-1)
    flat[RNG.integers(0, flat.size, 3)] = (np.inf, -np.inf, np.nan)
    return made


def asks(kernel: Kernel) -> bool:
    return ASKED in kernel.loops


def _lower(m: int, n: int, diagonal: int) -> Array:
    return jnp.arange(m)[:, None] + diagonal >= jnp.arange(n)


MASKS: dict[str, Callable[[int, int], Any]] = {
    "all": lambda m, n: np.ones((m, n), bool),
    "none": lambda m, n: np.zeros((m, n), bool),
    "random": lambda m, n: RNG.random((m, n)) < 0.01,
    "blocks": lambda m, n: np.kron(RNG.random((-(-m // 8), -(-n // 8))) < 0.3,
                                   np.ones((8, 8), bool))[:m, :n],
    "triangle in memory": lambda m, n: np.tri(m, n, dtype=bool),
    "segments": lambda m, n: np.arange(m)[:, None] // 20 == np.arange(n) // 20,
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("m", "n"), [(37, 91), (100, 3)])
def test_any_mask(runner: Runner, name: str, m: int, n: int) -> None:
    mask = MASKS[name](m, n)
    kernel = runner.check(
        lambda mask, a, b: jnp.where(mask, a @ b * 2, -jnp.inf),
        mask, special(m, STEPS), special(STEPS, n),
    )  # fmt: skip
    assert asks(kernel)


@pytest.mark.parametrize("diagonal", [-70, 0, 13, 70])
def test_triangles_of_positions(runner: Runner, diagonal: int) -> None:
    for m, n in ((64, 64), (1, 70)):
        kernel = runner.check(
            lambda a, b: jnp.where(_lower(a.shape[0], b.shape[1], diagonal), a @ b, -1.0),
            special(m, STEPS), special(STEPS, n),
        )  # fmt: skip
        assert asks(kernel)


def test_the_place_of_the_triangle_may_be_an_operand(runner: Runner) -> None:
    def fn(i: Array, a: Array, b: Array) -> Array:
        rows = i * 16 + jnp.arange(a.shape[0])
        return jnp.where(rows[:, None] >= jnp.arange(b.shape[1]), a @ b, -jnp.inf)

    for number in (0, 2):
        args = np.asarray(number, np.int32), special(32, STEPS), special(STEPS, 100)
        assert asks(runner.check(fn, *args))


def _heads(q: Array, k: Array, mask: Array, kept: bool = True) -> Array:
    scores = jnp.einsum("bthd,bshd->bhts", q, k)
    return jnp.where(mask, scores, 0.0) if kept else jnp.where(mask, 1.0, scores)


@pytest.mark.parametrize("shape", [(20, 30), (2, 1, 1, 30), (1, 3, 20, 1), (2, 3, 20, 30)])
@pytest.mark.parametrize("kept", [False, True])
def test_masks_are_broadcast(runner: Runner, shape: tuple[int, ...], *, kept: bool) -> None:
    q, k = special(2, 20, 3, STEPS), special(2, 30, 3, STEPS)
    assert asks(runner.check(lambda q, k, m: _heads(q, k, m, kept), q, k, RNG.random(shape) < 0.2))


def test_results_go_through_views_and_several_selects(runner: Runner) -> None:
    a, b = special(24, STEPS), special(STEPS, 48)
    other, mask = RNG.random((48, 24)) < 0.3, _lower(24, 48, 3)

    def fn(a: Array, b: Array, other: Array) -> tuple[Array, Array]:
        sums = jnp.where(mask, a @ b, 0.0)
        turned = jnp.where(other, jnp.exp2(sums.T), sums.T)
        return sums, turned.reshape(6, 8, 24)

    assert asks(runner.check(fn, a, b, other))


def test_a_mask_of_several_cases(runner: Runner) -> None:
    def fn(which: Array, a: Array, b: Array) -> Array:
        sums = a @ b
        return lax.select_n(which, jnp.zeros_like(sums), sums, jnp.ones_like(sums), -sums)

    which = np.asarray(RNG.integers(0, 4, (40, 50)), np.int32)
    runner.check(fn, which, special(40, STEPS), special(STEPS, 50))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64, np.int32])
def test_types(runner: Runner, dtype: Any) -> None:
    a, b = array(40, STEPS, dtype=dtype), array(STEPS, 50, dtype=dtype)
    assert asks(runner.check(lambda a, b: jnp.where(_lower(40, 50, 0), a @ b, dtype(3)), a, b))


def test_long_sums_in_blocks(runner: Runner) -> None:
    a, b = special(40, 1500), special(1500, 100)
    assert asks(runner.check(lambda a, b: jnp.where(_lower(40, 100, 0), a @ b, 7.0), a, b))


def test_lanes_along_the_reduction(runner: Runner) -> None:
    for rows, columns in itertools.product((1, 3, 9), (1, 5, 40)):
        a, b, mask = special(rows, 333), special(columns, 333), RNG.random((rows, columns)) < 0.4
        assert asks(runner.check(lambda a, b, m: jnp.where(m, a @ b.T, -2.0), a, b, mask))


def _told(kernel: Kernel) -> str:
    return next((choice.reason for choice in kernel.choices if choice.name == "mask"), "")


def test_explained(host: Runner) -> None:
    args = RNG.random((20, 30)) < 0.5, array(20, STEPS), array(STEPS, 30)
    kernel = host.check(lambda m, a, b: jnp.where(m, a @ b, 0.0), *args)
    assert _told(kernel) == (
        "tiles of which anything is stored: "
        "a mask of 1 operations keeps some of the sums of 80 products"
    )


def test_dont_ask_for_a_few_steps(host: Runner) -> None:
    args = RNG.random((20, 30)) < 0.5, array(20, 5), array(5, 30)
    kernel = host.check(lambda m, a, b: jnp.where(m, a @ b, 0.0), *args)
    assert not asks(kernel)
    assert _told(kernel).startswith("all tiles: ")


@pytest.mark.parametrize(
    "stored",
    [
        lambda sums, m: jnp.where(sums > 0, sums, 0.0),  # of the sums themselves
        lambda sums, m: (sums, jnp.where(m, sums, 0.0)),  # stored as they are, too
        lambda sums, m: jnp.where(m, sums, -sums),  # either way
        lambda sums, m: jnp.where(m, sums, 0.0) + sums,
    ],
)
def test_dont_ask_where_every_sum_is_read(host: Runner, stored: Any) -> None:
    a, b, mask = special(20, STEPS), special(STEPS, 30), RNG.random((20, 30)) < 0.5
    assert not asks(host.check(lambda a, b, m: stored(a @ b, m), a, b, mask))
