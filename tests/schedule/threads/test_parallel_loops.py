"""Which loops run their iterations on several threads, why others do not, and what of it the
verifier refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.base.decisions import Decision
from stagejit.base.machine import Machine
from stagejit.dispatch.regions import regions_of
from stagejit.errors import VerificationError
from stagejit.options import Options
from stagejit.schedule.build import schedule
from stagejit.schedule.plans.plan import Binding, Body, Buffer, Counter, Plan
from stagejit.schedule.threads.parallel_loops import NAME
from stagejit.schedule.verifier.iterations import verify_iterations
from stagejit.schedule.verifier.plans import verify_plan
from stagejit.types import u8
from tests.randomness import RNG
from tests.schedule.planning import check, checked_dispatches, plan_of, prepared


def array(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


X, W = array(64, 32, 32), array(32, 32)


def decision_of(plan: Plan) -> Decision:
    """That of the outermost loop, the only one."""
    (loop,) = [d for d in plan.dispatches if d.kind == "loop"]
    (found,) = [d for d in plan.decisions if d.rewrite == NAME and f"@{loop.name} " in d.op]
    return found


def body_of(plan: Plan) -> Body:
    (loop,) = [d for d in plan.dispatches if d.kind == "loop"]
    return loop.bodies[0]


def softmax_rows(x: Any, w: Any) -> Any:
    return lax.map(lambda r: jax.nn.softmax(r @ w, axis=-1) @ w, x)


def test_threads_have_transients_of_their_own() -> None:
    plan = check(softmax_rows, X, W)
    one = plan_of(softmax_rows, X, W, options=Options(disable=(NAME,)))
    assert decision_of(plan).applied
    assert (body_of(plan).threads, body_of(one).threads) == (2, 1)
    assert "64 times on 2 threads in w0 {" in plan.as_text()
    assert plan.peak_nbytes == 2 * one.peak_nbytes == 2 * W.nbytes
    assert not [d for d in one.decisions if d.rewrite == NAME]


def chains(x: Any) -> Any:
    def row(r: Any) -> Any:
        for _ in range(8):
            r = jnp.tanh(r @ x[0])
        return r

    return lax.map(row, x)


@pytest.mark.parametrize("count", [2, 3, 9])
def test_any_number_of_iterations(count: int) -> None:
    assert decision_of(check(chains, array(count, 64, 64))).applied


OFFSETS: dict[str, tuple[Callable[[Any, Any], Any], bool]] = {
    "counted": (lambda i, k: i + 3, True),
    "backwards": (lambda i, k: 63 - i, True),
    "in steps": (lambda i, k: 2 * i + 1, True),
    "from an element": (lambda i, k: i + k[0], False),
    "and a remainder": (lambda i, k: i + i % 2 * 3, False),
    "in steps, and a remainder": (lambda i, k: 2 * i + i % 3, False),
    "and a smaller one": (lambda i, k: i + jnp.minimum(i, 5), False),
    "and a choice": (lambda i, k: i + jnp.where(i < 4, 0, 1), False),
    "squared": (lambda i, k: i * i, False),
    "a cubic that starts as a line": (lambda i, k: 70 + i - i * (i - 1) * (i - 2), False),
    "and an element": (lambda i, k: i + k[i], False),
    "times what stays": (lambda i, k: i * k[0], False),
}


@pytest.mark.parametrize("name", OFFSETS)
def test_offsets_that_count(name: str) -> None:
    """Those that threads may write at; the verifier looks at each iteration."""
    offset, apart = OFFSETS[name]

    def f(x: Any, w: Any, k: Any) -> Any:
        def row(i: Any, x: Any) -> Any:
            made = jnp.tanh(jnp.sort(w[i]) @ w[0]).sum(0)
            return lax.dynamic_update_slice(x, made[None], (offset(i, k), 0))

        return lax.fori_loop(0, 64, row, x)

    w = array(64, 128, 128)
    plan = plan_of(f, array(4300, 128), w, np.arange(64, dtype=np.int32))
    assert (body_of(plan).threads > 1) == apart
    verify_plan(plan)
    args = array(4300, 128), w, np.arange(64, dtype=np.int32)
    shared, alone = (stagejit.jit(f, options=Options(disable=off)) for off in ((), (NAME,)))
    np.testing.assert_array_equal(shared(*args), alone(*args))


def test_iterations_may_run_backwards() -> None:
    def f(x: Any) -> Any:
        return lax.scan(lambda c, r: (c, jnp.exp(r @ r)), 0, x, reverse=True)[1]

    assert decision_of(check(f, X)).applied


def test_the_outermost_loop_is_shared() -> None:
    def f(x: Any) -> Any:
        return lax.map(lambda rows: lax.map(lambda r: jnp.exp(jnp.sort(r)), rows), x)

    plan = check(f, X)
    outer = body_of(plan)
    assert outer.threads == 2
    assert body_of(outer.plan).threads == 1
    inner = [d for d in plan.decisions if d.rewrite == NAME and not d.applied]
    assert [d.reason for d in inner] == ["threads share a loop around it"]


def test_a_loop_in_a_loop_that_is_not_shared() -> None:
    def f(x: Any, w: Any) -> Any:
        return lax.fori_loop(0, 5, lambda _, x: softmax_rows(x, w), x)

    plan = check(f, X, W)
    assert body_of(plan).threads == 1
    assert body_of(body_of(plan).plan).threads == 2


def test_loops_and_branches_in_iterations() -> None:
    def row(r: Any) -> Any:
        s = lax.fori_loop(0, 3, lambda i, s: jnp.tanh(s) * i, r)
        return lax.cond(jnp.sum(r) > 0, jnp.sin, jnp.cos, s)

    assert decision_of(check(lambda x: lax.map(row, x), X)).applied


def test_gathers_in_iterations() -> None:
    def f(x: Any, at: Any) -> Any:
        return lax.map(lambda i: jnp.exp(x[i]), at)

    assert decision_of(check(f, X, RNG.integers(-3, 70, 64).astype(np.int32))).applied


def previous_row(x: Any) -> Any:
    return lax.scan(lambda last, r: (r, jnp.exp(r - last)), x[0], x)[1]


def counted(first: int, step: int, kind: Any) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        return lax.scan(lambda c, r: (c + kind(step), jnp.tanh(r @ r) * c), kind(first), x)

    return f


@pytest.mark.parametrize(("first", "step", "kind"), [
    (0, 1, jnp.int32), (100, -3, jnp.int8), (-7, 5, jnp.int16), (1, 4, jnp.uint8)
])  # fmt: skip
def test_threads_know_what_counts_iterations(first: int, step: int, kind: Any) -> None:
    f = counted(first, step, kind)
    plan = check(f, X[:63])
    assert decision_of(plan).applied
    assert (
        f"count carry0 = {first} {'-' if step < 0 else '+'} {abs(step)}*i to r0" in plan.as_text()
    )


def rows_written(x: Any) -> Any:
    return lax.fori_loop(3, 60, lambda i, y: y.at[i - 2].set(jnp.exp(x[i] @ x[0])), x)


def rows_updated(x: Any) -> Any:
    return lax.fori_loop(3, 60, lambda i, y: y.at[i - 2].add(jnp.exp(y[i - 2] @ x[0])), x)


def columns_written(x: Any) -> Any:
    def step(i: Any, y: Any) -> Any:
        return lax.dynamic_update_slice(y, jnp.exp(x[i] @ x[0])[:, None], (0, i, 0))

    return lax.fori_loop(0, 64, step, jnp.swapaxes(x, 0, 1))


@pytest.mark.parametrize("f", [rows_written, rows_updated, columns_written])
@pytest.mark.parametrize("donated", [False, True])
def test_destinations_of_which_each_iteration_writes_its_part(
    f: Callable[[Any], Any], donated: bool
) -> None:
    assert decision_of(check(f, X, donated=(donated,))).applied


def row_before(x: Any) -> Any:
    return lax.fori_loop(1, 64, lambda i, y: y.at[i].set(jnp.exp(y[i - 1] @ x[0])), x)


def row_behind(x: Any) -> Any:
    return lax.fori_loop(0, 63, lambda i, y: y.at[i].set(jnp.exp(y[i + 1] @ x[0])), x)


def two_rows(x: Any) -> Any:
    def step(i: Any, y: Any) -> Any:
        return lax.dynamic_update_slice(y, jnp.exp(x[:2] @ x[i]), (i, 0, 0))

    return lax.fori_loop(0, 62, step, x)


def one_row(x: Any) -> Any:
    return lax.fori_loop(0, 64, lambda i, y: y.at[7].set(jnp.exp(x[i] @ x[0])), x)


def clamped(x: Any) -> Any:
    def step(i: Any, y: Any) -> Any:
        return lax.dynamic_update_slice(y, jnp.exp(x[i] @ x[:1]), (i + 10, 0, 0))

    return lax.fori_loop(0, 64, step, x)


def doubled(x: Any) -> Any:
    return lax.scan(lambda c, r: (c * 2, jnp.tanh(r @ r) * c), 1, x)


def turned(x: Any) -> Any:
    return lax.scan(lambda c, r: ((c[1], jnp.tanh(c[0])), jnp.exp(r)), (x[0], x[1]), x)


def running(x: Any) -> Any:
    return lax.scan(lambda total, r: (total + r, total), x[0], x)


def printed(x: Any) -> Any:
    row = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    return lax.map(lambda r: jax.pure_callback(np.sin, row, r @ r), x)


def halved(x: Any) -> Any:
    return lax.while_loop(lambda x: jnp.max(x) > 1, lambda x: x / 2, x)


def once(x: Any) -> Any:
    return lax.map(lambda r: jnp.exp(r @ r), x[:1])


def rows(x: Any) -> Any:
    return softmax_rows(x, W)


def at_random(x: Any) -> Any:
    def step(x: Any, r: Any) -> Any:
        return x.at[r[0, 0].astype(int) % 64].set(jnp.exp(r)), None

    return lax.scan(step, x, x)[0]


@pytest.mark.parametrize(("f", "options", "reason"), [
    (turned, {}, "an iteration waits for carry1 of the one before"),
    (previous_row, {}, "may be read by another one"),
    (running, {}, "may be read by another one"),
    (at_random, {}, "may be written by another one"),
    (row_before, {}, "may be read by another one"),
    (row_behind, {}, "may be read by another one"),
    (two_rows, {}, "may be written by another one"),
    (one_row, {}, "may be written by another one"),
    (clamped, {}, "may be written by another one"),
    (doubled, {}, "may be read by another one"),
    (printed, {}, "calls Python, which sees iterations in order"),
    (halved, {}, "a condition ends it"),
    (rows, {"full_barriers": True}, "all dispatches run one after the other"),
    (rows, {"memory_budget": 8191}, "are over the memory budget"),
    (lambda x: lax.map(lambda r: r + 1, x[:8, :4, :4]), {}, "us, one after the other"),
    (lambda x: lax.map(lambda r: jnp.tile(r, (1000, 1000)).cumsum(0).cumsum(1)[0], x[:4]),
     {}, "do not fit in the caches"),
])  # fmt: skip
def test_dont_share(f: Callable[[Any], Any], options: dict[str, Any], reason: str) -> None:
    decision = decision_of(plan_of(f, X, options=Options(**options)))
    assert not decision.applied
    assert reason in decision.reason


def on(machine: Machine, f: Callable[..., Any], *args: Any) -> Plan:
    dispatches, _ = checked_dispatches(prepared(f, args), Options())
    return schedule(dispatches, regions_of(dispatches), machine=machine).plan


def test_dont_share_on_one_core() -> None:
    decision = decision_of(on(Machine(cores=1), rows, X))
    assert (decision.applied, decision.reason) == (False, "there is one core")


def test_dont_share_where_kernels_run_one_after_the_other() -> None:
    decision = decision_of(on(Machine(cores=64, side_by_side=False), rows, X))
    assert not decision.applied
    assert decision.reason == "kernels of all iterations run one after the other"


def test_threads_are_not_more_than_iterations() -> None:
    assert (
        body_of(on(Machine(cores=16), softmax_rows, array(6, 64, 64), array(64, 64))).threads == 6
    )


def test_dont_share_what_is_uneven_where_kernels_fork_well() -> None:
    x, w = array(3, 256, 256), array(256, 256)
    assert not decision_of(plan_of(softmax_rows, x, w)).applied
    assert decision_of(plan_of(softmax_rows, array(4, 256, 256), w)).applied


def with_body(plan: Plan, body: Body) -> Plan:
    return replace(
        plan,
        dispatches=tuple(
            replace(d, bodies=(body,)) if d.kind == "loop" else d for d in plan.dispatches
        ),
    )


def test_dont_accept_threads_that_share() -> None:
    """What the planner declines the verifier refuses, and parts of a workspace that overlap."""
    for f, fault in (
        (turned, "carries that move"),
        (running, "share elements of carry0"),
        (halved, "a condition ends"),
    ):
        plan = plan_of(f, X)
        verify_plan(plan)
        with pytest.raises(VerificationError, match=fault):
            verify_plan(with_body(plan, replace(body_of(plan), threads=2)))
    plan = plan_of(rows, X)
    for threads, fault in ((3, "unequal parts"), (4, "transients leave"), (0, "0 threads")):
        with pytest.raises(VerificationError, match=fault):
            verify_plan(with_body(plan, replace(body_of(plan), threads=threads)))


def test_dont_accept_counters_that_do_not_count() -> None:
    plan = plan_of(rows_written, X)
    body = body_of(plan)
    (counter,) = body.counters
    for bad, fault in (
        (replace(body, counters=()), "threads share carry0"),
        (replace(body, counters=(replace(counter, first=2),)), "not what offsets count by"),
        (replace(body, counters=(replace(counter, step=1 << 30),)), "wraps"),
        (replace(body, counters=(replace(counter, buffer="carry1"),)), "of their own"),
        (replace(body, counters=(replace(counter, outer="arg0"),)), "does not say that it writes"),
    ):
        with pytest.raises(VerificationError, match=fault):
            verify_plan(with_body(plan, bad))


@pytest.mark.parametrize("f", [row_before, two_rows, one_row, clamped])
def test_dont_accept_iterations_that_overlap(f: Callable[[Any], Any]) -> None:
    plan = plan_of(f, X)
    body, workspace = body_of(plan), Buffer("w", (256,), u8, "transient")
    (carry,) = [each for each in body.bindings if each.buffer == "carry0"]
    others = tuple(each for each in body.bindings if each is not carry)
    (first,) = [s.counts for s in body.plan.scalars if s.formula == "carry0"] or [(0, 1)]
    shared = replace(
        body,
        bindings=(Binding("carry0", "w"), *others),
        workspace="w",
        threads=2,
        counters=(Counter("carry0", carry.outer, *(first or (0, 1))),),
    )
    (loop,) = [d for d in plan.dispatches if d.kind == "loop"]
    with pytest.raises(VerificationError, match="share elements of carry1"):
        verify_iterations("body", loop, shared, {"w": workspace})


def test_explain_tells_of_threads() -> None:
    notes = stagejit.jit(softmax_rows).explain(X, W).chosen
    reasons = [note.reason for note in notes if note.name == "threads"]
    assert len(reasons) == 3
    cores = stagejit.jit(softmax_rows).plan(X, W).dispatches[0].bodies[0].threads
    assert cores == 1 or set(reasons) == {f"on one core, beside {cores - 1} with other iterations"}
