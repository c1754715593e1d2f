"""A13: what a branch reads and writes is the union of what its branches do, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.index.box import Box
from stagejit.schedule.plans.plan import Access, Dispatch, Plan
from tests.acceptance.running import f32, plan_of, reasons, run
from tests.schedule.planning import check
from tests.schedule.planning import plan_of as planned

D, V = f32(64, 8), f32(4, 8, seed=1)
LARGE = jax.ShapeDtypeStruct((1 << 14, 1 << 10), jnp.float32)
ROWS = jax.ShapeDtypeStruct((100, 1 << 10), jnp.float32)


def of_kind(plan: Plan, kind: str) -> Dispatch:
    (found,) = [d for d in plan.all_dispatches() if d.kind == kind]
    return found


def boxes(accesses: tuple[Access, ...]) -> set[str]:
    return {str(access) for access in accesses}


def whole_copies(plan: Plan, nbytes: int) -> int:
    """Dispatches that write as much as that for sure, and carries that are copied."""
    writing = [d for d in plan.all_dispatches() if d.kind not in ("loop", "branch")]
    moved = [c for d in plan.all_dispatches() for body in d.bodies for c in body.carries]
    full = (a.exact and a.nbytes >= nbytes for d in writing for a in d.writes)
    return len(moved) + sum(full)


def rows_set(p: Any, d: Any, v: Any) -> Any:
    return lax.cond(p, lambda d: d.at[0:4].set(v), lambda d: d, d)


def rows_of_a_switch(i: Any, d: Any, v: Any) -> Any:
    steps = [
        lambda d: d.at[0:4].set(v),
        lambda d: d.at[8:12].add(v),
        lambda d: d.at[3, 3].set(0),
        lambda d: d,
    ]
    return lax.switch(i, steps, d)


def numpy_switch(i: int, d: Any, v: Any) -> Any:
    d = d.copy()
    if i == 0:
        d[0:4] = v
    elif i == 1:
        d[8:12] += v
    elif i == 2:
        d[3, 3] = 0
    return d


def test_a_branch_writes_the_rows_that_it_updates_into_a_donated_operand() -> None:
    for p in (True, False):
        expected = numpy_switch(0 if p else 3, D, V)
        plan = run(rows_set, [np.bool_(p), D, V], expected, off=("update-branches",),
                   donate_argnums=1)  # fmt: skip
    branch = of_kind(plan, "branch")
    assert boxes(branch.writes) == {"?d[0:4, 0:8]"}
    assert boxes(branch.reads) == {"p[]", "?v[0:4, 0:8]"}
    assert whole_copies(plan, D.nbytes) == 0
    assert plan.peak_nbytes == 0


def test_off_every_branch_copies() -> None:
    plan = plan_of(rows_set, np.bool_(True), D, V, disable=["update-branches"], donate_argnums=1)
    assert whole_copies(plan, D.nbytes) == 2


def test_an_operand_that_is_not_donated_is_copied_once_before_the_branch() -> None:
    plan = run(rows_set, [np.bool_(True), D, V], numpy_switch(0, D, V))
    (copy,) = [d for d in plan.dispatches if d.kind == "copy"]
    assert boxes(copy.writes) == {"r0[0:64, 0:8]"}
    assert whole_copies(plan, D.nbytes) == 1
    (barrier,) = plan.barriers
    assert (barrier.hazard, [str(box) for box in barrier.ranges]) == ("WAW", ["[0:4, 0:8]"])


@pytest.mark.parametrize("i", [-1, 0, 1, 2, 3, 9])
def test_branches_that_touch_different_boxes(i: int) -> None:
    args = [np.int32(i), D, V]
    expected = numpy_switch(min(max(i, 0), 3), D, V)
    plan = run(rows_of_a_switch, args, expected, off=("simplify-branches",), donate_argnums=1)
    branch = of_kind(plan, "branch")
    assert boxes(branch.writes) == {"?d[0:4, 0:8]", "?d[8:12, 0:8]"}
    assert boxes(branch.reads) == {"i[]", "?v[0:4, 0:8]", "?d[8:12, 0:8]"}
    assert whole_copies(plan, D.nbytes) == 0


def test_barriers_name_the_boxes_of_the_branch_alone() -> None:
    def f(i: Any, d: Any, v: Any) -> Any:
        e = rows_of_a_switch(i, jnp.exp(d), v)
        return e, jnp.tanh(e[8:10]), jnp.sin(e[20:24])

    e = np.exp(D)
    e[0:4] = V
    args = [np.int32(0), D, V]
    plan = run(f, args, (e, np.tanh(e[8:10]), np.sin(e[20:24])), off=("update-branches",))
    names = {op: d.name for d in plan.dispatches for op in d.ops}
    found = {
        (b.src, b.dst): {str(box) for box in b.ranges} for b in plan.barriers if b.hazard == "RAW"
    }
    assert found[names["branch"], names["tanh"]] == {"[8:10, 0:8]"}
    assert found[names["exp"], names["branch"]] == {"[8:12, 0:8]"}
    assert found[names["exp"], names["sin"]] == {"[20:24, 0:8]"}
    assert (names["branch"], names["sin"]) not in found
    check(f, *args, orders=6)


def test_what_lies_beside_the_boxes_is_read_without_a_copy() -> None:
    def f(p: Any, d: Any, v: Any) -> Any:
        u = d[20:24]
        return rows_set(p, d, v), jnp.exp(u) + jnp.exp(u.T).sum()

    plan = planned(f, np.bool_(True), D, V, donated=(False, True, False))
    assert whole_copies(plan, D.nbytes) == 0
    assert "copy" not in [d.kind for d in plan.dispatches]
    assert plan.peak_nbytes < V.nbytes


def row_in_a_scan(d: Any, xs: Any) -> Any:
    def step(c: Any, ix: Any) -> Any:
        i, x = ix
        row = jnp.tanh(x)
        return lax.cond(x[0] > 0, lambda c: c.at[i].set(row), lambda c: c, c), None

    return lax.scan(step, d, (jnp.arange(xs.shape[0]), xs))[0]


def rows_in_nested_conds(d: Any, xs: Any) -> Any:
    def step(c: Any, x: Any) -> Any:
        def inner(c: Any) -> Any:
            return lax.cond(x[1] > 0, lambda c: c.at[5:6].set(x[None]), lambda c: c, c)

        return lax.cond(x[0] > 0, inner, lambda c: c.at[2].add(x), c), x.sum()

    return lax.scan(step, d, xs)[0]


def scan_in_a_cond(d: Any, xs: Any) -> Any:
    def rows(d: Any) -> Any:
        return lax.scan(lambda c, x: (c.at[3:4].add(x[None]), None), d, xs)[0]

    return lax.cond(xs[0, 0] > 0, rows, lambda d: d.at[1:2].set(0.0), d)


NESTED: list[Callable[..., Any]] = [row_in_a_scan, rows_in_nested_conds, scan_in_a_cond]


@pytest.mark.parametrize("f", NESTED, ids=lambda f: f.__name__)
def test_nested_control_flow_updates_a_carry_of_64_mib_in_place(f: Any) -> None:
    plan = stagejit.jit(f, donate_argnums=0).plan(LARGE, ROWS)
    assert whole_copies(plan, 1 << 20) == 0
    assert plan.peak_nbytes < 1 << 14
    undonated = stagejit.jit(f).plan(LARGE, ROWS)
    assert whole_copies(undonated, 1 << 20) == 1
    assert [d.kind for d in undonated.dispatches].count("copy") == 1


@pytest.mark.parametrize("f", NESTED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("sign", [1, -1])
def test_nested_values(f: Any, sign: int) -> None:
    args = [f32(16, 8), sign * np.abs(f32(6, 8, seed=2))]
    off = ("update-branches", "simplify-branches", "simplify-loops", "reuse-arguments")
    run(f, args, f(*map(jnp.asarray, args)), off=off, donate_argnums=0)
    check(f, *args, donated=(True, False), orders=4)


def test_loops_in_branches_declare_the_rows_that_they_update() -> None:
    plan = planned(scan_in_a_cond, D, f32(6, 8), donated=(True, False))
    branch = next(d for d in plan.dispatches if d.kind == "branch")
    assert boxes(branch.writes) == {"?arg0[1:2, 0:8]", "?arg0[3:4, 0:8]"} or boxes(
        branch.writes
    ) == {"?arg0[1:4:2, 0:8]"}


def test_dont_copy_for_a_branch_that_computes_all_of_its_result() -> None:
    def f(p: Any, d: Any) -> Any:
        return lax.cond(p, lambda d: d.at[0].set(1.0), lambda d: d[::-1] * 2, d)

    plan = plan_of(f, np.bool_(True), D)
    assert [d.kind for d in plan.dispatches] == ["branch"]
    assert reasons(plan, "update-branches", applied=False) == [
        "a branch computes all of it, and the operand would be copied for it in vain"
    ]
    assert reasons(plan_of(f, np.bool_(True), D, donate_argnums=1), "update-branches", applied=True)
    for p, expected in ((True, np.concatenate([np.ones((1, 8)), D[1:]])), (False, D[::-1] * 2)):
        run(f, [np.bool_(p), D], expected, off=("update-branches",), donate_argnums=1)


def test_carries_of_a_branch_that_change_places() -> None:
    def f(p: Any, a: Any, b: Any) -> Any:
        return lax.cond(p, lambda a, b: (b, a), lambda a, b: (a, b.at[0].set(0.0)), a, b)

    a, b = D, f32(64, 8, seed=3)
    zeroed = np.concatenate([np.zeros((1, 8)), b[1:]])
    for p, expected in ((True, (b, a)), (False, (a, zeroed))):
        run(f, [np.bool_(p), a, b], expected, off=("update-branches",), donate_argnums=(1, 2))


def test_a_read_after_the_update_is_no_reason_to_lose_the_old_contents() -> None:
    def f(p: Any, d: Any) -> Any:
        new = lax.cond(p, lambda d: d.at[0:2].set(0.0), lambda d: d, d)
        return new + d[::-1]

    zeroed = np.concatenate([np.zeros((2, 8)), D[2:]])
    for p, expected in ((True, zeroed + D[::-1]), (False, D + D[::-1])):
        run(f, [np.bool_(p), D], expected, off=("update-branches",), donate_argnums=1)


def test_boxes_are_those_of_reshaped_operands_too() -> None:
    def f(p: Any, d: Any) -> Any:
        return lax.cond(p, lambda x: x[2:4].sum(), lambda x: x[3:5].sum(), d.reshape(64, 8))

    plan = run(f, [np.bool_(True), D.reshape(64, 8, 1)], D[2:4].sum())
    assert boxes(of_kind(plan, "branch").reads) == {"p[]", "?d[2:5, 0:8, 0:1]"}
    plan = run(f, [np.bool_(False), D.reshape(16, 32)], D[3:5].sum())
    (read,) = [a for a in of_kind(plan, "branch").reads if a.buffer == "d"]
    assert not read.exact
    assert read.box.contains(Box((0, 16), (1, 16), (1, 1)))
    assert read.nbytes < D.nbytes


def test_another_result_is_updated_afterwards() -> None:
    """It has another rank than what is read beside the boxes of the branch."""

    def f(p: Any, d: Any, v: Any) -> Any:
        u = jnp.exp(d[3:4].T) @ d[5:6]
        d, v = lax.cond(p, lambda d, v: (d.at[0:1].set(0.0), v.at[0].set(0.0)), lambda *s: s, d, v)
        return u, d, v.at[3].set(5.0)

    v = np.arange(4, dtype=np.float32)
    zeroed = np.concatenate([np.zeros((1, 8)), D[1:]])
    expected = (np.exp(D[3:4].T) @ D[5:6], zeroed, [0, 1, 2, 5])
    expected = tuple(map(np.asarray, expected))
    run(f, [np.bool_(True), D, v], expected, donate_argnums=(1, 2))
    check(f, np.bool_(True), D, v, donated=(False, True, True))


@pytest.mark.parametrize(
    "donated", [(False, True, True), (False, True, False), (False, False, False)]
)
def test_an_update_that_is_returned_and_updated_again(donated: tuple[bool, ...]) -> None:
    """The first one does not lie in the operand that the second one is paired with."""

    def step(d: Any, e: Any) -> Any:
        first = d.at[1:3].set(e[:2])
        return first.at[4:5].set(2.0), first

    def in_a_branch(p: Any, d: Any, e: Any) -> Any:
        return lax.cond(p, step, lambda *s: s, d, e)

    def in_a_loop(n: Any, d: Any, e: Any) -> Any:
        return lax.fori_loop(0, 2, lambda _, s: step(*s), (d, e))

    d, e = D, f32(64, 8, seed=3)
    for f in (in_a_branch, in_a_loop, lambda p, d, e: step(d, e)):
        args = [np.bool_(True), d, e]
        check(f, *args, donated=donated, orders=3)
        donate = tuple(at for at, gives in enumerate(donated) if gives)
        run(f, args, f(*map(jnp.asarray, args)), donate_argnums=donate)
