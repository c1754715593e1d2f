"""`stagejit.profile`: every dispatch has a row, counts are exact, and times add up."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import stagejit
from stagejit.inspect.profiles.rows import FORK_JOIN, HOST, XLA
from stagejit.inspect.profiles.views import pages
from stagejit.runtime.peaks import Peaks
from tests.inspect.profiles.profiling import counts, layer, profiled, repeated, squared

PEAKS = Peaks(2, 100.0, 50.0, 10.0, 10.0, 512)


def test_each_dispatch_of_the_plan_has_a_row() -> None:
    x = jnp.ones((300, 300))
    profile = profiled(layer, x, x, calls=4)
    plan = stagejit.jit(layer).plan(x, x)
    assert counts(profile) == {dispatch.name: 4 for dispatch in plan.dispatches}
    rows = {row.dispatch: row for row in profile.dispatches}
    for dispatch in plan.dispatches:
        row = rows[dispatch.name]
        assert (row.kind, row.ops, row.loc) == (dispatch.kind, dispatch.ops, dispatch.loc)
        assert (row.flops, row.nbytes) == (dispatch.flops, dispatch.nbytes)
        assert row.gflops == pytest.approx(4e-9 * row.flops / row.seconds)
        floor = max(row.flops / 100e9, row.nbytes / 10e9)
        assert row.floor_seconds(PEAKS) == pytest.approx(floor)
        assert row.times_floor(PEAKS) == pytest.approx(row.seconds_min / floor)
    assert profile.calls == 4
    (host,) = [row for row in profile.around if row.kind == HOST]
    assert host.count == 4


def test_seconds_are_those_of_the_block() -> None:
    x = jnp.ones((300, 300))
    profile = profiled(layer, x, x)
    spans = profile.spans
    assert all(span.start_seconds >= 0 for span in spans)
    calls = [span for span in spans if span.kind == "call"]
    assert sorted(s.start_seconds for s in calls) == [s.start_seconds for s in calls]
    for first, second in itertools.pairwise(calls):
        assert first.stop_seconds <= second.start_seconds + 1e-6  # a call waits for the one before


def test_turns_of_loops_are_counted() -> None:
    found = counts(profiled(repeated, jnp.ones((80, 80)), calls=2))
    turns = {name: count for name, count in found.items() if "/" in name}
    assert turns
    assert {count for name, count in turns.items() if "contract" in name} == {14}
    conditions = {count for name, count in turns.items() if "condition" in name}
    assert conditions == {12}


def test_only_the_branch_that_runs_has_a_row() -> None:
    def either(x: Any) -> Any:
        return jax.lax.cond(x[0] > 0, lambda x: jnp.sort(x), lambda x: jnp.cumsum(x), x)

    names = set(counts(profiled(either, jnp.ones(5000))))
    assert any("case1" in name for name in names)
    assert not any("case0" in name for name in names)


def test_iterations_that_threads_share_are_rows_of_their_dispatches() -> None:
    def rows(x: Any) -> Any:
        return jax.lax.map(lambda row: jnp.sin(row @ row.T) @ row, x)

    x = jnp.ones((64, 40, 40))
    plan = stagejit.jit(rows).plan(x)
    assert any(body.threads > 1 for d in plan.dispatches for body in d.bodies)
    profile = profiled(rows, x, calls=2)
    inner = {name: n for name, n in counts(profile).items() if "/" in name}
    assert inner
    assert set(inner.values()) == {128}
    shared = [row for row in profile.dispatches if row.dispatch in inner]
    assert all(row.threads > 1 for row in shared)
    assert any(row.kind == FORK_JOIN for row in profile.around)


def _alike(kind: str) -> list[tuple[Any, Any]]:
    """Functions and arguments whose dispatches have one name, and do not do the same."""
    small, large = jnp.ones((16, 16)), jnp.ones((160, 160))
    if kind == "sizes of one function":
        f = stagejit.jit(squared)
        return [(f, small), (f, large)]
    if kind == "functions of one name":
        return [
            (stagejit.jit(lambda x, n=n: squared(x[:n, :n]), static_argnums=1), large)
            for n in (16, 160)
        ]
    if kind == "element types":
        f = stagejit.jit(squared)
        return [(f, large), (f, large.astype(jnp.bfloat16))]
    assert kind == "pieces of XLA"
    f = stagejit.jit(lambda x: jnp.sin(jnp.linalg.eigh(jnp.cos(x))[0]))
    return [(f, small), (f, large)]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "kind", ["sizes of one function", "functions of one name", "element types", "pieces of XLA"]
)
def test_rows_of_dispatches_that_differ_stay_apart(kind: str, order: int) -> None:
    cases = _alike(kind)[::order]
    for f, x in cases:
        jax.block_until_ready(f(x))
    with stagejit.profile() as profile:
        for calls, (f, x) in enumerate(cases, 2):
            for _ in range(calls):
                jax.block_until_ready(f(x))
    known: Counter[tuple[str, int, int]] = Counter()
    for calls, (f, x) in enumerate(cases, 2):
        for dispatch in f.plan(x).dispatches:
            if dispatch.kind != "delegate":
                known[dispatch.name, dispatch.flops, dispatch.nbytes] += calls
    found = [row for row in profile.dispatches if row.kind != XLA]
    assert {(row.dispatch, row.flops, row.nbytes): row.count for row in found} == known
    assert len(found) == len(known)
    for row in found:
        assert row.gflops * row.seconds == pytest.approx(row.flops * row.count / 1e9)
    names = [cells[0] for cells in pages._table(profile.dispatches, profile.seconds, PEAKS)]
    if kind != "element types":
        assert len({*names}) == len(names)


def test_one_program_is_one_row_for_all_who_call_it() -> None:
    x = jnp.ones((32, 32))
    both = [stagejit.jit(squared) for _ in range(2)]
    for f in both:
        f(x)
    with stagejit.profile() as profile:
        for f in both:
            jax.block_until_ready(f(x))
    assert [row.count for row in profile.dispatches] == [2]


@pytest.mark.parametrize("size", [8, 700])
def test_an_argument_that_the_result_lies_in_is_not_copied(size: int) -> None:
    f = stagejit.jit(lambda x: jnp.sin(x) + 1, donate_argnums=0)
    f(jnp.ones((size, size)))
    x = jnp.ones((size, size)).block_until_ready()
    with stagejit.profile() as profile:
        jax.block_until_ready(f(x))
    assert [row.kind for row in profile.dispatches] == ["map"]


def test_an_argument_that_was_not_given_up_is_copied() -> None:
    f = stagejit.jit(lambda x: x.at[3].set(1.0), donate_argnums=0)
    x = jnp.ones((500, 8))
    outer = jax.jit(lambda x: (f(x), x.sum()))
    outer(x)
    with stagejit.profile() as profile:
        jax.block_until_ready(outer(x))
    copies = [row for row in profile.dispatches if row.dispatch == "arguments"]
    assert not copies or all(row.nbytes == 2 * x.nbytes for row in copies)
