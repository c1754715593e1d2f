"""What arrays are: the same for the same array, gone with it, and never what was written since."""

from __future__ import annotations

import gc
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.trace.contents import content_of, copy_of
from tests.randomness import RNG

DTYPES: list[Any] = [np.float32, np.int8, np.bool_, np.complex64, jnp.bfloat16, jnp.int4, np.uint32]


def numbers(shape: tuple[int, ...], dtype: Any) -> Any:
    return RNG.integers(-4, 4, shape).astype(np.int32).astype(dtype)


def test_arrays_of_jax_are_themselves() -> None:
    array = jnp.ones(4)
    content = content_of(array)
    assert content_of(array) is content
    assert content.array() is array
    assert content_of(jnp.ones(4)) is not content
    content.note_bytes()
    del array
    gc.collect()
    assert content.array() is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (3, 4, 2)])
def test_copies_are_made_again(shape: tuple[int, ...], dtype: Any) -> None:
    given = numbers(shape, dtype)
    copy, content = copy_of(given)
    assert content.array() is copy
    assert content_of(copy) is content
    content.note_bytes()
    del copy
    gc.collect()
    again = content.array()
    np.testing.assert_array_equal(np.asarray(again), given)
    assert content.array() is again
    assert content_of(again) is content
    other, same = copy_of(given)
    assert same is content
    assert other is again


@pytest.mark.parametrize("is_noted", [True, False])
@pytest.mark.parametrize(
    "view", [lambda a: a, lambda a: a.T, lambda a: a[::2], lambda a: a[:, ::-1]]
)
def test_what_was_written_to_is_something_else(view: Any, is_noted: bool) -> None:
    base = RNG.standard_normal((6, 4)).astype(np.float32)
    given = view(base)
    copy, content = copy_of(given)
    if is_noted:
        content.note_bytes()
    before = given[0, 0]
    base[...] = np.where(base == before, before + 1, base)
    assert content.array() is copy
    other, changed = copy_of(given)
    assert changed is not content
    assert float(other[0, 0]) == before + 1
    del copy
    gc.collect()
    assert content.array() is None
    base[...] = np.where(base == before + 1, before, base)
    assert content.array() is not None  # the same bytes again


@pytest.mark.parametrize("flip", [(0.0, -0.0), (np.nan, -np.nan)])
def test_bytes_are_compared_not_numbers(flip: tuple[float, float]) -> None:
    given = np.array([1.0, flip[0]], np.float32)
    _, content = copy_of(given)
    given[1] = flip[1]
    assert copy_of(given)[1] is not content


def test_an_array_that_the_caller_let_go_is_gone() -> None:
    given = np.ones(4, np.float32)
    copy, content = copy_of(given)
    content.note_bytes()
    del given
    gc.collect()
    assert content.array() is copy
    del copy
    gc.collect()
    assert content.array() is None


def test_numbers_are_copied() -> None:
    copy, content = copy_of(np.float32(2))
    assert content_of(copy) is content
    assert float(content.array()) == 2
