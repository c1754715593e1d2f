"""Values that a row keeps in scratch: whatever the order of its axes, the forms of its views and
the indices at which the values are used again, each element is read where it was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.codegen.generate import kernel_of
from stagejit.codegen.rows.nest import RowNest, RowPolicy
from stagejit.codegen.target import Target
from stagejit.index.affine import Affine
from stagejit.trace.translate import graph_of
from tests.codegen.regions import Runner, region_of
from tests.randomness import RNG

EXTENTS = (1, 2, 3, 5, 7, 8, 13, 16, 17, 20, 40)


def array(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return RNG.standard_normal(shape).astype(np.float32)


def normalized(x: Any, axes: tuple[int, ...]) -> Any:
    """A softmax: what follows the maximum is kept for the last pass."""
    e = jnp.exp(x - x.max(axes, keepdims=True))
    return e / e.sum(axes, keepdims=True)


def test_axes_in_another_order_than_memory(runner: Runner) -> None:
    runner.check(lambda x: normalized(x.transpose(0, 2, 1), (1, 2)), array(4, 20, 40))


@pytest.mark.parametrize("count", [2, 3, 9])
@pytest.mark.parametrize("length", [4, 7, 40])
def test_a_tiled_row(runner: Runner, length: int, count: int) -> None:
    runner.check(lambda x: normalized(jnp.tile(x, count), (0,)), array(length))


@pytest.mark.parametrize("shape", [(4, 300), (3, 7), (5, 64), (1, 65)], ids=str)
def test_a_pass_that_needs_other_elements_only(runner: Runner, shape: tuple[int, int]) -> None:
    def fn(x: Any, w: Any) -> Any:
        e = jnp.exp(x)
        return e / (e[:, ::-1] * w).sum(1, keepdims=True)

    runner.check(fn, array(*shape), np.abs(array(*shape)))


@pytest.mark.parametrize("length", [64, 1000])
def test_a_chain_of_cheap_ops_is_not_computed_again_by_each_pass(length: int) -> None:
    """Code for twice as many rounds is twice as long, also where no single op costs much."""

    def rounds(count: int) -> int:
        def fn(x: Any) -> Any:
            for _ in range(count):
                x = (x - x.mean(1, keepdims=True)) * 0.5 * x + x * 0.25
            return x

        kernel = kernel_of(region_of(graph_of(fn, array(8, length))), Target.host())
        return len(kernel.function.as_text().splitlines())

    assert rounds(12) < 2.3 * rounds(6)


@pytest.mark.parametrize("shape", [(4, 300), (5, 64), (3, 7), (70, 3)], ids=str)
def test_rounds_of_cheap_ops(runner: Runner, shape: tuple[int, int]) -> None:
    def fn(x: Any) -> Any:
        for _ in range(4):
            x = (x - x.mean(1, keepdims=True)) * 0.5 * x + x * 0.25
        return x, x.sum(1)

    runner.check(fn, array(*shape))


def test_a_pass_that_needs_both(runner: Runner) -> None:
    def fn(x: Any) -> Any:
        e = jnp.exp(x)
        return e / (e[:, ::-1] * e).sum(1, keepdims=True)

    runner.check(fn, array(4, 300))


def test_columns_that_need_other_elements_only(runner: Runner) -> None:
    def fn(x: Any, w: Any) -> Any:
        e = jnp.exp(x)
        return e / (e[::-1] * w).sum(0, keepdims=True)

    runner.check(fn, array(40, 300), np.abs(array(40, 300)))


def in_axis_order(nest: RowNest) -> Affine:
    """Where kept values must not lie: a vector along an outer axis would cover the inner ones."""
    place = Affine()
    for var in nest.reduced:
        place = place * var.extent + Affine.of(var)
    return place


def test_verify_sees_vectors_that_overwrite_each_other(
    host: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowNest, "place_in_scratch", property(in_axis_order))
    host_fault(host, lambda x: normalized(x.transpose(0, 2, 1), (1, 2)), array(4, 20, 40))


def test_verify_sees_a_read_before_the_write(host: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def end_pass(self: RowPolicy) -> None:
        self.ready |= set(self.nest.cached)

    monkeypatch.setattr(RowPolicy, "end_pass", end_pass)

    def fn(x: Any) -> Any:
        e = jnp.exp(x)
        first = e / (e[:, ::-1] * 2).sum(1, keepdims=True)
        return (e * first).sum(1, keepdims=True) * first

    host_fault(host, fn, array(4, 300))


def host_fault(host: Runner, fn: Any, *args: Any) -> None:
    """A kernel of `fn` leaves its scratch, or reads of it what it has not written."""
    with jax.enable_x64(True):
        graph = graph_of(fn, *args)
    region = region_of(graph)
    with pytest.raises(AssertionError, match="out of bounds access to argument 2"):
        host.run(graph, region, host.generate(region), args, verify=True)


def viewed(draw: np.random.Generator, x: Any) -> Any:
    """A view of `x` of rank 2 or more: permuted, reversed, repeated."""
    x = jnp.transpose(x, draw.permutation(x.ndim))
    if draw.random() < 0.3:
        x = jnp.flip(x, int(draw.integers(x.ndim)))
    if draw.random() < 0.3:
        at = int(draw.integers(x.ndim + 1))
        x = jnp.broadcast_to(jnp.expand_dims(x, at), (*x.shape[:at], 3, *x.shape[at:]))
        if draw.random() < 0.5 and at < x.ndim - 1:
            x = x.reshape(*x.shape[:at], -1, *x.shape[at + 2 :])
    return x


def stages(draw: np.random.Generator, x: Any, axes: Sequence[int]) -> Any:
    """One to three reductions of costly values, used where they were made or elsewhere."""
    axes = tuple(axes)
    results = []
    for _ in range(int(draw.integers(1, 4))):
        costly = [jnp.exp, jnp.tanh, lax.rsqrt][int(draw.integers(3))]
        x = costly(jnp.abs(x) * 0.5 + 0.25)
        other = jnp.flip(x, int(draw.choice(axes))) if draw.random() < 0.5 else x
        mixed = [other, other * x, other + 1.0][int(draw.integers(3))]
        total = (
            mixed.max(axes, keepdims=True)
            if draw.random() < 0.3
            else mixed.sum(axes, keepdims=True)
        )
        if draw.random() < 0.3:
            results.append(total)
        x = x / total
    results.append(x)
    return tuple(results)


@pytest.mark.parametrize("seed", range(40))
def test_random_rows(runner: Runner, seed: int) -> None:
    draw = np.random.default_rng(seed)
    rank = int(draw.integers(2, 5))
    shape = [int(draw.choice(EXTENTS)) for _ in range(rank)]
    while np.prod(shape) > 20000:
        shape[int(np.argmax(shape))] = 3

    def fn(x: Any) -> Any:
        draw = np.random.default_rng(seed)
        view = viewed(draw, x)
        count = int(draw.integers(1, view.ndim + 1))
        axes = sorted(int(axis) for axis in draw.choice(view.ndim, count, replace=False))
        return stages(draw, view, axes)

    runner.check(fn, array(*shape), rtol=1e-4, atol=1e-6)
