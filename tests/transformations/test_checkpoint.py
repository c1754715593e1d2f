"""jax.checkpoint and optimization barriers: what is computed again is computed later, and frees
memory."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.dispatch.regions import regions_of
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.rewrites.normal_form import normalize
from stagejit.schedule.build import schedule
from stagejit.schedule.plans.parser import parse_plan
from stagejit.schedule.plans.plan import Plan
from stagejit.trace.translate import graph_of
from tests.expected.dispatches import dispatches_of
from tests.expected.left import left
from tests.schedule.planning import check, plan_of

DEPTH = 12
X = np.linspace(-1, 1, 512 * 64, dtype=np.float32).reshape(512, 64)
Y = np.linspace(0, 1, 40, dtype=np.float32).reshape(20, 2)
WS = [
    np.full((64, 64), 0.01 * at, np.float32) + np.eye(64, dtype=np.float32) for at in range(DEPTH)
]


def layer(w: Any, x: Any) -> Any:
    return jnp.sin(jnp.tanh(jnp.sin(jnp.tanh(x @ w)) @ w))


def loss(ws: Any, x: Any, layer: Any = layer) -> Any:
    for w in ws:
        x = layer(w, x)
    return (x * x).sum()


def checkpointed(ws: Any, x: Any) -> Any:
    return loss(ws, x, jax.checkpoint(layer))


def ancestors(plan: Plan, name: str) -> set[str]:
    return set(nx.ancestors(plan.to_networkx(), name))


def test_a_deep_network_needs_less_memory_and_has_the_same_gradient() -> None:
    plain, again = (jax.grad(f) for f in (loss, checkpointed))
    plans = [stagejit.jit(f).plan(WS, X) for f in (plain, again)]
    # What enters each layer, and what the gradient of one layer needs besides.
    assert plans[1].peak_nbytes == (DEPTH + 3) * X.nbytes < plans[0].peak_nbytes / 3
    memory = jax.jit(again).lower(WS, X).compile().memory_analysis()
    assert plans[1].peak_nbytes <= memory.temp_size_in_bytes
    assert not plans[1].copies
    ours = stagejit.jit(again, options=Options(verify=True))(WS, X)
    for a, b in zip(ours, jax.jit(plain)(WS, X), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def test_every_layer_is_computed_again_after_its_cotangent() -> None:
    """Two contractions a layer in the forward pass, two again, five in the backward pass."""
    plan = stagejit.jit(jax.grad(checkpointed)).plan(WS, X)
    plain = stagejit.jit(jax.grad(loss)).plan(WS, X)
    assert len(plan.dispatches) == len(plain.dispatches) + 2 * DEPTH
    orders = [barrier for barrier in plan.barriers if barrier.hazard == "ORDER"]
    behind = {barrier.dst for barrier in orders}
    assert len(behind) == DEPTH
    names = [dispatch.name for dispatch in plan.dispatches]
    for name in behind:
        assert set(names[: names.index(name)]) == ancestors(plan, name)
    assert parse_plan(plan.as_text()).as_text() == plan.as_text()


def test_policies_and_prevent_cse_off() -> None:
    policy = jax.checkpoint_policies.dots_saveable
    for f in (jax.checkpoint(layer, policy=policy), jax.checkpoint(layer, prevent_cse=False)):
        grad = jax.grad(lambda ws, x, f=f: loss(ws, x, f))
        for a, b in zip(stagejit.jit(grad)(WS[:3], X), jax.jit(grad)(WS[:3], X), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def test_a_scan_over_checkpointed_layers() -> None:
    def f(w: Any, x: Any) -> Any:
        step = jax.checkpoint(lambda x, w: (layer(w, x), x.sum()))
        x, sums = lax.scan(step, x, w)
        return (x * x).sum() + sums[1]

    grad = jax.grad(f, (0, 1))
    args = np.stack(WS[:4]), X[:16]
    ours = stagejit.jit(grad, options=Options(verify=True, delegate=False))(*args)
    for a, b in zip(ours, jax.jit(grad)(*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


# ---------------------------------------------------------------------------------- barriers


def twice(x: Any, y: Any) -> Any:
    first = jnp.exp(x).sum()
    x, y = lax.optimization_barrier((x, jnp.tanh(y) + first))
    return jnp.exp(x).sum() + y


def test_nothing_is_merged_folded_or_hoisted_across_a_barrier() -> None:
    graph = graph_of(twice, X, X)
    rewrite_graph(graph, Options(verify=True))
    assert as_text(graph).count("map exp") == 2
    text = as_text(graph)
    parsed = parse(text)
    verify(parsed)
    assert as_text(parsed) == text
    for a, b in zip(interpret(parsed, [X, X]), interpret(graph, [X, X]), strict=True):
        np.testing.assert_array_equal(a, b)

    def loop(x: Any) -> Any:
        return lax.fori_loop(
            0, 3, lambda i, c: c + jnp.exp(lax.optimization_barrier(x)).sum(), jnp.float32(0)
        )

    graph = graph_of(loop, X)
    rewrite_graph(graph, Options(verify=True))
    (body,) = [op.attrs["body"] for op in graph if op.kind == "loop"]
    assert [op.kind for op in body].count("optimization_barrier") == 1


def test_a_barrier_is_no_dispatch_and_no_copy() -> None:
    plan = check(twice, X, X, orders=4)
    assert not plan.copies
    assert len([d for d in plan.dispatches if "exp" in d.ops]) == 2
    first, second = (d for d in plan.dispatches if "exp" in d.ops)
    (tanh,) = (d for d in plan.dispatches if "tanh" in d.ops)
    assert {first.name, tanh.name} <= ancestors(plan, second.name)
    (order,) = (b for b in plan.barriers if b.hazard == "ORDER")
    assert order.dst == second.name


def test_without_a_barrier_nothing_is_ordered() -> None:
    plan = plan_of(lambda x, y: (jnp.exp(x).sum(), jnp.tanh(y).T.sum(0)), X, X)
    assert not plan.barriers


def test_a_barrier_counts_as_a_reader_of_what_is_updated_later() -> None:
    def f(x: Any, y: Any) -> Any:
        a = jnp.exp(x)
        held, y = lax.optimization_barrier((a, y))
        return a.at[2:4].set(0.0), held * y

    def g(x: Any, y: Any) -> Any:
        held, y = lax.optimization_barrier((x, y))
        return held.at[2:4].set(y[2:4]), x + y

    for fn in (f, g):
        for donated in ((False, False), (True, False), (True, True)):
            check(fn, X, X + 1, donated=donated, orders=4)
    got = stagejit.jit(f, donate_argnums=(0, 1), options=Options(verify=True))(
        jnp.array(X), jnp.array(X)
    )
    np.testing.assert_allclose(got[1], np.exp(X) * X, rtol=1e-5)
    assert not np.any(np.asarray(got[0])[2:4])


def test_results_of_a_barrier_are_returned_in_memory_of_their_own() -> None:
    def f(x: Any, n: Any) -> Any:
        a = jnp.exp(x)
        held = lax.optimization_barrier((a, x, x[3], jnp.zeros(3) + n))
        return a, *held, lax.optimization_barrier(held[1]).reshape(-1)

    check(f, X, np.float32(2), orders=2)
    ours = stagejit.jit(f, options=Options(verify=True))(X, np.float32(2))
    for a, b in zip(ours, jax.jit(f)(X, np.float32(2)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_delegated_equations_beside_a_barrier() -> None:
    def f(x: Any) -> Any:
        a, b = lax.optimization_barrier((x @ x.T + 4 * jnp.eye(8), left(x)))
        return jnp.linalg.cholesky(a) + b[:, :8].sum(), left(lax.optimization_barrier(x))

    x = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    for a, b in zip(stagejit.jit(f)(x), jax.jit(f)(x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_no_reader_of_a_barrier_is_before_what_it_waits_for(seed: int) -> None:
    """Random chains of barriers: the order of the plan implies that of the graph."""
    rng = random.Random(seed)

    def f(*args: Any) -> Any:
        values = [*args]
        for _ in range(6):
            chosen = [rng.randrange(len(values)) for _ in range(3)]
            held = lax.optimization_barrier([values[at] for at in chosen])
            values += [jnp.tanh(held[0]) @ held[1], jnp.sin(held[2]).sum(0) + held[1]]
        return values[-2:]

    args = [X[:8, :8], X[8:16, :8]]
    graph = graph_of(f, *args)
    rewrite_graph(graph, Options())
    normalize(graph)
    dispatches, decisions = dispatches_of(graph)
    made = schedule(dispatches, regions_of(dispatches), None, decisions)
    barriers = [op for op in dispatches if op.kind == "optimization_barrier"]
    steps = [step for run in made.segments for step in run.steps]  # type: ignore[union-attr]
    count = 0
    for op in barriers:
        writers = {made.buffer_of[v] for v in op.operands if v in made.buffer_of}
        for step in steps:
            if not set(op.results) & set(step.region.reads):
                continue
            before = ancestors(made.plan, step.dispatch.name)
            waited = {w.dispatch.name for w in steps if writers & set(w.writes)}
            assert waited <= before
            count += len(waited)
    assert count


def test_a_constant_is_read_behind_a_barrier_only() -> None:
    weights = np.arange(8, dtype=np.float32)

    def f(x: Any) -> Any:
        return lax.optimization_barrier((jnp.asarray(weights), x))[0] * x[0]

    check(f, X[0])
    grad = jax.grad(jax.checkpoint(lambda x: (jnp.sin(x) * weights).sum()))
    np.testing.assert_allclose(stagejit.jit(grad)(X[0, :8]), np.cos(X[0, :8]) * weights, rtol=1e-6)


def test_what_a_barrier_holds_may_lie_in_memory_that_is_written() -> None:
    """The kernel reads the donated argument by another name than that which it gives up."""

    def f(x: Any) -> Any:
        held = lax.optimization_barrier(x)
        return jnp.cos(held) * x, held + 1

    staged = stagejit.jit(f, donate_argnums=0, options=Options(verify=True))
    assert "x[0:20, 0:2]" in {str(w) for d in staged.plan(Y).dispatches for w in d.writes}
    first, second = staged(jnp.array(Y))
    np.testing.assert_allclose(first, np.cos(Y) * Y, rtol=1e-6)
    np.testing.assert_array_equal(second, Y + 1)


UPDATED_BEHIND = """graph @f(%x: f32[4], %y: f32[2]) {
  %0: f32[4] = dispatch copy %x
    graph @copy(%a0: f32[4]) {
      return %a0
    }
  %1: f32[4] = dispatch map %x
    graph @map(%a0: f32[4]) {
      %0: f32[4] = map exp %a0
      return %0
    }
  %2: f32[4], %3: f32[4] = optimization_barrier %0, %1
  %4: f32[4] = dispatch copy %y into %2 [0:2]
    graph @copy(%a0: f32[2], %d0: f32[4] donated) {
      %0: f32[4] = insert_slice %a0 into %d0 at (0)
      return %0
    }
  return %4, %3
}"""


def test_an_update_behind_a_barrier_comes_after_all_operands() -> None:
    dispatches = parse(UPDATED_BEHIND)
    plan = schedule(dispatches, regions_of(dispatches)).plan
    first, second, update = (dispatch.name for dispatch in plan.dispatches)
    assert {first, second} <= ancestors(plan, update)
