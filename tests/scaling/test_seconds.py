"""What a program of eight times the length takes: seconds of the processor, where counts of calls
do not see what grows (sets of bits, texts, lists that are sorted or searched).

What is linear takes some ten times as long, what is quadratic thirty to sixty times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.base.threads.collector import collector_paused
from stagejit.graph.ir import Graph
from stagejit.graph.text.printer import value_names
from stagejit.pipeline import STEPS, Compilation
from stagejit.runtime.lowering.staged import Request
from stagejit.types import TensorType, f32
from tests.randomness import RNG
from tests.scaling.families import Program, array, requested

_MOST = 15.0  # times as long, for a program of eight times the length


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


def products_of_one_weight(n: int) -> Request:
    def f(w: Any, x: Any) -> Any:
        for _ in range(n):
            x = jnp.tanh(x @ w) @ w.T
        return x

    return bound(f, weight(16, 16), weight(8, 16))


def powers_of_a_weight(n: int) -> Request:
    def f(w: Any, x: Any) -> Any:
        made = []
        for _ in range(n):
            w = jnp.tanh(w)
            made.append(x @ w)
        return made

    return bound(f, weight(16, 16), weight(8, 16))


def factors_of_products(n: int) -> Request:
    """Each is put into the weights of its product, as the scale of a batch norm."""

    def f(weights: Sequence[Any], x: Any) -> Any:
        for w, scale in weights:
            x = jnp.tanh((x @ w) * scale)
        return x

    return bound(f, [(weight(8, 8), weight(8)) for _ in range(n)], weight(4, 8))


def seconds(request: Request, step: str) -> float:
    """Of the processor, for one step."""
    compilation = Compilation(request)
    before = [each.name for each in STEPS]
    compilation.run_until(before[before.index(step) - 1])
    with collector_paused():
        start = time.thread_time()
        compilation.run_until(step)
        return time.thread_time() - start


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("family", "step", "most"),
    [
        (updates_of_what_was_read, "place", 1200),
        (updates_somewhere, "place", 800),
        (skips_that_are_concatenated, "place", 2400),
        (operands_of_branches, "rewrite", 1600),
        (operands_of_branches, "encode", 3200),
        (operands_of_branches, "schedule", 3200),
        (tree_of_products, "schedule", 4096),
        (weights_of_one_loop, "encode", 1600),
        (products_of_one_weight, "resolve", 1600),
        (powers_of_a_weight, "schedule", 1200),
        (powers_of_a_weight, "rewrite", 1200),
        (factors_of_products, "rewrite", 3200),
    ],
)
def test_steps_are_near_linear(family: Callable[[int], Request], step: str, most: int) -> None:
    seconds(family(16), step)  # what is made once a process
    requests = family(most // 8), family(most)
    short, long = (min(seconds(each, step) for _ in range(2)) for each in requests)
    assert long < _MOST * short, (long, short)


def test_inputs_of_one_name_are_told_apart_at_once() -> None:
    def named(n: int) -> float:
        graph = Graph("f")
        for _ in range(n):
            graph.add_input("w", TensorType(f32, (4,)))
        start = time.thread_time()
        names = value_names(graph)
        taken = time.thread_time() - start
        assert [*names.values()][:3] == ["%w", "%w_1", "%w_2"]
        assert len(set(names.values())) == n
        return taken

    named(8)
    short, long = (min(named(n) for _ in range(3)) for n in (500, 4000))
    assert long < _MOST * short, (long, short)
