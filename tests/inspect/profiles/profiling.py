"""Profiles of a few calls, and what they counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.inspect.profiles.rows import FORK_JOIN, HOST


def profiled(function: Any, *args: Any, calls: int = 3) -> stagejit.Profile:
    """The profile of calls of a function that is compiled before."""
    staged = stagejit.jit(function)
    expected = jax.block_until_ready(staged(*args))
    with stagejit.profile() as profile:
        for _ in range(calls):
            found = jax.block_until_ready(staged(*args))
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(one, other)
    assert profile.calls
    rows = (*profile.dispatches, *profile.around)
    assert sum(row.seconds for row in rows) == pytest.approx(profile.seconds)
    assert {row.kind for row in profile.around} <= {HOST, FORK_JOIN}
    assert list(profile.dispatches) == sorted(profile.dispatches, key=lambda row: -row.seconds)
    whole = sum(span.seconds for span in profile.spans if span.kind in ("call", "xla"))
    assert profile.lost_spans or whole == pytest.approx(profile.seconds)
    for row in rows:
        assert row.seconds > 0 or row.kind == HOST
        assert 0 < row.balance <= 1
        assert row.waiting_seconds <= row.seconds * 1.001
        if row.count and row.is_dispatch:
            assert 0 <= row.seconds_min <= row.seconds_mean * 1.001
    return profile


def counts(profile: stagejit.Profile) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in profile.dispatches:
        assert row.kind not in (HOST, FORK_JOIN)
        found[row.dispatch] += row.count
    return found


def layer(x: Any, w: Any) -> Any:
    return jnp.sum(jnp.tanh(x @ w), axis=1)


def repeated(x: Any) -> Any:
    def body(x: Any, _: None) -> Any:
        x = jnp.sin(x @ x)
        return x, x.sum()

    x, sums = jax.lax.scan(body, x, None, length=7)
    return jax.lax.while_loop(lambda s: s[1] < 5, lambda s: (s[0] * 0.5, s[1] + 1), (x, 0)), sums


def squared(x: Any) -> Any:
    return jnp.tanh(x @ x)
