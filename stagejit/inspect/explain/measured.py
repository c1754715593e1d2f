"""How long a call takes under several options, measured.

Input: a jitted function, options, the arguments of a call. Output: seconds. Invariant: calls are
interleaved in alternating order, so that what disturbs the machine meets all of them alike;
arguments that are donated are copied anew before each call, outside of what is measured.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from stagejit.inspect.explain.what_if import Measured
from stagejit.options import Options
from stagejit.runtime.lowering import seams

_settled: Any = jax.block_until_ready
_WARM_UP = 2
_LEAST_ROUNDS = 7


def seconds_of(
    jitted: Any,
    options: Sequence[Options],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    seconds: float = 1.0,
) -> list[Measured]:
    """A call under each of the options, of about so many seconds of calls. Arguments that are
    `jax.ShapeDtypeStruct`s are filled with random numbers, of one seed."""
    functions = [seams.with_options(jitted, each) for each in options]
    static = jitted._jit_info
    donates = bool(static.donate_argnums or static.donate_argnames)
    args, kwargs = jax.tree.map(_filled, (tuple(args), dict(kwargs)))
    for function in functions * _WARM_UP:
        _timed(function, args, kwargs, donates)
    samples: list[list[float]] = [[] for _ in functions]
    order, deadline = list(range(len(functions))), time.perf_counter() + seconds
    while len(samples[0]) < _LEAST_ROUNDS or time.perf_counter() < deadline:
        for at in order:
            samples[at].append(_timed(functions[at], args, kwargs, donates))
        order.reverse()
    return [Measured.of(each) for each in samples]


def _timed(function: Any, args: Any, kwargs: Any, donates: bool) -> float:
    if donates:
        args, kwargs = _settled(jax.tree.map(_copied, (args, kwargs)))
    start = time.perf_counter()
    _settled(function(*args, **kwargs))
    return time.perf_counter() - start


def _copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, jax.Array) else leaf


def _filled(leaf: Any) -> Any:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    random = np.random.default_rng(0)
    if not jax.numpy.issubdtype(leaf.dtype, np.inexact):
        return jax.numpy.zeros(leaf.shape, leaf.dtype)
    return jax.numpy.asarray(random.standard_normal(leaf.shape), leaf.dtype)
