"""Kernels of contract regions against the interpreter, on every target that this machine can run.

Inputs are small integers even where they are floats: sums are then exact in any order, and a wrong
element shows however small the error.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from stagejit.codegen.target import Target
from tests.codegen.conftest import compile_kernel as compile_function
from tests.codegen.regions import Runner
from tests.randomness import RNG


def tiny() -> Target:
    """This machine with caches so small that small problems are blocked, streamed and shared, and
    with lines and pages as Apple has them."""
    small = replace(Target.host(), l1_nbytes=512, l2_nbytes=4096, l3_nbytes=8192, cores=4)
    return replace(small, line_nbytes=128, page_nbytes=16 << 10)


TARGETS = {"host": Target.host, "avx2": Target.avx2, "sse2": Target.sse2, "tiny": tiny}
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, np.dtype[Any]]:
    """Whole numbers of either sign, where the type has both."""
    low = 0 if np.dtype(dtype).kind == "u" else -4
    return np.asarray(RNG.integers(low, 5, shape)).astype(dtype)


@pytest.fixture(params=TARGETS)
def runner(request: pytest.FixtureRequest, compile_kernel: Any) -> Runner:
    return Runner(compile_kernel, TARGETS[request.param]())


@pytest.mark.parametrize(("m", "k", "n"), [
    (1, 1, 1), (1, 7, 1), (1, 1, 37), (41, 1, 1), (33, 17, 29), (64, 64, 64), (1, 300, 500),
    (300, 500, 1), (7, 0, 9), (20, 2000, 40), (2, 3, 5), (100, 3, 200), (130, 1100, 70),
])  # fmt: skip
def test_products(runner: Runner, m: int, k: int, n: int) -> None:
    runner.check(lambda a, b: a @ b, array(m, k), array(k, n))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_transposed_operands(runner: Runner, left: bool, right: bool) -> None:
    a, b = array(50, 70), array(70, 90)
    runner.check(
        lambda a, b: (a.T if left else a) @ (b.T if right else b),
        a.T.copy() if left else a,
        b.T.copy() if right else b,
    )


def test_long_strides_collide_in_no_way_that_shows(host: Runner) -> None:
    host.check(lambda a, b: a.T @ b, array(600, 1024), array(600, 48))
    host.check(lambda a, b: a.T @ b, array(600, 39), array(600, 135))


@pytest.mark.parametrize("rows", [1, 2, 7, 13, 40, 1027])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.bfloat16])
def test_rows_side_by_side(host: Runner, rows: int, dtype: Any) -> None:
    a, b = array(2, 1031, rows).astype(dtype), array(2, 1031, 150).astype(dtype)
    host.check(lambda a, b: jnp.einsum("bkm,bkn->bmn", a, b), a, b)


def test_vectors(runner: Runner) -> None:
    runner.check(lambda a, b: a @ b, array(1000), array(1000))
    runner.check(lambda a, b: a @ b, array(37, 501), array(501))
    runner.check(lambda a, b: a @ b, array(501), array(501, 37))
    runner.check(lambda a, b: jnp.outer(a, b), array(37), array(53))
    runner.check(lambda a, b: a[::2] @ b[::-1], array(1000), array(500))


def test_batches(runner: Runner) -> None:
    runner.check(lambda a, b: a @ b, array(5, 20, 33), array(5, 33, 40))
    runner.check(lambda a, b: a @ b, array(700, 3, 3), array(700, 3, 3))
    runner.check(lambda a, b: jnp.einsum("ab,ab->a", a, b), array(100, 7), array(100, 7))
    runner.check(lambda a, b: jnp.einsum("ab,ab->b", a, b), array(7, 100), array(7, 100))


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: np.dtype(d).name)
def test_integers_wrap(host: Runner, dtype: Any) -> None:
    a, b = array(13, 400, dtype=dtype), array(400, 35, dtype=dtype)
    host.check(lambda a, b: (a * 7) @ (b * 9), a, b)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (np.int8, np.int32),
        (np.uint8, np.uint32),
        (np.int8, np.int16),
        (ml_dtypes.bfloat16, np.float32),
        (np.float16, np.float32),
    ],
)
def test_preferred_element_type(runner: Runner, narrow: Any, wide: Any) -> None:
    a, b = array(13, 200, dtype=narrow), array(200, 35, dtype=narrow)
    runner.check(lambda a, b: lax.dot(a, b, preferred_element_type=wide), a, b)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_narrow_floats_are_rounded_once(runner: Runner, dtype: Any) -> None:
    """All partial sums pass 256, where bfloat16 counts in twos, but the results do not need it."""
    a = np.ones((3, 1000), dtype)
    b = np.concatenate([np.ones((500, 40)), -np.ones((500, 40))]).astype(dtype)
    b[0] = 0
    runner.check(lambda a, b: a @ b, a, b)


def test_doubles(runner: Runner) -> None:
    a, b = RNG.standard_normal((37, 91)), RNG.standard_normal((91, 45))
    runner.check(lambda a, b: a @ b, a, b, rtol=1e-12)


def test_error_against_float64(compile_kernel: Any) -> None:
    a, b = (RNG.standard_normal(s).astype(np.float32) for s in ((65, 3000), (3000, 70)))
    kernel = Runner(compile_kernel, Target.host())
    found = _result(kernel, lambda a, b: a @ b, a, b)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(found - exact).max() / np.abs(exact).max() < 2e-6


def test_special_values(host: Runner) -> None:
    a, b = array(5, 40), array(40, 21)
    a[0, 3], a[1, 4], b[7, 2], b[8, 20] = np.inf, np.nan, -np.inf, np.nan
    host.check(lambda a, b: a @ b, a, b)


# -------------------------------------------------------------------- what is fused


def test_prologues(runner: Runner) -> None:
    runner.check(lambda a, b, c: (a * 2 + 1) @ (b * c), array(20, 200), array(200, 45), array(45))
    runner.check(lambda a, b: (a.T * 2) @ b[::-1], array(70, 50), array(70, 45))
    runner.check(
        lambda a, b: a.astype(np.float32) @ b, array(20, 40, dtype=np.int32), array(40, 30)
    )


def test_epilogues(runner: Runner) -> None:
    a, b, c = array(20, 30), array(30, 45), array(45)
    runner.check(lambda a, b, c: jnp.maximum(a @ b + c, 0) * 2, a, b, c)
    runner.check(lambda a, b, r: a @ b + r, a, b, array(20, 45))
    runner.check(lambda a, b, r: (a @ b).T + r, a, b, array(45, 20))
    runner.check(lambda a, b: (a @ b).astype(np.int32), a, b)
    runner.check(lambda a, b: a @ b > 0, a, b)


def test_epilogue_over_blocks_of_the_reduction(runner: Runner) -> None:
    runner.check(
        lambda a, b, c: jnp.maximum(a @ b + c, 0), array(20, 3000), array(3000, 45), array(45)
    )


def test_two_results(host: Runner) -> None:
    def fn(a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = a @ b
        return y, jnp.maximum(y + c, 0)

    host.check(fn, array(20, 1300), array(1300, 45), array(45))


def test_results_through_views(runner: Runner) -> None:
    a, b = array(2, 10, 24), array(24, 48)
    runner.check(lambda a, b: jnp.transpose((a @ b).reshape(2, 10, 3, 16), (0, 2, 1, 3)), a, b)
    runner.check(lambda a, b: (a @ b).reshape(20, 48) * 2, a, b)
    runner.check(lambda a, b: jnp.transpose(a @ b, (2, 0, 1)), a, b)
    runner.check(lambda a, b: (a @ b)[::-1], a[0], b)


def test_attention_reads_heads_in_place(runner: Runner) -> None:
    q, k = array(2, 10, 48), array(2, 12, 48)
    runner.check(
        lambda q, k: jnp.einsum(
            "bthd,bshd->bhts", q.reshape(2, 10, 3, 16), k.reshape(2, 12, 3, 16)
        ),
        q,
        k,
    )
    p, v = array(2, 3, 10, 12), array(2, 12, 48)
    runner.check(lambda p, v: jnp.einsum("bhts,bshd->bthd", p, v.reshape(2, 12, 3, 16)), p, v)


def test_store_into_a_slice(runner: Runner) -> None:
    runner.check(
        lambda d, a, b: d.at[:, 3:48].set(a @ b), array(20, 50), array(20, 30), array(30, 45)
    )
    runner.check(
        lambda d, a, b: d.at[::2, 3:48].set(jnp.maximum(a @ b, 0)),
        array(40, 50),
        array(20, 30),
        array(30, 45),
    )


def test_dynamic_slices(runner: Runner) -> None:
    def fn(d: jax.Array, a: jax.Array, b: jax.Array, i: jax.Array) -> jax.Array:
        rows = lax.dynamic_slice_in_dim(a, i, 20)
        return lax.dynamic_update_slice_in_dim(d, rows @ b, i, 0)

    for start in (3, 100):
        runner.check(fn, array(40, 45), array(50, 30), array(30, 45), np.asarray(start, np.int32))


def test_rows_are_gathered(runner: Runner) -> None:
    index = np.asarray(RNG.integers(0, 100, 33))
    runner.check(lambda t, i, b: t[i] @ b, array(100, 20), index, array(20, 40))


# -------------------------------------------------------------------- any dimension numbers


@st.composite
def contractions(draw: st.DrawFn) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """(dimension numbers, shapes) of a dot_general with up to two dimensions of each kind."""

    def extents() -> list[int]:
        return draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 17, 33]), max_size=2))

    batch, rows, columns, summed = extents(), extents(), extents(), extents()
    sides = []
    for free in (rows, columns):
        dims = [*batch, *summed, *free]
        order = draw(st.permutations(range(len(dims))))
        place = {dim: position for position, dim in enumerate(order)}
        shape = tuple(dims[dim] for dim in order)
        sides.append(
            (
                tuple(place[i] for i in range(len(batch))),
                tuple(place[len(batch) + i] for i in range(len(summed))),
                shape,
            )
        )
    (lb, lc, ls), (rb, rc, rs) = sides
    return ((lc, rc), (lb, rb)), ls, rs


@pytest.mark.fuzz
@given(contractions(), st.sampled_from(sorted(TARGETS)), st.sampled_from([np.float32, np.int32]))
def test_any_dimension_numbers(case: Any, target: str, dtype: Any) -> None:
    numbers, left, right = case
    if math.prod(left) > 20_000 or math.prod(right) > 20_000:
        return
    runner = Runner(compile_function, TARGETS[target]())
    runner.check(
        lambda a, b: lax.dot_general(a, b, numbers),
        array(*left, dtype=dtype),
        array(*right, dtype=dtype),
    )


def _result(runner: Runner, fn: Any, *args: Any) -> Any:
    from stagejit.trace.translate import graph_of
    from tests.codegen.regions import region_of

    graph = graph_of(fn, *args)
    region = region_of(graph)
    return runner.run(graph, region, runner.generate(region), args)[0].astype(np.float64)
