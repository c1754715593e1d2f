"""One modelled time: explanations, timelines and comparisons say the same of a dispatch and of a
call, on a CPU and on a GPU; and one floor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.base.decisions import path_inside
from stagejit.base.machine import CALL_SECONDS, Machine
from stagejit.base.numbers import seconds_text
from stagejit.codegen.cuda.device import device_named
from stagejit.codegen.target import Target
from stagejit.explaining import explanation_of, totals_of
from stagejit.inspect.pictures import streams, threads, views
from stagejit.inspect.pictures.drawing.gantt import Bar
from stagejit.inspect.profiles.rows import DispatchTimes
from stagejit.options import Options
from stagejit.pipeline import Compilation
from stagejit.runtime.modelled.kernels import core_seconds, launch_seconds
from stagejit.runtime.modelled.threads import OnThreads
from stagejit.runtime.modelled.waves import WAKING_SECONDS
from stagejit.runtime.peaks import Peaks
from stagejit.schedule.plans.plan import Dispatch, Plan
from stagejit.schedule.plans.turns import carried_by

S, L = np.ones((16, 16), np.float32), np.ones((700, 700), np.float32)


def mixed(x: Any) -> Any:
    return jnp.concatenate([jnp.tanh(x @ x.T), x.sum(1, keepdims=True), jnp.cumsum(x, 1)], axis=1)


def waves(x: Any) -> Any:
    return tuple(jnp.tanh(x * float(at)) @ x for at in range(3))


def padded(x: Any) -> Any:
    return jnp.pad(x @ x, 1) * 2


def repeated(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda _, c: jnp.sin(c @ x) + 1, x)


def nested(x: Any) -> Any:
    def body(c: Any, row: Any) -> tuple[Any, Any]:
        inner = lax.fori_loop(0, 3, lambda _, d: jnp.cos(d) @ x, c)
        return inner + row, inner.sum()

    return lax.scan(body, x, x)


def many(x: Any) -> Any:
    return lax.map(lambda row: jnp.tanh(jnp.outer(row, row)).sum(0), x)


def conditional(x: Any) -> Any:
    return lax.cond(x[0, 0] > 0, lambda a: jnp.sin(a) @ a, lambda a: jnp.sort(a, 1) + 1, x)


def until(x: Any) -> Any:
    return lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2 + 1, x)


def of_a_library(x: Any) -> Any:
    return jnp.linalg.cholesky(x @ x.T + 20 * jnp.eye(x.shape[0])) * 2


def left(x: Any) -> Any:
    return jnp.abs(jnp.linalg.eig(x)[0]) + jnp.sin(x)[0]


def nothing(x: Any) -> Any:
    return x


PROGRAMS = (
    mixed, waves, padded, repeated, nested, many, conditional, until, of_a_library, left, nothing,
)  # fmt: skip


def compilation(f: Callable[..., Any], x: Any, target: Machine | None = None) -> Compilation:
    made = stagejit.jit(f).trace(x).compilation
    return Compilation(made.request, made.left_to_xla, target or made.target)


def told(made: Compilation) -> Iterator[tuple[str, Bar]]:
    """The bars of the timeline, by the names of dispatches as explanations have them."""
    if isinstance(made.target, Target):
        yield from _of_threads(threads.Waves.of(made.schedule, made.kernels, made.target), "")
    else:
        top = streams.Streams.of(made.cuda, made.plan, made.kernels.values(), made.target)
        yield from _of_streams(top, "")


def _of_threads(waves: threads.Waves, path: str) -> Iterator[tuple[str, Bar]]:
    for bar in waves.gantt().bars:
        yield path + bar.dispatch, bar
    for step, number, inner in waves.inner():
        within = path_inside(path, step.dispatch.name, step.dispatch.bodies[number].plan.name)
        yield from _of_threads(inner, within)


def _of_streams(made: streams.Streams, path: str) -> Iterator[tuple[str, Bar]]:
    for bar in made.gantt().bars:
        yield path + bar.dispatch, bar
    for (name, number), inner in made.known.inner.items():
        (dispatch,) = (d for d in made.plan.dispatches if d.name == name)
        drawn = made.drawn.inner[name, number]
        inside = streams.Streams(dispatch.bodies[number].plan, drawn, inner)
        yield from _of_streams(inside, path_inside(path, name, inside.plan.name))


CPUS = (None, replace(Target.host(), cores=8), replace(Target.avx2(), cores=3))
GPUS = (device_named("H200"), device_named("A100"))


@pytest.mark.some(2)
@pytest.mark.parametrize("target", [*CPUS, *GPUS], ids=["host", "8", "avx2", "H200", "A100"])
@pytest.mark.parametrize("x", [S, L], ids=["small", "large"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_is_said_everywhere(
    program: Callable[..., Any], x: Any, target: Machine | None
) -> None:
    made = compilation(program, x, target)
    explained = explanation_of(made)
    modelled = {each.dispatch: set[float | None]() for each in explained.dispatches}
    for each in explained.dispatches:  # two branches may have dispatches of one name
        modelled[each.dispatch].add(each.seconds)
    seen = set()
    for name, bar in told(made):
        if name not in modelled:
            assert not bar.is_known  # left to XLA
            continue
        seen.add(name)
        times = [s for s in modelled[name] if s is not None]
        if bar.is_known:
            assert any(f"{seconds_text(s)} by the model" in " ".join(bar.tip) for s in times)
        else:
            assert None in modelled[name]
    if isinstance(made.target, Target):
        assert seen == modelled.keys()
        picture = views.of_threads(made.schedule, made.kernels, made.target)
    else:
        picture = views.of_streams(made.cuda, made.plan, made.kernels, made.target)
    assert explained.seconds is not None
    assert f"{seconds_text(explained.seconds)} by the model" in picture.panels[0].note
    totals, _ = totals_of(made)
    assert totals.modelled_seconds == explained.seconds
    assert totals.floor_seconds == pytest.approx(_floor(made.plan, made.target))
    assert made.plan.totals().modelled_seconds is None  # a plan has no kernels


def _floor(plan: Plan, machine: Machine) -> float:
    """By rows of a profile on a machine that reaches just this."""
    rate, bandwidth = machine.peak_flops * machine.cores, machine.bandwidth
    peaks = Peaks(machine.cores, rate / 1e9, rate / 1e9, bandwidth / 1e9, bandwidth / 1e9, 512)

    def of(d: Dispatch) -> float:
        carried = 2 * sum(each.run_nbytes for each in carried_by(d))
        flops, nbytes = (0, carried) if d.bodies else (d.flops, d.nbytes)
        return DispatchTimes("f", d.name, d.kind, flops=flops, nbytes=nbytes).floor_seconds(peaks)

    return sum(
        (1 if times is None else times) * of(d)
        for d, times in plan.launches()
        if d.kind != "delegate"
    )


def test_a_call_takes_its_waves_one_after_the_other() -> None:
    made = compilation(waves, L, replace(Target.host(), cores=4)).run_until("host")
    assert isinstance(made.target, Target)
    on = OnThreads(made.schedule, made.schedule.waves, made.kernels, made.target).run()
    assert on.now == pytest.approx(sum(turn.end - turn.start for turn in on.turns))
    assert on.now == pytest.approx(max(p.start + p.took.seconds for p in on.placed))
    for placed in on.placed:
        assert placed.lane + placed.lanes <= 4


def test_a_fork_is_counted_once_for_a_kernel() -> None:
    made = compilation(lambda x: jnp.tanh(x), L, replace(Target.host(), cores=4))
    made.run_until("codegen")
    assert isinstance(made.target, Target)
    (generated,) = made.kernels.values()
    (took,) = (
        OnThreads(made.schedule, made.schedule.waves, made.kernels, made.target)
        .run()
        .dispatches.values()
    )
    kernel = generated.kernel
    assert took.seconds == pytest.approx(WAKING_SECONDS + CALL_SECONDS + kernel.seconds / 4)
    assert core_seconds(kernel, made.target, alone=True) == (CALL_SECONDS + kernel.seconds, 1)


def test_iterations_that_threads_share_have_one_fork() -> None:
    made = compilation(many, L, replace(Target.host(), cores=4)).run_until("codegen")
    assert isinstance(made.target, Target)
    on = OnThreads(made.schedule, made.schedule.waves, made.kernels, made.target).run()
    (name,) = {name for name, _ in on.inner}
    (inner,) = on.inner.values()
    (dispatch,) = (d for d in made.plan.dispatches if d.name == name)
    body = dispatch.bodies[0]
    assert body.threads > 1
    assert body.trip is not None
    wanted = WAKING_SECONDS + body.trip * inner.now / body.threads
    assert on.dispatches[name].seconds == pytest.approx(wanted)
    assert all(not placed.lane and placed.lanes == 1 for placed in inner.placed)


def test_the_blocks_of_a_launch_share_the_multiprocessors() -> None:
    device = device_named("H200")
    made = compilation(lambda x: jnp.tanh(x) @ x, L, device).run_until("codegen")
    for generated in made.kernels.values():
        kernel = generated.kernel
        each = (launch_seconds(kernel, device) - device.start_seconds) * len(kernel.passes)
        assert each == pytest.approx(kernel.seconds / min(device.cores, kernel.total))


def test_what_if_tells_of_the_same_model() -> None:
    f = stagejit.jit(mixed)
    (worth,) = f.explain(L, what_if="fuse-insert").what_if
    assert worth.with_them.modelled_seconds == f.explain(L).seconds
    plain = stagejit.jit(mixed, options=Options(disable="fuse-insert"))
    assert worth.without_them.modelled_seconds == plain.explain(L).seconds
    rows = {row.words: row.texts() for row in worth.comparison.rows}
    assert {"floor", "modelled time"} <= rows.keys()


def test_a_comparison_of_plans_has_a_floor_and_no_model() -> None:
    plan = stagejit.jit(mixed).plan(jax.ShapeDtypeStruct((4, 4), np.float32))
    words = [row.words for row in plan.compare(plan).rows]
    assert "floor" in words
    assert "modelled time" not in words
