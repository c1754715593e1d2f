"""Whole programs of rows whose axes, views and strides are not those of memory, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from tests.randomness import RNG


def again_elsewhere(x: Any, w: Any) -> Any:
    e = jnp.exp(x)
    return e / (e[:, ::-1] * w).sum(1, keepdims=True)


def less_maximum(x: Any) -> Any:
    return x.T - x.T.max(1, keepdims=True)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "softmax over axes that memory has in another order": (
        lambda x: jax.nn.softmax(x.transpose(0, 2, 1), axis=(1, 2)),
        ((4, 20, 40),),
    ),
    "softmax of a tiled row": (lambda x: jax.nn.softmax(jnp.tile(x, 2)), ((4,),)),
    "exponentials at other elements": (again_elsewhere, ((4, 300), (4, 300))),
    "a stack of twelve": (lambda x: jnp.stack([x * k for k in range(1, 13)], -1), ((37,),)),
    "columns stored as rows": (less_maximum, ((12, 100),)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_row_programs(name: str, dtype: Any) -> None:
    fn, shapes = PROGRAMS[name]
    args = [np.abs(RNG.standard_normal(shape)).astype(dtype) for shape in shapes]
    with jax.enable_x64(True):
        wanted = jax.jit(fn)(*(arg.astype(np.float64) for arg in args))
        options = stagejit.Options(delegate=False, verify=True)
        found = stagejit.jit(fn, options=options)(*args)
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
