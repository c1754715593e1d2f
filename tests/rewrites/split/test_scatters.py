"""Sums and the like at few places: when they are split, and that values stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.base.machine import SMALL_SERVER, Machine
from stagejit.codegen.cuda.device import device_named
from stagejit.graph.meaning.interpreter import interpret
from stagejit.options import Options
from stagejit.rewrites.driving.driver import run_steps
from stagejit.rewrites.split import reductions as split
from stagejit.rewrites.split import scatters as split_scatter
from stagejit.trace.translate import graph_of
from tests.cuda.machine import run

GPU = device_named("H200")


def histogram(places: int, mode: str = "drop", **more: Any) -> Any:
    def f(i: Any, x: Any) -> Any:
        start = jnp.ones((places, *x.shape[1:]), x.dtype)
        return start.at[i].add(x, mode=mode, **more)

    return f


def reason_of(f: Any, machine: Machine, *args: Any) -> str:
    decisions = run_steps(graph_of(f, *args), (split.STEP,), Options(verify=True), machine)
    return next((made.reason for made in decisions if made.applied), "")


def arguments(count: int, *window: int, dtype: Any = np.float32) -> tuple[Any, Any]:
    struct = jax.ShapeDtypeStruct
    return struct((count,), np.int32), struct((count, *window), dtype)


def test_few_places_of_many() -> None:
    reason = reason_of(histogram(256), GPU, *arguments(1_000_000))
    assert reason.endswith(" parts")
    assert " us in one piece, " in reason


def test_dont_split_what_has_owners_enough() -> None:
    for places, count, window in [(50_000, 8192, 768), (1 << 20, 4096, 1), (256, 100, 1)]:
        assert not reason_of(histogram(places), GPU, *arguments(count, window))


def test_sums_of_parts_have_room() -> None:
    graph = graph_of(histogram(1 << 20), *arguments(1 << 20))
    updates = split_scatter.Updates.of(next(op for op in graph.ops() if op.definition.is_scatter))
    assert updates is not None
    assert updates.parts(GPU)[0] == 8  # of 4 MiB each, in a last cache of 50 MiB
    assert updates.parts(GPU, 10 << 20)[0] == 2
    assert updates.parts(GPU, 4 << 20)[0] == 1
    few = replace(SMALL_SERVER, l3_nbytes=8 << 20)
    graph = graph_of(histogram(1 << 18), *arguments(1 << 22))
    updates = split_scatter.Updates.of(next(op for op in graph.ops() if op.definition.is_scatter))
    assert updates is not None
    assert updates.parts(few)[0] == 2
    assert updates.parts(few, 1 << 20)[0] == 1
    assert updates.parts(replace(few, l3_nbytes=1 << 20))[0] == 1


def test_dont_split_what_meets_in_any_order() -> None:
    many = arguments(1_000_000)
    assert not reason_of(histogram(256, unique_indices=True), GPU, *many)
    assert not reason_of(histogram(256), GPU, *arguments(1_000_000, dtype=np.int32))


def test_a_part_for_each_core() -> None:
    for dtype in (np.float32, np.int32, np.int8):
        given = arguments(1_000_000, dtype=dtype)
        assert reason_of(histogram(256), SMALL_SERVER, *given).endswith(" 2 parts")
    eight = replace(SMALL_SERVER, cores=8)
    assert reason_of(histogram(256), eight, *arguments(100_000, 16)).endswith(" 8 parts")


def test_dont_split_what_other_ways_share() -> None:
    one = replace(SMALL_SERVER, cores=1)
    assert not reason_of(histogram(256), one, *arguments(1_000_000))
    cases = [(256, 100, 1), (100_000, 10_000, 4), (100_000, 100_000, 1024), (5, 1, 1 << 20)]
    for places, count, window in cases:
        assert not reason_of(histogram(places), SMALL_SERVER, *arguments(count, window))
    unique = histogram(256, unique_indices=True)
    assert not reason_of(unique, SMALL_SERVER, *arguments(1_000_000))

    def setting(i: Any, x: Any) -> Any:
        return jnp.ones(256, x.dtype).at[i].set(x)

    assert not reason_of(setting, SMALL_SERVER, *arguments(1_000_000))


CASES = [
    (5, 10_007, (), "drop", np.float32), (3, 4096, (5,), "clip", np.float32),
    (7, 4101, (2, 3), "drop", jnp.bfloat16), (1, 9000, (), "promise_in_bounds", np.float32),
]  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.parametrize(("places", "count", "window", "mode", "dtype"), CASES)
def test_values(places: int, count: int, window: tuple[int, ...], mode: str, dtype: Any) -> None:
    """By the interpreter, and by emulated kernels; indices beyond the ends, too."""
    r = np.random.default_rng(count)
    beyond = 0 if mode == "promise_in_bounds" else 2
    i = r.integers(-places - beyond, places + beyond, count).astype(np.int32)
    i = i % places if not beyond else i
    x = r.standard_normal((count, *window)).astype(dtype)
    f = histogram(places, mode)
    assert reason_of(f, GPU, i, x)
    graph = graph_of(f, i, x)
    run_steps(graph, (split.STEP,), Options(verify=True), GPU)
    at = np.where(i < 0, i + places, i)
    inside = (at >= 0) & (at < places)
    if mode == "clip":
        at, inside = np.clip(at, 0, places - 1), np.ones_like(inside)
    wanted = np.ones((places, *window))
    np.add.at(wanted, at[inside], x[inside].astype(np.float64))
    tolerance = 1e-4 if dtype is np.float32 else 8e-3
    for (found,) in (interpret(graph, [i, x]), run(f, i, x)):
        np.testing.assert_allclose(
            np.asarray(found).astype(np.float64), wanted, rtol=tolerance, atol=100 * tolerance
        )


FNS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def random_scatter(r: Any, fn: str, dtype: Any) -> tuple[Any, tuple[Any, ...], Any]:
    """A scatter of any dimension numbers, its arguments, and what it means in float64."""
    rank = int(r.integers(1, 4))
    shape = tuple(int(n) for n in r.integers(3, 9, rank))
    axes = [int(axis) for axis in r.permutation(rank)]
    walked = axes[1:2] if rank > 1 and r.random() < 0.3 else []
    axis = axes[0]
    kept = [k for k in range(rank) if k != axis and k not in walked]
    batch = (*(int(n) for n in r.integers(1, 4, int(r.integers(0, 2)))), 4001)
    where = int(r.integers(0, len(batch) + 1)) if walked else 0
    batch = (*batch[:where], *(shape[k] for k in walked), *batch[where:])
    window = tuple(shape[k] for k in kept)
    order = [int(k) for k in r.permutation(len(batch) + len(window))]
    positions = tuple(sorted(order[: len(window)]))
    sizes, others = iter(window), iter(batch)
    updates = tuple(next(sizes) if at in positions else next(others) for at in range(len(order)))
    numbers = lax.ScatterDimensionNumbers(
        positions, (axis,), (axis,), tuple(walked), (where,) if walked else ()
    )
    mode = str(r.choice(["clip", "fill"]))
    scatter = getattr(lax, f"scatter_{fn}")

    def f(x: Any, i: Any, u: Any) -> Any:
        return scatter(x, i, u, numbers, mode=mode)

    at = r.integers(-2, shape[axis] + 2, (*batch, 1)).astype(np.int32)
    x, u = random_array(r, shape, dtype, fn), random_array(r, updates, dtype, fn)
    wide = np.float64 if np.dtype(dtype).kind not in "iu" else dtype
    wanted, values = x.astype(wide), np.moveaxis(u, positions, range(-len(window), 0))
    if not window:
        values = u
    for vector in np.ndindex(*batch):
        start = int(at[vector][0])
        if mode == "clip":
            start = min(max(start, 0), shape[axis] - 1)
        if 0 <= start < shape[axis]:
            place: list[Any] = [slice(None)] * rank
            place[axis] = start
            for k in walked:
                place[k] = vector[where]
            here = tuple(place)
            wanted[here] = FNS[fn](wanted[here], values[vector].astype(wide))
    return f, (x, at, u), wanted


def random_array(r: Any, shape: tuple[int, ...], dtype: Any, fn: str) -> Any:
    if np.dtype(dtype).kind in "iu":
        return r.integers(-100, 100, shape).astype(dtype)
    made = r.standard_normal(shape)
    if fn == "mul":
        made = 1 + made * 1e-3
    if fn in ("min", "max"):
        made = np.where(r.random(shape) < 1e-4, np.nan, made)
    return made.astype(dtype)


@pytest.mark.some(2)
@pytest.mark.parametrize("fn", FNS)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.int32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("seed", range(4))
def test_values_of_any_scatter(
    fn: str, dtype: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a part for each core: repeated indices, places without any, places beyond the ends."""
    monkeypatch.setattr(
        split_scatter.Updates, "parts", lambda self, machine, budget=None: (machine.cores, "asked")
    )
    r = np.random.default_rng([seed, list(FNS).index(fn), np.dtype(dtype).num])
    f, args, wanted = random_scatter(r, fn, dtype)
    rough = np.dtype(dtype).itemsize == 2
    tolerance = 0 if np.dtype(dtype).kind in "iu" else 2e-2 if rough else 2e-4
    for cores in (2, 3):
        machine = replace(SMALL_SERVER, cores=cores)
        graph = graph_of(f, *args)
        run_steps(graph, (split.STEP,), Options(verify=True), machine)
        assert sum(op.definition.is_scatter for op in graph.ops()) == 2
        (found,) = interpret(graph, list(args))
        np.testing.assert_allclose(
            np.asarray(found).astype(np.float64),
            wanted.astype(np.float64),
            rtol=tolerance,
            atol=100 * tolerance,
        )
    monkeypatch.undo()
    found = np.asarray(stagejit.jit(f)(*args))
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=100 * tolerance
    )
