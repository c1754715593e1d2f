"""leave-bodies: what is decided, why, and that neither choice changes a result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.base.decisions import Decision
from stagejit.options import Options
from stagejit.runtime.cpu.loader import call_count
from tests.expected.left import left
from tests.randomness import RNG

STAGED = Options(disable=("leave-bodies",))


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def unsupported(x: Any) -> Any:
    """something that XLA has to run"""
    return left(x)[: x.shape[0] // 2 + 1]


def small(x: Any, xs: Any) -> Any:
    def body(c: Any, row: Any) -> Any:
        c = jnp.tanh(c + row)
        return c * 2 - jnp.pad(unsupported(c), (0, c.shape[0] // 2 - 1)), c[0]

    return lax.scan(body, x, xs)


def large(x: Any, xs: Any) -> Any:
    return small(jnp.tile(x, 512), jnp.tile(xs, (1, 512)))


def nested(x: Any, xs: Any) -> Any:
    """the body of the outer loop has little to do but for what the inner loops do"""

    def body(c: Any, row: Any) -> Any:
        return small(c, xs + row)[0], None

    return lax.scan(body, x, xs)


def nothing(x: Any, xs: Any) -> Any:
    return lax.scan(lambda c, _: (left(c), None), x + 0j, xs)


def until(x: Any, xs: Any) -> Any:
    def body(state: Any) -> Any:
        count, c = state
        return count + 1, jnp.tanh(c) - jnp.pad(unsupported(c), (0, 7)) * 0.1

    return lax.while_loop(lambda state: state[0] < 5, body, (0, x))


def either(x: Any, xs: Any) -> Any:
    return lax.cond(x[0] > 0, lambda: unsupported(jnp.sin(x)), lambda: unsupported(x * 2) + 1)


def decisions(f: Callable[..., Any], *args: Any, options: Options) -> list[Decision]:
    plan = stagejit.jit(f, options=options).plan(*args)
    return [d for d in plan.decisions if d.rewrite == "leave-bodies"]


WITHOUT_WORK = "the bodies of XLA's loops have nothing for us to compile"
ARGS = normal(16), normal(4, 16)


@pytest.mark.parametrize("f", [small, nested, until, either])
def test_small_bodies_are_left(f: Callable[..., Any]) -> None:
    (decision,) = decisions(f, *ARGS, options=Options())
    assert decision.applied
    assert "of work for us, of which we would save" in decision.reason
    assert decision.loc.file == __file__
    staged = stagejit.jit(f)
    jax.block_until_ready(staged(*ARGS))
    before = call_count()
    jax.block_until_ready(staged(*ARGS))
    assert call_count() - before <= 3  # what is before and behind the loop


def test_large_bodies_are_staged() -> None:
    (decision,) = decisions(large, *ARGS, options=Options())
    assert not decision.applied
    assert "which cost" in decision.reason
    staged = stagejit.jit(large)
    jax.block_until_ready(staged(*ARGS))
    before = call_count()
    jax.block_until_ready(staged(*ARGS))
    assert call_count() - before >= 4  # one a turn at least


def test_all_or_none() -> None:
    """see Note [All or none]"""

    def f(x: Any, xs: Any) -> Any:
        return small(x, xs), large(x, xs), nothing(x, xs)

    made = decisions(f, *ARGS, options=Options())
    assert len(made) == 3
    assert len({(decision.applied, decision.reason) for decision in made}) == 1


def test_a_body_without_work() -> None:
    (decision,) = decisions(nothing, *ARGS, options=Options())
    assert (decision.applied, decision.reason) == (True, WITHOUT_WORK)


def test_disabled() -> None:
    (decision,) = decisions(small, *ARGS, options=STAGED)
    assert (decision.applied, decision.reason) == (False, "leave-bodies is disabled")


def test_no_decision_without_loops_of_xla() -> None:
    def f(x: Any, xs: Any) -> Any:
        return lax.scan(lambda c, row: (c + row, None), unsupported(x), xs[:, :9])

    assert not decisions(f, *ARGS, options=Options())


@pytest.mark.parametrize("options", [Options(), STAGED], ids=["left", "staged"])
@pytest.mark.parametrize("f", [small, large, nested, nothing, until, either])
def test_results(f: Callable[..., Any], options: Options) -> None:
    ours, reference = stagejit.jit(f, options=options)(*ARGS), jax.jit(f)(*ARGS)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(reference), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
