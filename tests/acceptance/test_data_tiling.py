"""Section E: data tiling, materialized late. What needs `stagejit.bind` has tests of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stagejit
from stagejit import pipeline
from stagejit.codegen import own
from stagejit.codegen.cpu.contract.panels import panels_for
from stagejit.codegen.target import Target
from stagejit.dispatch.encodings import Resolver, resolve_encodings, untiled
from stagejit.dispatch.regions import regions_of
from stagejit.graph.isomorphic import difference
from stagejit.graph.text.printer import as_text
from stagejit.index.encoding import Encoding
from stagejit.index.layout import Layout
from stagejit.options import Options
from stagejit.pipeline import Compilation
from stagejit.types import TensorType
from tests.acceptance.running import f32, plan_of, same, totals

TILING = ("data-tiling", "propagate-encodings", "elide-packs")
W, B, V = f32(96, 128, seed=1), f32(128, seed=2), f32(128, 80, seed=3)


def dense(x: Any) -> Any:
    """dot -> bias -> relu -> dot, of weights that are there."""
    return jax.nn.relu(x @ jnp.asarray(W) + jnp.asarray(B)) @ jnp.asarray(V)


def dense_of_arguments(x: Any, w: Any, b: Any, v: Any) -> Any:
    return jax.nn.relu(x @ w + b) @ v


def expected_dense(x: Any) -> Any:
    wide = (each.astype(np.float64) for each in (x, W, B, V))
    x, w, b, v = wide
    return np.maximum(x @ w + b, 0) @ v


def compiled(fn: Callable[..., Any], *args: Any, **options: Any) -> Compilation:
    chosen = Options(verify=True, **options)
    return Compilation.of(stagejit.jit(fn, options=chosen).trace(*args).compilation.request)


def tiled(rows: int = 8, columns: int = 16) -> Resolver:
    """Of a target that tiles all three arrays of a product."""

    def resolve(encoding: Encoding, type: TensorType) -> Layout | None:
        sizes = {"m": rows, "n": columns, "k": 1, "b": 1}
        if encoding.role == "lhs":
            sizes |= {"k": columns}
        tiles = tuple(sizes[letter] for letter in encoding.axes)
        return Layout((), tiles)

    return resolve


def resolving(patch: pytest.MonkeyPatch, resolver: Resolver) -> None:
    """From now on the target of compilations resolves encodings so."""
    patch.setattr(own, "panels_for", lambda target: resolver)


# --------------------------------------------------------------------------- E1, E2

TARGETS = ("native", "cuda:H100", "cuda:sm_80")
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "weights that are there": (dense, (f32(40, 96),)),
    "weights that are given": (dense_of_arguments, (f32(40, 96), W, B, V)),
    "a gradient": (
        jax.grad(lambda *args: (dense_of_arguments(*args) ** 2).sum(), (1, 3)),
        (f32(40, 96), W, B, V),
    ),
}


@pytest.mark.native
@pytest.mark.parametrize("program", PROGRAMS)
def test_e1_the_dispatch_graph_is_the_same_for_every_target(program: str) -> None:
    fn, args = PROGRAMS[program]
    first, *others = (compiled(fn, *args, target=t).run_until("place") for t in TARGETS)
    for other in others:
        assert difference(first.dispatches, other.dispatches) is None
        assert [r.name for r in first.regions] == [r.name for r in other.regions]
        assert as_text(first.dispatches) == as_text(other.dispatches)


@pytest.mark.native
@pytest.mark.parametrize("program", PROGRAMS)
def test_e2_without_tiles_all_is_as_if_tiling_were_off(program: str) -> None:
    fn, args = PROGRAMS[program]
    on = compiled(fn, *args, target="cuda:H100").run_until("schedule")
    off = compiled(fn, *args, target="cuda:H100", disable=TILING).run_until("schedule")
    assert on.plan.as_text() == off.plan.as_text()
    assert difference(on.resolved, off.resolved) is None
    assert [d.nbytes for d in on.plan.dispatches] == [d.nbytes for d in off.plan.dispatches]


# -------------------------------------------------------------------------------- E3


@pytest.mark.native
def test_e3_no_call_packs_weights_that_are_there() -> None:
    x = f32(40, 96)
    plan = plan_of(dense, x)
    layouts = {b.shape: str(b.layout) for b in plan.buffers if b.kind == "constant"}
    columns = {n: layout for (*_, n), layout in layouts.items() if layout}
    panels = panels_for(Target.host())
    assert set(columns) == {128, 80}
    for array in (W, V):
        encoding = Encoding("rhs", "kn", ("f32", "f32", "f32"))
        wanted = panels(encoding, TensorType(stagejit.types.f32, array.shape))
        assert columns[array.shape[1]] == str(wanted)
    assert totals(plan)[:3] == (2, 0, 0)
    same(stagejit.jit(dense, options=Options(verify=True))(x), expected_dense(x))


@pytest.mark.native
def test_e3_kernels_read_panels_as_they_lie() -> None:
    made = compiled(dense, f32(40, 96)).run_until("codegen").kernels.values()
    choices = [c.reason for g in made for c in g.kernel.choices if c.name == "tile"]
    assert choices
    assert all("nothing packed" in reason.split(":")[0] for reason in choices)


# ---------------------------------------------------------------------------- E4, E5


@pytest.mark.native
def test_e4_a_pack_that_is_a_reshape_costs_no_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One panel of all columns is the array itself."""
    panel = Layout((0, 1), (1, 128))
    resolving(monkeypatch, lambda encoding, type: panel if type.shape[-1] == 128 else None)
    chosen = {"disable": ("elide-packs",)}
    c = compiled(lambda x, w: x @ w, f32(40, 96), W, **chosen).run_until("schedule")
    assert totals(c.plan) == (1, 0, 0, 0)


def packs(plan: Any) -> int:
    return sum(d.kind == "copy" for d in plan.dispatches)


@pytest.mark.native
def test_e5_a_chain_of_products_packs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a target with tiles for everything has left to do is in the kernels: what lies
    between the products is in tiles."""
    resolving(monkeypatch, tiled())
    args = (f32(40, 96), W, B, V)
    c = compiled(dense_of_arguments, *args).run_until("schedule")
    assert packs(c.plan) == 0
    (between,) = (b for b in c.plan.buffers if b.kind == "transient")
    assert str(between.layout) == "{;8,16}"
    same(stagejit.jit(dense_of_arguments, options=Options(verify=True))(*args),
         expected_dense(args[0]))  # fmt: skip


# -------------------------------------------------------------------------------- E6


@pytest.mark.native
def test_e6_the_target_says_how_much_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 100x500 result with tiles of 8x16; padding is NaN in the verifier's memory, and a maximum
    does not see it."""
    resolving(monkeypatch, tiled())
    x, w, v = f32(100, 64), f32(64, 500, seed=1), f32(500, 64, seed=2)

    def f(x: Any, w: Any, v: Any) -> Any:
        return (jnp.tanh(x @ w) @ v).max(0)

    plan = plan_of(f, x, w, v)
    (encoded,) = (b for b in plan.buffers if b.shape == (100, 500))
    assert encoded.nbytes == 212_992 == 104 * 512 * 4
    ours = stagejit.jit(f, options=Options(verify=True))(x, w, v)
    same(ours, (np.tanh(x.astype(np.float64) @ w) @ v).max(0))


# -------------------------------------------------------------------------------- E7


def reasons(plan: Any, rewrite: str = "data-tiling") -> str:
    return "\n".join(d.reason for d in plan.decisions if d.rewrite == rewrite and not d.applied)


@pytest.mark.native
def test_e7_a_weight_does_not_grow_by_more_than_a_fifth() -> None:
    w = f32(64, Target.host().lanes("f32") + 1)
    plan = plan_of(lambda x: x @ jnp.asarray(w), f32(40, 64))
    assert "over 1.2 times" in reasons(plan)
    assert all(b.layout.is_row_major for b in plan.buffers)


def test_e7_what_has_no_tiles() -> None:
    w = jnp.asarray(f32(96, 128))
    assert "it has 56 results, under 64, too few for tiles" in reasons(
        plan_of(lambda x: x @ w[:, :8], f32(7, 96))
    )
    vector = plan_of(lambda x, w: x @ w, f32(1, 96), f32(96, 128))
    assert "a product of a matrix and a vector" in reasons(vector)
    state = plan_of(lambda x, s: s.at[0].set(0.0) * (x @ s).sum(), f32(40, 96), W,
                    donate_argnums=1)  # fmt: skip
    elided = [d.reason for d in state.decisions if d.rewrite == "elide-packs" and d.applied]
    assert any("mutable state" in reason for reason in elided)


# ------------------------------------------------------------- values, whatever is encoded


@settings(max_examples=15, deadline=None)
@given(
    st.integers(2, 40),
    st.integers(1, 70),
    st.integers(2, 150),
    st.sampled_from(["avx512", "avx2", "sse2", "host"]),
    st.sets(st.sampled_from(TILING)),
    st.booleans(),
)
def test_dropping_encodings_changes_no_value(
    m: int, k: int, n: int, target: str, disable: set[str], transposed: bool
) -> None:
    """With panels of any target's width, which this machine's kernels read as well."""
    x, w = f32(m, k), f32(n, k, seed=1).T if transposed else f32(k, n, seed=1)

    def f(x: Any) -> Any:
        return jnp.tanh(x @ jnp.asarray(w)) @ jnp.asarray(w).T

    with pytest.MonkeyPatch.context() as patch:
        resolving(patch, panels_for(getattr(Target, target)()))
        ours = stagejit.jit(f, options=Options(verify=True, disable=tuple(disable)))(x)
    wide = x.astype(np.float64), w.astype(np.float64)
    same(ours, np.tanh(wide[0] @ wide[1]) @ wide[1].T)


# -------------------------------------------------------------------------------- E8


@pytest.mark.native
@pytest.mark.parametrize("second", ["tiled", "untiled"])
def test_e8_two_targets_in_one_plan(monkeypatch: pytest.MonkeyPatch, second: str) -> None:
    """Two products for one target, then two for another: a value is relaid where it crosses."""
    one, other = tiled(), tiled(4, 32) if second == "tiled" else untiled
    x, w = f32(40, 64), [f32(64, 64, seed=n) / 8 for n in range(4)]

    def f(x: Any, w: Any) -> Any:
        for each in w:
            x = jnp.tanh(x @ each)
        return x

    def resolve(c: Compilation) -> None:
        products = [op for op in c.dispatches.ops() if op.definition.is_dispatch]
        first = products[: len(products) // 2]
        resolved = resolve_encodings(c.dispatches, one, lambda op: one if op in first else other)
        c.resolved = resolved.graph
        c.regions = regions_of(c.resolved, c.request.options)
        c.decisions += resolved.decisions

    steps = (replace(s, run=resolve) if s.name == "resolve" else s for s in pipeline.STEPS)
    monkeypatch.setattr(pipeline, "STEPS", tuple(steps))
    plan = plan_of(f, x, w)
    between = [str(b.layout) for b in plan.buffers if b.kind == "transient"]
    assert len(plan.copies) == 1
    (copy,) = plan.copies
    names = [d.name for d in plan.dispatches]
    assert names.index(copy.name) == 2  # between the second product and the third
    theirs = "{;4,32}" if second == "tiled" else ""
    assert between == ["{;8,16}", "{;8,16}", theirs, theirs]
    wanted = x.astype(np.float64)
    for each in w:
        wanted = np.tanh(wanted @ each)
    same(stagejit.jit(f, options=Options(verify=True))(x, w), wanted)
