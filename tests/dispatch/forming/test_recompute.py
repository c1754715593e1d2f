"""What readers compute instead of loading: a transcendental once and never twice."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

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
