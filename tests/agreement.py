"""Comparing a compiled function with jax.jit, and counting the calls of our own code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stagejit
from stagejit.runtime.cpu.loader import call_count


@contextlib.contextmanager
def native_calls(at_least: int) -> Iterator[None]:
    before = call_count()
    yield
    assert call_count() - before >= at_least


def close(actual: Any, expected: Any, rtol: float = 2e-5) -> None:
    ours, theirs = jax.tree.flatten(actual), jax.tree.flatten(expected)
    assert ours[1] == theirs[1]
    for a, b in zip(ours[0], theirs[0], strict=True):
        assert jnp.asarray(a).dtype == jnp.asarray(b).dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def agrees(f: Callable[..., Any], *args: Any, calls: int = 1, rtol: float = 2e-5) -> Any:
    """`stagejit.jit(f)` gives what `jax.jit(f)` gives; returns the result."""
    with native_calls(calls):
        ours = jax.block_until_ready(stagejit.jit(f)(*args))
    close(ours, jax.jit(f)(*args), rtol=rtol)
    return ours


def delegated(f: Callable[..., Any], *args: Any) -> set[str]:
    """The primitives that stay with XLA."""
    return {d.reason.split(":")[0] for d in stagejit.jit(f).plan(*args).delegated}
