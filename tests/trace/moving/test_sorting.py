"""Sorts and selections become `sort`; what is compared with is NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.options import Options
from stagejit.trace.translate import graph_of
from tests.expected.sorts import array, assert_same, order
from tests.randomness import RNG


def native(f: Callable[..., Any], *args: Any) -> Any:
    return stagejit.jit(f, options=Options(delegate=False, verify=True))(*args)


def sorts(f: Callable[..., Any], *args: Any) -> list[Any]:
    return [op for op in graph_of(f, *args) if op.kind == "sort"]


@pytest.mark.parametrize("shape", [(1,), (2,), (64,), (0,), (3, 0), (0, 3), (3, 5), (2, 3, 17)])
def test_sorts(shape: tuple[int, ...]) -> None:
    x = array(shape, "float32")
    for axis in range(x.ndim):
        by = order([x], axis)
        sort = lambda x: jnp.sort(x, axis)  # noqa: B023, E731
        assert_same(native(sort, x), np.take_along_axis(x, by, axis))
        assert_same(native(lambda x: jnp.argsort(x, axis), x), by.astype(np.int32))  # noqa: B023


def test_positions_are_no_operand() -> None:
    x = array((4, 9), "float32")
    (op,) = sorts(lambda x: lax.sort_key_val(x, jnp.arange(9)[None] + jnp.zeros((4, 1), int)), x)
    assert len(op.operands) == 2
    for f in (
        lambda x: lax.sort_key_val(x, lax.broadcasted_iota(np.int32, x.shape, 1)),
        lambda x: lax.sort_key_val(x, jnp.broadcast_to(jnp.arange(9), x.shape)),
    ):
        (op,) = sorts(f, x)
        assert (len(op.operands), op.attrs["results"]) == (1, (0, 1))
        assert_same(native(f, x)[1], order([x], 1).astype(np.int32))


def test_results_that_nobody_reads_are_not_made() -> None:
    x, y = array((4, 9), "float32"), array((4, 9), "int32")
    (op,) = sorts(lambda x: jnp.argsort(x, 1), x)
    assert (len(op.operands), op.attrs["results"]) == (1, (1,))
    for wanted, left in ((0, (0,)), (1, (1,)), (2, (1,)), (3, (1,))):
        f = lambda x, y: lax.sort((x, y, -y, lax.broadcasted_iota(np.int32, (4, 9), 1)))[wanted]  # noqa: B023, E731
        (op,) = sorts(f, x, y)
        assert op.attrs["results"] == left
        operands = [x, y, -y, np.broadcast_to(np.arange(9, dtype=np.int32), (4, 9))]
        by = order([x], 1)
        assert_same(native(f, x, y), np.take_along_axis(operands[wanted], by, 1))


def test_counting_across_rows_is_an_operand() -> None:
    x = array((4, 9), "float32")
    f = lambda x: lax.sort_key_val(x, lax.broadcasted_iota(np.int32, x.shape, 0), dimension=1)  # noqa: E731
    (op,) = sorts(f, x)
    assert len(op.operands) == 2
    rows = np.broadcast_to(np.arange(4, dtype=np.int32)[:, None], x.shape)
    assert_same(native(f, x)[1], rows)


def test_positions_of_another_type() -> None:
    x = array((300,), "float32")
    f = lambda x: lax.sort_key_val(x, lax.iota(np.uint8, 300))  # noqa: E731
    assert_same(native(f, x)[1], order([x], 0).astype(np.uint8))


def test_a_key_that_counts_is_an_operand() -> None:
    x = array((30,), "float32")
    f = lambda x: lax.sort((lax.iota(np.int32, 30), x), num_keys=2)  # noqa: E731
    assert_same(native(f, x)[1], x)


@pytest.mark.parametrize("k", [0, 1, 3, 7])
@pytest.mark.parametrize("axis", [0, 1])
def test_top_k(axis: int, k: int) -> None:
    x = array((7, 7), "float32", ties=True)
    by = np.take(order([x], axis, descending=True), range(k), axis)
    values, places = native(lambda x: lax.top_k(x, k, axis=axis), x)
    assert_same(values, np.take_along_axis(x, by, axis))
    assert_same(places, by.astype(np.int32))


@pytest.mark.parametrize("largest", [False, True])
def test_approximate_ones_are_exact(largest: bool) -> None:
    x = array((5, 60), "float32", ties=True)
    by = order([x], 1, descending=largest)[:, :4]
    f = lax.approx_max_k if largest else lax.approx_min_k
    values, places = native(lambda x: f(x, 4), x)
    assert_same(values, np.take_along_axis(x, by, 1))
    assert_same(places, by.astype(np.int32))


def test_what_is_made_of_sorts() -> None:
    x, y = array((6, 31), "int32", ties=True), array((6, 31), "float16", ties=True)
    y[np.isnan(y)] = 1
    assert_same(native(lambda x, y: jnp.lexsort((x, y)), x, y), np.lexsort((x, y)).astype(np.int32))
    assert_same(native(lambda x: jnp.unique(x, size=5), x), np.unique(x))
    np.testing.assert_allclose(native(lambda y: jnp.median(y, 1), y), np.median(y, 1))
    wanted = np.sort(x, 1)[:, ::-1]
    assert_same(native(lambda x: jnp.sort(x, 1, descending=True), x), wanted)


def test_in_a_loop_and_under_vmap() -> None:
    x = array((5, 33), "int32")

    def f(x: Any) -> Any:
        return lax.scan(lambda c, row: (jnp.sort(c + row), c[0]), x[0], x)

    for ours, theirs in zip(native(f, x), jax.jit(f)(x), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert_same(native(jax.vmap(jnp.sort), x), np.sort(x, 1))


def test_gradients() -> None:
    x = RNG.standard_normal((4, 20)).astype(np.float32)
    f = lambda x: (jnp.sort(x, 1) * jnp.arange(20)).sum() + lax.top_k(x, 3)[0].sum()  # noqa: E731
    np.testing.assert_allclose(native(jax.grad(f), x), jax.grad(f)(x))


def test_gradient_of_solves_in_a_loop() -> None:
    a = (4 * np.eye(4) + RNG.standard_normal((4, 4))).astype(np.float32)
    b = RNG.standard_normal((4, 2)).astype(np.float32)

    def f(a: Any, b: Any) -> Any:
        def step(b: Any, _: Any) -> Any:
            return jsl.lu_solve(jsl.lu_factor(a), b), None

        return jnp.sum(lax.scan(step, b, None, length=3)[0] ** 2)

    ours = native(jax.grad(f, (0, 1)), a, b)
    with jax.enable_x64(True):
        exact = jax.grad(f, (0, 1))(a.astype(np.float64), b.astype(np.float64))
    for x, y in zip(ours, exact, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * float(np.abs(y).max()))


def test_complex_numbers_are_sorted_by_their_parts() -> None:
    x = (RNG.integers(-2, 3, (4, 40)) + 1j * RNG.integers(-2, 3, (4, 40))).astype(np.complex64)
    by = np.lexsort((x.imag, x.real), 1)
    np.testing.assert_array_equal(native(lambda x: jnp.sort(x, 1), x), np.take_along_axis(x, by, 1))
    assert_same(native(lambda x: jnp.argsort(x, 1), x), by.astype(np.int32))
    y = array((4, 40), "int32", ties=True)
    ours = native(lambda x, y: lax.sort((y, x), dimension=1, num_keys=1), x, y)
    by = order([y], 1)
    assert_same(ours[0], np.take_along_axis(y, by, 1))
    np.testing.assert_array_equal(ours[1], np.take_along_axis(x, by, 1))


def test_other_element_types_stay_with_xla() -> None:
    x = jnp.zeros(9, jnp.float8_e5m2)
    (op,) = graph_of(lax.sort, x)
    assert op.attrs["reason"] == "sort: element type float8_e5m2"


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_whose_positions_no_i32_holds_stay_with_xla(axis: int) -> None:
    def plan(length: int, f: Callable[..., Any]) -> Any:
        shape = (length, 2) if axis == 0 else (2, length)
        return stagejit.jit(f).plan(jax.ShapeDtypeStruct(shape, np.uint8))

    for f in (
        lambda x: lax.sort(x, dimension=axis),
        lambda x: lax.sort_key_val(x, lax.broadcasted_iota(np.uint32, x.shape, axis), axis),
        lambda x: lax.top_k(x, 3, axis=axis),
    ):
        assert not plan(2**31 - 1, f).delegated
        (left,) = plan(2**31, f).delegated
        assert left.reason.endswith("an axis of 2147483648 elements")


@pytest.mark.parametrize("narrow", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("length", [100, 300, 40_000])
def test_positions_that_wrapped_stay_wrapped(narrow: str, length: int) -> None:
    """What counts through a type that does not hold all positions is not the positions."""
    x = np.random.default_rng(0).integers(0, 50, length).astype(np.float32)

    def f(x: Any) -> Any:
        through = jnp.arange(length, dtype=jnp.int32).astype(narrow).astype(jnp.int32)
        itself = jax.lax.iota(narrow, length).astype(jnp.int32)
        last = jnp.arange(length, dtype=jnp.int32).astype(narrow)
        return jax.lax.sort((x, through, itself, last), num_keys=1)

    for ours, theirs in zip(stagejit.jit(f)(x), jax.jit(f)(x), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("keys", [1, 10])
@pytest.mark.parametrize("number", [5, 9, 10])
def test_sorts_of_more_operands_than_a_dispatch_takes(number: int, keys: int) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.integers(0, 4, (4, 50)).astype(np.float32) for _ in range(number)]

    def f(*xs: Any) -> Any:
        return jax.lax.sort([x + 1 for x in xs], dimension=1, num_keys=min(keys, number))

    plan = stagejit.jit(f).plan(*arrays)
    assert not plan.delegated
    told = [d.reason for d in plan.decisions if d.rewrite == "limit-operands" and not d.applied]
    alone = f"sort alone takes {2 * number} operands, more than the limit of 16"
    assert told == [alone] * (number > 8)
    for ours, theirs in zip(stagejit.jit(f)(*arrays), jax.jit(f)(*arrays), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def _shifted(x: Any) -> Any:
    best, _ = lax.top_k(x, 1)
    return best, best.at[1:].set(best[:-1])


def _placed(x: Any) -> Any:
    keys, payload = lax.sort((x, jnp.flip(x, 0)), dimension=1, num_keys=1)
    both = jnp.concatenate([payload, keys, keys], 1)
    return jnp.pad(payload, 1), both, payload, keys


def _updated(x: Any) -> Any:
    keys, payload = lax.sort((x, jnp.flip(x, 0)), dimension=0, num_keys=1)
    return jnp.zeros((80, 9)).at[3:67, 1:8].set(payload), keys.at[0].set(7.0), keys


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("f", [_shifted, _placed, _updated])
@pytest.mark.parametrize("donate", [(), (0,)])
def test_results_are_stored_wherever_they_are_wanted(
    f: Callable[..., Any], donate: tuple[int, ...]
) -> None:
    x = np.random.default_rng(3).integers(0, 9, (64, 7)).astype(np.float32)
    expected = jax.jit(f)(x)
    ours = stagejit.jit(f, donate_argnums=donate)
    for _ in range(3):
        for made, right in zip(ours(jnp.asarray(x)), expected, strict=True):
            np.testing.assert_array_equal(made, right)
