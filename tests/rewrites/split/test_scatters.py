"""Sums of floats at few places: when they are split, and that values stay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.codegen.cuda.device import device_named
from stagejit.graph.interpreter import interpret
from stagejit.graph.ir import Op
from stagejit.machine import SMALL_SERVER, Machine
from stagejit.options import Options
from stagejit.rewrites.driver import run_steps
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
    updates = split_scatter.Updates(graph_of_one(), 1 << 20, 1 << 20, 1, 4 << 20)
    assert updates.parts(GPU)[0] == 8  # of 4 MiB each, in a last cache of 50 MiB
    assert updates.parts(GPU, 10 << 20)[0] == 2
    assert updates.parts(GPU, 4 << 20)[0] == 1


def graph_of_one() -> Op:
    graph = graph_of(histogram(5), *arguments(5))
    return next(op for op in graph.ops() if op.definition.is_scatter)


def test_dont_split_what_meets_in_any_order() -> None:
    many = arguments(1_000_000)
    assert not reason_of(histogram(256), SMALL_SERVER, *many)
    assert not reason_of(histogram(256, unique_indices=True), GPU, *many)
    assert not reason_of(histogram(256), GPU, *arguments(1_000_000, dtype=np.int32))


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
