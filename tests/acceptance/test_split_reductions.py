"""D: sums of any size in parts, which lie one after the other, and then a merge of these."""

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
from stagejit import extending
from stagejit.index.box import Box
from stagejit.options import Options
from stagejit.schedule.plans.parser import parse_plan
from stagejit.schedule.plans.plan import Dispatch, Plan
from tests.acceptance.running import f32, kinds, plan_of, reasons, run

ALL = {"reduce": 7, "contract": 7, "conv": 7}


def asked(parts: int, **others: Any) -> Options:
    return Options(verify=True, split=dict.fromkeys(ALL, parts), **others)


def test_d1_a_product_in_77_parts() -> None:
    lhs, rhs = f32(123, 51234), f32(51234, 456, seed=1)
    options = asked(77)
    wide = (lhs.astype(np.float64), rhs.astype(np.float64))

    plan = plan_of(jnp.dot, lhs, rhs, options=options)
    assert (kinds(plan), plan.fills, plan.copies) == (["contract", "reduce"], (), ())
    (partial,) = [b for b in plan.buffers if b.kind == "transient"]
    assert (partial.shape, partial.nbytes, partial.slot) == ((77, 123, 456), 17_275_104, 0)
    (reason,) = reasons(plan, "split-reduce", applied=True)
    assert reason == "77 parts of 666, the last of 618: 77 asked for"

    found = stagejit.jit(jnp.dot, options=options)(lhs, rhs)
    np.testing.assert_allclose(np.asarray(found, np.float64), wide[0] @ wide[1], 0, 2e-3)

    parse = plan.as_text()
    assert parse_plan(parse).as_text() == parse
    check_d2(plan)


def check_d2(plan: Plan) -> None:
    """Parts are outermost: each writes memory in one piece, and reads its own rows."""
    first, merge = plan.dispatches
    whole, last = first.parts
    assert [str(a) for a in whole.reads] == [
        "a[0:123, 666*k0:666*k0+666]", "b[666*k0:666*k0+666, 0:456]"
    ]  # fmt: skip
    assert [str(a) for a in whole.writes] == ["t0[k0:k0+1, 0:123, 0:456]"]
    assert (whole.first, whole.count, last.first, last.count) == (0, 76, 76, 1)
    for number in range(77):
        part = plan.part(first, number)
        _, rhs = part.reads
        (write,) = part.writes
        assert write.hull == (number * 224_352, (number + 1) * 224_352)
        assert (rhs.nbytes, rhs.exact) == (1_214_784 if number < 76 else 1_127_232, True)
        start = number * 1_214_784
        assert rhs.hull == (start, start + rhs.nbytes)
    with pytest.raises(IndexError):
        plan.part(first, 77)
    assert [(b.src, b.dst) for b in plan.barriers] == [(first.name, merge.name)]


def test_d1_the_slot_after_the_parts() -> None:
    """Transients start at lines of 64 bytes."""

    def f(x: Any, y: Any) -> Any:
        return jnp.dot(x, y), jnp.argmax(y[:, 0])

    options = asked(77, disable=("borrow-results",))
    plan = plan_of(f, f32(123, 51234), f32(51234, 456), options=options)
    slots = sorted((b.slot, b.shape) for b in plan.buffers if b.slot is not None)
    assert slots[:2] == [(0, (77, 123, 456)), (17_275_136, (77,))]


def one_sum(plan: Plan) -> Dispatch:
    first, merge = plan.dispatches
    assert (merge.kind, merge.parts) == ("reduce", ())
    return first


def parts_cover(plan: Plan) -> None:
    """No two parts write the same, and together they touch what the dispatch does."""
    first = one_sum(plan)
    count = sum(parts.count for parts in first.parts)
    each = [plan.part(first, number) for number in range(count)]
    for one, other in itertools.combinations(each, 2):
        assert not any(a.overlaps(b) for a, b in itertools.product(one.writes, other.writes))
    for index, access in enumerate(first.writes):
        boxes = [part.writes[index].box for part in each]
        assert sum(box.count for box in boxes) == access.box.count
    for access in first.reads:
        mine = [a for part in each for a in part.reads if a.buffer == access.buffer]
        assert all(access.box.contains(a.box) for a in mine)
        assert max(a.box.count for a in mine) <= access.box.count


@pytest.mark.some(3)
@pytest.mark.parametrize("extent", [51229, 50021, 4099, 77, 78, 13, 2])
@pytest.mark.parametrize("parts", [77, 7])
def test_d3_any_extent(extent: int, parts: int) -> None:
    x, y = f32(5, extent), f32(extent, 6, seed=1)
    plan = run(
        jnp.dot, [x, y], x.astype(np.float64) @ y, options=asked(parts), off=("split-reduce",)
    )
    parts_cover(plan)
    plan = run(lambda y: y.sum(0), [y], y.astype(np.float64).sum(0), options=asked(parts))
    parts_cover(plan)


@pytest.mark.some(3)
@pytest.mark.parametrize("columns", [64, 32, 128])
@pytest.mark.parametrize("batch", [12, 1, 5])
@pytest.mark.parametrize("parts", [7, 48])
def test_d3_rows_that_follow_in_memory(parts: int, batch: int, columns: int) -> None:
    """A vector times a matrix as wide as a tile, which is read line after line: an item has one
    part of it, whatever the shares of the cores are."""
    x, y = f32(batch, 1, 1024), f32(batch, 1024, columns, seed=1)
    wanted = np.einsum("bts,bsd->btd", x.astype(np.float64), y)
    plan = run(lambda x, y: jnp.einsum("bts,bsd->btd", x, y), [x, y], wanted, options=asked(parts))
    parts_cover(plan)


def test_d3_no_empty_part() -> None:
    plan = plan_of(lambda x: x.sum(), f32(10), options=asked(7))
    (parts,) = one_sum(plan).parts
    assert (parts.count, str(parts.reads[0])) == (5, "x[2*k0:2*k0+2]")


def test_d3_one_element_and_none() -> None:
    for extent in (1, 0):
        x, y = f32(5, extent), f32(extent, 6, seed=1)
        plan = run(jnp.dot, [x, y], x @ y, options=asked(7))
        assert len(plan.dispatches) == 1
        plan = run(lambda x: x.sum(1), [x], x.sum(1), options=asked(7))
        assert len(plan.dispatches) == 1


def test_d3_of_nothing_the_identity() -> None:
    def f(x: Any, n: Any, b: Any) -> Any:
        return (
            x.sum(0), x.prod(0), lax.reduce_max(x, (0,)), lax.reduce_min(x, (0,)),
            lax.reduce_max(n, (0,)), lax.reduce_min(n, (0,)), b.all(0), b.any(0),
            lax.reduce(x, np.float32(5), lambda a, b: a * b + a, (0,)), x.T @ x,
        )  # fmt: skip

    x = np.zeros((0, 3), np.float32)
    found = stagejit.jit(f, options=asked(7))(x, x.astype(np.int32), x > 0)
    least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    for made, number in zip(found, (0, 1, -np.inf, np.inf, least, most, 1, 0, 5, 0), strict=True):
        np.testing.assert_array_equal(made, np.full(made.shape, number).astype(made.dtype))


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


def test_d5_the_outer_dimension_first() -> None:
    x = f32(31, 5, 17)
    plan = run(lambda x: x.sum((0, 2)), [x], x.astype(np.float64).sum((0, 2)), options=asked(7))
    whole, last = one_sum(plan).parts
    assert str(whole.reads[0]) == "x[5*k0:5*k0+5, 0:5, 0:17]"
    assert str(last.reads[0]) == "x[30:31, 0:5, 0:17]"
    parts_cover(plan)


def test_d5_epilogues_are_in_the_merge() -> None:
    def f(x: Any, y: Any, bias: Any) -> Any:
        return jax.nn.relu(x @ y + bias).astype(jnp.bfloat16)

    x, y, bias = f32(5, 1003), f32(1003, 6, seed=1), f32(6, seed=2)
    expected = np.maximum(x.astype(np.float64) @ y + bias, 0)
    plan = plan_of(f, x, y, bias, options=asked(7))
    assert kinds(plan) == ["contract", "reduce"]
    found = stagejit.jit(f, options=asked(7))(x, y, bias)
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, 1e-2, 1e-2)
    parts_cover(plan)


def test_d5_prologues_are_in_the_parts() -> None:
    x = f32(1003, 6)
    plan = run(lambda x: (x * x).sum(), [x], (x.astype(np.float64) ** 2).sum(), options=asked(7))
    parts_cover(plan)


def test_d5_vmapped_products_split_the_same() -> None:
    x, y = f32(3, 5, 1003), f32(3, 1003, 6, seed=1)
    expected = np.matmul(x.astype(np.float64), y)
    plan = run(jax.vmap(jnp.dot), [x, y], expected, options=asked(7))
    (transient,) = [b for b in plan.buffers if b.kind == "transient"]
    assert transient.shape == (7, 3, 5, 6)
    parts_cover(plan)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("batch", [16, 1])
def test_d5_gradients_of_weights(layout: str, batch: int) -> None:
    """Of a batch its images are shared out; of one image, its rows."""
    last = layout == "NHWC"
    x = f32(*((batch, 26, 25, 3) if last else (batch, 3, 26, 25)))
    ct = f32(*((batch, 26, 25, 4) if last else (batch, 4, 26, 25)), seed=1)
    w = np.zeros((3, 3, 3, 4) if last else (4, 3, 3, 3), np.float32)
    numbers = (layout, "HWIO" if last else "OIHW", layout)

    def gradient(x: Any, ct: Any) -> Any:
        forward = lambda w: lax.conv_general_dilated(  # noqa: E731
            x, w.astype(x.dtype), (1, 1), "SAME", dimension_numbers=numbers
        )
        return jax.linear_transpose(forward, w.astype(x.dtype))(ct)[0] * 2

    with jax.enable_x64(True):
        wide = np.asarray(gradient(x.astype(np.float64), ct.astype(np.float64)))
    plan = plan_of(gradient, x, ct, options=asked(7))
    assert (kinds(plan), plan.fills, plan.copies) == (["conv", "reduce"], (), ())
    parts_cover(plan)
    whole, _ = plan.dispatches[0].parts
    assert whole.count == (5 if batch > 1 else 6)
    assert str(whole.writes[0]).startswith("t0[k0:k0+1, ")
    assert whole.reads[0].exact == (batch > 1)
    found = stagejit.jit(gradient, options=asked(7))(x, ct)
    np.testing.assert_allclose(found, wide, 0, 1e-5 * np.abs(wide).max())


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


def test_d7_what_is_not_split() -> None:
    for fn, args in (
        (jnp.dot, (f32(256, 4096), f32(4096, 256))),
        (jnp.dot, (f32(100, 200), f32(200, 300))),
        (lambda x: x.sum(1), (f32(4, 15),)),
    ):
        plan = plan_of(fn, *args)
        assert len(plan.dispatches) == 1
        assert not reasons(plan, "split-reduce", applied=True)


@pytest.mark.parametrize("ports", [1, 2])
def test_d7_however_fast_a_core_multiplies(ports: int) -> None:
    """What fits the caches is read again from there."""
    cores = extending.cpu(
        "cores", like="avx512", fma_ports=ports, peak_flops=ports * 112e9, cores=2
    )
    args = f32(256, 4096), f32(4096, 256)
    plan = plan_of(jnp.dot, *args, options=Options(extensions=cores))
    assert len(plan.dispatches) == 1


def test_d7_fewer_parts_within_the_memory_budget() -> None:
    x, y = f32(20, 5003), f32(5003, 30, seed=1)
    options = asked(77, memory_budget=10 * 20 * 30 * 4)
    plan = run(jnp.dot, [x, y], x.astype(np.float64) @ y, options=options)
    assert one_sum(plan).writes[0].box == Box.whole((10, 20, 30))
    (reason,) = reasons(plan, "split-reduce", applied=True)
    assert reason == (
        "10 parts of 501, the last of 494: 77 asked for, no more are within the memory budget of "
        "24000 bytes"
    )


def test_only_the_line_that_is_named() -> None:
    def f(x: Any) -> Any:
        return x.sum(0), x.max(0)

    here = f.__code__.co_firstlineno + 1
    options = Options(verify=True, split={f"{os.path.basename(__file__)}:{here}": 7})
    x = f32(101, 3)
    plan = run(f, [x], (x.astype(np.float64).sum(0), x.max(0)), options=options)
    assert len(reasons(plan, "split-reduce", applied=True)) == 2
    none = Options(verify=True, split={f"{os.path.basename(__file__)}:{here + 1}": 7})
    assert not reasons(plan_of(f, x, options=none), "split-reduce", applied=True)


@pytest.mark.parametrize("limit", [2, 3, 16])
def test_parts_are_no_values_of_their_own(limit: int) -> None:
    """Where a dispatch has too many operands, what they are made of is stored, not parts of it."""

    def f(x: Any, y: Any, t: Any) -> Any:
        return (x * t) @ y, (y * t).sum(0)

    x, y, t = f32(17, 53), f32(53, 4, seed=1), np.float32(3)
    wide = 3 * x.astype(np.float64) @ y, 3 * y.astype(np.float64).sum(0)
    run(f, [x, y, t], wide, options=asked(7, operand_limit=limit), off=("fuse-producers",))
