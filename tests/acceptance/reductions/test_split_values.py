"""D4 and D6: values of sums in parts, of any reducer; the same bits on any number of cores."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.schedule.plans.plan import Dispatch
from tests.acceptance.reductions.splitting import asked, parts_cover
from tests.acceptance.running import f32, plan_of, reasons, run


def logical(fn: Any) -> Any:
    return lambda x: fn(x > 2.5)


X = f32(1003)
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0], np.float32)
REDUCERS = {
    "add": (jnp.sum, np.sum),
    "mul": (lambda x: jnp.prod(1 + x / 100), lambda x: np.prod(1 + x / 100)),
    "max": (jnp.max, np.max),
    "min": (jnp.min, np.min),
    "and": (logical(jnp.all), logical(np.all)),
    "or": (logical(jnp.any), logical(np.any)),
    "argmax": (jnp.argmax, np.argmax),
    "argmin": (jnp.argmin, np.argmin),
}


@pytest.mark.parametrize("name", REDUCERS)
def test_d4_reducers(name: str) -> None:
    ours, theirs = REDUCERS[name]
    wide = theirs(X.astype(np.float64))
    parts_cover(run(ours, [X], wide, options=asked(7), off=("split-reduce",)))
    with np.errstate(invalid="ignore"):
        for value, at in itertools.product(SPECIAL, (0, 500, 1002)):
            x = X.copy()
            x[at] = value
            same_bits(stagejit.jit(ours, options=asked(7))(x), theirs(x.astype(np.float64)))


def same_bits(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found, np.float64), np.float64(expected), 1e-4, 1e-4)


@pytest.mark.parametrize("fn", ["argmax", "argmin"])
def test_d4_the_first_of_equals(fn: str) -> None:
    for first, second in ((0, 1002), (142, 143), (500, 500), (1001, 1002)):
        for value in (1e9 if fn == "argmax" else -1e9, np.nan):
            x = X.copy()
            x[[first, second]] = value
            assert int(stagejit.jit(getattr(jnp, fn), options=asked(7))(x)) == first


@pytest.mark.parametrize("sign", [1, -1])
def test_d4_zeros_keep_their_sign(sign: int) -> None:
    zeros = np.full(1003, -0.0 if sign < 0 else 0.0, np.float32)
    found = stagejit.jit(jnp.sum, options=asked(7))(zeros)
    ones = np.ones((1003, 2), np.float32)
    product = stagejit.jit(jnp.dot, options=asked(7))(zeros[None], ones)
    plain = stagejit.jit(jnp.dot, options=asked(1))(zeros[None], ones)
    assert np.signbit(found) == (sign < 0)
    assert (np.signbit(product) == np.signbit(plain)).all()


def test_d4_logsumexp_and_variance() -> None:
    x = f32(1003, 3)
    wide = x.astype(np.float64)
    plan = run(lambda x: jax.nn.logsumexp(x, 0), [x], np.log(np.exp(wide).sum(0)), options=asked(7))
    assert len(plan.dispatches) == 4  # the largest, then the sum of what it makes of all others
    plan = run(lambda x: jnp.var(x, 0), [x], wide.var(0), options=asked(7))
    assert len(plan.dispatches) == 4
    pair = lambda x: (jnp.sum(x, 0), jnp.sum(x * x, 0))  # noqa: E731
    plan = run(pair, [x], (wide.sum(0), (wide * wide).sum(0)), options=asked(7))
    parts_cover(plan)  # both in one pass, and in one merge
    assert all(len(parts.writes) == 2 for parts in plan.dispatches[0].parts)
    fused = reasons(plan, "fuse-rows", applied=True)
    assert any(reason.startswith("reads parts beside those that") for reason in fused)
    assert (
        len(run(pair, [x], (wide.sum(0), (wide * wide).sum(0)), options=asked(1)).dispatches) == 1
    )


def test_d4_the_initial_value_counts_once() -> None:
    def f(x: Any) -> Any:
        return lax.reduce(x, np.float32(3), lax.add, (0,)), lax.reduce(
            x, np.float32(2), lax.mul, (0,)
        )

    x = 1 + f32(1003, 2) / 100
    wide = x.astype(np.float64)
    run(f, [x], (3 + wide.sum(0), 2 * wide.prod(0)), options=asked(7))


def log_sum_exp(a: Any, b: Any) -> Any:
    """Of pairs (m, s), which mean s exp(m)."""
    most = jnp.maximum(a[0], b[0])
    return most, a[1] * jnp.exp(a[0] - most) + b[1] * jnp.exp(b[0] - most)


@pytest.mark.parametrize("extent", [4099, 1003, 13, 2])
def test_d4_any_associative_function_of_pairs(extent: int) -> None:
    """Elements meet in parts side by side, which takes far fewer steps than there are elements."""

    def f(x: Any) -> Any:
        inits = np.float32(-np.inf), np.float32(0)
        most, rest = lax.reduce((x, jnp.ones_like(x)), inits, log_sum_exp, (0,))
        return most + jnp.log(rest)

    x = f32(extent, 3)
    wide = np.log(np.exp(x.astype(np.float64)).sum(0))
    plan = run(f, [x], wide, options=asked(7))
    assert not reasons(plan, "split-reduce", applied=False)
    assert sum(steps_of(d) for d in plan.dispatches) <= 4 * extent**0.5 + 8


def steps_of(dispatch: Dispatch) -> int:
    return sum(body.trip or 0 for body in dispatch.bodies)


@pytest.mark.parametrize("extent", [1003, 13])
def test_d4_dont_split_what_is_not_associative(extent: int) -> None:
    x = f32(extent)
    plan = plan_of(lambda x: lax.reduce(x, np.float32(3), lax.sub, (0,)), x, options=asked(7))
    assert reasons(plan, "split-reduce", applied=False) == [
        "its function is not known to be associative"
    ]
    assert not reasons(plan, "split-reduce", applied=True)
    run(
        lambda x: lax.reduce(x, np.float32(3), lax.sub, (0,)), [x],
        3 - x.astype(np.float64).sum(), options=asked(7),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_d4_sixteen_bits_round_once(dtype: Any) -> None:
    x = np.full(4099, 1.0, dtype)  # 4099 is no number of theirs, nor are most partial sums
    x[1:] = dtype(0.5)
    wide = x.astype(np.float64)
    found = stagejit.jit(lambda x: x.sum(), options=asked(7))(x)
    assert found == wide.sum().astype(dtype)
    found = stagejit.jit(jnp.dot, options=asked(7))(x[None], x[:, None])
    assert np.asarray(found)[0, 0] == (wide @ wide).astype(dtype)
    plan = plan_of(jnp.dot, x[None], x[:, None], options=asked(7))
    assert [str(b.dtype) for b in plan.buffers if b.kind == "transient"] == ["f32"]


def test_d4_running_sums_are_not_split() -> None:
    plan = plan_of(lambda x: jnp.cumsum(x), f32(100003), options=asked(7))
    assert len(plan.dispatches) == 1
    (reason,) = reasons(plan, "split-reduce", applied=False)
    assert reason == "each result of cumulative needs those before it"


_BITS = """
import os, sys
os.sched_setaffinity(0, set(list(os.sched_getaffinity(0))[: int(sys.argv[1])]))
import jax.numpy as jnp, numpy as np, stagejit
rng = np.random.default_rng(0)
x, y = (rng.standard_normal(s).astype(np.float32) for s in ((30, 40003), (40003, 20)))
options = stagejit.Options(split={"reduce": 13, "contract": 13})
for made in (jnp.dot, lambda x, y: y.sum(0), lambda x, y: x.sum(), lambda x, y: x.sum(1)):
    print(np.asarray(stagejit.jit(made, options=options)(x, y)).tobytes().hex())
"""


def test_d6_the_same_bits_on_one_core_and_on_more() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core")
    command = [sys.executable, "-c", _BITS]
    one, two = (
        subprocess.run([*command, cores], capture_output=True, text=True, check=True).stdout
        for cores in ("1", "2")
    )
    assert one == two


@pytest.mark.parametrize("extent", [50021, 4099])
def test_d6_the_error_is_no_larger(extent: int) -> None:
    """Than by what depends on the order alone: some roundings on the way, or the last one."""
    rng = np.random.default_rng(0)
    x, y = (rng.random(shape).astype(np.float32) for shape in ((8, extent), (extent, 8)))
    for fn, args in ((jnp.dot, (x, y)), (lambda x: x.sum(1), (x,)), (lambda y: y.sum(0), (y,))):
        with jax.enable_x64(True):
            exact = np.asarray(fn(*(a.astype(np.float64) for a in args)))
        whole, *split = (
            error_of(stagejit.jit(fn, options=asked(parts))(*args), exact) for parts in (1, 7, 77)
        )
        assert max(split) <= max(2 * whole, 2.0**-23)


def error_of(found: Any, exact: Any) -> float:
    """Root mean square, of the largest."""
    apart = np.asarray(found, np.float64) - exact
    return float(np.sqrt((apart**2).mean()) / np.abs(exact).max())
