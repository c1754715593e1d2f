"""CUDA programs: their text, their events, and the verifier of their order."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.bench.workloads.catalogue import WORKLOADS
from stagejit.codegen.cuda.device import DEVICES, OF_ARCHITECTURES
from stagejit.errors import InternalError, VerificationError
from stagejit.explaining import texts_of
from stagejit.options import GPUS, Options
from stagejit.runtime.cuda.programs import program as cuda
from stagejit.runtime.cuda.programs.ordering import verify_order
from stagejit.runtime.cuda.programs.program import CudaProgram, Dispatched, Record, Wait
from stagejit.schedule.plans.plan import Plan
from tests.runtime.cuda.programs import compiled, crossings, mutants, records_first

X = np.random.default_rng(0).standard_normal((37, 53)).astype(np.float32)


def forked(a: Any, b: Any) -> Any:
    t = jnp.tanh(a).T
    return (t[:, ::-1] + jnp.exp(b).T)[::-1], jnp.roll(t, 3)


def looped(a: Any) -> Any:
    return jax.lax.fori_loop(0, 7, lambda i, c: jnp.roll(jnp.tanh(c), 1), a)


def until(a: Any) -> Any:
    return jax.lax.while_loop(lambda c: c[0, 0] < 10, lambda c: jnp.roll(c + 1, 1), a)


def branched(a: Any) -> Any:
    return jax.lax.cond(a[0, 0] > 0, lambda a: a + 1, lambda a: jnp.roll(a, 1), a)


def delegated(a: Any) -> Any:
    side = jnp.sin(a)
    return jax.pure_callback(np.copy, jax.ShapeDtypeStruct(a.shape, a.dtype), a) + side


PROGRAMS = {"forked": (forked, X, X), "looped": (looped, X), "until": (until, X),
            "branched": (branched, -X)}  # fmt: skip


def text_of(program: CudaProgram) -> str:
    """Without the names of kernels."""
    return re.sub(r"sj_k_\w+", "kernel", cuda.as_text(program))


def test_a_program_with_streams_and_events() -> None:
    made = compiled(forked, X, X)
    assert text_of(made.cuda) == (
        "cuda @forked  3 streams  3 events  arena 7936 B\n"
        "  @tanh.0 on s0:\n"
        "    kernel(arg0, arena)  8 blocks of 256\n"
        "  s0 records e0\n"
        "  @map.1 on s0:\n"
        "    kernel(arena, arg1, result0)  8 blocks of 256\n"
        "  s1 waits for e0\n"
        "  @copy.2 on s1:\n"
        "    kernel(arena+7416, result1)  1 blocks of 256\n"
        "  s1 records e1\n"
        "  s2 waits for e0\n"
        "  @copy.3 on s2:\n"
        "    kernel(arena, result1+12)  8 blocks of 256\n"
        "  s2 records e2\n"
        "  s0 waits for e2\n"
        "  s0 waits for e1\n"
        "  return result0, result1\n"
    )


def test_a_loop_of_unknown_length_says_who_waits() -> None:
    text = text_of(compiled(until, X).cuda)
    assert "while arena+7872:  // decided on s0, or read by the host\n" in text
    assert "branch arena+7872:  // decided on s0, or read by the host\n" in text


def test_what_the_host_runs_is_said() -> None:
    text = text_of(compiled(delegated, X).cuda)
    assert re.search(r"delegate pure_callback\(arg0: f32\[37,53\]\) -> .*  // by jax on the", text)
    text = text_of(compiled(lambda a: jnp.linalg.cholesky(a), X[:5, :5]).cuda)
    assert re.search(r"call lapack_spotrf_ffi\(.*\) -> .*  // on the host, copied", text)


def test_switched_off_there_is_one_stream() -> None:
    options = Options(target="cuda-emulated", disable=("share-forks",))
    program = compiled(forked, X, X, options=options).cuda
    assert (program.streams, program.events) == (1, 0)
    full = Options(target="cuda-emulated", full_barriers=True)
    assert compiled(forked, X, X, options=full).cuda.events == 0


def test_explain_says_how_many_streams_there_are() -> None:
    text = str(stagejit.jit(forked, backend="cuda-emulated").explain(X, X))
    assert "+ share-forks @ @forked: 4 dispatches on 3 streams, 4 waits" in text
    assert "fork saves" not in text
    text = str(stagejit.jit(until, backend="cuda-emulated").explain(X))
    assert "- share-forks @ @until: 2 dispatches on one stream" in text


def cross_edges(program: CudaProgram, plan: Plan) -> set[tuple[str, str]]:
    """The barriers between streams that no other barriers and no streams imply."""
    stream = {s.name: s.stream for s in program.steps if isinstance(s, Dispatched)}
    order = [s.name for s in program.steps if isinstance(s, Dispatched)]
    before: dict[str, set[str]] = {}
    needed = set()
    direct: dict[str, set[str]] = {}
    for barrier in plan.barriers:
        direct.setdefault(barrier.dst, set()).add(barrier.src)
    tails: dict[int, str] = {}
    for name in order:
        tail = tails.get(stream[name])
        known = before[tail] | {tail} if tail else set()
        for source in sorted(direct.get(name, ()), key=order.index, reverse=True):
            if source not in known:
                needed.add((source, name))
                known |= before[source] | {source}
        before[name], tails[stream[name]] = known, name
    return needed


def test_the_dense_block_has_the_events_that_its_edges_need() -> None:
    """The copy of its input runs beside the first convolution. S6: on the same stream there is no
    event, where streams cross there is one."""
    workload = WORKLOADS["dense_block"]
    made = compiled(workload.function, *workload.shapes())
    steps = [s for s in made.cuda.steps if isinstance(s, Dispatched | Record | Wait)]
    streams = {s.name: s.stream for s in steps if isinstance(s, Dispatched)}
    assert streams == {"copy.0": 1, **{f"conv.{n}": 0 for n in range(1, 6)}}
    assert cross_edges(made.cuda, made.plan) == {("copy.0", "conv.2")}
    at = {s.name: number for number, s in enumerate(steps) if isinstance(s, Dispatched)}
    start, waits = steps[0], [s for s in steps if isinstance(s, Wait)]
    assert isinstance(start, Record)
    assert waits[0] == Wait(1, start.event)  # memory comes in the order of the first stream
    copied = steps[at["copy.0"] + 1]
    assert isinstance(copied, Record)
    assert waits[1:] == [Wait(0, copied.event)]
    assert steps[at["conv.2"] - 1] == waits[1]
    assert made.cuda.events == 2


@pytest.mark.parametrize("name", [*PROGRAMS, "dense_block"])
def test_without_an_event_the_verifier_refuses(name: str) -> None:
    if name in PROGRAMS:
        function, *args = PROGRAMS[name]
    else:
        function, args = WORKLOADS[name].function, WORKLOADS[name].shapes()
    made = compiled(function, *args)
    verify_order(made.cuda, made.plan)
    count = 0
    for _, mutant in mutants(made.cuda):
        with pytest.raises(VerificationError, match=r"may start before|does not wait"):
            verify_order(mutant, made.plan)
        count += 1
    for mutant in records_first(made.cuda):
        with pytest.raises(VerificationError):
            verify_order(mutant, made.plan)
        count += 1
    assert count >= crossings(made.cuda) > 0


def test_an_event_that_nothing_records_is_refused() -> None:
    program = compiled(forked, X, X).cuda
    steps = tuple(s for s in program.steps if s != Record(0, 0))
    with pytest.raises(InternalError, match="nothing has recorded event 0"):
        cuda.verify(replace(program, steps=steps))
    with pytest.raises(VerificationError, match="e0 is waited for before it is known"):
        verify_order(replace(program, steps=steps), compiled(forked, X, X).plan)


def test_a_reference_outside_its_space_is_refused() -> None:
    program = compiled(forked, X, X).cuda
    with pytest.raises(InternalError, match=r"there are 1|bytes \["):
        cuda.verify(replace(program, arena_nbytes=(4, 0, 0, 0)))
    with pytest.raises(InternalError, match="there are 1 streams"):
        cuda.verify(replace(program, streams=1))


def test_options_know_all_gpus() -> None:
    assert sorted(GPUS) == sorted([*DEVICES, *OF_ARCHITECTURES])


@pytest.mark.parametrize("gpu", ["sm_80", "A100", "sm_100"])
def test_plans_and_texts_need_no_gpu(gpu: str) -> None:
    lowered = compiled(forked, X, X, options=Options(target=f"cuda:{gpu}"))
    texts = texts_of(lowered)
    assert "__global__" in texts["cuda"]()
    assert texts["host"]().startswith("cuda @forked")
    assert "llvm" not in texts
