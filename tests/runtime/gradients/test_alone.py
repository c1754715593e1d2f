"""What a value of a jaxpr depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.extend.core import Primitive

from stagejit.runtime.gradients.alone import Depends, of_arguments, results_of
from stagejit.trace.weights import Budget, Weight, known_p, weight_p

N = 4
SHAPE = jax.ShapeDtypeStruct((N, N), jnp.float32)
W = Weight("w", jnp.ones((N, N)), False, Budget(1000.0))
FOREIGN = Primitive("foreign")
FOREIGN.def_abstract_eval(lambda x: x)  # type: ignore[no-untyped-call]


def weight() -> Any:
    return weight_p.bind(weight=W)  # type: ignore[no-untyped-call]


def depends(function: Callable[[Any], Any]) -> list[str]:
    jaxpr = jax.make_jaxpr(function)(SHAPE).jaxpr
    return [each.name for each in results_of(jaxpr, of_arguments(jaxpr))]


def scanned(x: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        a, b = carry
        return (a * 2, b + a), (row * 3, row * x[0])

    return lax.scan(body, (weight(), x), weight())


def fed_back(x: Any) -> Any:
    """A carry that gets an argument in the second iteration only."""
    return lax.scan(lambda c, _: ((c[1], c[1], x), None), (weight(), weight(), x), None, length=3)[
        0
    ][:2]


def through_carries(x: Any) -> Any:
    return lax.scan(lambda c, _: ((c[1], c[2], c[2]), None), (weight(), weight(), x), None, 3)[0]


def branched(x: Any) -> Any:
    return lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, weight())


def branched_by_weights(x: Any) -> Any:
    return lax.cond(weight()[0, 0] > 0, jnp.sin, jnp.cos, weight())


NOTHING, WEIGHTS, ARGUMENTS = (each.name for each in Depends)


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x: (x, 1.0, jnp.arange(3), weight()), [ARGUMENTS, NOTHING, NOTHING, WEIGHTS]),
        (lambda x: (weight().T * jnp.arange(4.0), weight() + x), [WEIGHTS, ARGUMENTS]),
        (lambda x: weight() * np.tri(N, dtype=np.float32), [WEIGHTS]),
        (jax.jit(lambda x: (jnp.sin(weight()), x)), [WEIGHTS, ARGUMENTS]),
        (jax.checkpoint(lambda x: (jnp.sin(weight()), x + 1)), [WEIGHTS, ARGUMENTS]),
        (lambda x: jax.jit(lambda x, w: (w * 2, x * w))(x, weight()), [WEIGHTS, ARGUMENTS]),
        (scanned, [WEIGHTS, ARGUMENTS, WEIGHTS, ARGUMENTS]),
        (fed_back, [WEIGHTS, WEIGHTS]),
        (through_carries, [ARGUMENTS] * 3),
        (branched, [ARGUMENTS]),
        (branched_by_weights, [WEIGHTS]),
        (lambda x: lax.cond(True, lambda: weight(), lambda: weight() + 1), [WEIGHTS]),
        (lambda x: lax.while_loop(lambda w: w.sum() < 9, lambda w: w * 2, weight()), [ARGUMENTS]),
        (lambda x: jax.pure_callback(lambda w: w, SHAPE, weight()), [ARGUMENTS]),
        (lambda x: io_callback(lambda w: w, SHAPE, weight()), [ARGUMENTS]),
        (
            lambda x: lax.cond(
                weight().sum() > 0, lambda: jax.pure_callback(lambda: 1, SHAPE), lambda: weight()
            ),
            [ARGUMENTS],
        ),
        (lambda x: (known_p.bind(x), known_p.bind(x) + weight(), x), [WEIGHTS, WEIGHTS, ARGUMENTS]),
        (lambda x: FOREIGN.bind(weight()), [ARGUMENTS]),  # type: ignore[no-untyped-call]
    ],
)
def test_what_results_depend_on(function: Callable[[Any], Any], wanted: list[str]) -> None:
    assert depends(function) == wanted
