"""Buffers in memory of any layout: a rewrite that chooses layouts may count on all the rest.

Here layouts are drawn by chance, for every buffer that only dispatches touch, and programs must
mean the same: nothing takes such memory for row-major. What the package chooses by itself is in
tests/dispatch/layouts/.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit import pipeline
from stagejit.dispatch.layouts.relay import bound_memory, relay
from stagejit.dispatch.regions import regions_of
from stagejit.dispatch.ties_verifier import verify_ties
from stagejit.errors import VerificationError
from stagejit.graph.ir import Graph, Value
from stagejit.graph.ops import build, infer
from stagejit.graph.ops.control import bodies_of, memory_of
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.index.layout import Layout
from stagejit.options import SWITCHES, Options
from stagejit.pipeline import Compilation
from stagejit.schedule.plans.parser import parse_plan
from stagejit.types import TensorType, f32

Choose = Callable[[Value], Layout | None]


def drawn(value: Value, rng: random.Random) -> Layout | None:
    """A layout of the value's shape; sometimes row-major."""
    rank = len(value.shape)
    if not rank or not value.type.size or rng.random() < 0.2:
        return None
    order = rng.sample(range(rank), rank)
    tiles = [rng.choice([1, 1, 2, 3, 4, 8, 16]) for _ in order] if rng.random() < 0.6 else []
    padding = [rng.choice([0, 0, 1, 5]) for _ in order] if rng.random() < 0.4 else []
    return Layout(tuple(order), tuple(tiles), tuple(padding))


def relay_all(graph: Graph, choose: Choose) -> None:
    """Gives layouts to all memory that may have one, in bodies too."""
    bound, chosen = bound_memory(graph), {}
    for op in graph.ops():
        if not op.definition.is_dispatch:
            for body in bodies_of(op):
                relay_all(body, choose)
        for value in op.results if op.definition.is_dispatch or op.definition.is_empty else ():
            if memory_of(value) is value and value not in bound:
                layout = choose(value)
                if layout is not None and not layout.is_row_major:
                    chosen[value] = layout
    relay(graph, chosen)


@contextmanager
def layouts(choose: Choose) -> Iterator[list[str]]:
    """Inside, compiled programs have these layouts; yields the texts of those that have any."""
    texts: list[str] = []
    steps = pipeline.STEPS

    def place(c: Compilation) -> None:
        place_them(c)
        relay_all(c.dispatches, choose)
        c.regions = regions_of(c.dispatches, c.request.options)
        text = as_text(c.dispatches)
        texts.extend([text] if "]{" in text else [])

    place_them = next(step.run for step in steps if step.name == "place")
    changed = (replace(s, run=place) if s.name == "place" else s for s in steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "STEPS", tuple(changed))
        yield texts


# Each makes a value of another one; all that is in between is in memory that only dispatches touch.
STEPS: tuple[Callable[[Any, Any, random.Random], Any], ...] = (
    lambda x, at, rng: jnp.tanh(x) - x.mean(rng.randrange(x.ndim), keepdims=True),
    lambda x, at, rng: jax.nn.softmax(x, rng.randrange(x.ndim)),
    lambda x, at, rng: jnp.swapaxes(x, 0, -1),
    lambda x, at, rng: jnp.sin(x) @ jnp.cos(jnp.swapaxes(x, -1, -2)) / x.shape[-1],
    lambda x, at, rng: jnp.pad(x, [(rng.randrange(3), rng.randrange(3)) for _ in x.shape]),
    lambda x, at, rng: x[tuple(slice(0, max(n - 1, 1), rng.randint(1, 2)) for n in x.shape)],
    lambda x, at, rng: jnp.concatenate([x, jnp.exp(-jnp.abs(x))], rng.randrange(x.ndim)),
    lambda x, at, rng: jnp.cumsum(x, rng.randrange(x.ndim)) / 8,
    lambda x, at, rng: jnp.flip(x, rng.randrange(x.ndim)) * 0.5 + x,
    lambda x, at, rng: x.at[rng.randrange(x.shape[0])].set(jnp.float32(rng.random())),
    lambda x, at, rng: x.at[jnp.array([0, 1, 0]) % x.shape[0]].add(x[:1] * 0.25),
    lambda x, at, rng: jnp.take(x, jnp.array([1, 0, 2, 1]) % x.shape[-1], -1),
    lambda x, at, rng: lax.dynamic_update_slice(x, x[:1] + 1, (at,) * x.ndim),
    lambda x, at, rng: lax.reduce_window(
        x, -jnp.inf, lax.max, (2,) * x.ndim, (1,) * x.ndim, "SAME"
    ),
    lambda x, at, rng: lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c) + 0.1 * jnp.roll(c, 1, -1), x),
    lambda x, at, rng: lax.cond(x.sum() > 0, lambda v: jnp.exp(-v * v), jnp.cos, x),
)


def of_many_dispatches(seed: int) -> Callable[[Any, Any], Any]:
    """A program of ten of these steps."""

    def f(x: Any, at: Any) -> Any:
        rng = random.Random(seed)
        kept = []
        for _ in range(10):
            x = rng.choice(STEPS)(x, at, rng)
            if x.size > 4000:
                x = x[tuple(slice(0, 8) for _ in x.shape)]
            kept.append(jnp.sum(x, -1))
        return x, kept[rng.randrange(10)]

    return f


FUSIONS = tuple(name for name in SWITCHES if name.startswith("fuse-"))


@pytest.mark.some(6)
@pytest.mark.parametrize("seed", range(40))
def test_every_kind_of_dispatch(seed: int) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.choice([2, 3, 8, 9, 17, 33]) for _ in range(rng.choice([2, 2, 3])))
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    f, at = of_many_dispatches(seed), np.int32(rng.randrange(5))
    options = Options(disable=FUSIONS if seed % 2 else (), verify=True)
    with layouts(lambda value: drawn(value, rng)) as texts:
        ours = stagejit.jit(lambda *args: f(*args), options=options)(x, at)
    assert texts or not seed % 2
    for a, b in zip(ours, jax.jit(f)(x, at), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def block(x: Any, w: Any, v: Any) -> Any:
    y = jnp.tanh(x @ w)
    y = y - y.mean(-1, keepdims=True)
    z = jnp.pad(y @ v, ((1, 2), (0, 3)))
    z = z.at[3:5, 1:4].set(1.0).at[jnp.array([1, 6])].add(2.0)
    return jnp.cumsum(z, 0)[::2], jnp.sort(z, 1).sum(1), jnp.concatenate([z, z[:4]], 0).max(0)


ARGS = tuple(
    np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for shape in ((20, 12), (12, 33), (33, 18))
)


@pytest.mark.parametrize("seed", range(4))
def test_texts_of_layouts_are_read_back(seed: int) -> None:
    rng = random.Random(seed)
    jitted = stagejit.jit(lambda *args: block(*args), options=Options(cache_dir=""))
    with layouts(lambda value: drawn(value, rng)) as texts:
        c = Compilation(jitted.trace(*ARGS).compilation.request).run_until("schedule")
    assert texts == [as_text(c.dispatches)]
    assert as_text(parse(texts[0])) == texts[0]
    plan = c.plan.as_text()
    assert "]{" in plan
    assert parse_plan(plan).as_text() == plan
    assert parse_plan(plan).buffers == c.plan.buffers


def test_nobody_but_dispatches_has_other_layouts() -> None:
    """Who looks at memory in another shape, or hands it on by its bytes, counts on its order."""
    text = """graph @f(%x: f32[4,6]) {
  %0: f32[4,6]{1,0} = empty
  %1: f32[4,6]{1,0} = dispatch map %x into %0 [0:4, 0:6]
    graph @map(%a0: f32[4,6], %d0: f32[4,6]{1,0} donated) {
      %0: f32[4,6] = map exp %a0
      %1: f32[4,6]{1,0} = insert_slice %0 into %d0 at (0, 0)
      return %1
    }
  %2: f32[24] = alias %1
  %3: f32[24] = dispatch map %2
    graph @map(%a0: f32[24]) {
      %0: f32[24] = map exp %a0
      return %0
    }
  return %3
}
"""
    graph = parse(text)
    with pytest.raises(VerificationError, match="row-major"):
        verify_ties(graph, regions_of(graph))
    returned = parse(text.split("  %2:")[0] + "  return %1\n}\n")
    with pytest.raises(VerificationError, match="row-major"):
        verify_ties(returned, regions_of(returned))


def test_inputs_are_row_major() -> None:
    """Who calls knows no other layout, and the buffer of an argument has none."""
    text = """graph @f(%x: f32[4,6]{1,0}) {
  %0: f32[4,6] = dispatch map %x
    graph @map(%a0: f32[4,6]{1,0}) {
      %0: f32[4,6] = map exp %a0
      return %0
    }
  return %0
}
"""
    graph = parse(text)
    with pytest.raises(VerificationError, match="row-major"):
        verify_ties(graph, regions_of(graph))


OF_ONE = {
    "cumulative": {"fn": "add", "axis": 0, "reverse": False},
    "reverse": {"axes": (0,)},
}


@pytest.mark.parametrize("kind", OF_ONE)
def test_what_is_made_of_tiles_is_not_in_tiles(kind: str) -> None:
    """Only an update lies where its operand does."""
    tiled, plain = TensorType(f32, (4, 6), Layout((1, 0))), TensorType(f32, (4, 6))
    assert infer(kind, [tiled], OF_ONE[kind]) == (plain,)


@pytest.mark.parametrize("op", [lambda t: jnp.cumsum(t, 1), lambda t: t[::-1]])
def test_a_result_that_is_made_of_tiles(op: Callable[[Any], Any]) -> None:
    x = np.random.default_rng(0).normal(size=(17, 33)).astype(np.float32)
    options = Options(disable=FUSIONS, verify=True)
    with layouts(lambda value: Layout((1, 0), (4, 3))) as texts:
        ours = stagejit.jit(lambda x: op(jnp.cumsum(x, 0)), options=options)(x)
    assert texts
    np.testing.assert_allclose(ours, op(jnp.cumsum(x, 0)), rtol=1e-4, atol=1e-4)


def test_a_layout_of_another_rank_is_refused() -> None:
    with pytest.raises(VerificationError, match="no layout of that shape"):
        build(Graph(), "empty", (), shape=(2, 3), dtype=f32, layout=Layout((1, 0, 2)))
