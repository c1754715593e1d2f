"""When a dispatch may write over an operand: one refusal for each guard, and the kinds that may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.dispatch.in_place import refuse_in_place
from stagejit.options import Options
from tests.schedule.planning import regions_in

X = np.ones((8, 16), np.float32)
Y = np.ones((8, 16), np.float32)
SQUARE = np.ones((16, 16), np.float32)

MAY: dict[str, Callable[..., Any]] = {
    "map": lambda x, y: jnp.exp(x) + y,
    "reshaped": lambda x, y: jnp.exp(x.reshape(16, 8)).reshape(8, 16) * y,
    "reduce": lambda x, y: jax.nn.softmax(x, 1),
    "columns": lambda x, y: x - x.mean(0),
    "contract": lambda x, y: x + y @ y.T @ y,
    "transposed residual": lambda x, y: (x.T + y.T @ (y @ y.T)).T,
}

REFUSED: dict[str, Callable[..., Any]] = {
    "a cumulative reads the operand": lambda x, y: jnp.cumsum(x, 0),
    "writes a border": lambda x, y: jnp.pad(jnp.exp(x), 1, constant_values=1.0),
    "differ in size": lambda x, y: (x > y).astype(jnp.int8),
    "the dispatch writes differ in size": lambda x, y: x[:4] * 2,
    "the contract reads the operand": lambda x, y: x @ jnp.ones((16, 16)) + x,
    "running sums lie in the result": lambda x, y: (s := (y @ y.T) @ y, s * x),
    "reads other elements": lambda x, y: jnp.exp(x[::-1]) + x,
    "says where something is placed": lambda x, y: (
        lax.dynamic_update_slice(SQUARE, x + 3, (x[0, 0].astype(int), 0)),
        x * 2,
    ),
}


def reasons(fn: Callable[..., Any]) -> list[str]:
    """What is said of the last dispatch that reads `x`, for each of its stores."""
    region = [
        region
        for region in regions_in(fn, X, Y)
        if any(value.op.attrs.get("index") == 0 for value in region.operands)
    ][-1]
    given = zip(region.inputs, region.operands, strict=True)
    (operand,) = [own for own, value in given if value.op.attrs.get("index") == 0]
    return [refuse_in_place(region, operand, store) for store in region.stores]


@pytest.mark.parametrize("fn", MAY.values(), ids=MAY.keys())
def test_a_dispatch_may_write_over_its_operand(fn: Callable[..., Any]) -> None:
    assert "" in reasons(fn)


@pytest.mark.parametrize(("reason", "fn"), REFUSED.items(), ids=REFUSED.keys())
def test_a_dispatch_may_not(reason: str, fn: Callable[..., Any]) -> None:
    assert any(reason in said for said in reasons(fn)), reasons(fn)


def test_where_rows_have_one_element() -> None:
    """What is stored for each row has as many elements as the rows, and comes after them."""
    column = np.ones((8, 1), np.float32)

    def fn(x: Any) -> Any:
        total = jnp.exp(x).sum(1, keepdims=True)
        return x * total, x[:, 0] + total[:, 0]

    (region,) = regions_in(fn, column, options=Options(disable=("fold-views",)))
    assert region.kind == "reduce"
    found = {
        store.value.shape: refuse_in_place(region, *region.inputs, store) for store in region.stores
    }
    assert found == {
        (8, 1): "a result for each row reads the operand after the rows are written",
        (8,): "the result has another shape than what is reduced",
    }
