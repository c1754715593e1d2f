"""The float64 reference and the error measure."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.bench.accuracy import error_against, reference_of


def test_reference_is_computed_in_float64() -> None:
    x = np.float32([0.1, 0.2])
    (found,) = reference_of(lambda v: jnp.exp(v) * 3, (x,))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, np.exp(x.astype(np.float64)) * 3, rtol=1e-15)


def test_reference_leaves_x64_as_it_was() -> None:
    reference_of(lambda v: v + 1, (np.float32(1),))
    assert not jax.config.jax_enable_x64


def test_reference_widens_bfloat16_and_keeps_integers() -> None:
    tree = {"b": jnp.ones(2, jnp.bfloat16), "i": np.arange(2, dtype=np.int32)}
    found = reference_of(lambda t: t, (tree,))
    assert [leaf.dtype for leaf in found] == [np.float64, np.int32]


def test_what_is_another_function_in_float64_runs_as_it_is() -> None:
    """Random numbers of 64 bits are others, and the carry of a scan has the type that it has."""
    key = jax.random.key(0)
    drawn, next_key = reference_of(lambda k: (jax.random.normal(k, (3,)), k), (key,))
    np.testing.assert_array_equal(drawn, jax.random.normal(key, (3,)))
    np.testing.assert_array_equal(next_key, jax.random.key_data(key))
    assert error_against([next_key], [jax.random.split(key)[0]]) == np.inf

    def sums(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, v: (carry + v, carry), jnp.float32(0), x)[0]

    (total,) = reference_of(sums, (np.float32([1, 2]),))
    assert total.dtype == np.float32
    assert total == 3
    with pytest.raises(TypeError, match="shapes"):
        reference_of(lambda x: x + jnp.zeros(3), (np.float32([1, 2]),))


def test_error_is_relative_to_the_largest_value_of_each_leaf() -> None:
    reference = [np.array([100.0, 0.0]), np.array([1.0])]
    assert error_against(reference, [np.array([100.0, 1.0]), np.array([1.0])]) == pytest.approx(
        0.01
    )
    assert error_against(reference, [np.array([100.0, 0.0]), np.array([1.5])]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("reference", "result"),
    [
        ([1.0, np.nan], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, np.nan]),
        ([1.0, np.inf], [1.0, -np.inf]),
        ([1.0, 2.0], [1.0, np.inf]),
    ],
)
def test_a_special_value_in_the_wrong_place_is_an_infinite_error(
    reference: list[float], result: list[float]
) -> None:
    assert error_against([np.array(reference)], [np.array(result)]) == np.inf


def test_equal_special_values_are_no_error() -> None:
    values = np.array([1.0, np.nan, np.inf, -np.inf])
    assert error_against([values], [values.copy()]) == 0.0


def test_integers_must_be_equal() -> None:
    assert error_against([np.array([3])], [np.array([3], np.int32)]) == 0.0
    assert error_against([np.array([3])], [np.array([4], np.int32)]) == np.inf


@pytest.mark.parametrize("result", [[np.zeros(3)], [], [np.zeros(2), np.zeros(2)]])
def test_another_shape_or_count_is_an_infinite_error(result: Any) -> None:
    assert error_against([np.zeros(2)], result) == np.inf


def test_empty_and_zero_arrays() -> None:
    assert error_against([np.zeros((0, 3))], [np.zeros((0, 3))]) == 0.0
    assert error_against([np.zeros(2)], [np.full(2, 1e-3)]) == pytest.approx(1e-3)
