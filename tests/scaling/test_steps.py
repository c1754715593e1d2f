"""What a step does for a program of four times the length: lines are counted, not seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.graph.ir import Graph
from stagejit.graph.text.printer import value_names
from stagejit.pipeline import STEPS, Compilation
from stagejit.runtime.lowering.staged import Request
from stagejit.types import TensorType, f32
from tests.expected.calls import lines_of
from tests.randomness import RNG
from tests.scaling.families import MOST_GROWTH, Program, array, requested


def weight(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.standard_normal(shape).astype(np.float32))


def unbound(program: Program) -> Request:
    return requested(program, verify=False)


def bound(f: Callable[..., Any], weights: Any, *args: Any) -> Request:
    made = stagejit.bind(f, weights, options=stagejit.Options(cache_dir=""))
    return made.trace(*args).compilation.request


def updates_of_what_was_read(n: int) -> Request:
    """Who computes what is written reads what others have written of the same buffer."""

    def f(d: Any, x: Any) -> Any:
        for k in range(n):
            d = d.at[k % 64].set(d[(k * 7) % 64] + x)
        return d

    return unbound((f, (array(64, 16), array(16)), (0,)))


def updates_somewhere(n: int) -> Request:
    def f(x: Any, i: Any) -> Any:
        for _ in range(n):
            x = lax.dynamic_update_slice(x, 2.0 * lax.dynamic_slice(x, (i,), (8,)), (i + 8,))
        return x

    return unbound((f, (array(64), jax.ShapeDtypeStruct((), jnp.int32)), (0,)))


def skips_that_are_concatenated(n: int) -> Request:
    """The first layer writes for the last one, the second for the last but one."""
    layers = n // 2

    def f(x: Any, *weights: Any) -> Any:
        values = [x]
        for w in weights[:layers]:
            values.append(jnp.tanh(values[-1] @ w))
        x = values[-1]
        for w, value in zip(weights[layers:], reversed(values), strict=False):
            x = jnp.tanh(jnp.concatenate([x, value], 1) @ w)
        return x

    weights = [array(16, 16)] * layers + [array(32, 16)] * layers
    return unbound((f, (array(8, 16), *weights), ()))


def operands_of_branches(n: int) -> Request:
    def f(p: Any, *values: Any) -> Any:
        return lax.cond(p, lambda *xs: tuple(jnp.sin(x) for x in xs), lambda *xs: xs, *values)

    return unbound((f, (jax.ShapeDtypeStruct((), jnp.bool_), *[array(8)] * n), ()))


def tree_of_products(n: int) -> Request:
    def f(*values: Any) -> Any:
        while len(values) > 1:
            values = tuple(a @ b for a, b in zip(values[::2], values[1::2], strict=True))
        return values[0]

    return unbound((f, (array(8, 8),) * n, ()))


def weights_of_one_loop(n: int) -> Request:
    def body(x: Any, weights: Sequence[Any]) -> tuple[Any, None]:
        for w in weights:
            x = jnp.tanh(x @ w)
        return x, None

    weights = [weight(3, 8, 8)] * n
    return bound(lambda weights, x: lax.scan(body, x, weights)[0], weights, weight(4, 8))


def powers_of_a_weight(n: int) -> Request:
    def f(w: Any, x: Any) -> Any:
        made = []
        for _ in range(n):
            w = jnp.tanh(w)
            made.append(x @ w)
        return made

    return bound(f, weight(16, 16), weight(8, 16))


def lines_of_step(request: Request, step: str) -> int:
    compilation = Compilation(request)
    names = [each.name for each in STEPS]
    compilation.run_until(names[names.index(step) - 1])
    return lines_of(lambda: compilation.run_until(step))


@pytest.mark.parametrize(
    ("family", "step", "most"),
    [
        (updates_of_what_was_read, "place", 400),
        (updates_somewhere, "place", 200),
        (skips_that_are_concatenated, "place", 600),
        (operands_of_branches, "rewrite", 200),
        (operands_of_branches, "encode", 200),
        (operands_of_branches, "schedule", 800),
        (tree_of_products, "schedule", 1024),
        (weights_of_one_loop, "encode", 300),
        (powers_of_a_weight, "schedule", 280),
        (powers_of_a_weight, "rewrite", 400),
    ],
)
def test_steps_are_near_linear(family: Callable[[int], Request], step: str, most: int) -> None:
    lines_of_step(family(8), step)  # what is made once a process
    short, long = (lines_of_step(family(n), step) for n in (most // 4, most))
    assert long < 4 * MOST_GROWTH * short, (long, short)


def test_inputs_of_one_name_are_told_apart_at_once() -> None:
    def named(n: int) -> int:
        graph = Graph("f")
        for _ in range(n):
            graph.add_input("w", TensorType(f32, (4,)))
        names = value_names(graph)
        assert [*names.values()][:3] == ["%w", "%w_1", "%w_2"]
        assert len(set(names.values())) == n
        return lines_of(lambda: value_names(graph))

    short, long = named(100), named(400)
    assert long < 4 * MOST_GROWTH * short, (long, short)
