"""Acceptance S8: accesses tell may from must, declare the read of a read-modify-write, and carry
`offset + stride * i` inside loops."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.base.symbolic import Symbol, expr
from stagejit.index.box import Box
from stagejit.schedule import bufferize
from stagejit.schedule.conflicts.access import Access, HostScalar, swept
from stagejit.schedule.plans.parser import parse_plan
from stagejit.schedule.plans.plan import Dispatch, Plan
from tests.acceptance.running import f32, run
from tests.schedule.planning import check

D, ROWS = f32(8, 4, seed=1), f32(3, 4)
AT = np.array([1, 2, 5], np.int32)


def of_kind(plan: Plan, kind: str) -> Dispatch:
    (found,) = [d for d in plan.all_dispatches() if d.kind == kind]
    return found


def texts(accesses: tuple[Access, ...], number: int = 0) -> list[str]:
    """What is touched of an argument, which is called `d`."""
    name = f"arg{number}"
    return [str(access).replace(name, "d") for access in accesses if access.buffer == name]


# ------------------------------------------------------------------------ may


@pytest.mark.parametrize("i", [3, -8, 9])
def test_a_row_that_may_be_out_of_bounds_may_be_written(i: int) -> None:
    expected = D.copy()
    if -8 <= i < 8:
        expected[i] = ROWS[0]
    plan = run(lambda d, a, i: d.at[i].set(a[0]), [D, ROWS, np.int32(i)], expected,
               donate_argnums=0)  # fmt: skip
    (write,) = of_kind(plan, "scatter").writes
    assert (str(write), write.exact, write.may, write.must) == (
        "?d[s0:s0+1, 0:4]", True, True, False,
    )  # fmt: skip


def test_rows_that_are_computed_may_be_dropped() -> None:
    plan = check(lambda d, a, at: d.at[at].set(a), D, ROWS, AT, donated=(True, False, False))
    assert texts(of_kind(plan, "scatter").writes) == ["?~d[0:8, 0:4]"]


def test_dont_doubt_rows_that_are_clipped() -> None:
    fn = lambda d, a, at: d.at[at].set(a, mode="clip")  # noqa: E731
    plan = check(fn, D, ROWS, AT, donated=(True, False, False))
    assert texts(of_kind(plan, "scatter").writes) == ["~d[0:8, 0:4]"]


def branched(d: Any, a: Any, i: Any) -> Any:
    """Both branches write d[2:3], one of them d[0:2] besides."""
    return lax.cond(
        i > 0,
        lambda d: d.at[0:3].set(lax.cumsum(a, 0)),
        lambda d: d.at[2:3].set(lax.cumsum(a[:1], 1)),
        d,
    )


def test_what_one_branch_touches_may_be_touched_and_what_all_do_is() -> None:
    plan = check(branched, D, ROWS, np.int32(1), donated=(True, False, False))
    found = set(texts(of_kind(plan, "branch").writes))
    assert found in ({"?d[0:3, 0:4]"}, {"?d[0:3, 0:4]", "d[2:3, 0:4]"})

    def same(d: Any, i: Any) -> Any:
        at = lambda x: lambda d: d.at[2:4].set(lax.cumsum(x, 1))  # noqa: E731
        return lax.cond(i > 0, at(D[:2]), at(D[4:6]), d)

    plan = check(same, D, np.int32(1), donated=(True, False))
    assert texts(of_kind(plan, "branch").writes) == ["d[2:4, 0:4]"]


def test_a_loop_whose_condition_may_fail_at_once_may_touch_nothing() -> None:
    def f(d: Any, n: Any) -> Any:
        return lax.while_loop(lambda c: c[0, 0] < n, lambda c: lax.cumsum(c, 0) + 1, d)

    plan = check(f, abs(D), np.float32(9), donated=(True, False))
    assert {text[0] for text in texts(of_kind(plan, "loop").writes)} == {"?"}
    assert texts(of_kind(plan, "loop").reads, 1) == ["d[]"]  # the condition runs


def test_may_is_in_the_text() -> None:
    plan = check(lambda d, a, at: d.at[at].add(a), D, ROWS, AT, donated=(True, False, False))
    again = parse_plan(plan.as_text())
    assert [a.may for d in again.dispatches for a in (*d.reads, *d.writes)] == [
        a.may for d in plan.dispatches for a in (*d.reads, *d.writes)
    ]
    assert any(a.may and not a.exact for d in again.dispatches for a in d.writes)


# ------------------------------------------------------- read-modify-write


@pytest.mark.parametrize("fn", ["add", "min", "max", "multiply"])
@pytest.mark.parametrize("index", ["a number", "known", "computed"])
def test_what_is_combined_with_what_is_there_is_read(fn: str, index: str) -> None:
    at = {"a number": np.array([1, 3, 5]), "known": np.int32(2), "computed": AT}[index]
    f = lambda d, a, at: getattr(d.at[at], fn)(a if index != "known" else a[0])  # noqa: E731
    if index == "a number":
        plan = check(lambda d, a: f(d, a, at), D, ROWS, donated=(True, False))
    else:
        plan = check(f, D, ROWS, at, donated=(True, False, False))
    for dispatch in plan.dispatches:
        written = {access.box for access in dispatch.writes if access.buffer == "arg0"}
        read = {access.box for access in dispatch.reads if access.buffer == "arg0"}
        assert written
        assert written <= read


def test_dont_read_what_is_set() -> None:
    plan = check(lambda d, a, at: d.at[at].set(a), D, ROWS, AT, donated=(True, False, False))
    assert not texts(of_kind(plan, "scatter").reads)


def test_a_read_that_is_not_declared_finds_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor shows a scatter other numbers where it does not say that it reads."""

    def f(d: Any, a: Any, at: Any) -> Any:
        return d.at[at].add(a)

    check(f, D, ROWS, AT, donated=(True, False, False))
    monkeypatch.setattr(bufferize, "rereads_of", lambda region: [])
    with pytest.raises(AssertionError, match="not equal"):
        check(f, D, ROWS, AT, donated=(True, False, False))


def test_a_loop_that_adds_to_a_carry_reads_it() -> None:
    def f(d: Any, xs: Any, at: Any) -> Any:
        return lax.scan(lambda d, x: (d.at[at].add(x), None), d, xs)[0]

    plan = check(f, D, f32(5, 3, 4), AT, donated=(True, False, False))
    assert texts(of_kind(plan, "loop").reads) == ["?~d[0:8, 0:4]"]


# -------------------------------------------------------- offset + stride * i


@pytest.mark.parametrize(
    ("first", "step", "trip", "rows", "expected"),
    [
        (0, 1, 8, 1, "d[0:8, 0:4]"),
        (2, 1, 3, 2, "d[2:6, 0:4]"),
        (1, 2, 3, 1, "d[1:6:2, 0:4]"),
        (6, -2, 3, 2, "d[2:8, 0:4]"),
        (0, 3, 2, 2, "~d[0:5, 0:4]"),
    ],
)
def test_a_row_that_moves_with_the_iteration(
    first: int, step: int, trip: int, rows: int, expected: str
) -> None:
    """Exact where there are no holes between the rows of the iterations."""

    def f(d: Any) -> Any:
        def body(_: int, c: Any) -> Any:
            at, d = c
            row = lax.cumsum(lax.dynamic_slice(d, (at, 0), (rows, 4)), 1)
            return at + step, lax.dynamic_update_slice(d, row, (at, 0))

        return lax.fori_loop(0, trip, body, (first, d))[1]

    plan = check(f, D, donated=(True,), orders=3)
    loops = [d for d in plan.dispatches if d.kind == "loop"]
    assert texts(loops[0].writes) == [expected]
    assert texts(loops[0].reads) == [expected]
    (scalar,) = loops[0].bodies[0].plan.scalars
    assert scalar.counts == (first, step)
    assert str(scalar).endswith(f" counts {first} {'-' if step < 0 else '+'} {abs(step)}*i")
    assert parse_plan(plan.as_text()).dispatches[-1].bodies[0].plan.scalars == (scalar,)


@pytest.mark.parametrize("reverse", [False, True])
def test_what_counts_may_be_a_slice_of_an_iota(reverse: bool) -> None:
    def f(d: Any) -> Any:
        def step(d: Any, i: Any) -> Any:
            return lax.dynamic_update_slice(d, lax.cumsum(d[0:1], 1), (i, 0)), None

        return lax.scan(step, d, jnp.arange(8), reverse=reverse)[0]

    loop = of_kind(check(f, D, donated=(True,), orders=2), "loop")
    assert texts(loop.writes) == ["d[0:8, 0:4]"]
    counts = [scalar.counts for scalar in loop.bodies[0].plan.scalars]
    assert counts == [(7, -1) if reverse else (0, 1)]


def test_dont_count_on_what_a_condition_ends_or_on_two_dimensions() -> None:
    def ends(d: Any, n: Any) -> Any:
        body = lambda i, d: lax.dynamic_update_slice(d, d[0:1] * 2, (i, 0))  # noqa: E731
        return lax.fori_loop(0, n, body, d)

    loop = of_kind(check(ends, D, np.int32(3), donated=(True, False)), "loop")
    assert all(scalar.counts is None for scalar in loop.bodies[0].plan.scalars)
    assert texts(loop.writes) == ["?~d[0:8, 0:4]"]

    def diagonal(d: Any) -> Any:
        body = lambda i, d: lax.dynamic_update_slice(d, d[:1, :1] * 2, (i, i))  # noqa: E731
        return lax.fori_loop(0, 4, body, d)

    loop = of_kind(check(diagonal, D, donated=(True,)), "loop")
    assert texts(loop.writes) == ["~d[0:4, 0:4]"]


def test_swept_boxes_by_looking_at_each_iteration() -> None:
    rng = np.random.default_rng(0)
    exact_ones = 0
    for _ in range(400):
        first, step, trip = (int(n) for n in rng.integers((20, -4, 1), (30, 5, 6)))
        size, stride, factor = (int(n) for n in rng.integers(1, 4, 3))
        symbol = Symbol("s0", 0, 60)
        offset = expr(symbol) * factor + 1
        box = Box((offset,), (size,), (stride,))
        touched = {
            factor * (first + step * i) + 1 + stride * j for i in range(trip) for j in range(size)
        }
        made, exact = swept(box, [HostScalar(symbol, "i", (first, step))], trip)
        ((start, count, by),) = made.dims()
        elements = {int(start) + by * at for at in range(count)}
        assert touched <= elements
        assert not exact or touched == elements
        exact_ones += exact
    assert exact_ones > 150


def test_values_are_those_of_jax() -> None:
    for f, args in ((branched, (D, ROWS, np.int32(0))), (branched, (D, ROWS, np.int32(1)))):
        run(f, list(args), jax.jit(f)(*args), donate_argnums=0)
