"""What is made of parts of one weight: by one program for all parts that are alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit import pipeline
from tests.randomness import RNG

Layer = Callable[[Any, Any, Any], Any]
LAYERS: dict[str, Layer] = {
    "product": lambda x, w, v: jnp.tanh(x @ w),
    "transposed": lambda x, w, v: jnp.tanh(x @ w.T),
    "made": lambda x, w, v: jnp.tanh(x @ (w * jnp.tanh(v))),
    "scaled": lambda x, w, v: jnp.tanh((x @ w) * v),
    "of two parts": lambda x, w, v: jnp.tanh(x @ (w[:24] @ w[:24].T)[:, :8]) @ w[:8] / 9,
    "turned": lambda x, w, v: jnp.tanh(x @ jnp.exp(lax.rev(w, (0,)) / 9)) / 9,
}
WIDE = 24


def stacked(count: int, dtype: Any) -> Any:
    w = RNG.normal(size=(count, WIDE, WIDE)) / 5
    return jnp.asarray(w, dtype), jnp.asarray(RNG.normal(size=(count, WIDE)), dtype)


def by_index(layer: Layer, params: Any, x: Any) -> Any:
    for at in range(len(params[0])):
        x = layer(x, params[0][at], params[1][at]).astype(x.dtype)
    return x


def by_box(layer: Layer, params: Any, x: Any) -> Any:
    """Columns of one matrix."""
    w, v = params
    wide = w.transpose(1, 0, 2).reshape(WIDE, -1)
    for at in range(len(w)):
        part = lax.slice_in_dim(wide, at * WIDE, (at + 1) * WIDE, axis=1)
        x = layer(x, part, v[at]).astype(x.dtype)
    return x


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs of programs that make values of weights."""
    found = list[Any]()
    loaded = pipeline._loaded

    def counted(graph: Any, options: Any) -> Any:
        found.append(graph)
        return loaded(graph, options)

    monkeypatch.setattr(pipeline, "_loaded", counted)
    return found


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("net", [by_index, by_box])
@pytest.mark.parametrize("form", [None, "bf16", "int8", "int4"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_more_parts_are_no_more_programs(
    name: str, net: Any, form: Any, dtype: Any, compiled: list[Any]
) -> None:
    f = lambda p, x: net(LAYERS[name], p, x)  # noqa: E731
    x = jnp.asarray(RNG.normal(size=(5, WIDE)), jnp.float32)
    programs = []
    for count in (2, 5):
        compiled.clear()
        params = stacked(count, dtype)
        options = stagejit.Options(cache_dir="", operand_limit=16 + count)  # programs of its own
        bound = stagejit.bind(f, params, weights=form, options=options, budget_nbytes=1 << 24)
        tolerance = {None: 1e-4, "bf16": 0.05, "int8": 0.1, "int4": 0.7}[form]
        tolerance = max(tolerance, 0.05 if dtype == jnp.bfloat16 else 0)
        for new in (params, jax.tree.map(lambda a: a / 2, params)):
            bound.update(new)
            wanted = np.asarray(f(new, x))
            most = tolerance * np.abs(wanted).max()
            np.testing.assert_allclose(bound(x), wanted, atol=most, rtol=0)
        programs.append(len(compiled))
    assert programs[0] == programs[1]


def test_parts_of_64_bits_are_what_they_are() -> None:
    with jax.enable_x64(True):
        w = jnp.asarray(RNG.normal(size=(3, WIDE, WIDE)))
        x = jnp.asarray(RNG.normal(size=(5, WIDE)))
        f = lambda p, x: by_index(LAYERS["made"], (p, p[:, 0]), x)  # noqa: E731
        bound = stagejit.bind(f, w)
        np.testing.assert_allclose(bound(x), f(w, x), rtol=1e-12)
    bound.update(w)
    with jax.enable_x64(True):
        np.testing.assert_allclose(bound(x), f(w, x), rtol=1e-12)


def test_a_part_is_memory_of_its_own(compiled: list[Any]) -> None:
    """So that the weight may go, and is not kept by one part of it."""
    w = stacked(4, jnp.float32)[0]
    wanted = np.tanh(np.asarray(w[1]))
    bound = stagejit.bind(lambda p, x: x @ jnp.tanh(p[1]), w)
    bound(jnp.eye(WIDE))
    w.delete()
    for _ in range(4):
        jnp.full((4, WIDE, WIDE), np.nan).block_until_ready()
    np.testing.assert_allclose(bound(jnp.eye(WIDE)), wanted, atol=1e-6)
    assert len(compiled) <= 1
