"""`Traced`, `Lowered`, `Compiled`, `Plan` and `explain`: what each stage shows of one call."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

import stagejit
from stagejit import pipeline
from stagejit.bench.workloads.catalogue import WORKLOADS
from stagejit.dispatch.origins import naming
from stagejit.dispatch.origins.naming import Names
from stagejit.dispatch.origins.whereabouts import Whereabouts
from stagejit.errors import OptionsError
from stagejit.graph.text.parser import parse as parse_graph
from stagejit.graph.text.printer import as_text as graph_text
from stagejit.options import SWITCHES, Options
from stagejit.runtime.cpu.loader import call_count, trim_arenas
from stagejit.runtime.cpu.native.arenas import ARENA_ALIGNMENT_NBYTES
from stagejit.runtime.cpu.native.support import addresses
from stagejit.schedule.plans.parser import parse_plan
from tests.expected.left import left

pytestmark = pytest.mark.usefixtures("as_shipped")  # processes of others make the same assembly

X = np.arange(12, dtype=np.float32).reshape(4, 3) / 5
W = np.ones((3, 5), np.float32)
STAGES = ("jaxpr", "graph", "plan", "loops", "llvm", "asm", "host")


def model(x: Any, w: Any) -> Any:
    h = jax.nn.gelu(x @ w)
    return jax.nn.softmax(h, axis=-1), jnp.pad(h, ((1, 1), (0, 2)))


def mixed(x: Any) -> Any:
    """Kernels before and after an equation that XLA keeps."""
    return left(x @ x.T) * 2


# ---------------------------------------------------------------------- stages


def test_traced() -> None:
    traced = stagejit.jit(model).trace(X, W)
    assert isinstance(traced, stagejit.Traced)
    assert [str(v.aval) for v in traced.jaxpr.jaxpr.invars] == ["float32[4,3]", "float32[3,5]"]
    assert traced.as_text() == str(traced.jaxpr)
    assert "dot_general" in traced.as_text()
    assert traced.fun_name == "model"
    assert isinstance(traced.lower(), stagejit.Lowered)


def test_what_is_shown_runs_no_further_step() -> None:
    lowered = stagejit.jit(model).lower(X, W)
    assert isinstance(lowered, stagejit.Lowered)
    assert not lowered.compilation.seconds
    assert isinstance(lowered.graph.nx, nx.MultiDiGraph)
    assert "schedule" not in lowered.compilation.seconds
    assert isinstance(lowered.plan, stagejit.Plan)
    assert "codegen" not in lowered.compilation.seconds
    lowered.as_text("host")
    assert "load" not in lowered.compilation.seconds
    assert repr(lowered.compilation).endswith(", codegen, host>")
    assert str(lowered.plan) == lowered.as_text("plan")


def test_compiled_is_called_like_the_function() -> None:
    compiled = stagejit.jit(model).trace(X, W).lower().compile()
    assert isinstance(compiled, stagejit.Compiled)
    before = call_count()
    ours = compiled(X, W)
    assert call_count() == before + 1
    for a, b in zip(ours, jax.jit(model)(X, W), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert "custom_call" in compiled.as_text()  # XLA's own text


def test_each_text_shows_its_stage() -> None:
    compiled = stagejit.jit(model).lower(X, W).compile()
    texts = {stage: compiled.as_text(stage) for stage in STAGES}
    assert texts["graph"].startswith("graph @model(%x: f32[4,3], %w: f32[3,5])")
    assert texts["plan"].startswith("plan @model {")
    assert texts["loops"].count("kernel(") == texts["llvm"].count("define void @sj_k_")
    assert "getelementptr" in texts["llvm"]
    assert ".text" in texts["asm"]
    assert "launch" in texts["host"] or "sj_k_" in texts["host"]


def test_kernels_of_a_plan_are_named_once() -> None:
    compiled = stagejit.jit(model).lower(X, W).compile()
    assert compiled.plan is compiled.plan
    assert all(dispatch.kernel for dispatch in compiled.plan.dispatches)


def test_cost_analysis_counts_flops_and_bytes() -> None:
    x, w = np.ones((64, 32), np.float32), np.ones((32, 128), np.float32)
    cost = stagejit.jit(lambda x, w: x @ w).lower(x, w).compile().cost_analysis()
    assert cost["flops"] == 2 * 64 * 32 * 128
    assert cost["bytes accessed"] == 4 * (64 * 32 + 32 * 128 + 64 * 128)


def test_memory_analysis_counts_each_kind() -> None:
    x, w = np.ones((64, 32), np.float32), np.ones((32, 128), np.float32)
    compiled = stagejit.jit(lambda x, w: jnp.tanh(x @ w) @ w.T).lower(x, w).compile()
    memory = compiled.memory_analysis()
    assert memory["argument_nbytes"] == x.nbytes + w.nbytes
    assert memory["result_nbytes"] == 64 * 32 * 4
    assert memory["transient_nbytes"] == compiled.plan.transient_nbytes == 64 * 128 * 4
    assert memory["peak_nbytes"] >= memory["transient_nbytes"]


def held_nbytes() -> int:
    """Capacity of the idle arena that the next call would take, or of a fresh one."""
    claim = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(addresses()["sj_arena_claim"])
    release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(addresses()["sj_arena_release"])
    memory = claim(1)
    capacity = ctypes.c_int64.from_address(memory - ARENA_ALIGNMENT_NBYTES).value
    release(memory)
    return capacity


MEASURED: dict[str, Callable[..., Any]] = {
    "nothing": lambda x, w: x * 2,
    "stack": lambda x, w: (x * 2).sum(),
    "scratch": lambda x, w: x @ w,
    "chain": lambda x, w: functools.reduce(lambda h, _: jnp.tanh(h @ w), range(5), x),
    "rows": lambda x, w: jax.nn.softmax(x @ w, 1) @ w,
    "loop": lambda x, w: jax.lax.scan(lambda c, _: (jnp.tanh(c @ w) @ w, c.sum()), x, None, 4),
}


@pytest.mark.parametrize("name", MEASURED)
def test_memory_is_what_a_call_allocates(name: str) -> None:
    """Measured at the allocator: an arena grows in pages of 4 KiB, and huge ones of 2 MiB."""
    x, w = np.ones((600, 700), np.float32), np.ones((700, 700), np.float32)
    compiled = stagejit.jit(MEASURED[name]).lower(x, w).compile()
    trim_arenas()
    least = held_nbytes()
    trim_arenas()
    jax.block_until_ready(compiled(x, w))
    got, memory = held_nbytes(), compiled.memory_analysis()
    workers = os.cpu_count() or 1
    most = memory["peak_nbytes"] + workers * memory["scratch_nbytes_per_worker"]
    page = 4096 if got < 2 << 20 else 2 << 20
    assert memory["peak_nbytes"] <= got <= max(most + page + 128, least)
    assert memory["peak_nbytes"] + memory["scratch_nbytes_per_worker"] <= got


def test_plan_fields() -> None:
    plan = stagejit.jit(model).plan(X, W)
    assert {b.kind for b in plan.buffers} >= {"argument", "result"}
    for dispatch in plan.dispatches:
        assert dispatch.nbytes >= 0
        assert dispatch.ops
        for access in (*dispatch.reads, *dispatch.writes):
            start, stop = access.hull
            assert 0 <= start <= stop <= plan.buffer(access.buffer).nbytes
            assert access.exact
            assert access.nbytes <= stop - start
            assert access.overlaps(access)
    names = [d.name for d in plan.dispatches]
    for barrier in plan.barriers:
        assert names.index(barrier.src) < names.index(barrier.dst)
    network = plan.to_networkx()
    assert list(network.nodes) == names
    assert nx.is_directed_acyclic_graph(network)
    assert "<table" in plan._repr_html_()
    assert plan.dispatches[0].loc.line > 0


def test_delegated_equations_are_in_the_plan_with_reason_and_line() -> None:
    plan = stagejit.jit(mixed).plan(X)
    (delegated,) = plan.delegated
    assert delegated.equation == "left"
    assert delegated.reason.startswith("left ")
    assert delegated.loc.file == __file__
    assert any(d.name == delegated.dispatch for d in plan.dispatches)


def test_explain_as_text_and_html() -> None:
    explanation = stagejit.jit(model).explain(X, W)
    text = str(explanation)
    assert text.startswith("model: ")
    assert "jax.nn.gelu(x @ w)" in text
    for decision in explanation.decisions:
        assert decision.rewrite in SWITCHES, decision
        assert decision.reason
    assert any(d.applied for d in explanation.decisions)
    assert "<table" in explanation._repr_html_()
    assert "gelu" in explanation._repr_html_()


# ----------------------------------------------------------------- text forms


@pytest.mark.parametrize("f", [model, mixed], ids=lambda f: f.__name__)
def test_graph_and_plan_parse_back(f: Any) -> None:
    lowered = stagejit.jit(f).lower(*((X, W) if f is model else (X,)))
    for parse, show, stage in ((parse_graph, graph_text, "graph"), (parse_plan, str, "plan")):
        text = lowered.as_text(stage)
        again: Any = parse(text)
        assert show(again) == text


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "name", [n for n, row in WORKLOADS.items() if row.weights in (None, "f32")]
)
def test_bench_graphs_and_plans_parse_back(name: str) -> None:
    workload = WORKLOADS[name]
    traced = stagejit.jit(workload.function).trace(*workload.shapes())
    graph, plan = graph_text(traced.graph), str(traced.plan)
    assert graph_text(parse_graph(graph)) == graph
    assert str(parse_plan(plan)) == plan


def test_texts_are_the_same_in_every_process() -> None:
    first, second = (_texts_of_a_process(seed) for seed in ("1", "2"))
    assert first.keys() == second.keys()
    for stage in first:
        assert first[stage] == second[stage], stage
    assert set(first) == {f"{name} {stage}" for name in ("model", "mixed") for stage in STAGES}


def _texts_of_a_process(seed: str) -> dict[str, str]:
    code = f"""
        import importlib.util, sys
        sys.path.insert(0, {os.getcwd()!r})
        import stagejit
        spec = importlib.util.spec_from_file_location("texts", {__file__!r})
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for f, args in ((module.model, (module.X, module.W)), (module.mixed, (module.X,))):
            lowered = stagejit.jit(f).lower(*args)
            for stage in module.STAGES:
                print("\\0" + f.__name__, stage + "\\1" + lowered.as_text(stage), end="")
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONHASHSEED": seed, "COLUMNS": "80"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    parts = done.stdout.split("\0")[1:]
    return dict(tuple(part.split("\1", 1)) for part in parts)  # type: ignore[misc]


# ----------------------------------------------------------------- the options


@pytest.mark.some(2)
@pytest.mark.parametrize("switch", sorted(SWITCHES))
def test_disabling_a_switch_never_changes_results(switch: str) -> None:
    f = stagejit.jit(model, options=Options(disable=(switch,), verify=True))
    for a, b in zip(f(X, W), jax.jit(model)(X, W), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    applied = {d.rewrite for d in f.explain(X, W).decisions if d.applied}
    assert switch not in applied


def test_decisions_are_put_in_words_for_those_who_look_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = list[Whereabouts]()

    def names_of(where: Whereabouts) -> Names:
        told.append(where)
        return naming.names_of(where)

    monkeypatch.setattr(pipeline, "names_of", names_of)
    f = stagejit.jit(lambda x: jnp.tanh(x * 2).sum(axis=1))
    f(X).block_until_ready()
    assert not told
    assert any(each.rewrite == "fuse-producers" for each in f.plan(X).decisions)
    assert told


def test_full_barriers_order_all_dispatches() -> None:
    def f(x: Any) -> Any:
        return x @ x.T, jnp.sort(x), jnp.cumsum(x, 0), jnp.tanh(x).sum(0)

    plan = stagejit.jit(f, options=Options(full_barriers=True)).plan(X)
    names = [d.name for d in plan.dispatches]
    assert {(b.src, b.dst) for b in plan.barriers} >= set(itertools.pairwise(names))
    free = stagejit.jit(f).plan(X)
    assert len(free.barriers) < len(plan.barriers)


@pytest.mark.parametrize(
    ("backend", "stage", "next_step"),
    [
        (None, "cuda", 'backend="cuda"'), (None, "ptx", 'backend="cuda"'),
        ("cuda-emulated", "llvm", "without a backend"),
        ("cuda-emulated", "asm", "without a backend"),
    ],
)  # fmt: skip
def test_a_stage_of_the_other_kind_of_target_says_how_to_get_it(
    backend: str | None, stage: str, next_step: str
) -> None:
    f = stagejit.jit(lambda x: x * 2 + 1, **({"backend": backend} if backend else {}))
    with pytest.raises(OptionsError, match=f"there is no stage '{stage}'\nNext: .*{next_step}"):
        f.lower(np.ones(3, np.float32)).as_text(stage)
