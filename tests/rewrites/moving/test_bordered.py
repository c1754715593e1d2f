"""border-buffers: what windows read lies in memory with their border."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from stagejit.errors import OptionsError
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.rewrites.driving.driver import GraphStep
from stagejit.rewrites.moving.bordered import NAME, border_buffers
from stagejit.schedule.plans.plan import Plan
from stagejit.trace.translate import graph_of
from tests.rewrites.text_in_out import reasons
from tests.schedule.planning import check, plan_of

STEP = GraphStep(NAME, border_buffers)
ALWAYS = Options(borders="always")
NCHW = ("NCHW", "OIHW", "NCHW")
NHWC = ("NHWC", "HWIO", "NHWC")


def ints(*shape: int, seed: int = 0) -> Any:
    """Small whole numbers: sums in any order are exact."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def conv(x: Any, w: Any, padding: Any = "SAME", spec: Any = NCHW, **more: Any) -> Any:
    strides = more.pop("strides", (1,) * (x.ndim - 2))
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=spec, **more)


def padded(x: Any, value: float) -> Any:
    return jnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=value)


def decisions(fn: Any, *args: Any, options: Options | None = None) -> list[str]:
    graph = graph_of(fn, *args)
    made = rewrite_graph(graph, replace(options or Options(), verify=True))
    return [("" if d.applied else "not: ") + d.reason for d in made if d.rewrite == NAME]


def fills_and_copies(plan: Plan) -> tuple[int, int]:
    return len(plan.fills), len(plan.copies)


def twice(x: Any, v: Any, w: Any, **more: Any) -> Any:
    y = x * 2
    return conv(y, v, **more) + conv(y, w, **more)


def test_two_windows_read_what_has_their_border() -> None:
    args = (ints(1, 3, 30, 62), ints(2, 3, 3, 3), ints(2, 3, 3, 3, seed=1))
    plan = check(twice, *args, options=ALWAYS)
    bordered = next(buffer for buffer in plan.buffers if buffer.kind == "transient")
    assert bordered.shape == (1, 3, 32, 64)  # rows of 256 bytes
    assert fills_and_copies(plan) == (0, 0)
    assert decisions(twice, *args, options=ALWAYS) == ["its windows read it with its border"]
    producer = plan.dispatches[0]
    assert sum(write.nbytes for write in producer.writes) == bordered.nbytes  # each byte once
    off = plan_of(twice, *args, options=Options(disable=(NAME,)))
    assert bordered.shape not in [buffer.shape for buffer in off.buffers]


def grown(x: Any, *weights: Any) -> Any:
    parts = [x * 2]
    for w in weights:
        parts.append(conv(jnp.concatenate(parts, 1), w))
    return parts[-1] + 1


def test_all_windows_over_a_growing_buffer() -> None:
    weights = [ints(2, 2 + 2 * n, 3, 3, seed=n) for n in range(4)]
    for batch in (1, 3):
        plan = check(grown, ints(batch, 2, 6, 14), *weights, options=ALWAYS)
        assert fills_and_copies(plan) == (0, 0)
        (buffer,) = (b for b in plan.buffers if b.kind == "transient")
        assert buffer.shape == (batch, 8, 8, 16)
        interior = [w for d in plan.dispatches for w in d.writes if w.sizes[2:] == (6, 14)]
        assert len(interior) == 5  # four in the buffer, one the result
        written = sum(w.nbytes for d in plan.dispatches[:-1] for w in d.writes)
        assert written == buffer.nbytes


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "5x5": (twice, (ints(1, 3, 7, 9), ints(2, 3, 5, 5), ints(2, 3, 5, 5, seed=1))),
    "asymmetric": (
        lambda *a: twice(*a, padding=((0, 2), (1, 0))),
        (ints(1, 3, 7, 9), ints(2, 3, 3, 2), ints(2, 3, 3, 2, seed=1)),
    ),
    "dilated": (
        lambda *a: twice(*a, rhs_dilation=(2, 3)),
        (ints(2, 3, 7, 9), ints(2, 3, 3, 3), ints(2, 3, 3, 3, seed=1)),
    ),
    "strided": (
        lambda *a: twice(*a, strides=(2, 1)),
        (ints(1, 3, 7, 9), ints(2, 3, 3, 3), ints(2, 3, 3, 3, seed=1)),
    ),
    "channels last": (
        lambda *a: twice(*a, spec=NHWC),
        (ints(2, 6, 7, 3), ints(3, 3, 3, 4), ints(3, 3, 3, 4, seed=1)),
    ),
    "1-d": (
        lambda *a: twice(*a, spec=("NCW", "OIW", "NCW")),
        (ints(2, 3, 14), ints(4, 3, 5), ints(4, 3, 5, seed=1)),
    ),
    "3-d": (
        lambda *a: twice(*a, spec=("NCDHW", "OIDHW", "NCDHW")),
        (ints(1, 2, 4, 5, 6), ints(2, 2, 3, 3, 3), ints(2, 2, 3, 3, 3, seed=1)),
    ),
    "groups": (
        lambda *a: twice(*a, feature_group_count=2),
        (ints(1, 4, 5, 6), ints(4, 2, 3, 3), ints(4, 2, 3, 3, seed=1)),
    ),
    "a border of ones": (
        lambda x, v, w: conv(padded(x * 2, 1), v, "VALID") + conv(padded(x * 2, 1), w, "VALID"),
        (ints(1, 3, 5, 6), ints(2, 3, 3, 3), ints(2, 3, 3, 3, seed=1)),
    ),
    "one window": (lambda x, w: conv(x * 2, w), (ints(1, 3, 5, 6), ints(2, 3, 3, 3))),
    "two widths": (
        lambda x, v, w: conv(x * 2, v) + conv(x * 2, w),
        (ints(1, 3, 7, 9), ints(2, 3, 5, 3), ints(2, 3, 3, 7)),
    ),
    "mixed": (
        lambda x, w: jnp.tanh(conv(x * 2, w)).sum() + (x * 2),
        (ints(1, 3, 7, 9), ints(2, 3, 3, 3)),
    ),
    "a part of the channels": (
        lambda x, y, w: conv(jnp.concatenate([x * 2, y + 1], 1)[:, 1:4], w),
        (ints(1, 2, 5, 6), ints(1, 3, 5, 6), ints(2, 3, 3, 3)),
    ),
    "slices beside": (
        lambda x, y, w, i: (lambda c: (conv(c, w), c[:, :, 1:3] * 2,
                                       lax.dynamic_slice(c, (0, i, 0, 0), (1, 2, 5, 6)) + 1))(
            jnp.concatenate([x * 2, y + 1], 1)),
        (ints(1, 2, 5, 6), ints(1, 3, 5, 6), ints(2, 5, 3, 3), np.int32(2)),
    ),
    "growing": (grown, (ints(2, 2, 5, 6), *(ints(2, 2 + 2 * n, 3, 3) for n in range(3)))),
    "new parts first": (
        lambda x, v, w: (lambda a: conv(jnp.concatenate([conv(a, v), a], 1), w))(x * 2),
        (ints(1, 2, 5, 6), ints(2, 2, 3, 3), ints(1, 4, 3, 3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_in_every_form(name: str) -> None:
    fn, args = CASES[name]
    plan = check(fn, *args, options=ALWAYS)
    assert any(not reason.startswith("not: ") for reason in decisions(fn, *args, options=ALWAYS))
    assert not plan.fills
    check(fn, *args, options=Options(disable=(NAME,)))
    check(fn, *args, options=Options(borders="always", disable=("fuse-pad", "share-prefixes")))


def test_a_smaller_window_reads_a_box_of_the_widest_border() -> None:
    fn, args = CASES["two widths"]
    plan = plan_of(fn, *args, options=ALWAYS)
    assert plan.buffer("t0").shape == (1, 3, 7 + 4, 9 + 6)
    boxes = {a.sizes for d in plan.dispatches for a in d.reads if a.buffer == "t0"}
    assert boxes == {(1, 3, 11, 11), (1, 3, 9, 15)}


def test_elementwise_readers_read_the_interior() -> None:
    def fn(x: Any, w: Any) -> Any:
        y = jnp.exp(x)
        return conv(y, w), lax.cumsum(y, 3)

    plan = check(lambda *a: [r + 1 for r in fn(*a)], ints(1, 3, 6, 20) / 2, W, options=ALWAYS)
    shapes = [b.shape for b in plan.buffers if b.kind == "transient"]
    assert shapes == [(1, 3, 8, 22)]
    off = Options(borders="always", disable=("read-placed",))
    apart = plan_of(fn, ints(1, 3, 6, 20), W, options=off)
    assert [b.shape for b in apart.buffers if b.kind == "transient"] != shapes


# ----------------------------------------------------------------------- what is refused

W = ints(2, 3, 3, 3)


REFUSED: dict[str, tuple[Callable[..., Any], tuple[int, ...], Options]] = {
    "a copy would have to place it in a border: it is the result of input": (
        lambda x, w: conv(x, w), (1, 3, 6, 14), ALWAYS),
    "its windows want borders of different values": (
        lambda x, w: conv(x * 2, w) + conv(padded(x * 2, 1), w, "VALID"), (1, 3, 6, 14), ALWAYS),
    "it is wanted in memory of its own, by return": (
        lambda x, w: (conv(x * 2, w), x * 2), (1, 3, 6, 14), ALWAYS),
    "it is wanted in memory of its own, by insert_slice": (
        lambda x, w: (conv(x * 2, w), jnp.pad(x * 2, ((0, 1),) * 4)), (1, 3, 6, 14), ALWAYS),
    "1536 bytes with its border are over the memory budget of 1000": (
        lambda x, w: twice(x, w, w + 1), (1, 3, 6, 14),
        Options(memory_budget=1000, borders="always")),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_dont_border(reason: str) -> None:
    fn, shape, options = REFUSED[reason]
    check(fn, ints(*shape), W, options=options)
    assert f"not: {reason}" in decisions(fn, ints(*shape), W, options=options)


@pytest.mark.parametrize(
    "window",
    [
        lambda y, w: conv(y, w, ((1, 1), (1, 1)), lhs_dilation=(2, 1)),
        lambda y, w: conv(y, w, ((-1, 1), (1, 1))),
        lambda y, w: conv(y, w, "VALID"),
    ],
    ids=["holes", "crops", "no border"],
)
def test_dont_look_at_other_windows(window: Any) -> None:
    assert decisions(lambda x, w: window(x * 2, w), ints(1, 3, 6, 14), W, options=ALWAYS) == []


def test_dont_border_a_part_of_the_rows() -> None:
    """Around a slice of the rows lie other rows, not a border."""

    def fn(x: Any, y: Any, w: Any) -> Any:
        return conv(jnp.concatenate([x * 2, y + 1], 1)[:, :, 1:4], w)

    args = (ints(1, 1, 6, 14), ints(1, 2, 6, 14), W)
    check(fn, *args, options=ALWAYS)
    assert decisions(fn, *args, options=ALWAYS) == [
        "not: a copy would have to place it in a border: it is the result of extract_slice"
    ]


def test_dont_border_what_nobody_asked_for() -> None:
    """a border in memory is not faster than one in blocks"""
    assert decisions(lambda x, w: twice(x, w, w + 1), ints(1, 3, 6, 14), W) == []


def test_dont_grow_two_ways() -> None:
    text = """graph @f(%x: f32[1,1,4,4], %w: f32[1,2,3,3]) {
      %0: f32[1,2,4,4] = empty
      %1: f32[1,2,4,4] = insert_slice %x into %0 at (0, 0, 0, 0)
      %2: f32[1,2,4,4] = insert_slice %x into %1 at (0, 1, 0, 0)
      %3: f32[1,1,4,4] = map exp %x
      %4: f32[1,2,4,4] = insert_slice %3 into %1 at (0, 1, 0, 0)
      CONV
      return %5, %4
    }"""
    window = (
        "batch_groups=1 feature_groups=1 lhs_dilation=(1, 1) lhs_spec=(0, 1, 2, 3) "
        "out_spec=(0, 1, 2, 3) padding=((1, 1), (1, 1)) rhs_dilation=(1, 1) "
        "rhs_spec=(0, 1, 2, 3) strides=(1, 1)"
    )
    conv_line = f"%5: f32[1,1,4,4] = conv %2, %w {window}"
    assert reasons(STEP, text.replace("CONV", conv_line), borders="always") == [
        "a copy would have to place it in a border: it is the result of insert_slice"
    ]


def test_the_option_takes_two_values() -> None:
    with pytest.raises(OptionsError, match="borders is 'never'"):
        Options(borders="never")  # type: ignore[arg-type]


@pytest.mark.fuzz
@given(st.data())
def test_random_networks(data: Any) -> None:
    """Convolutions of random windows over random concatenations of what is there."""
    draw = data.draw
    batch, height, width = draw(st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(1, 7)))
    steps = draw(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 5), min_size=1, max_size=3),
                st.tuples(st.integers(0, 2), st.integers(0, 2)),
                st.sampled_from(["conv", "conv", "conv", "relu", "slice"]),
            ),
            min_size=1,
            max_size=5,
        )
    )

    def fn(x: Any) -> Any:
        values, read = [x + 1], []
        for n, (which, (a, b), kind) in enumerate(steps):
            parts = [values[i % len(values)] for i in which]
            y = jnp.concatenate(parts, 1) if len(parts) > 1 else parts[0]
            if kind == "conv":
                w = jnp.asarray(ints(2, y.shape[1], 1 + 2 * a, 1 + 2 * b, seed=n))
                y = conv(y, w, ((a, a), (b, b)))
            y = jnp.maximum(y, 0) if kind == "relu" else y
            y = jnp.clip(y, -8, 8)
            if kind == "slice":
                read.append(y[:, :1] * 2)
            else:
                values.append(y)
        return values[-1] * 2, *read

    borders = draw(st.sampled_from(["blocks", "always"]))
    disable = draw(st.sets(st.sampled_from(["share-prefixes", "fuse-pad", "read-placed"])))
    options = Options(borders=borders, disable=tuple(disable))
    check(fn, ints(batch, 2, height, width), options=options)
