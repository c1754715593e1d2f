"""Concatenate, pad, stack, split and slices in the insert/extract normal form."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.trace.translate import graph_of


def text_of(fn: Callable[..., Any], *args: Any) -> str:
    """The ops of the traced function, without header and return."""
    graph = graph_of(fn, *args)
    verify(graph)
    for ours, theirs in zip(
        interpret(graph, args), jax.tree.leaves(jax.jit(fn)(*args)), strict=True
    ):
        np.testing.assert_array_equal(ours, np.asarray(theirs))
    return dedent("\n".join(as_text(graph).splitlines()[1:-2])).replace("%arg", "%a")


def arange(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def test_concatenate_inserts_into_an_empty_destination() -> None:
    text = text_of(lambda x, y: lax.concatenate([x, y], 1), arange(2, 3), arange(2, 1))
    assert text == (
        "%0: f32[2,4] = empty\n"
        "%1: f32[2,4] = insert_slice %a0 into %0 at (0, 0)\n"
        "%2: f32[2,4] = insert_slice %a1 into %1 at (0, 3)"
    )


def test_concatenate_with_one_operand_that_has_elements_is_that_operand() -> None:
    x = arange(2, 3)
    assert text_of(lambda x, y: lax.concatenate([y, x, y], 0), x, arange(0, 3)) == ""


def test_stack_inserts_rows() -> None:
    text = text_of(lambda x, y: jnp.stack([x, y]), arange(3), arange(3))
    assert text == (
        "%0: f32[1,3] = reshape %a0\n"
        "%1: f32[1,3] = reshape %a1\n"
        "%2: f32[2,3] = empty\n"
        "%3: f32[2,3] = insert_slice %0 into %2 at (0, 0)\n"
        "%4: f32[2,3] = insert_slice %1 into %3 at (1, 0)"
    )


def test_pad_inserts_into_a_fill_of_the_padding_value() -> None:
    text = text_of(lambda x, v: lax.pad(x, v, ((2, 1, 0), (0, 3, 0))), arange(2, 2), np.float32(7))
    assert text == ("%0: f32[5,5] = fill %a1\n%1: f32[5,5] = insert_slice %a0 into %0 at (2, 0)")


def test_interior_padding_is_a_strided_insert() -> None:
    text = text_of(lambda x, v: lax.pad(x, v, ((1, 1, 2),)), arange(3), np.float32(7))
    assert text == "%0: f32[9] = fill %a1\n%1: f32[9] = insert_slice %a0 into %0 at (1) strides (3)"


def test_negative_padding_is_a_crop_and_no_insert() -> None:
    text = text_of(lambda x, v: lax.pad(x, v, ((-1, -2, 0),)), arange(7), np.float32(7))
    assert text == "%0: f32[4] = extract_slice %a0 at (1)"


def _padded_size(size: int, low: int, high: int, interior: int) -> int:
    return low + size + max(size - 1, 0) * interior + high


PADDINGS = [
    case
    for case in itertools.product((0, 1, 2, 5), (-3, -1, 0, 2), (-4, -1, 0, 2), (0, 1, 3))
    if _padded_size(*case) >= 0
]


@pytest.mark.some(2)
@pytest.mark.parametrize(("size", "low", "high", "interior"), PADDINGS)
def test_padding_of_all_signs_matches_jax(size: int, low: int, high: int, interior: int) -> None:
    text_of(lambda x, v: lax.pad(x, v, ((low, high, interior),)), arange(size), np.float32(9))


def test_split_and_unstack_extract() -> None:
    assert text_of(lambda x: jnp.split(x, [1]), arange(3, 2)) == (
        "%0: f32[1,2] = extract_slice %a0 at (0, 0)\n%1: f32[2,2] = extract_slice %a0 at (1, 0)"
    )
    assert text_of(lambda x: jnp.unstack(x), arange(2, 2)).count("extract_slice") == 2


def test_dynamic_update_slice_keeps_its_destination() -> None:
    text = text_of(lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 1)), arange(4, 3),
                   arange(2, 2), np.int32(9))  # fmt: skip
    assert text.endswith("insert_slice %a1 into %a0 at (%4, 1)")


def test_a_constant_start_is_clamped_while_tracing() -> None:
    text = text_of(lambda x: lax.dynamic_slice(x, (7, -3), (2, 2)), arange(4, 3))
    assert text == "%0: f32[2,2] = extract_slice %a0 at (2, 0)"


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint32, np.int32])
@pytest.mark.parametrize("start", [0, 2, 100])
def test_a_start_of_any_integer_type_is_clamped(dtype: Any, start: int) -> None:
    text_of(lambda x, i: lax.dynamic_slice(x, (i,), (2,)), arange(4), dtype(start))


def test_an_unsigned_64_bit_start_beyond_i64_is_clamped_to_the_end() -> None:
    with jax.enable_x64(True):
        start = np.uint64(2**63 + 5)
        graph = graph_of(lambda x, i: lax.dynamic_slice(x, (i,), (2,)), arange(4), start)
        np.testing.assert_array_equal(interpret(graph, [arange(4), start])[0], [2, 3])


def test_views_that_change_nothing_are_not_emitted() -> None:
    def f(x: Any) -> Any:
        return lax.transpose(lax.reshape(x, (2, 3)), (0, 1))[:, :]

    assert text_of(f, arange(2, 3)) == ""


def test_a_scalar_is_filled_never_broadcast() -> None:
    assert text_of(lambda x: jnp.broadcast_to(x, (2, 3)), np.float32(1)) == (
        "%0: f32[2,3] = fill %a0"
    )
    assert text_of(lambda x: jnp.broadcast_to(x, (2, 3)), arange(1, 1)) == (
        "%0: f32[] = reshape %a0\n%1: f32[2,3] = fill %0"
    )


def test_a_broadcast_never_stretches_a_dimension() -> None:
    assert text_of(lambda x: jnp.broadcast_to(x, (4, 3)), arange(1, 3)) == (
        "%0: f32[3] = reshape %a0\n%1: f32[4,3] = broadcast %0 axes=(1)"
    )


def test_a_transpose_of_unit_dims_is_a_reshape() -> None:
    assert text_of(lambda x: lax.transpose(x, (1, 0)), arange(1, 3)) == "%0: f32[3,1] = reshape %a0"


def test_a_broadcast_that_adds_unit_dims_is_a_reshape() -> None:
    assert text_of(lambda x: x[:, None], arange(3)) == "%0: f32[3,1] = reshape %a0"


@pytest.mark.parametrize("reps", [(2,), (2, 3), (1, 1), (0, 2), (2, 1, 2)])
def test_tile(reps: tuple[int, ...]) -> None:
    text_of(lambda x: jnp.tile(x, reps), arange(2, 3))


def test_reshape_with_an_order_of_dimensions_transposes_first() -> None:
    text_of(lambda x: lax.reshape(x, (6,), dimensions=(1, 0)), arange(2, 3))


def test_reverse_skips_dimensions_of_size_one() -> None:
    assert text_of(lambda x: lax.rev(x, (0, 1)), arange(1, 3)) == (
        "%0: f32[1,3] = reverse %a0 axes=(1)"
    )
    assert text_of(lambda x: lax.rev(x, (0,)), arange(1, 3)) == ""


def test_the_empty_primitive_gives_zeros() -> None:
    graph = graph_of(lambda: jnp.empty((2, 2)))
    np.testing.assert_array_equal(interpret(graph, [])[0], np.zeros((2, 2)))


def test_what_has_no_elements_is_empty_whatever_computes_it() -> None:
    def f(x: Any) -> Any:
        return jnp.exp(x[:, :0] + 1), x[1:1].T @ jnp.ones((0, 0))

    assert text_of(f, arange(2, 3)).splitlines()[-2:] == ["%0: f32[2,0] = empty",
                                                          "%1: f32[3,0] = empty"]  # fmt: skip
