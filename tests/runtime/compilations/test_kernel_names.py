"""`Dispatch.kernel`: the names that dispatches have in the texts of what is compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest

import stagejit
from stagejit.schedule.plans.parser import parse_plan
from stagejit.schedule.plans.plan import Dispatch, Plan


def program(x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
    """Loops, branches, borders, a split sum, two kernels that are one, and a call of a library."""

    def step(c: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        turned = jax.lax.cond(c.sum() > 0, lambda c: jnp.tanh(c @ w), lambda c: jnp.sort(c), c)
        return turned, turned.sum(0)

    c, sums = jax.lax.scan(step, x, None, length=5)
    return jnp.pad(c, 1) * 2, jnp.cumsum(sums, 0), jnp.cumsum(sums + 1, 0), jnp.linalg.inv(c)


def every(plan: Plan) -> Iterator[Dispatch]:
    for dispatch in plan.dispatches:
        yield dispatch
        for body in dispatch.bodies:
            yield from every(body.plan)


@pytest.fixture
def compiled() -> stagejit.Compiled:
    x = jnp.ones((64, 64))
    made: stagejit.Compiled = stagejit.jit(program).lower(x, x).compile()
    return made


def test_dispatches_say_which_kernel_they_launch(compiled: stagejit.Compiled) -> None:
    text = compiled.as_text("llvm")
    found = list(every(compiled.plan))
    assert {d.kind for d in found} >= {"loop", "branch", "call", "sort", "contract", "cumulative"}
    for dispatch in found:
        if dispatch.kind in ("loop", "branch", "call", "delegate"):
            assert not dispatch.kernel
        else:
            assert f"@{dispatch.kernel}(" in text
    defined = set(re.findall(r"define (?:internal )?void @(sj_k_\w+)\(", text))
    assert {dispatch.kernel for dispatch in found} - {""} <= defined  # of borders there are more


def test_plans_are_else_as_before(compiled: stagejit.Compiled) -> None:
    x = jnp.ones((64, 64))
    planned = stagejit.jit(program).plan(x, x)
    assert not any(dispatch.kernel for dispatch in every(planned))
    assert compiled.plan == planned
    assert compiled.plan.as_text() == planned.as_text()
    assert parse_plan(planned.as_text()).as_text() == compiled.plan.as_text()


def test_what_xla_does_has_no_kernel() -> None:
    delegated = stagejit.jit(lambda x: jax.lax.linalg.eigh(x + 1)[0])
    compiled = delegated.lower(jnp.ones((3, 3))).compile()
    assert [bool(d.kernel) for d in compiled.plan.dispatches] == [
        d.kind not in ("delegate", "call") for d in compiled.plan.dispatches
    ]
