"""Acceptance B: a layout is a hint, which may be dropped, or the caller's requirement."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.layout import Format
from jax.experimental.layout import Layout as JaxLayout
from jax.sharding import SingleDeviceSharding

import stagejit
from stagejit.dispatch.layouts.orders import Orders, completed
from stagejit.index.layout import Layout
from stagejit.schedule.plans.plan import Plan
from tests.acceptance.running import f32, plan_of, reasons, run

OFF = ("infer-layouts", "channels-last")
CHANNELS_LAST = Layout((0, 2, 3, 1))


def order(fn: Any, *args: Any) -> tuple[int, ...] | None:
    """The inferred order of the only result, axes of one element among the others."""
    graph = stagejit.jit(fn).lower(*args).graph
    found = Orders(graph, {}).known.get(graph.outputs[0])
    return None if found is None else completed(found, len(graph.outputs[0].shape))


def transients(plan: Plan) -> list[Layout]:
    return [buffer.layout for buffer in plan.buffers if buffer.kind == "transient"]


def smooth(x: Any) -> Any:
    """Means of 3x3 windows over the last two axes."""
    window, around = (1, 1, 3, 3), ((0, 0), (0, 0), (1, 1), (1, 1))
    return lax.reduce_window(x, 0.0, lax.add, window, (1, 1, 1, 1), around) / 9


def smoothed(x: Any, axes: tuple[int, int]) -> Any:
    around = [(1, 1) if axis in axes else (0, 0) for axis in range(4)]
    wide = np.pad(x.astype(np.float64), around)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axes)  # type: ignore[call-overload]
    return windows.sum((-1, -2)) / 9


# ------------------------------------------------------------------ B2, B4: where hints come from


def test_b2_a_product_is_laid_out_as_it_is_numbered() -> None:
    x, w = f32(8, 33, 65), f32(129, 65)

    def f(x: Any, w: Any) -> Any:
        return jnp.einsum("bmk,nk->bmn", x, w)

    assert order(f, x, w) == (0, 1, 2)
    plan = run(f, (x, w), np.einsum("bmk,nk->bmn", x.astype(np.float64), w))
    assert not plan.copies
    assert all(buffer.layout.is_row_major for buffer in plan.buffers)


def test_b4_a_reduction_keeps_the_order() -> None:
    x = f32(5, 6, 7, 8)  # as dims (1, 2, 3, 0) of what follows
    turned = (3, 0, 1, 2)
    assert order(lambda x: x.transpose(turned) * 2, x) == (1, 2, 3, 0)
    assert order(lambda x: x.transpose(turned).sum(1, keepdims=True), x) == (1, 2, 3, 0)
    assert order(lambda x: x.transpose(turned).sum(1), x) == (1, 2, 0)


def test_b4_the_reference_has_most_dims_that_are_not_broadcast() -> None:
    x, bias = f32(2, 8, 9, 16), f32(16, 1, 1)
    assert order(lambda x, b: x.transpose(0, 3, 1, 2) + b, x, bias) == (0, 2, 3, 1)
    assert order(lambda x, b: b + x.transpose(0, 3, 1, 2), x, bias) == (0, 2, 3, 1)


# ------------------------------------------------------------------ B3: transposed data stays


def chain(x: Any, bias: Any, keep: Any) -> Any:
    x = x.transpose(0, 3, 1, 2)
    return jnp.where(keep, jax.nn.relu(x) + bias[:, None, None], 0.0)


def test_b3_the_transpose_is_fused_into_the_store() -> None:
    x, bias, keep = f32(2, 8, 9, 16), f32(16), np.bool_(True)
    assert order(chain, x, bias, keep) == (0, 2, 3, 1)
    expected = (np.maximum(x, 0) + bias).transpose(0, 3, 1, 2)
    plan = run(chain, (x, bias, keep), expected, off=OFF)
    assert len(plan.dispatches) == 1
    assert not plan.copies
    assert "takes it row-major" in reasons(plan, "infer-layouts", applied=False)[0]


def test_b3_what_is_between_dispatches_lies_as_it_came() -> None:
    """No kernel goes against the grain of memory: two transposes are none."""
    x = f32(2, 16, 16, 32)

    def f(x: Any) -> Any:
        return smooth(jnp.exp(smooth(x.transpose(0, 3, 1, 2)))).transpose(0, 2, 3, 1)

    expected = smoothed(np.exp(smoothed(x, (1, 2))), (1, 2))
    plan = run(f, (x,), expected, off=OFF)
    assert transients(plan) == [CHANNELS_LAST]
    assert len(plan.dispatches) == 2
    assert not plan.copies
    off = plan_of(f, x, disable=OFF)
    assert transients(off) == [Layout()]
    assert len(off.dispatches) == 2


def test_b3_an_argument_that_lies_so() -> None:
    """Logical NCHW whose memory is NHWC, as `jax.device_put` makes it, and back: no transpose."""
    x, bias = f32(2, 16, 8, 9), f32(16)
    format = Format(JaxLayout((0, 2, 3, 1)), SingleDeviceSharding(jax.devices()[0]))

    def f(x: Any, bias: Any) -> Any:
        return jnp.where(x > 1, 0.5, jax.nn.relu(x) + bias[:, None, None])

    expected = np.where(x > 1, 0.5, np.maximum(x, 0) + bias[:, None, None])
    for result in (format, None):  # None: row-major, so that the store transposes
        jitted = stagejit.jit(f, in_shardings=(format, None), out_shardings=result)
        given = jax.device_put(x, format), jnp.asarray(bias)
        np.testing.assert_allclose(jitted(*given), expected, rtol=1e-6)
        plan = jitted.plan(*given)
        assert len(plan.dispatches) == 1
        assert not plan.copies
        text = jitted.lower(*given).compile().as_text()
        assert " copy(" not in text
        assert " transpose(" not in text
        assert reasons(plan, "caller-layouts", applied=True)[0] == "lies in {0,2,3,1}"


# ------------------------------------------------------------------ B5: no hint, or a dropped one


def two_orders(x: Any, y: Any) -> Any:
    z = jnp.tanh(x.T + y)
    return z / jnp.sum(z * z)


def test_b5_two_orders_are_ambiguous() -> None:
    x, y = f32(300, 400), f32(400, 300)
    assert order(lambda x, y: x.T + y, x, y) is None
    z = np.tanh(x.T.astype(np.float64) + y)
    plan = run(two_orders, (x, y), z / (z * z).sum(), off=OFF)
    assert all(layout.is_row_major for layout in transients(plan))
    (reason, *_) = reasons(plan, "infer-layouts", applied=False)
    assert reason.startswith("ambiguous")


def test_b5_a_hint_that_others_cannot_honour_is_dropped_with_a_reason() -> None:
    x = f32(300, 400)

    def f(x: Any) -> Any:
        return (lax.optimization_barrier(jnp.exp(x.T)) * 2).T

    plan = run(f, (x,), np.exp(x) * 2, off=OFF)
    assert all(layout.is_row_major for layout in transients(plan))
    assert "who take it for row-major" in " ".join(reasons(plan, "infer-layouts", applied=False))


def test_b5_a_requirement_that_nobody_can_store_is_a_relayout() -> None:
    """The prefix sums of a row are stored by rows; the caller wants columns: one dispatch more."""
    x = f32(6, 7)
    columns = Format(JaxLayout((1, 0)), SingleDeviceSharding(jax.devices()[0]))

    def f(x: Any) -> Any:
        return jnp.sort(x, 1)

    plan = run(f, (x,), np.sort(x, 1), out_shardings=columns)
    assert [d.kind for d in plan.dispatches] == ["sort", "copy"]
    assert [d.kind for d in plan_of(f, x).dispatches] == ["sort"]


def test_b5_contradictory_requirements_are_an_error_that_names_both() -> None:
    device = SingleDeviceSharding(jax.devices()[0])
    x = jax.device_put(f32(6, 7), Format(JaxLayout((1, 0)), device))
    with pytest.raises(ValueError, match=r"(?s)jit layout: .*\(0, 1\).*arg layout: .*\(1, 0\)"):
        stagejit.jit(jnp.sin, in_shardings=Format(JaxLayout((0, 1)), device))(x)


def test_b5_a_hint_that_costs_more_is_dropped_with_a_reason() -> None:
    """A mean and a variance of each channel read its pixels again and again."""
    x, w = f32(2, 8, 16, 16), f32(32, 8, 3, 3)

    def f(x: Any, w: Any) -> Any:
        y = lax.conv(x, w, (1, 1), "SAME")
        return (y - y.mean((0, 2, 3), keepdims=True)) / y.std((0, 2, 3), keepdims=True)

    plan = plan_of(f, x, w)
    assert all(layout.is_row_major for layout in transients(plan))
    assert "against the grain" in " ".join(reasons(plan, "channels-last", applied=False))


# ------------------------------------------------------------------ B6: once an edge


def test_b6_no_edge_has_a_relayout() -> None:
    """Who writes and who reads agree on one layout; none of them is a copy."""
    x = f32(1, 8, 32, 32)
    weights = [f32(o, i, 3, 3, seed=o) / (3 * i**0.5) for i, o in ((8, 32), (32, 32), (32, 64))]

    def f(x: Any, weights: Any) -> Any:
        for w in weights:
            y = jax.nn.relu(lax.conv(x, w, (1, 1), "SAME"))
            x = lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME")
        return x

    plan, off = plan_of(f, x, weights), plan_of(f, x, weights, disable=OFF)
    assert CHANNELS_LAST in transients(plan)
    assert len(plan.dispatches) == len(off.dispatches)
    assert plan.transient_nbytes == off.transient_nbytes
    assert not plan.copies
    ours = stagejit.jit(f)(x, weights)
    np.testing.assert_allclose(ours, jax.jit(f)(x, weights), rtol=1e-4, atol=1e-4)


def test_b6_dims_of_size_one_never_cause_a_copy() -> None:
    x = f32(1, 8, 1, 9)

    def f(x: Any) -> Any:
        return jnp.cumsum(jnp.exp(x).transpose(2, 0, 1, 3), 3).transpose(1, 2, 0, 3)

    plan = run(f, (x,), np.cumsum(np.exp(x), 3))
    assert not plan.copies
    assert all(buffer.layout.is_row_major for buffer in plan.buffers)
