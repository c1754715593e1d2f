"""The cost table: plausible orders of magnitude, an entry for every function."""

from __future__ import annotations

import pytest

from stagejit import types
from stagejit.codegen.math.functions import SCALAR_FUNCTIONS, cost
from tests.codegen.math.scalar_kernels import defined


@pytest.mark.parametrize("name", SCALAR_FUNCTIONS)
def test_every_function_costs_something(name: str) -> None:
    for dtype in (types.f32, types.f64, types.bf16, types.i8, types.i64, types.u32, types.bool_):
        if defined(name, dtype):
            assert 0 < cost(name, dtype) < 2000


def test_order_of_magnitude() -> None:
    assert cost("add", types.f32) == 1
    assert cost("add", types.f64) == 2
    assert cost("exp", types.f32) > 8 * cost("add", types.f32)
    assert cost("pow", types.f32) > cost("exp", types.f32)
    assert cost("exp", types.f64) > 2 * cost("exp", types.f32)
    assert cost("exp", types.bf16) > cost("exp", types.f32)
    assert cost("div", types.i64) > cost("div", types.i32) > cost("add", types.i32)
    assert cost("add", types.i8) < cost("add", types.i32)
