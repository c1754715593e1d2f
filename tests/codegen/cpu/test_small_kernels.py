"""Kernels of few elements: no masks, vectors that are full, and chains that are short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.codegen.generate import kernel_of
from stagejit.codegen.ir.nodes import Function, Value
from stagejit.codegen.ir.verifier import verify
from stagejit.codegen.target import Target
from stagejit.graph.text.parser import parse
from stagejit.trace.translate import graph_of
from tests.codegen.cpu.contract.test_contract import array
from tests.codegen.regions import Runner, region_of

TARGETS = {"host": Target.host, "avx2": Target.avx2, "sse2": Target.sse2}


@pytest.fixture(params=TARGETS)
def runner(request: pytest.FixtureRequest, compile_kernel: Any) -> Runner:
    return Runner(compile_kernel, TARGETS[request.param]())


def loops_of(f: Callable[..., Any], *args: Any) -> str:
    return kernel_of(region_of(graph_of(f, *args)), Target.avx2()).loops


SIZES = [(2, 2, 2), (3, 3, 3), (4, 4, 4), (2, 6, 4), (3, 4, 2), (5, 1, 5), (1, 3, 1), (8, 8, 8),
         (4, 4, 1), (1, 6, 2), (7, 7, 1), (3, 5, 1)]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32])
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_small_products(runner: Runner, m: int, k: int, n: int, dtype: Any) -> None:
    a, b = array(m, k, dtype=dtype), array(k, n, dtype=dtype)
    runner.check(lambda a, b: a @ b, a, b)
    runner.check(lambda a, b: jnp.maximum((a * 2).T @ b + 1, b[:1]), a.T.copy(), b)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_small_products_of_a_batch(runner: Runner, batch: int) -> None:
    a, b = array(batch, 3, 4), array(batch, 4, 2)
    runner.check(lambda a, b: jnp.einsum("bik,bkj->bji", a, b), a, b)


def test_a_small_convolution(runner: Runner) -> None:
    def f(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1,), "SAME")

    runner.check(f, array(1, 2, 4), array(2, 2, 3))


@pytest.mark.parametrize(
    ("m", "k", "n", "lanes"),
    [(2, 2, 2, 2), (4, 4, 4, 4), (4, 2, 6, 2), (3, 3, 3, 0), (8, 8, 8, 8), (24, 24, 24, 8)],
)
def test_vectors_are_as_long_as_the_product_fills(m: int, k: int, n: int, lanes: int) -> None:
    text = loops_of(lambda a, b: a @ b, array(m, k), array(k, n))
    assert "masked" not in text
    assert ("vectors of" in text) == (lanes > 0)
    assert f"vectors of {lanes}" in text or not lanes


def test_what_is_many_short_vectors_has_long_ones_with_a_mask() -> None:
    text = loops_of(lambda a, b: a @ b, array(7, 7), array(7, 7))
    assert "vectors of 8" in text


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 9, 11, 15, 16])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.bool_])
def test_small_maps(runner: Runner, size: int, dtype: Any) -> None:
    x = array(size, dtype=np.int8).astype(dtype)
    runner.check(lambda x: (jnp.where(x > 0, x, x[::-1]), jnp.flip(x).astype(np.float32)), x)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f64", "f32", "i8"])
@pytest.mark.parametrize(
    ("size", "at", "whole"), [(6, 1, 7), (6, 0, 7), (4, 1, 5), (4, 2, 9), (1, 2, 3)]
)
def test_small_overlays(
    compile_kernel: Any, target: str, dtype: str, size: int, at: int, whole: int
) -> None:
    graph = parse(
        f"graph @f(%x: {dtype}[{size}]) {{\n"
        f"  %0: {dtype}[] = const {0 if dtype == 'i8' else 0.0}\n"
        f"  %1: {dtype}[{whole}] = fill %0\n"
        f"  %2: {dtype}[{whole}] = overlay %x into %1 at ({at})\n"
        "  return %2\n}\n"
    )
    verify(kernel_of(region_of(graph), TARGETS[target]()).function)


def test_small_maps_of_what_is_put_together() -> None:
    x, y, i = array(7), array(4), np.array([3, 0, 6, 6, 1], np.int32)

    def f(x: Any, y: Any, i: Any) -> Any:
        return (
            jnp.concatenate([x[:3], y * 2]) + 1,
            jnp.roll(x, 2) * jnp.pad(x[1:], (0, 1)),
            jnp.repeat(x, 3, 0)[:13] - 1,
            x[i] + 1,
            jnp.pad(jnp.repeat(y, 2), (1, 4)) * 2,
        )

    found = stagejit.jit(f, options=stagejit.Options(verify=True))(x, y, i)
    for a, b in zip(found, f(x, y, i), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape", [(3,), (5,), (7,), (3, 3), (2, 5), (11,)])
def test_small_maps_have_no_masks(shape: tuple[int, ...]) -> None:
    assert "masked" not in loops_of(lambda x: jnp.tanh(x) * 2 + 1, array(*shape))


def chain(function: Function) -> int:
    """The most multiply-adds that wait for each other."""
    longest: dict[Value, int] = {}
    for op in function.walk():
        most = max((longest.get(value, 0) for value in op.operands), default=0)
        longest |= dict.fromkeys(op.results, most + (op.opcode == "fma"))
    return max(longest.values())


@pytest.mark.parametrize("f", [jnp.tanh, jnp.log1p, lax.erf, jnp.exp])
def test_few_values_have_short_chains(f: Callable[..., Any]) -> None:
    few, many = (
        chain(kernel_of(region_of(graph_of(f, array(n))), Target.avx2()).function) for n in (8, 800)
    )
    assert few < many
