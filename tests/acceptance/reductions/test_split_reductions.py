"""D: sums of any size in parts, which lie one after the other, and then a merge of these."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit import extending
from stagejit.index.box import Box
from stagejit.options import Options
from stagejit.schedule.plans.parser import parse_plan
from stagejit.schedule.plans.plan import Plan
from tests.acceptance.reductions.splitting import asked, one_sum, parts_cover
from tests.acceptance.running import f32, kinds, plan_of, reasons, run


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
