"""Loops that are one function: which are, that they do what they did, and why others stay."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import serialize_executable

import stagejit
from stagejit.runtime.cpu.loops.joining import NAME
from tests.loops.joined import loops_joined
from tests.randomness import RNG

Function = Callable[..., Any]


def array(*shape: int) -> Any:
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


def joined(f: Function, *args: Any, **options: Any) -> int:
    """How many loops of the program are one function."""
    jitted = stagejit.jit(f, options=stagejit.Options(**options))
    return int(jitted.lower(*args).as_text("host").count(") is:"))


def reason(f: Function, *args: Any, **options: Any) -> str:
    """Why the first loop is not."""
    explained = stagejit.jit(f, options=stagejit.Options(**options)).explain(*args)
    found = [d for d in explained.decisions if d.rewrite == NAME]
    assert found
    assert not found[0].applied
    return found[0].reason


def smoothed(x: Any) -> Any:
    return lax.scan(lambda c, v: (0.9 * c + v, 0.5 * c), jnp.float32(1), x)


def root(x: Any) -> Any:
    def step(c: Any) -> Any:
        return 0.5 * (c[0] + x / c[0]), c[1] + 1

    return lax.while_loop(lambda c: c[1] < 70, step, (x, 0))


def turned(n: int) -> Function:
    """Carries that change places in each turn."""

    def f(x: Any, y: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            return (c[1] * 0.5, c[0][::-1] + 1), c[0].sum()

        return lax.scan(step, (x, y), None, length=n)

    return f


def turned_while(x: Any, y: Any) -> Any:
    return lax.while_loop(
        lambda c: c[0].sum() < 40, lambda c: (jnp.abs(c[1]) + 0.5, jnp.flip(c[0])), (x, y)
    )


def branching(x: Any) -> Any:
    sides = (lambda c: c + 1, lambda c: c * 0.5, lambda c: jnp.flip(c) - 2, lambda c: -c)
    return lax.fori_loop(0, 90, lambda i, c: lax.switch(i % 5 - 1, sides, c), x)


def nested(x: Any) -> Any:
    def outer(c: Any, row: Any) -> Any:
        inner = lax.fori_loop(0, 7, lambda i, a: jnp.sin(a) + row * i, c)
        rows = lax.scan(lambda a, v: (a + v, a), inner, x)[1]
        return inner + rows[2], rows

    return lax.scan(outer, x[0] * 0, x, reverse=True)


def windows(x: Any) -> Any:
    """Rows that are read and written at places which move, one behind the other."""

    def step(i: Any, out: Any) -> Any:
        before = lax.dynamic_slice(out, (i,), (3,))
        return lax.dynamic_update_slice(out, before[::-1] * 0.5 + x[i], (i + 1,))

    return lax.fori_loop(0, 40, step, x)


def counted(x: Any) -> Any:
    def step(c: Any, v: Any) -> Any:
        return (c[0] + 1, c[1] + v * c[0]), (c[0] * 2, c[1] > 0)

    return lax.scan(step, (jnp.int32(3), jnp.float32(0)), x)


def inside_a_large_one(x: Any, w: Any) -> Any:
    """The outer loop has a product; the inner one starts elsewhere in each turn."""

    def outer(c: Any, row: Any) -> Any:
        found, steps = lax.scan(lambda a, v: (0.5 * a + v,) * 2, jnp.float32(0), row)
        return jnp.tanh(c @ w) + found, steps

    return lax.scan(outer, w[:8], x)


def products(x: Any) -> Any:
    """A state of two numbers and their covariance: many kernels a turn, with scratch."""
    a = jnp.asarray([[1.0, 0.1], [0.0, 0.9]], jnp.float32)

    def step(c: Any, v: Any) -> Any:
        m, p = a @ c[0], a @ c[1] @ a.T + 0.01
        gain = p[:, :1] / (p[0, 0] + 0.1)
        return (m + gain[:, 0] * (v - m[0]), p - gain @ p[:1]), m

    return lax.scan(step, (jnp.zeros(2), jnp.eye(2)), x)


def complex_and_wide(x: Any) -> Any:
    def step(c: Any, v: Any) -> Any:
        z, n = c
        return (z * jnp.exp(1j * v) * 0.9 + v, n * 3 + v.astype(jnp.int32).astype(jnp.uint8)), z

    return lax.scan(step, (jnp.complex64(1), jnp.uint8(7)), x)


PROGRAMS = {
    "a filter": (smoothed, (array(100),)),
    "until a number is reached": (root, (jnp.float32(2),)),
    "carries change places, even": (turned(64), (array(5), array(5))),
    "carries change places, odd": (turned(65), (array(5), array(5))),
    "carries change places until": (turned_while, (array(5), array(5))),
    "branches": (branching, (array(6),)),
    "loops in loops": (nested, (array(9, 4),)),
    "in place": (windows, (array(50),)),
    "counters and flags": (counted, (array(77),)),
    "in a large loop": (inside_a_large_one, (array(6, 200), array(64, 64) / 8)),
    "small products": (products, (array(60),)),
    "complex and small integers": (complex_and_wide, (array(50),)),
}


# Of which a carry is not told to be f32.
WIDE = {"until a number is reached", "carries change places, even", "carries change places, odd"}
WIDE |= {"carries change places until", "branches", "loops in loops", "in place", "small products"}


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loop_that_is_one_function_does_the_same(name: str, verify: bool) -> None:
    f, args = PROGRAMS[name]
    plain = stagejit.jit(f, options=stagejit.Options(disable=NAME))(*args)
    with loops_joined():
        options = stagejit.Options(verify=verify)
        assert joined(f, *args, verify=verify) >= 1
        found = stagejit.jit(f, options=options)(*args)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(a, b)
    with jax.enable_x64(True):
        expected = jax.jit(f)(*jax.tree.map(_wide, args)) if name in WIDE else jax.jit(f)(*args)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def _wide(x: Any) -> Any:
    return x.astype(jnp.float64) if x.dtype == jnp.float32 else x


def test_only_loops_where_it_pays() -> None:
    x = array(100)
    assert joined(smoothed, x) == 1
    assert joined(smoothed, x, disable=NAME) == 0
    assert joined(smoothed, x[:3]) == 0
    assert "3 times: little" in reason(smoothed, x[:3])


def test_what_takes_long_to_compile_has_to_save_more(monkeypatch: pytest.MonkeyPatch) -> None:
    x = array(60)
    assert joined(products, x) == 0
    assert "lines takes longer" in reason(products, x)
    assert joined(products, array(6000)) == 1


def test_a_body_beside_which_calls_are_nothing_stays_as_it_is() -> None:
    def f(x: Any, w: Any) -> Any:
        return lax.fori_loop(0, 100, lambda i, c: jnp.tanh(c @ w), x)

    assert ": little" in reason(f, array(64, 64), array(64, 64))


def _in_python(c: Any) -> Any:
    kind = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.pure_callback(lambda a: np.asarray(a) + 1, kind, jnp.sin(c))


def _factor(c: Any) -> Any:
    return c + jnp.linalg.cholesky(c @ c.T + jnp.eye(3))


@pytest.mark.parametrize(
    ("step", "first", "expected"),
    [
        pytest.param(_in_python, jnp.float32(1), "it calls Python", id="python"),
        pytest.param(_factor, array(3, 3), "it calls lapack", id="lapack"),
        pytest.param(
            lambda c: jnp.tanh(c) + c.sum(), array(1024, 1024), "several threads", id="threads"
        ),
    ],
)
def test_what_cannot_be_in_a_function(step: Function, first: Any, expected: str) -> None:
    def f(c: Any) -> Any:
        return lax.fori_loop(0, 100, lambda i, c: step(c), c)

    with loops_joined():
        assert joined(f, first) == 0
        assert expected in reason(f, first)


def test_what_is_checked_for_nan_is_in_no_function() -> None:
    with loops_joined():
        assert joined(smoothed, array(100), check_nans=True) == 0
        assert "a check is in it" in reason(smoothed, array(100), check_nans=True)


def test_a_long_body_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagejit.runtime.cpu.loops.joining._MOST_LINES", 10)
    assert "lines of LLVM IR, more than 10" in reason(smoothed, array(100))


def test_a_profile_has_the_loop_as_a_whole() -> None:
    f, x = stagejit.jit(smoothed), array(1000)
    jax.block_until_ready(f(x))
    with stagejit.profile() as profile:
        jax.block_until_ready(f(x))
    assert [row.count for row in profile.dispatches if row.kind == "loop"] == [1]


def test_an_executable_takes_the_function_along() -> None:
    x = array(100)
    compiled = jax.jit(stagejit.jit(smoothed)).lower(x).compile()
    stored = pickle.loads(pickle.dumps(serialize_executable.serialize(compiled)))
    again = serialize_executable.deserialize_and_load(*stored)
    for a, b in zip(jax.tree.leaves(again(x)), jax.tree.leaves(compiled(x)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_many_threads_run_the_same_function() -> None:
    """Each call has its own workspace: it is on the stack."""
    from concurrent.futures import ThreadPoolExecutor

    f, xs = stagejit.jit(products), [array(500) for _ in range(8)]
    expected = [np.asarray(f(x)[1]) for x in xs]
    with ThreadPoolExecutor(8) as pool:
        found = [list(pool.map(lambda x: np.asarray(f(x)[1]), xs)) for _ in range(20)]
    for each in found:
        for a, b in zip(each, expected, strict=True):
            np.testing.assert_array_equal(a, b)
