"""What a region reads, and its registers: one walk, which meets the same elements in one order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.codegen.closed import closed
from stagejit.codegen.elements.elements import Elements, Memory
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import storage_type
from stagejit.codegen.places.footprint import Footprint
from stagejit.codegen.places.space import Space
from stagejit.errors import InternalError
from stagejit.trace.translate import graph_of
from tests.codegen.regions import region_of

X, Y = np.zeros((8, 12), np.float32), np.zeros((12, 8), np.float32)
AT, START = np.zeros((5, 2), np.int32), np.int32(0)


def picked(x: Any, at: Any, mode: str) -> Any:
    dims = lax.GatherDimensionNumbers((), (0, 1), (0, 1))
    return lax.gather(x, at, dims, (1, 1), mode=mode) * 2


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "map": (lambda x, y: jnp.tanh(x) * y.T + x, (X, Y)),
    "select": (lambda x, y: jnp.where(x > 0, x, y.T).astype(np.int32), (X, Y)),
    "counts": (lambda x: x + lax.broadcasted_iota(np.float32, x.shape, 1), (X,)),
    "constant": (lambda x: x * 2 + jnp.ones_like(x), (X,)),
    "starts": (lambda x, i, j: lax.dynamic_slice(x, (i, j), (4, 3)) + 1, (X, START, START)),
    "gather": (lambda x, at: picked(x, at, "clip"), (X, AT)),
    "gather, filled": (lambda x, at: picked(x, at, "fill"), (X, AT)),
    "window": (lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 3), (1, 1), "VALID") + 1, (X,)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_meet_the_same_elements(name: str) -> None:
    fn, args = PROGRAMS[name]
    region = closed(region_of(graph_of(fn, *args)))
    (store,) = region.stores
    space, builder = Space(store.value.shape), Builder()
    memory = {v: Memory(builder.buffer("in", storage_type(v.type.dtype))) for v in region.inputs}
    footprint, elements = Footprint(region), Elements(builder, memory)
    footprint.value(store.value, space.index)
    with elements.at({var: builder.const(0) for var in space.loops()}):
        elements.value(store.value, space.index)
        met = [value for value, _ in elements._known]
    assert met == [value for value, _ in footprint.evaluated]


def test_dont_walk_through_what_is_no_function_of_elements() -> None:
    region = closed(region_of(graph_of(lambda x: jnp.cumsum(x, 1) + 1, X)))
    (store,) = region.stores
    with pytest.raises(InternalError, match="cannot be evaluated element by element"):
        Footprint(region).value(store.value, Space(store.value.shape).index)
