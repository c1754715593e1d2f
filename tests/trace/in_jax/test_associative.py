"""Which functions `lax.reduce` takes for associative: all that are, and none that is not.

Those with thresholds are drawn: of any size, in every type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.trace.in_jax.polynomials import proven_results
from stagejit.trace.translate import graph_of
from tests.trace.in_jax.test_folds import affine, log_sum_exp, matrices

Body = Callable[[Any, Any], Any]
F, I, U = np.float32, np.int32, np.uint32  # noqa: E741
LENGTH = 1000
TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")


def in_parts(body: Body, *types: Any) -> bool:
    xs = [np.ones(LENGTH, jnp.dtype(type)) for type in types]
    inits = [x.dtype.type(0) for x in xs]

    def program(*xs: Any) -> Any:
        single = len(xs) == 1
        return lax.reduce(xs[0] if single else xs, inits[0] if single else tuple(inits), body, (0,))

    with jax.enable_x64(True):
        graph = graph_of(program, *xs, delegate=False)
    trips = [op.attrs["trip"] for op in graph if op.kind == "loop"]
    assert trips, "there is no loop"
    return trips[0] < LENGTH


def _sizes(type: str, random: np.random.Generator) -> list[Any]:
    """Thresholds: of some orders of size, and near the limit."""
    dtype = jnp.dtype(type)
    if type in FLOATS:
        info = ml_dtypes.finfo(dtype)
        low, high = max(info.minexp, -200) + 4, min(info.maxexp, 200) - 1
        sizes = [*np.exp2(random.uniform(low, high, 4)), 10.0, 1.0, float(info.max) * 0.8]
    else:
        bits = int(np.iinfo(dtype).bits) - (dtype.kind == "i")
        sizes = [int(2 ** random.uniform(2, bits - 1)) for _ in range(4)]
        sizes += [np.iinfo(dtype).max // 10 * 9, 100]
    return [np.asarray(size, dtype)[()] for size in sizes]


def _with_thresholds(k: Any) -> Iterator[tuple[str, Body]]:
    is_float, signed = k.dtype.kind not in "iu", k.dtype.kind != "u"
    low = -k if signed else k.dtype.type(0)
    yield "clip", lambda a, b: jnp.clip(a + b, low, k)
    yield "below", lambda a, b: jnp.minimum(a + b, k)
    yield "above", lambda a, b: jnp.maximum(a - b, k)
    yield "from", lambda a, b: jnp.where(a > k, a, a + b)
    yield "clipped product", lambda a, b: jnp.clip(a * b, low, k)
    if is_float:
        yield "soft", lambda a, b: jnp.where(jnp.abs(a - b) < k, b, jnp.maximum(a, b))
    elif int(k) & (int(k) - 1):
        yield "modular", lambda a, b: (a + b) % k
        yield "modular product", lambda a, b: (a * b) % k


def _drawn() -> list[Any]:
    random = np.random.default_rng(0)
    return [
        pytest.param(body, type, id=f"{name} at {k} of {type}")
        for type in (*TYPES, *FLOATS)
        for k in _sizes(type, random)
        for name, body in _with_thresholds(k)
    ]


@pytest.mark.some(4)
@pytest.mark.parametrize(("body", "type"), _drawn())
def test_functions_with_thresholds_are_not_associative(body: Body, type: str) -> None:
    with jax.enable_x64(True):
        assert not in_parts(body, type)


@pytest.mark.parametrize("type", [I, F])
@pytest.mark.parametrize("size", [10, 1000, 3_000_000])
def test_saturating_sums_are_those_of_one_element_after_the_other(type: Any, size: int) -> None:
    x = (np.random.default_rng(size).normal(size=LENGTH) * size / 4).astype(type)
    low, high = type(-size), type(size)

    def program(x: Any) -> Any:
        return lax.reduce(x, type(0), lambda a, b: jnp.clip(a + b, low, high), (0,))

    total = type(0)
    for element in x:
        total = np.clip(total + element, low, high)
    np.testing.assert_allclose(stagejit.jit(program)(x), total, rtol=1e-4, atol=size * 1e-5)


def _argmax(a: Any, b: Any) -> Any:
    keeps = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
    return jnp.where(keeps, a[0], b[0]), jnp.where(keeps, a[1], b[1])


def _last_argmax(a: Any, b: Any) -> Any:
    keeps = a[0] > b[0]
    return jnp.where(keeps, a[0], b[0]), jnp.where(keeps, a[1], b[1])


def _wrong_argmax(a: Any, b: Any) -> Any:
    """The middle of three that are equal is not always known."""
    keeps = a[0] > b[0]
    tied = a[0] == b[0]
    number = jnp.where(tied, (a[1] + b[1]) // 2, jnp.where(keeps, a[1], b[1]))
    return jnp.maximum(a[0], b[0]), number


def _top2(a: Any, b: Any) -> Any:
    most = jnp.maximum(a[0], b[0])
    return most, jnp.maximum(jnp.minimum(a[0], b[0]), jnp.maximum(a[1], b[1]))


def _segments(a: Any, b: Any) -> Any:
    return a[0] | b[0], jnp.where(b[0], b[1], a[1] + b[1])


def _saturating(a: Any, b: Any) -> Any:
    total = a + b
    return jnp.where(total < a, np.iinfo(total.dtype).max, total)


def _product_of(size: int) -> Body:
    def body(a: Any, b: Any) -> Any:
        x, y = (jnp.stack(part).reshape(size, size) for part in (a, b))
        return tuple((x[:, :, None] * y[None]).sum(1).ravel())

    def unrolled(a: Any, b: Any) -> Any:
        every = range(size)
        return tuple(
            sum(a[i * size + k] * b[k * size + j] for k in every) for i in every for j in every
        )

    return unrolled if size < 5 else body


def _softmax(a: Any, b: Any) -> Any:
    most, total = log_sum_exp(a[:2], b[:2])
    return most, total, a[2] * jnp.exp(a[0] - most) + b[2] * jnp.exp(b[0] - most)


ASSOCIATIVE: dict[str, tuple[Body, tuple[Any, ...]]] = {
    "log_sum_exp": (log_sum_exp, (F, F)),
    "log_sum_exp of bf16": (log_sum_exp, ("bfloat16",) * 2),
    "log_sum_exp of f64": (log_sum_exp, (np.float64,) * 2),
    "softmax": (_softmax, (F, F, F)),
    "affine": (affine, (F, F)),
    "affine of f64": (affine, (np.float64,) * 2),
    "affine of bf16": (affine, ("bfloat16",) * 2),
    "affine of integers": (affine, (I, I)),
    "matrices": (matrices, (F,) * 4),
    "matrices of integers": (matrices, (np.int8,) * 4),
    "3x3": (_product_of(3), (F,) * 9),
    "4x4": (_product_of(4), (I,) * 16),
    "argmax": (_argmax, (F, I)),
    "argmax of integers": (_argmax, (I, I)),
    "last argmax": (_last_argmax, (F, I)),
    "logaddexp": (jnp.logaddexp, (F,)),
    "logaddexp of f64": (jnp.logaddexp, (np.float64,)),
    "logaddexp2": (jnp.logaddexp2, (F,)),
    "plain logaddexp": (lambda a, b: jnp.log(jnp.exp(a) + jnp.exp(b)), (F,)),
    "gcd": (jnp.gcd, (I,)),
    "gcd of bytes": (jnp.gcd, (np.int8,)),
    "gcd of uint32": (jnp.gcd, (U,)),
    "clipped max": (lambda a, b: jnp.clip(jnp.maximum(a, b), -3, 5), (F,)),
    "clipped max of integers": (lambda a, b: jnp.clip(jnp.maximum(a, b), -300, 500), (I,)),
    "clipped min near the limit": (lambda a, b: jnp.clip(jnp.minimum(a, b), -2e38, 3e38), (F,)),
    "saturating": (_saturating, (U,)),
    "saturating bytes": (_saturating, (np.uint8,)),
    "chances": (lambda a, b: a + b + a * b, (F,)),
    "hypot": (lambda a, b: jnp.sqrt(a * a + b * b), (F,)),
    "velocities": (lambda a, b: (a + b) / (1 + a * b), (F,)),
    "resistors": (lambda a, b: 1 / (1 / a + 1 / b), (F,)),
    "cubes": (lambda a, b: jnp.cbrt(a**3 + b**3), (F,)),
    "top 2": (_top2, (F, F)),
    "segments": (_segments, (bool, F)),
    "largest size": (lambda a, b: jnp.where(jnp.abs(a) >= jnp.abs(b), a, b), (F,)),
    "masked xor": (lambda a, b: (a ^ b) & 255, (I,)),
    "several": (lambda a, b: (jnp.minimum(a[0], b[0]), a[1] * b[1], jnp.logaddexp(a[2], b[2])),
                (I, F, F)),
    "complex products": (lambda a, b: a * b * 1, (np.complex64,)),
}  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ASSOCIATIVE)
def test_associative_functions(name: str) -> None:
    body, types = ASSOCIATIVE[name]
    assert in_parts(body, *types)


@pytest.mark.parametrize(
    ("body", "types"),
    [
        (_wrong_argmax, (F, I)),
        (_wrong_argmax, (I, I)),
        (lambda a, b: (a[0] + b[0], jnp.where(a[0] > 1e5, a[1], a[1] + b[1])), (F, F)),
        (lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1] * 1.001), (F, F)),
        (lambda a, b: (a + b) / 2, (F,)),
        (lambda a, b: a * b + 1, (I,)),
        (jnp.lcm, (I,)),  # of large numbers
        (lambda a, b: jnp.sqrt(-1 - a * a - b * b), (F,)),  # of no numbers
    ],
)
def test_dont_take_others_for_associative(body: Body, types: tuple[Any, ...]) -> None:
    assert not in_parts(body, *types)


def test_dont_wait_for_loops_without_end() -> None:
    def body(a: Any, b: Any) -> Any:
        return lax.while_loop(lambda s: s[0] != s[1], lambda s: (s[1], s[0] + 1), (a, b))[0]

    assert not in_parts(body, I)


@pytest.mark.parametrize(
    ("body", "count", "proven"),
    [
        (matrices, 4, [True] * 4),
        (affine, 2, [True] * 2),
        (lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1])), 2, [True] * 2),
        (lambda a, b: (a[0] - b[0], jnp.tanh(a[1]) * b[1]), 2, [False] * 2),
        (lambda a, b: (a[0] * b[0], a[0] * b[1] + jnp.exp(a[1])), 2, [True, False]),
        (lambda a, b: (a[0] + b[0] - 0.1 * a[0] * b[0], b[1]), 2, [True, True]),
        (lambda a, b: ((a[0] - 3) ** 2 * (b[0] - 3), a[1]), 2, [False, True]),
        (lambda a, b: (jnp.maximum(a[0], b[1]), a[1] * 1), 2, [False, True]),
    ],
)
def test_what_is_proven(body: Body, count: int, proven: list[bool]) -> None:
    """By results."""
    x = [F(1)] * count
    graph = graph_of(lambda *xs: body(xs[:count], xs[count:]), *x, *x)
    assert proven_results(graph) == proven
