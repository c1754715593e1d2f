"""Callbacks in loops and branches: called where the program says, and never a reason to leave a
loop to XLA."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.trace.translate import graph_of
from tests.values.elements import assert_same

VERIFYING = stagejit.Options(verify=True)


def refuses_large(x: Any, limit: float) -> Any:
    """As `equinox.error_if` writes it: a branch that raises, and gives its operand otherwise."""

    def raises(_: Any) -> Any:
        raise ValueError("too large, says the callback")

    def failed(x: Any) -> Any:
        return jax.pure_callback(raises, jax.ShapeDtypeStruct(x.shape, x.dtype), 0)

    return lax.cond(jnp.any(x > limit), failed, lambda x: x, x)


def guarded_loop(x: Any) -> Any:
    return lax.fori_loop(0, 20, lambda _, c: refuses_large(c * 1.5, 1e4), x)


def delegated(program: Any, *args: Any) -> list[str]:
    return [item.reason for item in stagejit.jit(program).plan(*args).delegated]


def test_a_branch_that_is_not_taken_calls_nothing() -> None:
    x = jnp.ones(5) * 0.1
    assert not delegated(guarded_loop, x)
    np.testing.assert_allclose(
        stagejit.jit(guarded_loop, options=VERIFYING)(x), x * 1.5**20, rtol=1e-5
    )


def test_what_it_raises_reaches_the_caller() -> None:
    staged = stagejit.jit(guarded_loop)
    with pytest.raises(jax.errors.JaxRuntimeError, match="too large, says the callback") as raised:
        jax.block_until_ready(staged(jnp.ones(5) * 100))
    with pytest.raises(jax.errors.JaxRuntimeError) as expected:
        jax.block_until_ready(jax.jit(guarded_loop)(jnp.ones(5) * 100))
    start = str(expected.value).split("Traceback")[0]
    assert str(raised.value).startswith(start)
    np.testing.assert_allclose(staged(jnp.zeros(5)), np.zeros(5))  # and the next call is as before


def called_three_times(callback: Any, dtype: Any = np.float32) -> Any:
    """A program of one float that calls `callback` in a native loop."""
    shape = jax.ShapeDtypeStruct((), dtype)
    return lambda x: lax.fori_loop(0, 3, lambda _, c: c + jax.pure_callback(callback, shape, c), x)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [ValueError("bad name \udcff"), ValueError("\0"), Unprintable()])
def test_what_is_raised_may_have_any_text_or_none(error: Exception) -> None:
    def raises(_: Any) -> Any:
        raise error

    program = called_three_times(raises)
    assert not delegated(program, jnp.float32(1))
    with pytest.raises(jax.errors.JaxRuntimeError, match="CpuCallback error"):
        jax.block_until_ready(stagejit.jit(program)(jnp.float32(1)))


@pytest.mark.parametrize(
    ("callback", "dtype"),
    [
        (lambda v: float(v) + 1, np.float32),
        (lambda v: int(v) + 1, np.int32),
        (lambda v: np.float64(v), np.float32),
        (lambda v: np.asarray(v).astype(np.uint64), np.uint32),
        (lambda v: bool(v), np.bool_),
    ],
)
def test_what_is_returned_is_of_the_types_that_jax_has(callback: Any, dtype: Any) -> None:
    program = called_three_times(callback, dtype)
    x = jnp.asarray(1, np.int32 if dtype is np.bool_ else dtype)
    assert not delegated(program, x)
    assert stagejit.jit(program)(x) == jax.jit(program)(x)


def test_a_loop_that_does_not_turn_calls_nothing() -> None:
    def program(n: Any, x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        fail = lambda: jax.pure_callback(lambda: 1 / 0, shape)  # noqa: E731
        return lax.fori_loop(0, n, lambda _, c: c + jnp.sin(fail()), x)

    np.testing.assert_array_equal(stagejit.jit(program)(0, jnp.ones(2000)), np.ones(2000))


TYPES = ("bool", "int8", "uint16", "int32", "uint32", "float16", "bfloat16", "float32")


@pytest.mark.parametrize("dtype", TYPES)
def test_operands_and_results(dtype: str) -> None:
    seen = []

    def host(x: Any, i: Any) -> Any:
        seen.append((type(x), x.dtype, int(i)))
        return np.asarray(x)[::-1].T, np.asarray(i, np.int32) * 2

    def program(x: Any) -> Any:
        def turn(c: Any, i: Any) -> Any:
            types = jax.ShapeDtypeStruct(x.T.shape, x.dtype), jax.ShapeDtypeStruct((), jnp.int32)
            turned, twice = jax.pure_callback(host, types, c, i)
            return turned.T, twice

        return lax.scan(turn, x, jnp.arange(3, dtype=jnp.int32))

    x = jnp.arange(6).reshape(2, 3).astype(dtype)
    actual = stagejit.jit(program, options=VERIFYING)(x)
    assert not delegated(program, x)
    ours, seen[:] = list(seen), []
    assert_same(actual, jax.jit(program)(x))
    assert ours == seen


def test_under_vmap_and_grad() -> None:
    @jax.custom_jvp
    def host_sin(x: Any) -> Any:
        type = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(np.sin, type, x, vmap_method="expand_dims")

    host_sin.defjvp(lambda p, t: (host_sin(*p), jnp.cos(*p) * t[0]))

    def program(x: Any) -> Any:
        return lax.scan(lambda c, _: (host_sin(c), c), x, None, 3)[0].sum()

    x = jnp.arange(4.0)
    for transformed in (jax.vmap(program), jax.grad(program), jax.vmap(jax.grad(program))):
        np.testing.assert_allclose(
            stagejit.jit(transformed)(x.reshape(2, 2) if transformed is not jax.grad else x),
            jax.jit(transformed)(x.reshape(2, 2)),
            rtol=1e-5,
        )


def test_a_wrong_result_is_an_error() -> None:
    def program(x: Any) -> Any:
        type = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return lax.fori_loop(0, 2, lambda _, c: jax.pure_callback(lambda x: x[:2], type, c), x)

    with pytest.raises(jax.errors.JaxRuntimeError, match=r"promised float32\[5\]"):
        jax.block_until_ready(stagejit.jit(program)(jnp.ones(5)))


def test_what_we_do_not_pass_stays_with_xla() -> None:
    def program(x: Any) -> Any:
        type = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return lax.fori_loop(0, 2, lambda _, c: jax.pure_callback(lambda x: x, type, c), x)

    z = jnp.ones(3, jnp.complex64)
    (reason,) = delegated(program, z)
    assert reason.endswith("pure_callback: element type complex64")
    (reason,) = delegated(program, jnp.ones((0, 3)))
    assert reason.endswith("it calls Python with arrays without elements")
    # Outside of loops and branches it is XLA's anyway.
    (reason,) = delegated(lambda x: jax.pure_callback(lambda x: x, x, x) + 1, jnp.ones(3))
    assert reason == "pure_callback: it calls Python"


def test_functions_are_not_kept_longer_than_their_code() -> None:
    class Large:
        def __call__(self, x: Any) -> Any:
            return np.asarray(x)

    held = Large()
    watched = weakref.ref(held)

    def run(held: Any) -> None:
        def program(x: Any) -> Any:
            type = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return lax.fori_loop(0, 2, lambda _, c: jax.pure_callback(held, type, c), x)

        staged = stagejit.jit(program)
        gc.collect()
        np.testing.assert_array_equal(staged(jnp.ones(5)), np.ones(5))

    run(held)
    del held
    jax.clear_caches()
    gc.collect()
    assert watched() is None


def test_the_graph_of_a_call() -> None:
    graph = graph_of(guarded_loop, jnp.zeros(5))
    verify(graph)
    assert "stagejit_python_callback" in as_text(graph)
    assert as_text(parse(as_text(graph))) == as_text(graph)
    np.testing.assert_array_equal(interpret(graph, [np.zeros(5, np.float32)])[0], np.zeros(5))


LARGE_ON_ONE_CORE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import faulthandler
faulthandler.dump_traceback_later(60, exit=True)
import jax, numpy as np, stagejit
from jax import lax
from jax.experimental import io_callback

def doubled(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return CALL(lambda a: np.asarray(a) * 2, shape, x)

x = np.ones(1 << 16, np.float32)
np.testing.assert_array_equal(jax.block_until_ready(stagejit.jit(PROGRAM)(x)), 8 * x)
"""
IN_A_LOOP = "lambda x: lax.fori_loop(0, 3, lambda _, c: doubled(c), x)"
BY_ITSELF = "lambda x: doubled(x + 1) * 2"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen")
@pytest.mark.parametrize(
    ("call", "program"),
    [
        ("jax.pure_callback", IN_A_LOOP),
        ("jax.pure_callback", BY_ITSELF),
        ("io_callback", BY_ITSELF),
    ],
)
def test_who_looks_at_a_large_argument_waits_for_no_thread(call: str, program: str) -> None:
    """XLA's pool, of one thread here, would copy it: see Note [Who waits for a copy]."""
    text = LARGE_ON_ONE_CORE.replace("CALL", call).replace("PROGRAM", program)
    made = [sys.executable, "-c", text]
    done = subprocess.run(made, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
