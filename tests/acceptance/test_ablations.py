"""Every rewrite and fusion, switched off: what it saves comes back, and the values stay the same.

A new name in `options.SWITCHES` needs a line here.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

import stagejit
from stagejit.options import SWITCHES, Options
from stagejit.schedule.plans.plan import Plan
from tests.acceptance.running import f32, plan_of, run
from tests.acceptance.test_multi_consumer import convolve, dense_block, expected_block, weights_of
from tests.dispatch.forming.test_turned import across
from tests.left import left

Measure = Callable[[Plan], int]


@dataclass(frozen=True)
class Ablation:
    """measure: what a plan of `fn` pays; on, off: how much with and without the rewrite. hosts:
    what its host program pays, in place of `measure`."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    expected: Callable[..., Any]
    measure: Measure
    on: int
    off: int
    jit: dict[str, Any] = field(default_factory=dict)
    hosts: Callable[[str], int] | None = None


TINY_IMAGES = np.sin(np.arange(1024 * 7 * 7, dtype=np.float32)).reshape(1024, 7, 7)
SCORED = np.sin(np.arange(16 * 512 * 8, dtype=np.float32)).reshape(16, 512, 8)


def host_of(fn: Callable[..., Any], args: list[Any], options: Options) -> str:
    text: str = stagejit.jit(fn, options=options).lower(*args).as_text("host")
    return text


def dispatches(plan: Plan) -> int:
    return len(plan.dispatches)


def row_major_transients(plan: Plan) -> int:
    return sum(b.kind == "transient" and b.layout.is_row_major for b in plan.buffers)


COLUMNS = Format(Layout((1, 0)), SingleDeviceSharding(jax.devices()[0]))
IMAGES = np.random.default_rng(3).standard_normal((2, 16, 16, 32), dtype=np.float32)


def widest(x: Any, stride: int = 1) -> Any:
    """Maxima of 3x3 windows over the last two axes."""
    window, strides = (1, 1, 3, 3), (1, 1, stride, stride)
    return lax.reduce_window(
        x, -jnp.inf, lax.max, window, strides, ((0, 0), (0, 0), (1, 1), (1, 1))
    )


def largest_around(x: Any, axes: tuple[int, int] = (1, 2)) -> Any:
    """The same in NumPy, over any two axes."""
    around = [(1, 1) if axis in axes else (0, 0) for axis in range(4)]
    wide = np.pad(x, around, constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axes)
    return windows.max((-1, -2))


def every_second(x: Any) -> Any:
    return largest_around(x, (2, 3))[:, :, ::2, ::2]


def copies(plan: Plan) -> int:
    return len(plan.copies)


def fills(plan: Plan) -> int:
    return len(plan.fills)


def delegated(plan: Plan) -> int:
    return len(plan.delegated)


def transient_nbytes(plan: Plan) -> int:
    return plan.transient_nbytes


def peak_nbytes(plan: Plan) -> int:
    return plan.peak_nbytes


def weight_nbytes(plan: Plan) -> int:
    return sum(buffer.nbytes for buffer in plan.buffers if buffer.kind == "weight")


def waiting_neighbours(plan: Plan) -> int:
    """Dispatches that wait for the one right before them."""
    waits = {(barrier.src, barrier.dst) for barrier in plan.barriers}
    names = [dispatch.name for dispatch in plan.dispatches]
    return sum(pair in waits for pair in itertools.pairwise(names))


def evaluations(op: str) -> Measure:
    """How often an op is evaluated, in loops as often as they turn."""

    def count(plan: Plan) -> int:
        return sum(
            dispatch.ops.count(op)
            + sum((body.trip or 1) * count(body.plan) for body in dispatch.bodies)
            for dispatch in plan.dispatches
        )

    return count


def conservative_nbytes(plan: Plan) -> int:
    """Bytes of ranges that are the hull of what is written."""
    return sum(w.nbytes for d in plan.dispatches for w in d.writes if not w.exact)


def written_by_branches(plan: Plan) -> int:
    """Bytes of the results of branches, as far as one of them may write them."""
    return sum(w.nbytes for d in plan.dispatches if d.kind == "branch" for w in d.writes)


def encoded(plan: Plan) -> int:
    """Arrays in memory that are encoded when the target is asked how they lie."""
    tiling = (d for d in plan.decisions if d.rewrite == "data-tiling")
    return sum(d.op.startswith("set_encoding") for d in tiling)


WEIGHTS = f32(64, 128)
MANY_WEIGHTS = f32(600, 512)  # too many to be evaluated when a program is compiled


def scan(w: Any, xs: Any) -> Any:
    return lax.scan(lambda c, x: (c + x * jnp.exp(w), None), jnp.zeros(16), xs)[0]


def twice(function: Any) -> Any:
    """Computes one thing in two ways that the compiler knows to be the same."""
    return lambda x, y: (function(x + y), function(y * 1 + x))


def transforming(w: Any, xs: Any) -> Any:
    """A loop that XLA runs, with little to do for us in it."""
    return lax.scan(lambda c, x: (left(c + x), None), w, xs)[0]


def transformed_sums(w: Any, xs: Any) -> Any:
    return functools.reduce(lambda c, x: -(c + x), xs, w)


def left_to_xla(plan: Plan) -> int:
    """Loops that XLA runs with bodies of its own."""
    return sum(d.rewrite == "leave-bodies" and d.applied for d in plan.decisions)


def products(w: Any, xs: Any) -> Any:
    return lax.scan(lambda c, x: (c + x @ (w @ w), None), jnp.zeros(16), xs)[0]


def softmax(x: Any) -> Any:
    shifted = np.exp(x - x.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def padded_convolution(x: Any, w: Any) -> Any:
    return lax.conv(jnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), w, (1, 1), "VALID")


def two_products(a: Any, b: Any) -> Any:
    """Two transients that are never alive together."""
    return jnp.cumsum(jnp.cumsum(jnp.cumsum(a @ b, 0), 1), 0)


X, Y = f32(64, 64), f32(64, 64, seed=1)
LOGS = f32(64)
WHOLE = np.clip(np.trunc(64 * f32(64, 64, seed=2)), -127, 127)  # 8 bits hold it
WHOLE[0] = 127
ROUNDED = stagejit.bind(lambda w, x: x @ w, WHOLE, weights="int8")
NORMALIZED = stagejit.bind(lambda w, x: (x @ w[0] - w[1]) * w[1], (Y, LOGS))
SCALED = stagejit.bind(lambda w, x: x * jnp.exp(w), LOGS)
BLOCK = (f32(1, 8, 6, 5), f32(1, 8, 6, 5, seed=1), weights_of(8))
IMAGE = 6 * 5 * 4  # bytes of a channel of it

ABLATIONS = {
    "native-control-flow": Ablation(
        scan, (f32(16), f32(5, 16)), lambda w, xs: xs.sum(0) * np.exp(w), delegated, 0, 1
    ),
    "leave-bodies": Ablation(
        transforming, (f32(256), f32(5, 256)), transformed_sums, left_to_xla, 1, 0
    ),
    "simplify-loops": Ablation(
        products,
        (f32(16, 16) / 4, f32(5, 16)),
        lambda w, xs: xs.sum(0) @ w @ w,
        evaluations("contract"),
        1 + 5,
        2 * 5,
    ),
    "simplify-branches": Ablation(
        lambda p, x, y: lax.cond(p, twice(jnp.exp), twice(jnp.tanh), x, y),
        (np.bool_(True), X, Y),
        lambda p, x, y: (np.exp(x + y), np.exp(x + y)),
        written_by_branches,
        X.nbytes,
        2 * X.nbytes,
    ),
    "update-branches": Ablation(
        lambda p, x, y: lax.cond(p, lambda x: x.at[2:4].set(y[:2]), lambda x: x, x),
        (np.bool_(True), X, Y),
        lambda p, x, y: np.concatenate([x[:2], y[:2], x[4:]]),
        written_by_branches,
        2 * 64 * 4,
        X.nbytes,
        {"donate_argnums": 1},
    ),
    "fold-views": Ablation(
        lambda x, y: jnp.concatenate([jnp.exp(x), y])[:64] * 2,
        (X, Y),
        lambda x, y: np.exp(x) * 2,
        transient_nbytes,
        0,
        2 * X.nbytes,
    ),
    "fold-pads": Ablation(
        padded_convolution,
        (f32(1, 8, 12, 10), f32(8, 8, 3, 3)),
        convolve,
        transient_nbytes,
        0,
        8 * 14 * 12 * 4,
    ),
    "fold-constants": Ablation(
        lambda x: x + lax.sin(jnp.float32(1)),
        (X,),
        lambda x: x + np.sin(1),
        evaluations("sin"),
        0,
        1,
    ),
    "scale-weights": Ablation(
        lambda x: NORMALIZED(x),
        (X,),
        lambda x: (x @ Y - LOGS) * LOGS,
        evaluations("mul"),
        0,
        1,
    ),
    "store-weights": Ablation(
        lambda x: ROUNDED(x),
        (X,),
        lambda x: x @ WHOLE,
        weight_nbytes,
        WHOLE.nbytes // 4 + 4 * 64,
        WHOLE.nbytes,
    ),
    "evaluate-weights": Ablation(
        lambda x: SCALED(x),
        (X,),
        lambda x: x * np.exp(LOGS),
        evaluations("exp"),
        0,
        1,
    ),
    "known-ranges": Ablation(
        lambda x: x[jnp.argmax(x, 0)],
        (X,),
        lambda x: x[np.argmax(x, 0)],
        evaluations("select"),
        0,
        1,
    ),
    "join-indices": Ablation(
        lambda x, rows, columns: x[rows, columns],
        (f32(8, 6), np.arange(24, dtype=np.int32) % 8, np.arange(24, dtype=np.int32) * 5 % 6),
        lambda x, rows, columns: x[rows, columns],
        transient_nbytes,
        0,
        24 * 2 * 4,
    ),
    "simplify-algebra": Ablation(
        lambda x: jnp.exp(x * 1 + 0), (X,), np.exp, evaluations("mul"), 0, 1
    ),
    "eliminate-common-subexpressions": Ablation(
        lambda x: lax.cumsum(x) * lax.cumsum(x),
        (X,),
        lambda x: np.cumsum(x, 0) ** 2,
        dispatches,
        1,
        2,
    ),
    "sum-to-contract": Ablation(
        lambda x, y: (x[:, :, None] * y[None]).sum(1),
        (X, Y),
        lambda x, y: x.astype(np.float64) @ y.astype(np.float64),
        evaluations("mul"),
        0,
        1,
    ),
    "split-reduce": Ablation(
        lambda x: x.sum(), (f32(1 << 20),), lambda x: x.astype(np.float64).sum(), dispatches, 2, 1
    ),
    "share-prefixes": Ablation(
        dense_block,
        BLOCK,
        expected_block,
        transient_nbytes,
        24 * IMAGE,
        (12 + 16 + 20 + 24) * IMAGE,
    ),
    # What it saves, copies into blocks, is no part of a plan; what it takes is.
    "border-buffers": Ablation(
        dense_block,
        (f32(1, 8, 6, 30), f32(1, 8, 6, 30, seed=1), weights_of(8)),
        expected_block,
        transient_nbytes,
        24 * (6 + 2) * (30 + 2) * 4,
        24 * 6 * 30 * 4,
        {"options": Options(borders="always", verify=True)},
    ),
    # Products that take all steps of their sums; how many they leave out is known at run time.
    "skip-zeros": Ablation(
        lambda x: jnp.tril(x) @ x,
        (f32(64, 64),),
        lambda x: np.tril(x) @ x,
        lambda plan: 1 - sum(d.rewrite == "skip-zeros" and d.applied for d in plan.decisions),
        0,
        1,
    ),
    # What the target is asked about: the product of two arguments has nothing to be tiled before.
    "data-tiling": Ablation(
        lambda x: x @ WEIGHTS,
        (f32(32, 64),),
        lambda x: x @ WEIGHTS,
        lambda plan: 1 - encoded(plan),
        0,
        1,
    ),
    "propagate-encodings": Ablation(
        lambda x: x @ jnp.transpose(jnp.asarray(MANY_WEIGHTS)),
        (f32(8, 512),),
        lambda x: x @ MANY_WEIGHTS.T,
        lambda plan: 1 - encoded(plan),
        0,
        1,
    ),
    "elide-packs": Ablation(
        lambda x, y: x @ y, (f32(32, 64), f32(64, 128)), lambda x, y: x @ y, encoded, 0, 2
    ),
    # 16 MB of tanh(...), which nobody stores.
    "tile-and-fuse": Ablation(
        lambda x, y: jnp.tanh(x @ y.swapaxes(1, 2)) @ y,
        (SCORED, SCORED),
        lambda x, y: np.tanh(x @ y.swapaxes(1, 2)) @ y,
        dispatches,
        1,
        2,
    ),
    # Two products and a softmax, on a GPU.
    "fuse-attention": Ablation(
        lambda x, y: jax.nn.softmax(x @ y, 1) @ y[:, :8],
        (X, Y),
        lambda x, y: softmax(x @ y) @ y[:, :8],
        dispatches,
        1,
        3,
        {"options": Options(target="cuda-emulated", verify=True)},
    ),
    "split-scan": Ablation(
        lambda x: lax.cumsum(jnp.tile(x, 1 << 16)),
        (np.ones(16, np.float32),),
        lambda x: np.cumsum(np.tile(x, 1 << 16).astype(np.float64)),
        dispatches,
        3,
        1,
    ),
    "map-parts": Ablation(
        lambda x, y: jnp.abs(jnp.concatenate([jnp.sin(x), jnp.cos(y)])),
        (X, Y),
        lambda x, y: np.abs(np.concatenate([np.sin(x), np.cos(y)])),
        dispatches,
        2,
        3,
    ),
    # The gradient of a difference, which adds two pads of one value.
    "share-pads": Ablation(
        lambda x: (lambda y: jnp.pad(y, ((0, 1), (0, 0))) - jnp.pad(y, ((1, 0), (0, 0))))(
            lax.cumsum(x, 0)
        ),
        (X,),
        lambda x: np.diff(np.cumsum(x, 0), axis=0, prepend=0, append=0),
        transient_nbytes,
        (64 + 2) * 64 * 4,
        2 * (64 + 1) * 64 * 4,
    ),
    # Images of 7x7 with a border.
    "overlay-rows": Ablation(
        lambda x: jnp.pad(x, ((0, 0), (1, 1), (1, 1))),
        (TINY_IMAGES,),
        lambda x: np.pad(x, ((0, 0), (1, 1), (1, 1))),
        dispatches,
        1,
        2,
    ),
    "spread-repeats": Ablation(
        lambda x, y: jnp.concatenate([jnp.repeat(x @ y, 2, 0), y]),
        (X, Y),
        lambda x, y: np.concatenate([np.repeat(x @ y, 2, 0), y]),
        transient_nbytes,
        0,
        X.nbytes,
    ),
    "fuse-producers": Ablation(
        lambda x: lax.cumsum(jnp.exp(x)),
        (X,),
        lambda x: np.cumsum(np.exp(x), 0),
        transient_nbytes,
        0,
        X.nbytes,
    ),
    "fuse-epilogues": Ablation(
        lambda x, y: jnp.tanh(x @ y), (X, Y), lambda x, y: np.tanh(x @ y), dispatches, 1, 2
    ),
    "fuse-rows": Ablation(lambda x: jax.nn.softmax(x, 1), (X,), softmax, dispatches, 1, 3),
    "store-transposes": Ablation(
        lambda x, y: (x.T * y).sum(1),
        (f32(512, 512), f32(512, 512, seed=1)),
        lambda x, y: (x.T * y).sum(1),
        across,
        0,
        1,
    ),
    "fuse-insert": Ablation(
        lambda x, y: jnp.concatenate([jnp.exp(x), jnp.tanh(y)]),
        (X, Y),
        lambda x, y: np.concatenate([np.exp(x), np.tanh(y)]),
        copies,
        0,
        2,
    ),
    "read-placed": Ablation(
        lambda x, y: (lambda s: (jnp.concatenate([s, y]), lax.cumsum(s, 1)))(lax.cumsum(x)),
        (X, Y),
        lambda x, y: (
            np.concatenate([np.cumsum(x, 0), y]),
            np.cumsum(np.cumsum(x, 0), 1),
        ),
        transient_nbytes,
        0,
        X.nbytes,
    ),
    "fuse-pad": Ablation(
        lambda x: jnp.pad(jnp.exp(x), 1, constant_values=2),
        (X,),
        lambda x: np.pad(np.exp(x), 1, constant_values=2),
        fills,
        0,
        1,
    ),
    "caller-layouts": Ablation(
        lambda x: jnp.sin(x),
        (X[:3],),
        lambda x: np.sin(x),
        lambda plan: sum(b.shape == X[:3].shape for b in plan.buffers),  # which XLA copies
        0,
        2,
        {"in_shardings": COLUMNS, "out_shardings": COLUMNS},
    ),
    "infer-layouts": Ablation(
        lambda x: widest(jnp.sin(widest(x.transpose(0, 3, 1, 2)))).transpose(0, 2, 3, 1),
        (IMAGES,),
        lambda x: largest_around(np.sin(largest_around(x))),
        row_major_transients,
        0,
        1,
    ),
    "channels-last": Ablation(
        lambda x, w: widest(jnp.tanh(lax.conv(x, w, (1, 1), "SAME")), 2),
        (IMAGES.transpose(0, 3, 1, 2).copy(), f32(32, 32, 3, 3)),
        lambda x, w: every_second(np.tanh(convolve(x, w))),
        row_major_transients,
        0,
        1,
    ),
    "run-beside": Ablation(
        lambda x, y: (jnp.tanh(jnp.tanh(x @ y) @ y), jnp.sin(jnp.sin(x @ y.T) @ y.T)),
        (X, Y),
        lambda x, y: (np.tanh(np.tanh(x @ y) @ y), np.sin(np.sin(x @ y.T) @ y.T)),
        waiting_neighbours,
        0,
        2,
    ),
    "share-forks": Ablation(
        lambda x: [x @ (x * n) for n in range(1, 9)],
        (np.ones((128, 128), np.float32),),
        lambda x: [x @ (x * n) for n in range(1, 9)],
        dispatches,
        1,
        0,
        hosts=lambda text: text.count("parallel region of 8:"),
    ),
    "run-in-background": Ablation(
        lambda x: [jnp.exp(x) + n for n in range(100)],
        (np.ones((256, 256), np.float32),),
        lambda x: [np.exp(x) + n for n in range(100)],
        dispatches,
        1,
        0,
        hosts=lambda text: text.count("in the background"),
    ),
    "parallel-loops": Ablation(
        lambda x: lax.map(lambda row: jnp.tanh(row @ x[0]) @ x[0], x),
        (np.ones((64, 64, 64), np.float32),),
        lambda x: np.tanh(x @ x[0]) @ x[0],
        lambda plan: sum(b.threads == 1 for d in plan.dispatches for b in d.bodies),
        0,
        1,
    ),
    "pack-slots": Ablation(
        two_products,
        (X, Y),
        lambda x, y: np.cumsum(np.cumsum(np.cumsum(x @ y, 0), 1), 0),
        peak_nbytes,
        2 * X.nbytes,
        3 * X.nbytes,
    ),
    "write-in-place": Ablation(
        lambda x, y: jax.nn.softmax(x @ y, 1) @ y[:, :8],
        (X, Y),
        lambda x, y: softmax(x @ y) @ y[:, :8],
        peak_nbytes,
        X.nbytes,
        2 * X.nbytes,
    ),
    "borrow-results": Ablation(
        lambda x, y: jnp.tanh(jnp.tanh(x @ y) @ y) @ y,
        (X, Y),
        lambda x, y: np.tanh(np.tanh(x @ y) @ y) @ y,
        peak_nbytes,
        X.nbytes,
        2 * X.nbytes,
    ),
    "host-offsets": Ablation(
        lambda x, y, i: lax.dynamic_update_slice(x, jnp.exp(y), (i, 0)),
        (X, Y[:2], np.int32(5)),
        lambda x, y, i: np.concatenate([x[:5], np.exp(y), x[7:]]),
        conservative_nbytes,
        0,
        X.nbytes,
        {"donate_argnums": 0},
    ),
    "elide-copy": Ablation(
        lambda x, y: (x.at[2:4].set(y[:2] * 2), jnp.exp(x)),
        (X, Y),
        lambda x, y: (np.concatenate([x[:2], y[:2] * 2, x[4:]]), np.exp(x)),
        copies,
        0,
        1,
        {"donate_argnums": 0},
    ),
    "reuse-arguments": Ablation(
        lambda x, y: x.at[2:4].set(y[:2] * 2),
        (X, Y),
        lambda x, y: np.concatenate([x[:2], y[:2] * 2, x[4:]]),
        copies,
        0,
        1,
        {"donate_argnums": 0},
    ),
}


def test_every_switch_has_an_ablation() -> None:
    assert set(ABLATIONS) == set(SWITCHES)


@pytest.mark.parametrize("switch", ABLATIONS)
def test_switched_off_the_costs_come_back(switch: str) -> None:
    case = ABLATIONS[switch]
    args = [np.array(x) if isinstance(x, np.ndarray) else x for x in case.args]
    plan = run(case.fn, args, case.expected(*args), off=[switch], **case.jit)
    off = plan_of(case.fn, *args, disable=[switch], **case.jit)
    paid = case.measure(plan), case.measure(off)
    if case.hosts:
        options = (Options(), Options(disable=(switch,)))
        paid = tuple(case.hosts(host_of(case.fn, args, each)) for each in options)
    assert paid == (case.on, case.off)
    assert not [d for d in off.decisions if d.rewrite == switch and d.applied]
