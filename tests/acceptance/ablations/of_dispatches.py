"""Ablations of fusions, of rewrites of dispatches, of layouts, and of how a plan is run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

from tests.acceptance.ablations.ablation import Ablation, X, Y, softmax
from tests.acceptance.ablations.measures import (
    conservative_nbytes,
    copies,
    dispatches,
    fills,
    peak_nbytes,
    row_major_transients,
    transient_nbytes,
    waiting_neighbours,
)
from tests.acceptance.consumers.dense_blocks import convolve
from tests.acceptance.running import f32
from tests.dispatch.forming.test_turned import across

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


def two_products(a: Any, b: Any) -> Any:
    """Two transients that are never alive together."""
    return jnp.cumsum(jnp.cumsum(jnp.cumsum(a @ b, 0), 1), 0)


OF_DISPATCHES = {
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
        (X[:32],),
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
    "compile-loops": Ablation(
        lambda x: lax.scan(lambda c, v: (0.5 * c + v,) * 2, jnp.float32(0), x.ravel())[1],
        (np.ones((10, 10), np.float32),),
        lambda x: 2 - np.exp2(-np.arange(100.0)),
        dispatches,
        1,
        0,
        hosts=lambda text: text.count(") is:"),
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
