"""Kernels of split sums, the last part of which may be shorter, against the interpreter."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from stagejit.codegen.generate import kernel_of
from stagejit.codegen.target import Target
from stagejit.errors import InternalError
from stagejit.graph.ir import Graph
from stagejit.graph.ops import build
from stagejit.options import Options
from stagejit.rewrites.driving.driver import run_steps
from stagejit.rewrites.split.reductions import STEP
from stagejit.trace.translate import graph_of
from tests.codegen.cpu.contract.test_contract import TARGETS, array
from tests.codegen.regions import Runner, region_of


@pytest.fixture(params=TARGETS)
def runner(request: pytest.FixtureRequest, compile_kernel: Any) -> Runner:
    return Runner(compile_kernel, TARGETS[request.param]())


def partial(parts: int) -> Callable[[Graph], None]:
    """Leaves of a function that returns a sum the sums of its parts."""

    def change(graph: Graph) -> None:
        asked = dict.fromkeys(("reduce", "contract", "conv"), parts)
        decisions = run_steps(graph, (STEP,), Options(verify=True, split=asked))
        assert any(decision.applied for decision in decisions)
        merges = [
            op for op in graph.ops() if op.definition.is_reduce and _is_partial(op.operands[0])
        ]
        graph.set_outputs([merge.operands[0] for merge in merges])
        graph.eliminate_dead()

    return change


def _is_partial(value: Any) -> bool:
    op = value.op
    if not op.definition.accumulates:
        return False
    return op.attrs.get("split") is not None or op.operands[0].op.definition.splits


@pytest.mark.parametrize("parts", [2, 7])
@pytest.mark.parametrize("dtype", [np.float32, np.uint64, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((103,), 0), ((37, 5), 0), ((37, 5), 1), ((3, 41, 6), (0, 1)), ((9, 2, 70), (0, 2)),
     ((2100, 19), 0), ((23, 40), (0, 1))],
)  # fmt: skip
def test_reductions(host: Runner, shape: Any, axes: Any, dtype: Any, parts: int) -> None:
    x = array(*shape, dtype=dtype)
    for fn in (jnp.sum, jnp.max):
        host.check(lambda x, fn=fn: fn(x * 2, axes), x, change=partial(parts))


@pytest.mark.parametrize("shape", [(103,), (37, 5), (5, 37)])
@pytest.mark.parametrize("fn", [jnp.sum, jnp.prod, jnp.min, jnp.argmax, jnp.argmin])
def test_functions(runner: Runner, fn: Any, shape: Any) -> None:
    x = array(*shape)
    runner.check(lambda x: fn(x, shape.index(max(shape))), x, change=partial(5))


def test_bools(runner: Runner) -> None:
    x = np.arange(103) % 3 == 0
    for fn in (jnp.any, jnp.all):
        runner.check(fn, x, change=partial(7))


def test_long_parts(host: Runner) -> None:
    """Longer than the runs of which a sum is made."""
    x = np.random.default_rng(0).integers(-8, 8, 200_003).astype(np.float32)
    host.check(jnp.sum, x, change=partial(3))
    host.check(lambda x: x.reshape(-1, 1).sum(0), x, change=partial(3))


@pytest.mark.parametrize("parts", [2, 7, 77])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 101, 1), (3, 101, 33), (17, 29, 1), (20, 50, 40)])
def test_products(runner: Runner, m: int, k: int, n: int, parts: int) -> None:
    runner.check(lambda x, y: (x + 1) @ y, array(m, k), array(k, n), change=partial(parts))


def test_products_of_any_axes(runner: Runner) -> None:
    for equation, x, y in (
        ("ka,kb->ab", array(53, 6), array(53, 9)),
        ("bak,bnk->ban", array(3, 5, 53), array(3, 7, 53)),
        ("jka,jkb->ab", array(3, 31, 6), array(3, 31, 9)),
    ):
        runner.check(lambda x, y, e=equation: jnp.einsum(e, x, y), x, y, change=partial(7))


@pytest.mark.parametrize("equation", ["ak,kb->ab", "ak,bk->ab", "ka,kb->ab", "ka,bk->ab"])
@pytest.mark.parametrize(("a", "b"), [(2, 3), (40, 70), (300, 33)])
def test_products_in_blocks(runner: Runner, a: int, b: int, equation: str) -> None:
    """Parts that are longer than a block of the reduction, in whatever order operands lie."""
    sizes = {"a": a, "b": b, "k": 3000 - 1}
    x, y = (array(*(sizes[at] for at in side)) for side in equation.split("->")[0].split(","))
    runner.check(lambda x, y: jnp.einsum(equation, x, y), x, y, change=partial(2))


def test_the_last_part_has_the_code_of_all() -> None:
    """However many steps it has, it is items of the same loops."""
    graph = graph_of(jnp.matmul, array(40, 5000), array(5000, 48))
    partial(7)(graph)
    kernel = kernel_of(region_of(graph), Target.host())
    assert kernel.loops.count("steps of the part") == 1


def test_products_of_small_numbers(host: Runner) -> None:
    for dtype in (np.int8, np.float16, ml_dtypes.bfloat16, np.float64, np.uint64):
        x, y = array(5, 53, dtype=dtype), array(53, 20, dtype=dtype)
        host.check(jnp.matmul, x, y, change=partial(7))


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_gradients_of_weights(runner: Runner, layout: str, strides: Any, batch: int) -> None:
    """Parts of the batch, or of the image where that is no batch."""
    numbers = (layout, "OIHW" if layout == "NCHW" else "HWIO", layout)
    x = array(*((batch, 3, 14, 16) if layout == "NCHW" else (batch, 14, 16, 3)))
    w = array(*((5, 3, 3, 2) if layout == "NCHW" else (3, 2, 3, 5)))

    def forward(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=numbers)

    ct = array(*jax.eval_shape(forward, x, w).shape)
    runner.check(
        lambda x, ct: jax.linear_transpose(lambda w: forward(x, w), w)(ct)[0],
        x,
        ct,
        change=partial(3),
    )


def test_convolutions_with_many_features(runner: Runner) -> None:
    x, w = array(1, 29, 4, 5), array(3, 29, 3, 3)
    runner.check(
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"), x, w, change=partial(4)
    )


def test_convolutions_of_groups(runner: Runner) -> None:
    """Features of several groups stay together; taps are split."""
    x, w = array(1, 6, 9, 9), array(6, 3, 5, 5)
    runner.check(
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=2),
        x,
        w,
        change=partial(2),
    )


@pytest.mark.parametrize(("rows", "parts"), [(32, 2), (33, 2)])
@pytest.mark.parametrize("order", list(itertools.permutations("nik")), ids="".join)
def test_sums_over_axes_that_lie_in_another_order(
    runner: Runner, order: tuple[str, ...], rows: int, parts: int
) -> None:
    """Loops over i and j become one where they run on into each other in memory, whatever lies
    between them in the value that is split."""
    extents = {"n": 3, "i": rows, "k": 5}
    lies = "".join(order).replace("i", "ij")
    y = array(*((*extents.values(), 7)["nikj".index(axis)] for axis in lies))

    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        moved = y.transpose([lies.index(axis) for axis in "njik"])
        return jnp.einsum("ij,njik->nk", jnp.tanh(x), jnp.clip(moved, -0.5, 0.5))

    runner.check(function, array(rows, 7), y, change=partial(parts))


@pytest.mark.parametrize("shape", [(5, 100, 7), (2, 3, 17), (4, 31, 3, 2)])
@pytest.mark.parametrize("fn", [jnp.sum, jnp.max, jnp.argmax])
def test_axes_that_nothing_follows_are_one_loop(
    runner: Runner, shape: tuple[int, ...], fn: Callable[..., jax.Array]
) -> None:
    """Which goes on beyond the last part, where nothing is read that has an end."""

    def function(x: jax.Array) -> jax.Array:
        same = jnp.broadcast_to(jnp.tanh(x), shape)
        return fn(same, axis=1) if fn is jnp.argmax else fn(same, axis=(0, 1))

    runner.check(function, array(*shape[2:]), change=partial(7))


def test_a_nest_that_runs_over_the_end() -> None:
    """Who reads parts without knowing that the last one is shorter is no kernel."""
    graph = graph_of(jnp.sum, array(10))
    x = graph.inputs[0]
    parts = build(graph, "split_axis", [x], axis=0, shape=(4, 3), fill=0.0)
    graph.set_outputs([build(graph, "map", [parts], fn="neg", dtype=parts.type.dtype)])
    with pytest.raises(InternalError, match="has no element"):
        kernel_of(region_of(graph), Target.host())
