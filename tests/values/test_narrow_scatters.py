"""Sums and products of 16-bit floats that a scatter makes: rounded once, as those of a reduction.

The judge is XLA's scatter in float64: what it gives, rounded, or a neighbour of that.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import stagejit

TYPES = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # and half a unit in the last place
SCATTERS = {"add": lax.scatter_add, "sub": lax.scatter_sub, "mul": lax.scatter_mul}
Array = np.ndarray[Any, np.dtype[Any]]


def check(f: Any, dtype: str, floats: tuple[Array, ...], *others: Any) -> None:
    """f(*floats, *others) in a 16-bit type, against that in float64."""
    narrow = [jnp.asarray(x, dtype) for x in floats]
    found = np.asarray(stagejit.jit(f)(*narrow, *others), np.float64)
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(x, np.float64)) for x in narrow]
        wanted = np.asarray(jax.jit(f)(*wide, *others))
    assert np.asarray(wide[0]).dtype == np.float64
    np.testing.assert_allclose(found, wanted, rtol=1.5 * TYPES[dtype], atol=1e-5)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [2, 1 << 20])
def test_a_thousand_ones(dtype: str, size: int) -> None:
    ones, at = np.ones(1000), np.zeros(1000, np.int32)
    check(lambda u, i: jnp.zeros(size, u.dtype).at[i].add(u), dtype, (ones,), at)
    check(lambda x, u, i: x.at[i].add(-u), dtype, (np.zeros(size), ones), at)
    near = np.full(500, 1.0078125)
    check(lambda x, u, i: x.at[i].multiply(u), dtype, (np.ones(size), near), at[:500])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [7, 5000])
def test_gradients_of_embeddings(dtype: str, rows: int) -> None:
    table, at = np.ones((rows, 24)), np.arange(900, dtype=np.int32) % 5
    weights = np.random.default_rng(0).uniform(0.5, 1, (900, 24))

    def loss(table: Any, weights: Any, at: Any) -> Any:
        return (table[at] * weights).astype(jnp.float32).sum()

    check(jax.grad(loss), dtype, (table, weights), at)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("segments", [3, 40000])
def test_segment_sums(dtype: str, segments: int) -> None:
    x, ids = np.random.default_rng(1).uniform(0, 1, (3000, 3)), np.arange(3000) // 1500
    check(lambda x, i: jax.ops.segment_sum(x, i, segments), dtype, (x,), ids.astype(np.int32))
    check(
        lambda x, i: jax.ops.segment_sum(x, i, segments, indices_are_sorted=True),
        dtype,
        (x,),
        ids.astype(np.int32),
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [5, 100_000])
def test_in_loops(dtype: str, size: int) -> None:
    """Whoever carries 16 bits has them rounded, but once a step."""
    x, u = np.zeros(size), np.ones((4, 64))
    at = np.tile(np.arange(64, dtype=np.int32) % 3, (4, 1))

    def f(x: Any, u: Any, at: Any) -> Any:
        return lax.scan(lambda x, step: (x.at[step[1]].add(step[0] / 64), None), x, (u, at))[0]

    check(f, dtype, (x, u), at)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [6, 30_000])
def test_batches(dtype: str, size: int) -> None:
    rng = np.random.default_rng(2)
    x, u = rng.uniform(0, 1, (3, size)), rng.uniform(0, 1, (3, 200))
    at = rng.integers(-2, 6, (3, 200)).astype(np.int32)
    check(jax.vmap(lambda x, u, i: x.at[i].add(u)), dtype, (x, u), at)


@pytest.mark.parametrize("dtype", TYPES)
def test_gradients_of_pooling(dtype: str) -> None:
    x, w = np.arange(300.0), np.random.default_rng(3).uniform(0.5, 1, 201)

    def loss(x: Any, w: Any) -> Any:
        pooled = lax.reduce_window(x, -jnp.inf, lax.max, (100,), (1,), "VALID")
        return (pooled * w).astype(jnp.float32).sum() + (x[:201] * w)[-1].astype(jnp.float32) * 0

    check(jax.grad(loss), dtype, (x % 199, w))


@st.composite
def cases(draw: st.DrawFn) -> Any:
    """Dimension numbers of any kind: windows that move, batches, components in any order."""
    rank = draw(st.integers(1, 3))
    shape = [draw(st.sampled_from([1, 2, 5, 300])) for _ in range(rank)]
    axes = draw(st.permutations(range(rank)))
    parts = draw(st.integers(1, rank))
    starts, rest = axes[:parts], axes[parts:]
    batch = tuple(sorted(rest[:1])) if rest and draw(st.booleans()) else ()
    window = [
        1 if axis in batch else draw(st.sampled_from([1, shape[axis], max(1, shape[axis] // 2)]))
        for axis in range(rank)
    ]
    dropped = tuple(
        axis for axis in range(rank)
        if window[axis] == 1 and axis not in batch and draw(st.booleans())
    )  # fmt: skip
    kept = [window[axis] for axis in range(rank) if axis not in (*dropped, *batch)]
    counts = [*(shape[axis] for axis in batch), draw(st.sampled_from([1, 2, 40]))]
    if draw(st.booleans()):
        counts.append(draw(st.sampled_from([1, 3])))
    total = len(counts) + len(kept)
    places = tuple(sorted(draw(st.permutations(range(total)))[: len(kept)]))
    sizes, others = iter(kept), iter(counts)
    updates = tuple(next(sizes) if at in places else next(others) for at in range(total))
    numbers = lax.ScatterDimensionNumbers(places, dropped, tuple(starts), batch, (0,) * len(batch))
    seed = draw(st.integers(0, 1000))
    dtype = draw(st.sampled_from(["int32", "int8", "uint32"]))
    rng = np.random.default_rng(seed)
    low = 0 if dtype.startswith("u") else -2
    at = rng.integers(low, 7, (*counts, parts)).astype(dtype)
    return numbers, tuple(shape), updates, at, seed


@given(cases(), st.sampled_from(sorted(SCATTERS)), st.sampled_from(sorted(TYPES)),
       st.sampled_from(["clip", "fill"]), st.booleans())  # fmt: skip
def test_random(case: Any, fn: str, dtype: str, mode: str, is_fresh: bool) -> None:
    numbers, shape, updates, at, seed = case
    rng = np.random.default_rng(seed + 1)
    low, high = (0.97, 1.03) if fn == "mul" else (0.5, 1.0)
    if math.prod(updates) > 60_000:
        return
    # All of one sign, lest there be cancellation.
    x = rng.uniform(low, high, shape) * (-1 if fn == "sub" else 1)

    def f(x: Any, u: Any) -> Any:
        x = jnp.full_like(x, -1 if fn == "sub" else 1) if is_fresh else x
        return SCATTERS[fn](x, at, u, numbers, mode=mode)

    check(f, dtype, (x, rng.uniform(low, high, updates)))
    if not is_fresh:
        check(
            lambda x, u, at: SCATTERS[fn](x, at, u, numbers, mode=mode),
            dtype,
            (x, rng.uniform(low, high, updates)),
            at,
        )
