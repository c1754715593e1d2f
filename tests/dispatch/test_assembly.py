"""Groups become dispatches; equal ones share a part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import stagejit
from stagejit.graph.ir import Graph
from stagejit.graph.ops.dispatches import parts_of


def parts(f: Callable[..., Any], *args: Any) -> list[Graph]:
    compilation = stagejit.jit(f).trace(*args).compilation.run_until("place")
    ops = [op for op in compilation.dispatches.ops() if op.definition.is_dispatch]
    return [part for op in ops for part in parts_of(op)]


def layers(x: Any, functions: Any) -> Any:
    for function in functions:
        x = function(x @ x)
    return x


def test_equal_groups_share_a_part() -> None:
    x = np.eye(7, dtype=np.float32)
    for functions, count in (((jnp.tanh,) * 4, 1), ((jnp.tanh, jnp.sin) * 2, 2)):
        made = parts(lambda x, functions=functions: layers(x, functions), x)
        assert [len(made), len(set(made))] == [4, count]
        result = stagejit.jit(lambda x, functions=functions: layers(x, functions))(x)
        expected = np.asarray(layers(jnp.asarray(x), functions))
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_equal_groups_of_other_lines_have_parts_of_their_own() -> None:
    def f(x: Any) -> Any:
        x = jnp.tanh(x @ x)
        return jnp.tanh(x @ x)

    assert len(set(parts(f, np.ones((7, 7), np.float32)))) == 2


def test_what_reads_integers_has_a_part_of_its_own() -> None:
    """Of one dispatch the host may know an offset that it does not know of another."""

    def f(x: Any, starts: Any) -> Any:
        for start in starts:
            x = x @ x + x[start]
        return x

    x = np.eye(7, dtype=np.float32)
    made = parts(f, x, [1, 2, 3])
    assert len(made) == len(set(made))
    starts = [1, 5, 3]
    expected = np.asarray(f(jnp.asarray(x), starts))
    np.testing.assert_allclose(stagejit.jit(f)(x, starts), expected, rtol=1e-5)
