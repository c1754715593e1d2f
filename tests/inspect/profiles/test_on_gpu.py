"""Profiles of programs on a GPU: each dispatch has a row, by events, on the emulated device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.inspect.profiles.rows import GPU
from stagejit.options import Options
from stagejit.runtime.cuda.programs import timing
from stagejit.schedule.plans.plan import Plan
from tests.inspect.pages import rows_of

X = np.full((16, 16), 0.5, np.float32)
CALLS = 3


def straight(x: Any) -> Any:
    return jnp.sum(jnp.tanh(x @ x), axis=1)


def on_streams(x: Any) -> Any:
    return jnp.concatenate([jnp.tanh(x @ x.T * float(at + 1)) @ x for at in range(3)])


def looping(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda _, c: jnp.sin(c @ x), x)


def until(x: Any) -> Any:
    return lax.while_loop(lambda c: c.sum() < 1e4, lambda c: c @ c + 1, x)


def choosing(x: Any) -> Any:
    return lax.cond(x[0, 0] > 0, lambda a: jnp.sin(a) @ a, lambda a: jnp.cumsum(a, 1), x)


def by_the_host(x: Any) -> Any:
    return jnp.abs(jnp.linalg.eigvals(jnp.sin(x))) * 2


PROGRAMS = (straight, on_streams, looping, until, choosing, by_the_host)


def times(plan: Plan, path: str = "", each: int | None = 1) -> Iterator[tuple[str, int | None]]:
    """How often a call runs each dispatch; None where it decides."""
    for dispatch in plan.dispatches:
        yield f"{path}{dispatch.name}", each
        for body in dispatch.bodies:
            known = dispatch.kind == "loop" and body.trip is not None and each is not None
            inner = each * body.trip if known else None  # type: ignore[operator]
            yield from times(body.plan, f"{path}{dispatch.name}/", inner)


@pytest.mark.some(2)
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_dispatch_has_a_row(program: Any) -> None:
    f = stagejit.jit(program, options=Options(target="cuda-emulated"))
    expected = f(X)
    with stagejit.profile() as profile:
        for _ in range(CALLS):
            found = jax.block_until_ready(f(X))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    rows = {row.dispatch: row for row in profile.on_gpu}
    wanted = {name: n for name, n in times(f.plan(X)) if n is not None}
    assert wanted.keys() <= rows.keys() | {n for n in wanted if "/" in n}
    for name, row in rows.items():
        assert row.seconds >= row.seconds_min * row.count * 0.999
        assert row.seconds_max >= row.seconds_min >= 0
        if name in wanted:
            assert row.count == CALLS * wanted[name]
    for dispatch in f.plan(X).dispatches:
        row = rows[dispatch.name]
        assert (row.kind, row.ops, row.loc) == (dispatch.kind, dispatch.ops, dispatch.loc)
        assert (row.flops, row.nbytes) == (dispatch.flops, dispatch.nbytes)
    assert any(row.kind == GPU for row in profile.dispatches)  # the whole, as ever
    text = str(profile)
    assert "on the GPU: by events, launch by launch" in text
    shown = Counter(cells[0] for cells in rows_of(profile.as_html()) if cells)
    for row in profile.on_gpu:
        assert f"{row.function} {row.dispatch}" in text
        assert shown[f"{row.function} {row.dispatch}"]


def test_a_loop_has_the_time_of_what_is_inside() -> None:
    f = stagejit.jit(looping, options=Options(target="cuda-emulated"))
    f(X)
    with stagejit.profile() as profile:
        jax.block_until_ready(f(X))
    (loop,) = (row for row in profile.on_gpu if row.kind == "loop")
    inner = [row for row in profile.on_gpu if row.dispatch.startswith(f"{loop.dispatch}/")]
    assert inner
    assert {row.count for row in inner} == {5}
    assert loop.seconds >= sum(row.seconds for row in inner)


def test_calls_outside_of_profiles_are_graphs_and_make_no_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    f = stagejit.jit(straight, options=Options(target="cuda-emulated"))
    f(X)
    marks: list[object] = []
    mark = timing.Timer.mark
    monkeypatch.setattr(
        timing.Timer, "mark", lambda timer, stream: marks.append(0) or mark(timer, stream)
    )
    for _ in range(4):
        jax.block_until_ready(f(X))
    assert not timing.is_on()
    assert not marks
    with stagejit.profile() as outer, stagejit.profile() as inner:
        jax.block_until_ready(f(X))
    assert len(marks) == 2 * len(f.plan(X).dispatches)
    assert {row.count for row in (*outer.on_gpu, *inner.on_gpu)} == {1}
    assert not timing.is_on()


def test_a_profile_of_the_cpu_has_none() -> None:
    f = stagejit.jit(straight)
    with stagejit.profile() as profile:
        jax.block_until_ready(f(X))
    assert profile.on_gpu == ()
    assert "on the GPU" not in str(profile)
