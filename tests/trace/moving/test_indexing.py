"""Which gathers and scatters become slices, and that all of them keep JAX's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.graph.ir import Graph
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.trace.emitter import Emitter
from stagejit.trace.moving.indexing import TRANSLATIONS
from stagejit.trace.translate import graph_of
from stagejit.trace.translation import Site, Unsupported
from stagejit.types import TensorType, bool_, i32

Fn = Callable[..., Any]


def traced(fn: Fn, *args: Any) -> str:
    """The dump, after checking the values against JAX."""
    graph = graph_of(fn, *args)
    verify(graph)
    for ours, theirs in zip(
        interpret(graph, args), jax.tree.leaves(jax.jit(fn)(*args)), strict=True
    ):
        np.testing.assert_array_equal(ours, np.asarray(theirs))
    return as_text(graph)


def arange(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


AS_SLICES: dict[str, Fn] = {
    "slice": lambda x: x.at[2:5].set(1.0),
    "row": lambda x: x.at[3].set(1.0),
    "negative row": lambda x: x.at[-1].set(1.0),
    "element": lambda x: x.at[1, 2].set(1.0),
    "strided": lambda x: x.at[::2].set(1.0),
    "strided column": lambda x: x.at[1::3, 2].set(jnp.arange(3.0)),
    "reversed": lambda x: x.at[::-1].set(jnp.arange(24.0).reshape(8, 3)),
    "two strides": lambda x: x.at[::2, ::2].set(jnp.arange(8.0).reshape(4, 2)),
    "progression in an array": lambda x: x.at[jnp.array([6, 4, 2])].set(
        jnp.arange(9.0).reshape(3, 3)
    ),
    "add": lambda x: x.at[2:5].add(1.0),
    "multiply": lambda x: x.at[2:5].multiply(3.0),
    "min": lambda x: x.at[1].min(4.0),
    "max": lambda x: x.at[1].max(4.0),
    "subtract": lambda x: x.at[1].add(-4.0),
    "out of bounds drops": lambda x: x.at[9].set(1.0),
    "empty": lambda x: x.at[3:3].set(1.0),
    "clip": lambda x: x.at[jnp.array([9])].set(1.0, mode="clip"),
    "gather row": lambda x: x[2],
    "gather progression": lambda x: x[jnp.array([1, 3, 5])],
    "gather downwards": lambda x: x[jnp.array([5, 3, 1])],
    "gather column progression": lambda x: jnp.take(x, jnp.array([0, 2]), axis=1),
    "gather element": lambda x: x[1, 2],
    "gather out of bounds fills": lambda x: jnp.take(x, jnp.array([90]), axis=0),
    "mixed": lambda x: x[jnp.array([1, 3, 5]), 1:3],
}


@pytest.mark.parametrize("name", AS_SLICES)
def test_constant_windows_become_slices(name: str) -> None:
    text = traced(AS_SLICES[name], arange(8, 3))
    assert "scatter" not in text
    assert "gather" not in text


def test_a_slice_of_many_elements_is_one() -> None:
    x = arange(20_000, 3)
    text = traced(lambda x: x[jnp.arange(9_000) * 2 + 1], x)
    assert "gather" not in text
    assert "extract_slice %arg0 at (1, 0) strides (2, 1)" in text
    text = traced(lambda x: x[19_000 - jnp.arange(9_000), 1], x)
    assert "gather" not in text
    assert "reverse" in text


NOT_AS_SLICES: dict[str, Fn] = {
    "repeated rows": lambda x: x.at[jnp.array([1, 1])].add(1.0),
    "no progression": lambda x: x.at[jnp.array([0, 1, 3])].set(1.0),
    "some out of bounds": lambda x: x.at[jnp.array([6, 8])].set(1.0),
    "diagonal": lambda x: x.at[jnp.array([0, 1]), jnp.array([0, 1])].set(1.0),
    "gather repeated rows": lambda x: x[jnp.array([1, 1])],
    "gather no progression": lambda x: x[jnp.array([0, 1, 3])],
    "gather some out of bounds": lambda x: jnp.take(x, jnp.array([6, 8]), axis=0),
    "gather diagonal": lambda x: x[jnp.array([0, 1]), jnp.array([0, 1])],
}


@pytest.mark.parametrize("name", NOT_AS_SLICES)
def test_dont_slice_what_is_no_box(name: str) -> None:
    text = traced(NOT_AS_SLICES[name], arange(8, 3))
    assert "= scatter" in text or "= gather" in text


@pytest.mark.parametrize("index", [-9, -1, 0, 3, 7, 8, 100])
def test_a_computed_index_is_a_slice_where_it_is_clamped_anyway(index: int) -> None:
    i = np.int32(index)
    text = traced(lambda x, i: x[i], arange(8, 3), i)
    assert "extract_slice %arg0 at (%" in text
    text = traced(lambda x, i: x.at[i].set(2.0, mode="clip"), arange(8, 3), i)
    assert "insert_slice" in text
    text = traced(lambda x, i: x.at[i].add(2.0, mode="clip"), arange(8, 3), i)
    assert "insert_slice" in text


@pytest.mark.parametrize("index", [-9, -1, 0, 7, 8, 100])
def test_dont_slice_a_computed_index_that_may_be_dropped(index: int) -> None:
    text = traced(lambda x, i: x.at[i].set(2.0), arange(8, 3), np.int32(index))
    assert "= scatter set" in text
    assert 'mode="fill"' in text


def test_a_mixed_index_vector_keeps_its_constant_part_static() -> None:
    text = traced(lambda x, i: x.at[i, 1].set(2.0, mode="clip"), arange(8, 3), np.int32(2))
    assert "insert_slice" in text
    assert ", 1)" in text


@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.bool_])
def test_gather_modes_and_fill_values(mode: str, dtype: Any) -> None:
    index = np.array([0, 3, 2]) if mode == "promise_in_bounds" else np.array([0, 9, -9, 2])
    x = (arange(4, 3) > 3).astype(dtype)
    text = traced(lambda x, i: x.at[i].get(mode=mode), x, index.astype(np.int32))
    assert "= gather" in text


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # JAX's own
@pytest.mark.parametrize("fill", [-1, 300, 2**32 - 1, np.int64(2**40), -7.5, 1e20, np.nan])
@pytest.mark.parametrize("dtype", ["u1", "i4", "f4", "bool", "int4", "uint2"])
def test_fill_values_that_the_type_does_not_have(dtype: str, fill: Any) -> None:
    def f(x: Any, i: Any) -> Any:
        return x.astype(dtype).at[i].get(mode="fill", fill_value=fill).astype(np.int32)

    assert "= gather" in traced(f, np.arange(3, dtype=np.uint8), np.array([0, 9, 2], np.int32))


@pytest.mark.parametrize("index", [9, -9, 4, -1, 2])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x.at[i].set(7.0, mode="promise_in_bounds"),
        lambda x, i: x.at[i].add(7.0, mode="promise_in_bounds"),
        lambda x, i: x.at[i, 1].min(-7.0, mode="promise_in_bounds"),
        jax.grad(lambda x, i: (x.at[i].min(2.5, mode="clip") * 3).sum()),
        jax.grad(lambda x, i: (x.at[i].max(2.5, mode="clip") * 3).sum()),
    ],
)
def test_an_update_that_breaks_its_promise_is_dropped(f: Fn, index: int) -> None:
    """As XLA does, on which JAX's own derivatives rely."""
    x, i = arange(4, 3), np.int32(index)
    traced(f, x, i)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (1, 3)])
def test_empty_and_unit_operands(shape: tuple[int, ...]) -> None:
    index = np.zeros(2 if shape[0] else 0, np.int32)
    traced(lambda x, i: x[i], arange(*shape), index)
    traced(lambda x, i: x.at[i].add(1.0), arange(*shape), index)


@pytest.mark.parametrize("shape", [(0,), (1, 0), (5, 0), (2, 3, 0)])
def test_index_vectors_without_components(shape: tuple[int, ...]) -> None:
    """Each names the same window; there may be several, although they have no elements."""
    rank, x, i = len(shape) - 1, arange(3, 4), np.zeros(shape, np.int32)
    window = (rank, rank + 1)
    gathered = lax.GatherDimensionNumbers(window, (), ())
    traced(lambda x, i: lax.gather(x, i, gathered, (3, 4), mode="clip"), x, i)
    scattered = lax.ScatterDimensionNumbers(window, (), ())
    updates = np.stack([arange(3, 4) + n for n in range(int(np.prod(shape[:-1])))])
    updates = updates.reshape(*shape[:-1], 3, 4)
    graph = graph_of(
        lambda x, i, u: lax.scatter_add(x, i, u, scattered, mode="clip"), x, i, updates
    )
    verify(graph)  # XLA applies one update of several, so it is no judge
    (ours,) = interpret(graph, (x, i, updates))
    np.testing.assert_array_equal(ours, x + updates.sum(tuple(range(rank))))


def test_batched_gather_and_scatter() -> None:
    x, i = arange(4, 5, 3), np.array([[0, 1], [2, 9], [4, 4], [1, 0]], np.int32)
    traced(jax.vmap(lambda x, i: x[i]), x, i)
    traced(jax.vmap(lambda x, i: x.at[i].add(1.0)), x, i)
    traced(jax.vmap(lambda x: x.at[2].set(1.0)), x)
    traced(lambda x, i: jnp.take_along_axis(x, i[..., None], axis=1), x, i)


def test_dont_translate_an_update_function_of_its_own() -> None:
    graph = graph_of(lambda x, i: x.at[i].apply(jnp.sin), arange(4), np.array([1]))
    (op,) = [op for op in graph if op.kind == "delegate"]
    assert op.attrs["reason"] == "scatter: scatter with an update function of its own"


def test_dont_translate_scatter_add_of_bools() -> None:
    emit, bools = Emitter(Graph("f")), TensorType(bool_, (3,))
    site = Site("scatter-add", {"update_jaxpr": None}, (bools,))
    x = emit.graph.add_input("x", bools)
    index = emit.graph.add_input("index", TensorType(i32, (1,)))
    with pytest.raises(Unsupported, match="scatter-add of bools"):
        TRANSLATIONS["scatter-add"].rule(emit, site, x, index, x)


def test_an_index_vector_is_looked_through_to_its_scalars() -> None:
    graph = graph_of(lambda x, i: x.at[i, 2].set(2.0, mode="clip"), arange(8, 3), np.int32(1))
    (insert,) = [op for op in graph if op.kind == "insert_slice"]
    assert insert.attrs["offsets"] == (None, 2)
    assert insert.operands[2].shape == ()


@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_unsigned_numbers_beyond_i64_are_beyond_every_array(mode: str) -> None:
    """As constants too, not only where a kernel reads them (XLA takes its own for negative)."""
    x, far = np.arange(20, dtype=np.float32), np.uint64(2**63 + 5)
    window, gathered = x[:3] * 2 + 1, lax.GatherDimensionNumbers((0,), (), (0,))
    scattered = lax.ScatterDimensionNumbers((0,), (), (0,))

    def both(x: Any, at: Any) -> tuple[Any, Any]:
        found = lax.gather(x, at[None], gathered, (3,), mode=mode, fill_value=-7)
        return found, lax.scatter(x, at[None], window, scattered, mode=mode)

    dropped = mode == "fill"
    with jax.enable_x64(True):
        for fn, args in ((both, (x, far)), (lambda x: both(x, jnp.array(far)), (x,))):
            found, updated = interpret(graph_of(fn, *args), args)
            np.testing.assert_array_equal(found, [-7, -7, -7] if dropped else x[-3:])
            wanted = x if dropped else np.concatenate([x[:-3], window])
            np.testing.assert_array_equal(updated, wanted)
