"""Reductions, argmin/argmax, cumulative ops and the generic `reduce`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.graph.ir import Graph
from stagejit.graph.meaning.interpreter import interpret
from stagejit.trace.emitter import Emitter
from stagejit.trace.reductions import TRANSLATIONS
from stagejit.trace.translate import graph_of
from stagejit.trace.translation import Site, Unsupported
from stagejit.types import TensorType, bool_

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


def checked(fn: Any, *args: Any) -> Graph:
    graph = graph_of(fn, *args)
    for ours, theirs in zip(interpret(graph, args), jax.tree.leaves(jax.jit(fn)(*args)),
                            strict=True):  # fmt: skip
        np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-6)
    return graph


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph]


def test_axes_are_ascending() -> None:
    graph = checked(lambda x: lax.reduce_sum(x, (1, 0)), X)
    assert [op.attrs["axes"] for op in graph] == [(0, 1)]


def test_a_reduction_over_no_axes_is_the_operand() -> None:
    assert kinds(checked(lambda x: lax.reduce_max(x, ()), X)) == []


@pytest.mark.parametrize(
    ("monoid", "fn", "initial"),
    [(lax.add, "add", 1.0), (lax.mul, "mul", 2.0), (lax.max, "max", 3.0), (lax.min, "min", 3.0)],
)
def test_a_generic_reduce_combines_its_initial_value_once(
    monoid: Any, fn: str, initial: float
) -> None:
    graph = checked(lambda x: lax.reduce(x, np.float32(initial), lambda a, b: monoid(b, a), (0,)),
                    X)  # fmt: skip
    (reduction,) = [op for op in graph if op.kind == "reduce"]
    assert reduction.attrs["fn"] == fn
    assert [op.attrs["fn"] for op in graph if op.kind == "map"] == [fn]


BODIES = {
    **{fn.__name__: fn for fn in (lax.add, lax.mul, lax.max, lax.min)},
    "own": lambda a, b: a + 2 * b,
}


@pytest.mark.some(2)
@pytest.mark.parametrize("initial", [3.0, -0.0])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("shape", [(3, 4), (3, 0), (3, 1), ()])
def test_a_generic_reduce_that_combines_nothing(
    shape: tuple[int, ...], body: str, initial: float
) -> None:
    """One element for each result is the result, none gives the initial value; as in JAX for
    initial values that are no identities, too."""
    x = np.resize(np.array([-2, -0.0, 1, 5], np.float32), shape)
    for axes in ((), (1,), (0, 1)) if shape else ((),):
        fn = lambda x: lax.reduce(x, np.float32(initial), BODIES[body], axes)  # noqa: B023, E731
        graph, (theirs,) = checked(fn, x), [np.asarray(jax.jit(fn)(x))]
        np.testing.assert_array_equal(np.signbit(interpret(graph, [x])[0]), np.signbit(theirs))
        if all(shape[axis] <= 1 for axis in axes):
            assert not {"map", "delegate"} & set(kinds(graph))


def test_a_generic_reduce_of_independent_operands_becomes_several() -> None:
    graph = checked(
        lambda x: lax.reduce((x, x), (np.float32(1), np.float32(2)),
                             lambda a, b: (lax.add(a[0], b[0]), lax.max(a[1], b[1])), (0,)), X,
    )  # fmt: skip
    assert kinds(graph).count("reduce") == 2


def test_bools_reduce_with_and_or_and_xor_only() -> None:
    p = X > 0
    for fn, name in ((lax.reduce_max, "or"), (lax.reduce_min, "and"), (lax.reduce_and, "and")):
        graph = checked(lambda p, fn=fn: fn(p, (0,)), p)
        assert [op.attrs["fn"] for op in graph] == [name]


@pytest.mark.parametrize("fn", [lax.argmax, lax.argmin])
@pytest.mark.parametrize("axis", [0, 1])
def test_argument_reductions_take_the_first_tie_and_the_first_nan(fn: Any, axis: int) -> None:
    ties = np.array([[1, 2, 2], [2, 1, 1]], np.float32)
    checked(lambda x: fn(x, axis, np.int32), ties)
    checked(lambda x: fn(x, axis, np.uint8), ties)
    checked(lambda x: fn(x, axis, np.int32), np.array([[1, np.nan, 2], [np.nan, 1, np.nan]],
                                                      np.float32))  # fmt: skip
    checked(lambda x: fn(x, axis, np.int32), ties > 1)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("fn", [lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp])
def test_cumulative_ops(fn: Any, reverse: bool) -> None:
    for axis in (0, 1):
        graph = checked(lambda x, axis=axis: fn(x, axis, reverse), X)
        assert kinds(graph) == ["cumulative"]


def test_dont_accumulate_bools() -> None:
    emit, bools = Emitter(Graph("f")), TensorType(bool_, (3,))
    site = Site("cumsum", {"axis": 0, "reverse": False}, (bools,))
    with pytest.raises(Unsupported, match="cumulative add of bools"):
        TRANSLATIONS["cumsum"].rule(emit, site, emit.graph.add_input("x", bools))


def test_empty_reductions_give_the_identity() -> None:
    empty = X[:0]
    graph = checked(lambda x: lax.reduce_sum(x, (0,)), empty)
    assert kinds(graph) == ["const", "fill"]
    checked(lambda x: lax.reduce_prod(x, (0,)), empty)
    checked(lambda x: lax.reduce_max(x, (0,)), empty)
    checked(lambda x: lax.reduce_min(x.astype(np.int32), (0,)), empty)
    assert kinds(checked(lambda x: lax.cumsum(x, 0), empty)) == ["empty"]


def over_axis(collective: Any, x: Any, **options: Any) -> Any:
    return jax.vmap(lambda row: collective(row, "rows", **options), axis_name="rows")(x)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, bool, jnp.bfloat16])
@pytest.mark.parametrize("collective", [lax.psum, lax.pmean, lax.pmax, lax.pmin])
def test_a_collective_over_a_mapped_axis_is_a_reduction(collective: Any, dtype: Any) -> None:
    graph = checked(lambda x: over_axis(collective, x), X.astype(dtype))
    assert "delegate" not in kinds(graph)


@pytest.mark.parametrize("collective", [lax.pmean, lax.pmax])
def test_a_loop_with_a_collective_over_a_mapped_axis_is_native(collective: Any) -> None:
    def step(x: Any, _: Any) -> tuple[Any, None]:
        return x * 2 - over_axis(collective, x), None

    assert kinds(checked(lambda x: lax.scan(step, x, length=3)[0], X)).count("loop") == 1


def test_a_gradient_has_collectives_over_no_axes() -> None:
    def loss(x: Any) -> Any:
        return ((x - over_axis(lax.pmean, x)) ** 2 * X).sum()

    assert "psum[axes=()" in str(jax.make_jaxpr(jax.grad(loss))(X))
    assert "delegate" not in kinds(checked(jax.grad(loss), X))


def test_collectives_over_several_mapped_axes() -> None:
    def both(element: Any) -> Any:
        return lax.psum(element, ("rows", "columns")), lax.pmax(element, "columns")

    graph = checked(jax.vmap(jax.vmap(both, axis_name="columns"), axis_name="rows"), X)
    assert "delegate" not in kinds(graph)
