"""How long a call takes under several options, measured.

Input: a jitted function, options, the arguments of a call. Output: seconds. Invariant: calls are
interleaved in random order, so that what disturbs the machine meets all of them alike, and none
always follows the same other one; a turn is some calls, the first of which is not timed: it finds
what another program has left in the caches. Arguments that are donated are copied anew before each
call, outside of what is measured.
"""

from __future__ import annotations

import random
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
_LEAST_ROUNDS, _TURN = 4, 3


def seconds_of(
    jitted: Any,
    options: Sequence[Options],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    seconds: float = 1.0,
) -> list[Measured]:
    """A call under each of the options, of about so many seconds of calls each. Arguments that are
    `jax.ShapeDtypeStruct`s are filled with random numbers, of one seed."""
    functions = [seams.with_options(jitted, each) for each in options]
    static = jitted._jit_info
    donates = bool(static.donate_argnums or static.donate_argnames)
    args, kwargs = jax.tree.map(_filled, (tuple(args), dict(kwargs)))
    for function in functions * _WARM_UP:
        _timed(function, args, kwargs, donates)
    samples: list[list[float]] = [[] for _ in functions]
    order, shuffle = list(range(len(functions))), random.Random(0).shuffle
    deadline = time.perf_counter() + seconds * len(functions)
    while len(samples[0]) < _LEAST_ROUNDS * _TURN or time.perf_counter() < deadline:
        shuffle(order)
        for at in order:
            _timed(functions[at], args, kwargs, donates)
            samples[at] += [_timed(functions[at], args, kwargs, donates) for _ in range(_TURN)]
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
