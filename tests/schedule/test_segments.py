"""Values that pass between native runs and delegated equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.options import Options
from tests.expected.left import left

X = np.linspace(2, 1, 5, dtype=np.float32)


def branch_without_elements(x: Any) -> Any:
    """The branch waits for top_k; the sort of its empty result waits for nothing."""
    first = lax.top_k(x, 2)[0]
    z, y = lax.cond(
        first[0] > 0, lambda x: (x[:0] * first[0], x), lambda x: (x[2:2], x * first[0]), x
    )
    return lax.top_k(y, 2)[0], lax.sort(z), left(z.reshape(0, 1))


def loop_without_elements(x: Any) -> Any:
    first = lax.top_k(x, 2)[0]

    def body(i: Any, carry: Any) -> Any:
        z, y = carry
        return z * first[0], y * first[1]

    z, y = lax.fori_loop(0, 3, body, (x[:0], x))
    return lax.sort(y), lax.sort(z), z


def delegated_without_elements(x: Any) -> Any:
    """An empty result of one delegated equation is the operand of the next, and is returned."""
    y = lax.sort(jnp.tanh(x) * 2)
    z = lax.top_k(y, 0)[0]
    return lax.sort(z), z, lax.top_k(x, 1)[0]


def computed_without_elements(x: Any) -> Any:
    z = (lax.sort(x) + 1)[:0]
    return lax.sort(z * 2), jnp.concatenate([z, x])


def delegated_branch_without_elements(x: Any) -> Any:
    """It waits for the index, and a callback for the numbers that it prints, all the same."""
    index = jnp.int32(lax.sort(x)[0] * 2)
    z = lax.switch(index, [lambda x: x[:0], lambda x: lax.top_k(x, 0)[0]], x)
    nothing = jax.ShapeDtypeStruct((0,), np.float32)
    w = jax.pure_callback(lambda a: np.asarray(a[:0]), nothing, lax.sort(x * 2) + 1)
    return z, w, x + 1


@pytest.mark.parametrize(
    "f",
    [
        branch_without_elements,
        loop_without_elements,
        delegated_without_elements,
        computed_without_elements,
        delegated_branch_without_elements,
    ],
)
@pytest.mark.parametrize("disable", [(), ("simplify-loops", "simplify-branches", "fold-views")])
def test_no_order_is_needed_where_there_are_no_elements(
    f: Callable[..., Any], disable: tuple[str, ...]
) -> None:
    ours = stagejit.jit(f, options=Options(verify=True, disable=disable))(X)
    theirs = jax.jit(f)(X)
    assert jax.tree.map(lambda a: a.shape, ours) == jax.tree.map(lambda a: a.shape, theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), ours, theirs)
