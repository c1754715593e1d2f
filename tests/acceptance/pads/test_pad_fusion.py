"""Acceptance A: pads and inserts are written where they belong, border and all, by one dispatch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.options import Options
from tests.acceptance.running import f32, plan_of, reasons, run, totals, writes


def relu_pad(x: Any) -> Any:
    return jnp.pad(jax.nn.relu(x), ((0, 0), (2, 3), (1, 1)), constant_values=1.0)


def test_a1_relu_and_pad_are_one_dispatch() -> None:
    x = f32(4, 16, 32)
    expected = np.pad(np.maximum(x, 0), ((0, 0), (2, 3), (1, 1)), constant_values=1.0)
    plan = run(relu_pad, [x], expected, off=("fuse-pad", "fuse-insert"))
    assert totals(plan) == (1, 0, 0, 0)
    assert writes(plan) == [("r0", (0, 11_424))]


def test_a1_off_brings_the_fill_and_the_copy_back() -> None:
    x = f32(4, 16, 32)
    assert totals(plan_of(relu_pad, x, disable=["fuse-pad"]))[:2] == (2, 1)
    assert len(plan_of(relu_pad, x, disable=["fuse-insert"]).copies) == 1


@pytest.mark.parametrize(
    ("axis", "shapes"),
    [
        (0, [(256, 512), (128, 512), (64, 512)]),
        (1, [(512, 256), (512, 128), (512, 64)]),
    ],
)
def test_a3_a4_concatenated_producers_write_their_own_boxes(axis: int, shapes: Any) -> None:
    def fn(a: Any, b: Any, c: Any) -> Any:
        return jnp.concatenate([a * 2, jnp.exp(b), c + 1], axis)

    a, b, c = (f32(*shape) for shape in shapes)
    expected = np.concatenate([a * 2, np.exp(b), c + 1], axis)
    plan = run(fn, [a, b, c], expected, off=("fuse-insert",))
    assert totals(plan) == (3, 0, 0, 0)
    assert plan.barriers == ()
    hulls = [hull for _, hull in writes(plan)]
    if axis == 0:
        assert hulls == [(0, 524_288), (524_288, 786_432), (786_432, 917_504)]
    else:  # interleaved: hulls overlap, boxes do not
        assert hulls[0][1] > hulls[1][0]
        assert [d.writes[0].nbytes for d in plan.dispatches] == [524_288, 262_144, 131_072]
    assert len(plan_of(fn, a, b, c, disable=["fuse-insert"]).copies) == 3


def test_a3_a_single_writer_may_claim_everything() -> None:
    plan = plan_of(lambda a: jnp.concatenate([a * 2, a * 2]), f32(256, 512))
    assert totals(plan) == (1, 0, 0, 0)
    assert writes(plan) == [("r0", (0, 524_288)), ("r0", (524_288, 1_048_576))]


def test_a5_an_insert_with_its_border_claims_its_channels() -> None:
    width = ((0, 0), (0, 0), (1, 1), (1, 1))

    def fn(x: Any, y: Any, z: Any) -> Any:
        parts = [x * 2, jnp.exp(y), z + 1]
        return jnp.concatenate([jnp.pad(part, width) for part in parts], 1)

    x, y, z = f32(1, 64, 90, 62), f32(1, 32, 90, 62), f32(1, 96, 90, 62)
    expected = np.concatenate([np.pad(part, width) for part in (x * 2, np.exp(y), z + 1)], 1)
    plan = run(fn, [x, y, z], expected, off=("fuse-pad",))
    assert totals(plan) == (3, 0, 0, 0)
    assert ("r0", (1_507_328, 2_260_992)) in writes(plan)
    assert plan.barriers == ()


def test_a5_without_its_border_it_claims_the_interior() -> None:
    def fn(x: Any) -> Any:
        return jnp.zeros((1, 192, 92, 64), jnp.float32).at[:, 64:96, 1:91, 1:63].set(x * 2)

    plan = plan_of(fn, f32(1, 32, 90, 62), disable=["fuse-pad"])
    start, stop = plan.dispatches[-1].writes[0].hull
    assert 1_507_328 <= start < stop <= 2_260_992


def test_a5_inside_it_is_rebased_to_zero() -> None:
    """Where a part lies is said once, by the launch: one kernel serves every place."""

    def fn(x: Any, y: Any, z: Any) -> Any:
        d = jnp.zeros((1, 192, 92, 64), jnp.float32)
        for at, part in ((0, x), (64, y), (160, z)):
            d = d.at[:, at : at + 32, 1:91, 1:63].set(part * 2)
        return d

    args = [f32(1, 32, 90, 62, seed=n) for n in range(3)]
    lowered = stagejit.jit(fn, options=Options(disable=("fuse-pad",))).lower(*args)
    compilation = lowered.compilation.run_until("codegen")
    kernels = [compilation.kernels[r] for r in compilation.regions if r.kind == "map"]
    assert len({generated.symbol for generated in kernels}) == 1
    plane = 92 * 64
    placed = [arg.offset for g in kernels for arg in g.kernel.args if arg.written]
    assert placed == [at * plane + 64 + 1 for at in (0, 64, 160)]
    assert placed[1] * 4 == 1_507_328 + (64 + 1) * 4


def numpy_pad(x: Any, value: float, config: Any) -> Any:
    """lax.pad: the interior first, then each side, where negative crops."""
    shape = [n + max(n - 1, 0) * inner for n, (_, _, inner) in zip(x.shape, config, strict=True)]
    out = np.full(shape, value, x.dtype)
    out[tuple(slice(None, None, inner + 1) for _, _, inner in config)] = x
    for axis, (low, high, _) in enumerate(config):
        width = [(0, 0)] * out.ndim
        width[axis] = (max(low, 0), max(high, 0))
        out = np.pad(out, width, constant_values=value)
        stop = out.shape[axis] - max(-high, 0)
        out = out[(slice(None),) * axis + (slice(min(max(-low, 0), stop), stop),)]
    return out


@pytest.mark.parametrize(
    "config",
    [
        ((0, 0, 0), (0, 0, 1)),
        ((1, 2, 2), (3, 0, 1)),
        ((-1, -2, 0), (3, -5, 0)),
        ((-3, -2, 2), (3, -5, 1)),
        ((-32, -32, 0), (0, 0, 0)),
    ],
)
def test_a6_interior_and_negative_padding(config: Any) -> None:
    x = f32(64, 64)
    expected = numpy_pad(x * np.float32(1.5), 7.0, config)

    def fn(x: Any) -> Any:
        return lax.pad(x * 1.5, np.float32(7), config)

    plan = run(fn, [x], expected, off=("fuse-pad", "fuse-insert", "fold-pads", "fold-views"))
    assert totals(plan) == (1 if expected.size else 0, 0, 0, 0)


def test_a6_interior_padding_is_a_strided_insert() -> None:
    """Without its border, which one dispatch would write with it, the box shows."""
    config = ((0, 0, 0), (0, 0, 1))
    x = f32(64, 64)
    plan = plan_of(lambda x: lax.pad(x * 2, np.float32(7), config), x, disable=["fuse-pad"])
    (insert,) = (w for d in plan.dispatches if d.kind == "map" for w in d.writes)
    assert (insert.sizes, insert.strides, insert.exact) == ((64, 64), (1, 2), True)
    assert insert.nbytes == 64 * 64 * 4
    assert plan.buffer(insert.buffer).shape == (64, 127)


def test_a6_negative_padding_alone_is_a_crop() -> None:
    plan = plan_of(lambda x: lax.pad(x * 1.5, np.float32(7), ((-1, -2, 0), (-3, 0, 0))), f32(9, 9))
    assert totals(plan) == (1, 0, 0, 0)
    assert writes(plan) == [("r0", (0, 6 * 6 * 4))]
    assert not [d for d in plan.decisions if d.rewrite in ("fuse-insert", "fuse-pad")]


def test_a7_a_pad_with_two_consumers_is_written_once() -> None:
    def fn(x: Any) -> Any:
        p = jnp.pad(jnp.exp(x), 1)
        return p.sum(0), p.sum(1)

    x = f32(300, 400)
    p = np.pad(np.exp(x.astype(np.float64)), 1)
    plan = run(fn, [x], (p.sum(0), p.sum(1)), off=("fuse-pad",))
    assert sum(d.ops.count("exp") for d in plan.dispatches) == 1
    assert sum(access.buffer == "t0" for d in plan.dispatches for access in d.writes) == 1
    assert plan.fills == plan.copies == ()


def test_a7_a_source_with_other_uses_is_stored_twice() -> None:
    def fn(x: Any) -> Any:
        e = jnp.exp(x)
        return e, jnp.pad(e, 1)

    x = f32(64, 64)
    plan = run(fn, [x], (np.exp(x), np.pad(np.exp(x), 1)), off=("fuse-pad", "fuse-insert"))
    assert totals(plan) == (1, 0, 0, 0)
    assert writes(plan) == [("r0", (0, 16_384)), ("r1", (0, 17_424))]


@pytest.mark.parametrize(("inner", "outer"), [(0.0, 0.0), (0.0, 1.0), (3.0, 3.0)])
def test_a8_pads_of_pads(inner: float, outer: float) -> None:
    def fn(x: Any) -> Any:
        first = jnp.pad(jnp.exp(x), ((1, 1), (1, 1)), constant_values=inner)
        return jnp.pad(first, ((2, 2), (0, 1)), constant_values=outer)

    x = f32(64, 64)
    first = np.pad(np.exp(x), 1, constant_values=inner)
    expected = np.pad(first, ((2, 2), (0, 1)), constant_values=outer)
    plan = run(fn, [x], expected, off=("fuse-pad", "fold-pads"))
    assert totals(plan) == (1, 0, 0, 0)
    merged = bool(reasons(plan, "fold-pads", applied=True))
    assert merged == (inner == outer)
    if not merged:
        different = "the two borders have different values"
        assert different in reasons(plan, "fold-pads", applied=False)


def test_a8_opposite_signs_do_not_merge() -> None:
    def fn(x: Any) -> Any:
        cropped = lax.pad(jnp.exp(x), np.float32(0), ((-2, 0, 0), (0, -3, 0)))
        return lax.pad(cropped, np.float32(0), ((2, 1, 0), (1, 3, 0)))

    x = f32(16, 16)
    expected = np.pad(np.exp(x)[2:, :-3], ((2, 1), (1, 3)))
    plan = run(fn, [x], expected, off=("fuse-pad", "fold-pads"))
    assert not reasons(plan, "fold-pads", applied=True)


@pytest.mark.parametrize("start", [-900, -9, 0, 5, 63, 200])
def test_a10_dynamic_offsets_clamp_and_say_so(start: int) -> None:
    def fn(d: Any, x: Any, i: Any) -> Any:
        return lax.dynamic_update_slice(d, jnp.exp(x), (i.sum(), 0))

    d, x = f32(64, 64), f32(2, 64)
    at = min(max(start + 64 if start < 0 else start, 0), 62)  # JAX counts from the end
    expected = d.copy()
    expected[at : at + 2] = np.exp(x)
    args = [d, x, np.array([start, 0], np.int32)]
    plan = run(fn, args, expected, donate_argnums=0)
    write = plan.dispatches[-1].writes[0]
    assert (write.exact, write.hull) == (False, (0, 16_384))
    said = reasons(plan, "fuse-insert", applied=True)
    assert any("conservative hull" in reason for reason in said)
    assert plan.delegated == ()  # all of it runs natively: no host reads the offset


def test_a10_offsets_that_the_host_knows_are_exact() -> None:
    plan = plan_of(
        lambda d, x: lax.dynamic_update_slice(d, jnp.exp(x), (5, 0)),
        f32(64, 64),
        f32(2, 64),
        donate_argnums=0,
    )
    write = plan.dispatches[-1].writes[0]
    assert (write.exact, write.hull) == (True, (5 * 256, 7 * 256))


def test_a13_no_fusion_across_a_branch() -> None:
    def fn(p: Any, x: Any) -> Any:
        e = jnp.exp(x)
        return lax.cond(p, lambda e: jnp.pad(e, 1), lambda e: jnp.zeros((66, 66)), e)

    x = f32(64, 64)
    for p, expected in ((True, np.pad(np.exp(x), 1)), (False, np.zeros((66, 66)))):
        plan = run(fn, [np.bool_(p), x], expected)
    (producer,) = (d for d in plan.dispatches if "exp" in d.ops)
    assert [access.nbytes for access in producer.writes] == [16_384]


def test_a13_a_scan_moves_by_its_stride() -> None:
    def fn(xs: Any) -> Any:
        def step(total: Any, x: Any) -> Any:
            return total + x, jnp.pad(jnp.exp(x), 1, constant_values=2.0)

        return lax.scan(step, jnp.zeros(16), xs)

    xs = f32(5, 16)
    padded = np.pad(np.exp(xs), ((0, 0), (1, 1)), constant_values=2.0)
    plan = run(fn, [xs], (xs.sum(0), padded), off=("fuse-pad",))
    assert (plan.delegated, plan.copies) == ((), ())
    (body,) = (body for dispatch in plan.dispatches for body in dispatch.bodies)
    strides = {binding.outer: binding.stride_nbytes for binding in body.bindings}
    assert (strides["xs"], strides["r1"]) == (64, 72)
    assert body.plan.fills == ()
