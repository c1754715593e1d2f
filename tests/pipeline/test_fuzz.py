"""Random programs, compiled: against jax.jit and against their meaning in float64.

`STAGEJIT_FUZZ_EXAMPLES` sets how many programs each test draws. A failure that hypothesis has
shrunk is kept below as a program of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import stagejit
from stagejit.graph.meaning.interpreter import interpret
from stagejit.options import SWITCHES, Options
from stagejit.trace.translate import graph_of
from tests.strategies import RandomProgram, assert_agrees, evaluate, programs

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(1200)]  # shrinking takes a while


def compiled(program: RandomProgram, options: Options) -> list[np.ndarray]:
    return [np.asarray(x) for x in stagejit.jit(program.fn, options=options)(*program.args)]


def in_float64(program: RandomProgram) -> list[np.ndarray]:
    """The traced program's meaning with floats that are never rounded."""
    return interpret(graph_of(program.fn, *program.args), program.args, precision="f64")


def op_by_op(program: RandomProgram) -> list[np.ndarray]:
    """JAX without its fusions: XLA has faults of its own (see `test_slices_of_slices_clamp`)."""
    with jax.disable_jit():
        return [np.asarray(x) for x in program.fn(*map(jnp.asarray, program.args))]


def check(program: RandomProgram, options: Options) -> None:
    ours, theirs = compiled(program, options), evaluate(program)
    assert [x.dtype for x in ours] == [x.dtype for x in theirs]
    assert_agrees(program, ours, in_float64(program))
    try:
        assert_agrees(program, ours, theirs)
    except AssertionError:
        assert_agrees(program, ours, op_by_op(program))


@given(programs(max_steps=10))
def test_compiled_programs(program: RandomProgram) -> None:
    check(program, Options())


@given(programs(max_steps=6))
def test_compiled_programs_with_bounds_checks(program: RandomProgram) -> None:
    check(program, Options(verify=True))


@given(programs(max_steps=10), st.sets(st.sampled_from(sorted(SWITCHES))))
def test_any_rewrites_switched_off(program: RandomProgram, disabled: set[str]) -> None:
    check(program, Options(disable=tuple(disabled), verify=True))


def test_wide_types() -> None:
    @given(
        programs(
            max_steps=8,
            floats=("float64", "float64", "float32", "bfloat16"),
            integers=("int64", "int32", "int16", "uint64", "uint16"),
        )
    )
    def wide(program: RandomProgram) -> None:
        check(program, Options(verify=True))

    with jax.enable_x64(True):
        wide()


@given(programs(max_steps=6), st.integers(0, 3))
def test_gradients(program: RandomProgram, which: int) -> None:
    """Of the mean of all float results, by the arguments that are floats."""
    floats = [i for i, x in enumerate(program.args) if jnp.issubdtype(x.dtype, jnp.floating)]
    if not floats:
        return

    def total(*args: Any) -> Any:
        results = [r for r in program.fn(*args) if jnp.issubdtype(r.dtype, jnp.floating)]
        return sum((jnp.mean(r.astype(jnp.float32)) for r in results if r.size), jnp.float32(0))

    argnums = tuple(sorted({floats[which % len(floats)], floats[0]}))
    try:
        theirs = jax.jit(jax.grad(total, argnums))(*program.args)
    except ValueError as error:
        if "Reverse-mode differentiation" in str(error):
            return  # a scatter that JAX itself cannot differentiate
        raise
    ours = jax.jit(jax.grad(stagejit.jit(total), argnums))(*program.args)
    assert_agrees(program, ours, theirs)


# ------------------------------------------------------------ failures that were found


def kept(f: Callable[..., Any], *args: Any, options: Options | None = None) -> None:
    ours = stagejit.jit(f, options=options or Options(verify=True))(*args)
    for a, b in zip(ours, jax.jit(f)(*args), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=1e-5)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_empty_rows(shape: tuple[int, ...], dtype: Any) -> None:
    def f(x: Any) -> Any:
        last = x.ndim - 1
        return (
            jnp.sum(x, 0),
            jnp.sum(x, last),
            jnp.sum(x),
            lax.reduce_max(x, (last,)),
            x + 1,
            lax.cumsum(x, last),
            jnp.prod(x, 0),
            jnp.flip(x),
            jnp.concatenate([x, x], 0),
        )

    kept(f, np.zeros(shape, dtype))


@pytest.mark.parametrize("index", [-3, 0, 2, 3, 7])
def test_slices_of_slices_clamp(index: int) -> None:
    """Each start is clamped to its own array. jax.jit gives another answer for 3 and 7 (jax 0.10.2:
    XLA adds the two starts before it clamps)."""
    x = np.arange(68, dtype=np.int32).reshape(17, 4)

    def f(x: Any, i: Any) -> Any:
        return lax.dynamic_slice(lax.dynamic_slice(x, (i, i), (5, 2)), (i, 1), (3, 1))

    def start(size: int, length: int) -> int:
        return int(np.clip(index + size if index < 0 else index, 0, size - length))

    inner = x[start(17, 5) :, start(4, 2) :][:5, :2]
    wanted = inner[start(5, 3) :, 1:][:3, :1]
    np.testing.assert_array_equal(stagejit.jit(f)(x, np.int32(index)), wanted)


def test_two_insertions_into_the_same_contents() -> None:
    """Both results begin as copies of x; each has a buffer of its own."""
    x = np.arange(4, dtype=np.float32)
    kept(lambda x: (x.at[1:].set(x[:-1]), x.at[:-1].set(x[1:])), x)


def test_rows_that_come_back_through_memory() -> None:
    """The second sum reads what the dispatch of the first one stores: they cannot be one."""

    def f(x: Any) -> Any:
        for _ in range(3):
            x = jnp.stack([x, x * 2], 1).sum(1)
        return (x,)

    kept(f, np.arange(64, dtype=np.float32).reshape(8, 8))


@pytest.mark.parametrize("shape", [(65, 130), (33, 257), (17, 40)])
@pytest.mark.parametrize("source", [np.int32, np.int8])
@pytest.mark.parametrize("target", [np.int8, np.int16])
def test_transposes_into_narrow_elements(shape: tuple[int, int], source: Any, target: Any) -> None:
    """Rows that end with one lane, and rows of more elements than a vector has lanes. LLVM wrote
    the one lane of a truncated vector in its old width, over the row after it."""
    x = np.random.default_rng(0).integers(-8, 9, shape).astype(source)
    kept(lambda x: (x.T.astype(target) + target(1),), x, options=Options())


def test_single_results_of_contractions_with_more_dimensions() -> None:
    def f(v: Any) -> Any:
        image = v.reshape(1, 1, 2)
        one = lax.conv_general_dilated(image, image, (1,), "VALID").reshape(())
        return jnp.full((1,), v @ v), (v @ v)[None, None] + 1, one[None]

    kept(f, np.arange(2, dtype=np.float32))
