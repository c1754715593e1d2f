"""Native loops and branches: values, plans, donation, transformations."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.options import Options
from tests.agreement import close
from tests.loops.programs import (
    CASES,
    IDS,
    V,
    X,
    everything_in_everything,
    nested_loops,
    rows_updated,
    scan_add,
    ys_equal_to_carry,
)
from tests.schedule.planning import check


@pytest.mark.some(2)
@pytest.mark.parametrize(("f", "args"), CASES, ids=IDS)
def test_values(f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    jitted = stagejit.jit(f, options=Options(verify=True))
    assert not jitted.plan(*args).delegated
    close(jitted(*args), jax.jit(f)(*args))


def counted(body: Callable[[Any], Any], c: Any) -> Any:
    return lax.fori_loop(0, 2, lambda _, c: body(c), c)


def scanned(body: Callable[[Any], Any], c: Any) -> Any:
    last, passed = lax.scan(lambda c, _: (body(c), c), c, None, length=2)
    return jax.tree.map(lambda value, all_values: value + all_values[1], last, passed)


def awaited(body: Callable[[Any], Any], c: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, body(s[1])), (0, c))[1]


def chosen(body: Callable[[Any], Any], c: Any) -> Any:
    return lax.cond(c[0].sum() < 1, body, lambda c: (c[0], c[1] * 2, c[2]), c)


NESTS = [counted, scanned, awaited, chosen]


@pytest.mark.some(2)
@pytest.mark.parametrize("outer", NESTS)
@pytest.mark.parametrize("inner", NESTS)
@pytest.mark.parametrize("sizes", [(0, 0, 0), (3, 0, 0)])
def test_values_without_elements_between_bodies(
    outer: Callable[..., Any], inner: Callable[..., Any], sizes: tuple[int, ...]
) -> None:
    """Results, carries, slices and transients of one body that another one takes."""

    def exchange(c: Any) -> Any:
        return c[0] + 1, c[2][::-1], c[1] - 1

    def body(c: Any) -> Any:
        one = inner(exchange, (c[0], jnp.tanh(c[1]), c[1] * 2))
        return inner(lambda d: (d[0] + 1, d[1], d[2] + c[2].sum()), (one[0], c[1] + 1, c[2]))

    def f(*given: Any) -> Any:
        first, second, third = outer(body, (given[0], given[1], given[1] + 1))
        return inner(exchange, (first, second + third, given[1])), given[2] * 2

    given = [np.full((n, 1), 0.5, np.float32) for n in sizes]
    jitted = stagejit.jit(f, options=Options(verify=True))
    assert not jitted.plan(*given).delegated
    close(jitted(*given), jax.jit(f)(*given))


@pytest.mark.parametrize("outer", NESTS)
@pytest.mark.parametrize("size", [0, 3])
def test_one_value_that_is_several_results_of_a_body(outer: Callable[..., Any], size: int) -> None:
    """With elements it is copied; without, it is one buffer in several places."""

    def f(x: Any, y: Any) -> Any:
        def body(c: Any) -> Any:
            last = lax.while_loop(
                lambda s: s[0] < 4, lambda s: (s[0] + 1, s[2], s[3], x), (0, c[1], c[2], x)
            )[3]
            return last, last, y

        return outer(body, (x, x, y))

    given = np.ones((size,), np.float32), np.zeros((size,), np.float32)
    jitted = stagejit.jit(f, options=Options(verify=True))
    assert not jitted.plan(*given).delegated
    close(jitted(*given), jax.jit(f)(*given))


@pytest.mark.some(2)
@pytest.mark.parametrize(("f", "args"), CASES, ids=IDS)
def test_plans_and_interpreter(f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """The executor follows the plan over poisoned memory and gives what the interpreter gives."""
    plan = check(f, *args)
    assert not plan.delegated
    check(f, *args, options=Options(disable=("reuse-arguments", "fuse-insert", "pack-slots")))


@pytest.mark.parametrize(("f", "args"), CASES[::3], ids=IDS[::3])
def test_disabled(f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    jitted = stagejit.jit(f, options=Options(disable=("native-control-flow",)))
    close(jitted(*args), jax.jit(f)(*args))


def test_disabled_loops_are_delegated() -> None:
    options = Options(disable=("native-control-flow",))
    (delegated,) = stagejit.jit(scan_add, options=options).plan(X).delegated
    assert (delegated.equation, delegated.reason) == (
        "scan",
        "scan: native control flow is disabled",
    )


@pytest.mark.parametrize(
    "f", [scan_add, ys_equal_to_carry, nested_loops, rows_updated, everything_in_everything]
)
def test_donated_argument(f: Callable[..., Any]) -> None:
    for donate in ((), (0,)):
        jitted = stagejit.jit(f, donate_argnums=donate, options=Options(verify=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not every donated argument has a use
            close(jitted(jnp.asarray(X)), jax.jit(f)(X))


def test_transformations() -> None:
    def loss(x: Any, v: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            c = lax.cond(c.sum() > 0, jnp.tanh, lambda z: z * 0.5, c * v + row)
            return c, (c * c).sum()

        return lax.scan(step, v, x)[1].sum()

    two = np.stack([V, V * 2])
    for transformed, args in (
        (jax.grad(loss, argnums=(0, 1)), (X, V)),
        (jax.vmap(loss, (None, 0)), (X, two)),
        (jax.jacfwd(loss, argnums=1), (X, V)),
    ):
        jitted = stagejit.jit(transformed)
        assert not jitted.plan(*args).delegated
        close(jitted(*args), jax.jit(transformed)(*args))


def test_vmap_of_while() -> None:
    f = jax.vmap(lambda x: lax.while_loop(lambda c: c.sum() < 20, lambda c: c * 1.5 + 1, x))
    jitted = stagejit.jit(f)
    assert not jitted.plan(X).delegated
    close(jitted(X), jax.jit(f)(X))
