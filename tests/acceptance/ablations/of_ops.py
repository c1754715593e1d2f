"""Ablations of rewrites of ops, and of weights."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import stagejit
from stagejit.options import Options
from tests.acceptance.ablations.ablation import Ablation, X, Y, softmax
from tests.acceptance.ablations.measures import (
    copies,
    delegated,
    dispatches,
    encoded,
    evaluations,
    left_to_xla,
    transient_nbytes,
    weight_nbytes,
    written_by_branches,
)
from tests.acceptance.consumers.dense_blocks import (
    convolve,
    dense_block,
    expected_block,
    weights_of,
)
from tests.acceptance.running import f32
from tests.expected.left import left

TINY_IMAGES = np.sin(np.arange(1024 * 7 * 7, dtype=np.float32)).reshape(1024, 7, 7)
SCORED = np.sin(np.arange(16 * 512 * 8, dtype=np.float32)).reshape(16, 512, 8)
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


def products(w: Any, xs: Any) -> Any:
    return lax.scan(lambda c, x: (c + x @ (w @ w), None), jnp.zeros(16), xs)[0]


def padded_convolution(x: Any, w: Any) -> Any:
    return lax.conv(jnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), w, (1, 1), "VALID")


LOGS = f32(64)
WHOLE = np.clip(np.trunc(64 * f32(64, 64, seed=2)), -127, 127)  # 8 bits hold it
WHOLE[0] = 127
ROUNDED = stagejit.bind(lambda w, x: x @ w, WHOLE, weights="int8")
NORMALIZED = stagejit.bind(lambda w, x: (x @ w[0] - w[1]) * w[1], (Y, LOGS))
SCALED = stagejit.bind(lambda w, x: x * jnp.exp(w), LOGS)
BLOCK = (f32(1, 8, 6, 5), f32(1, 8, 6, 5, seed=1), weights_of(8))
IMAGE = 6 * 5 * 4  # bytes of a channel of it

OF_OPS = {
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
    "select-updates": Ablation(
        lambda p, x, y: jnp.where(p, x.at[2:4].set(y[:2]), x),
        (np.bool_(True), X, Y),
        lambda p, x, y: np.concatenate([x[:2], y[:2], x[4:]]),
        copies,
        0,
        2,
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
    "contract-to-sum": Ablation(
        lambda x, y: jnp.maximum(x, y[0]) @ y,
        (f32(40, 30), f32(30)),
        lambda x, y: np.maximum(x, y[0]).astype(np.float64) @ y,
        evaluations("mul"),
        1,
        0,
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
    # Differences along two axes, each with a border of zeros.
    "overlay-parts": Ablation(
        lambda x: (
            jnp.pad(x[1:] - x[:-1], ((0, 1), (0, 0)))
            * jnp.pad(x[:, 1:] - x[:, :-1], ((0, 0), (0, 1)))
        ),
        (X,),
        lambda x: np.diff(x, axis=0, append=x[-1:]) * np.diff(x, axis=1, append=x[:, -1:]),
        dispatches,
        1,
        3,
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
}
