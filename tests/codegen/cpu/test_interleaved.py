"""Stores of one kernel that fill, some of them together, what lies between their lanes: pairs that
each go to a row of one array, as of the transforms of several elements. Without one of a pair, or
of pairs whose rows are apart, they go lane by lane. What they are made of may lie across, and comes
in squares then. Values, and what becomes of the stores.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit import extending
from stagejit.codegen.target import Target
from tests.randomness import RNG

CASES = [(gap, count) for gap in (2, 3, 4, 5, 8) for count in (1, 2, 3) if gap * count <= 14]


def groups(x: Any, gap: int, count: int, missing: int = 0) -> Any:
    """Rows beside each other, of which each has neighbours that all differ; some are zeros."""
    parts = [[x * (gap * row + phase + 2) for phase in range(gap)] for row in range(count)]
    for number in range(missing):
        parts[number % count][number // count] = None
    rows = [
        jnp.stack([jnp.zeros_like(x) if part is None else part for part in row], -1)
        for row in parts
    ]
    return jnp.concatenate(rows, axis=1)


def wanted(x: Any, gap: int, count: int, missing: int = 0) -> Any:
    factors = 2.0 + np.arange(gap * count).reshape(count, 1, gap)
    for number in range(missing):
        factors[number % count, 0, number // count] = 0
    return (x[:, None, :, None] * factors).reshape(len(x), -1, gap).astype(x.dtype)


@pytest.mark.parametrize(("gap", "count"), CASES)
def test_several_groups_leave_as_whole_vectors(gap: int, count: int) -> None:
    machine = extending.cpu("wide", like="avx512")
    options = stagejit.Options(extensions=(machine,))
    x = RNG.standard_normal((6, 40), dtype=np.float32)
    lowered = stagejit.jit(lambda x: groups(x, gap, count), options=options).lower(x)
    assert len(lowered.plan.dispatches) == 1
    loops = lowered.as_text("loops")
    assert "interleaved" in loops
    assert "scatter" not in loops


@pytest.mark.parametrize(("gap", "count"), [(1, 1), (1, 3), (2, 1), (2, 3), (4, 2)])
@pytest.mark.parametrize("shape", [(40, 37), (37, 6), (20, 40)])
def test_many_reads_across_come_in_squares(gap: int, count: int, shape: tuple[int, int]) -> None:
    """However many there are, rather than that stores go lane by lane."""
    machine = extending.cpu("wide", like="avx512")
    options = stagejit.Options(extensions=(machine,), verify=True)
    x, y, z = (RNG.standard_normal(shape, dtype=np.float32) for _ in range(3))

    def across(x: Any, y: Any, z: Any) -> Any:
        return groups(x.T + y.T * z.T, gap, count)

    staged = stagejit.jit(across, options=options)
    loops = staged.lower(x, y, z).as_text("loops")
    assert "square" in loops
    assert "scatter" not in loops
    assert "gather" not in loops
    if Target.host().has_avx512:
        exact = wanted(x.T + np.float64(1) * y.T * z.T, gap, count)
        np.testing.assert_allclose(staged(x, y, z), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.some(4)
@pytest.mark.parametrize("missing", [0, 1, 2])
@pytest.mark.parametrize(("gap", "count"), CASES)
@pytest.mark.parametrize("like", ["native", "avx2", "sse2"])
def test_values(gap: int, count: int, missing: int, like: str) -> None:
    options = stagejit.Options(verify=True)
    if like != "native":
        if not Target.host().is_x86:
            pytest.skip("this machine has other vectors")
        options = replace(options, extensions=(extending.cpu(f"a-{like}", like=like),))
    for columns in (3, 37):
        for shape in ((5, columns), (columns, 5)):
            x = RNG.standard_normal(shape, dtype=np.float32)
            staged = stagejit.jit(lambda x: groups(x.T, gap, count, missing), options=options)
            np.testing.assert_array_equal(staged(x), wanted(x.T, gap, count, missing))
