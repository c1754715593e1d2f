"""Programs far deeper than Python's stack: every walk of the compiler is a loop, or its depth is
bounded, so that a chain of ops compiles with a stack much shorter than the chain."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.options import Options
from stagejit.pipeline import Compilation

_FRAMES = 190  # above the caller's; each program below is at least 100 ops deep
_DEPTH = 220
X = np.linspace(0.1, 1, 64).astype(np.float32)
M = np.full((16, 16), 0.1, np.float32)


@contextmanager
def short_stack() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + _FRAMES)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@pytest.fixture(autouse=True)
def _short_stack_for_our_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX itself may take what it needs."""
    run = Compilation.run_until

    def shortly(self: Compilation, name: str, *began: Any) -> Compilation:
        with short_stack():
            return run(self, name, *began)

    monkeypatch.setattr(Compilation, "run_until", shortly)


def chain(x: Any, step: Callable[[Any, int], Any], count: int = _DEPTH) -> Any:
    for number in range(count):
        x = step(x, number)
    return x


def conversions(x: Any) -> Any:
    """No two of them are one."""
    types = (jnp.bfloat16, jnp.float16, jnp.float32)
    return chain(x, lambda y, k: lax.convert_element_type(y, types[k % 3]))


def scale(x: Any, _: int) -> Any:
    return x * 1.0001


def views(x: Any, k: int) -> Any:
    return [x.T, x[::-1], x.reshape(8, 32).T.reshape(16, 16), x[:, ::-1]][k % 4]


def divided(x: Any, _: int) -> Any:
    """Reshapes that no index arithmetic makes affine."""
    x = x[:105].reshape(15, 7).T.reshape(105)[::-1].reshape(21, 5).T
    return jnp.concatenate([x.reshape(105)])


def index(x: Any) -> Any:
    return chain(x[0].astype(int), lambda j, k: j * 3 % 7 + 1, 110)


PROGRAMS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "elementwise": (lambda x: chain(x, scale), X),
    "after a reduction": (lambda m: chain(m.sum(1), scale), M),
    "conversions after a reduction": (lambda m: conversions(m.sum(1)), M),
    "before a reduction": (lambda m: chain(m, scale).sum(1), M),
    "after a product": (lambda m: chain(m @ m, scale), M),
    "conversions after a product": (lambda m: conversions(m @ m), M),
    "before a product": (lambda m: chain(m, scale) @ m, M),
    "after a scan": (lambda x: chain(jnp.cumsum(x), scale), X),
    "scattered": (lambda x: x.at[jnp.array([1, 5, 5])].add(chain(x[:3], scale)), X),
    "selects": (lambda x: chain(x, lambda y, k: jnp.where(x > k / 200, x, y)), X),
    "views": (lambda m: chain(m, views), M),
    "views after a product": (lambda m: chain(m @ m, lambda x, k: x[::-1].T), M),
    "divided indices": (lambda x: chain(x, divided, 40), np.resize(X, 105)),
    "concatenations": (lambda x: chain(x, lambda y, k: jnp.concatenate([y, x[:2]]), 100), X),
    "updates": (lambda x: chain(x, lambda y, k: y.at[k % 64].set(y[k * 7 % 64] * 2), 110), X),
    "an index": (lambda x: lax.dynamic_slice(x, (index(x),), (8,)), X),
    "constants": (lambda x: x + chain(lax.full((64,), 0.3), lambda y, k: lax.sin(y)), X),
}  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_deep_programs_compile_on_a_short_stack(name: str) -> None:
    program, argument = PROGRAMS[name]
    lowered = stagejit.jit(program, options=Options(delegate=False, verify=True)).lower(argument)
    with short_stack():
        lowered.plan.as_text()
    for stage in ("graph", "plan", "loops"):
        assert lowered.as_text(stage)
    actual = np.asarray(lowered.compile()(argument)).astype(np.float64)
    # Op by op: XLA takes minutes for some of these.
    expected = np.asarray(program(jnp.asarray(argument))).astype(np.float64)
    np.testing.assert_allclose(actual, expected, rtol=2e-2)


def test_sixty_nested_jits() -> None:
    def nest(jit: Callable[..., Any]) -> Any:
        def innermost(x: Any) -> Any:
            return x * 2 + 1

        function = innermost
        for _ in range(60):
            function = jit(lambda x, inner=function: inner(x) + 1)
        return function(X)

    np.testing.assert_allclose(nest(stagejit.jit), X * 2 + 61, rtol=1e-5)
