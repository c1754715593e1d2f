"""What readers compute instead of loading: a transcendental once and never twice."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.dispatch.forming.demand import MOST_PLACES
from tests.schedule.planning import check

X = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
NBYTES = X.nbytes


def test_the_only_reader_evaluates_a_transcendental_of_what_is_stored_anyway() -> None:
    """A residual of a gradient: cos of the activation, wanted much later."""

    def f(x: Any, w: Any) -> Any:
        h = jnp.tanh(x @ w)
        return jnp.cos(h) * (jnp.sin(h) @ w), h

    plan = check(f, X, X)
    assert [d.ops.count("cos") for d in plan.dispatches] == [0, 1]
    assert plan.transient_nbytes == NBYTES  # the sine


def test_what_its_own_dispatch_needs_is_not_evaluated_again() -> None:
    def f(x: Any, w: Any) -> Any:
        h = jnp.tanh(x @ w)
        c = jnp.cos(h)
        return c * ((c + 1) @ w @ w), h

    plan = check(f, X, X)
    assert sum(d.ops.count("cos") for d in plan.dispatches) == 1


def test_two_readers_load_it() -> None:
    def f(x: Any, w: Any) -> Any:
        h = jnp.tanh(x @ w)
        c = jnp.cos(h)
        return c * (jnp.sin(h) @ w), c + (h @ w), h

    plan = check(f, X, X)
    assert sum(d.ops.count("cos") for d in plan.dispatches) == 1


def test_it_is_not_moved_where_its_operand_would_have_to_be_stored() -> None:
    def f(x: Any, w: Any) -> Any:
        h = x @ w
        return jnp.cos(h) * (jnp.sin(x) @ w)

    plan = check(f, X, X)
    assert plan.transient_nbytes <= 2 * NBYTES
    assert sum(d.ops.count("cos") for d in plan.dispatches) == 1


def test_a_tree_of_halves_is_stored_before_its_code_doubles_too_often() -> None:
    """Nothing is evaluated twice, but the kernel of the root would have the code of all leaves."""

    def f(x: Any) -> Any:
        while x.size > 1:
            x = x[0::2] * x[1::2] + 1
        return x

    def dispatches(levels: int) -> int:
        return len(check(f, X.reshape(-1)[: 2**levels]).dispatches)

    fused = MOST_PLACES.bit_length()
    assert dispatches(fused) == 1
    assert dispatches(fused + 1) == 2
    assert dispatches(2 * fused + 1) == 3


def readers_of_what_is_found(x: Any, i: Any, j: Any) -> Any:
    m = x[i]
    sums = [jax.ops.segment_sum(m, k, 50) for k in (j, (j + 7) % 50)]
    return jax.ops.segment_max(m, j, 50), sums


@pytest.mark.parametrize(("size", "found"), [(1 << 10, 3), (1 << 17, 1), (1 << 20, 1)])
def test_an_element_that_is_found_far_away_is_found_once(size: int, found: int) -> None:
    r = np.random.default_rng(size)
    i, j = r.integers(-size, size, 50_000), r.integers(0, 50, 50_000)
    args = r.standard_normal(size).astype(np.float32), i.astype(np.int32), j.astype(np.int32)
    plan = check(readers_of_what_is_found, *args)
    assert sum(d.ops.count("gather") for d in plan.dispatches) == found


def test_rows_that_fill_lines_are_found_by_each_reader() -> None:
    """A table beyond caches, of which each reader takes whole lines: storing saves nothing."""
    r = np.random.default_rng(3)
    x = r.standard_normal((1 << 14, 32)).astype(np.float32)
    i, j = r.integers(0, 1 << 14, 4000), r.integers(0, 50, 4000)
    plan = check(readers_of_what_is_found, x, i.astype(np.int32), j.astype(np.int32))
    assert sum(d.ops.count("gather") for d in plan.dispatches) == 3


def test_a_comparison_of_what_its_readers_read_anyway_is_not_stored() -> None:
    """The wrap of negative indices: i < 0 costs nothing where i is at hand."""
    r = np.random.default_rng(4)
    size = 50_000
    i = r.integers(-1000, 1000, size).astype(np.int32)
    j = r.integers(0, 50, size).astype(np.int32)
    plan = check(readers_of_what_is_found, r.standard_normal(1000).astype(np.float32), i, j)
    assert all("lt" not in d.ops or "gather" in d.ops for d in plan.dispatches)
