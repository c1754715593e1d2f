"""C10, S1: what a loop declares is the union over its iterations, exact where they are."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.schedule.plans.plan import Dispatch, Plan
from tests.acceptance.running import f32, run
from tests.schedule.planning import check

XS = f32(6, 4, 8)


def loop_of(plan: Plan) -> Dispatch:
    (loop,) = [d for d in plan.dispatches if d.kind == "loop"]
    return loop


def texts(accesses: Any) -> set[str]:
    return {str(a) for a in accesses if not a.buffer.startswith("w")}


def expected_sums(xs: Any, reverse: bool) -> tuple[Any, Any]:
    total, rows = np.zeros(8), []
    for x in xs[::-1] if reverse else xs:
        rows.append(total.copy())
        total = total + x[1:3].sum(0)
    return total, np.array(rows[::-1] if reverse else rows)


@pytest.mark.parametrize("reverse", [False, True])
def test_slices_of_all_iterations_are_exact(reverse: bool) -> None:
    def f(xs: Any) -> Any:
        def step(total: Any, x: Any) -> Any:
            return total + x[1:3].sum(0), total

        return lax.scan(step, jnp.zeros(8), xs, reverse=reverse)

    plan = run(f, [XS], expected_sums(XS, reverse), off=("simplify-loops", "fuse-rows"))
    loop = loop_of(plan)
    assert "xs[0:6, 1:3, 0:8]" in texts(loop.reads)
    assert "r1[0:6, 0:8]" in texts(loop.writes)
    (body,) = loop.bodies
    bound = {binding.outer: binding for binding in body.bindings}
    first = (5, -1) if reverse else (0, 1)
    assert (bound["xs"].offset_nbytes, bound["xs"].stride_nbytes) == (
        128 * first[0],
        128 * first[1],
    )
    assert (bound["r1"].offset_nbytes, bound["r1"].stride_nbytes) == (32 * first[0], 32 * first[1])
    check(f, XS, orders=2)


def test_a_part_that_every_iteration_updates_is_all_that_is_declared() -> None:
    def f(d: Any, xs: Any) -> Any:
        out, _ = lax.scan(lambda d, x: (d.at[2:4].add(x[:2]), None), d, xs)
        return out, out[2:3] * 2, jnp.exp(out[6:8])

    d = f32(8, 8, seed=1)
    out = d.copy()
    out[2:4] += XS[:, :2].sum(0)
    plan = run(f, [d, XS], (out, out[2:3] * 2, np.exp(out[6:8])), donate_argnums=0)
    loop = loop_of(plan)
    assert texts(loop.writes) == {"d[2:4, 0:8]"}
    assert texts(loop.reads) == {"xs[0:6, 0:2, 0:8]", "d[2:4, 0:8]"}
    waiting = {b.dst: [str(box) for box in b.ranges] for b in plan.barriers if b.src == loop.name}
    (mul,) = [d for d in plan.dispatches if "mul" in d.ops]
    (exp,) = [d for d in plan.dispatches if "exp" in d.ops]
    assert waiting == {mul.name: ["[2:3, 0:8]"]}
    assert exp.name not in waiting


def test_a_row_that_is_known_at_run_time_only_is_a_hull() -> None:
    def f(d: Any, xs: Any, at: Any) -> Any:
        step = lambda d, x: (lax.dynamic_update_slice(d, x[:1], (at, 0)), None)  # noqa: E731
        return lax.scan(step, d, xs)[0]

    d = f32(8, 8, seed=1)
    out = d.copy()
    out[5] = XS[-1, 0]
    plan = run(f, [d, XS, np.int32(5)], out, donate_argnums=0)
    assert texts(loop_of(plan).writes) == {"~d[0:8, 0:8]"}
    assert "xs[0:6, 0:1, 0:8]" in texts(loop_of(plan).reads)


def test_constant_results_are_no_work_of_the_loop() -> None:
    def f(xs: Any, w: Any) -> Any:
        def step(total: Any, x: Any) -> Any:
            return total + x[0], (jnp.exp(w), x, jnp.float32(1), total)

        return lax.scan(step, jnp.zeros(8), xs)

    w = f32(3, 5)
    total, rows = np.zeros(8), []
    for x in XS:
        rows.append(total)
        total = total + x[0]
    expected = (total, (np.tile(np.exp(w), (6, 1, 1)), XS, np.ones(6), np.array(rows)))
    plan = run(f, [XS, w], expected, off=("simplify-loops",))
    loop = loop_of(plan)
    assert texts(loop.reads) == {"xs[0:6, 0:1, 0:8]", "r0[0:8]"}
    assert texts(loop.writes) == {"r0[0:8]", "r4[0:6, 0:8]"}


def test_what_moves_within_slices_is_a_diagonal() -> None:
    """Each iteration reads another element of another slice: not all of the slices is read."""

    def f(xs: Any) -> Any:
        def step(total: Any, each: Any) -> Any:
            x, i = each
            return total + x[i], None

        return lax.scan(step, jnp.zeros(8), (xs, jnp.arange(4)))[0]

    xs = f32(4, 4, 8)
    loop = loop_of(check(f, xs, orders=2))
    assert "~arg0[0:4, 0:4, 0:8]" in texts(loop.reads)
