"""Steps of random programs: loops, branches, functions in functions.

Bodies read other values through default arguments: a closure would look for them in the wrong
scope while the program is still being drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.strategies import Builder, Drawn, Made


def _nested(b: Builder) -> Made:
    x = b.value(lambda v: v.is_float)
    if x is None:
        return None
    return f"jax.jit(lambda a: jnp.where(a > a, a, a + 1))({x.name})", False


def _calm(x: Drawn, text: str) -> str:
    """`text`, kept of moderate size."""
    return f"lax.tanh({text}) * 0.5" if x.is_float else f"({text}) // 2"


def _fori(b: Builder) -> Made:
    x = b.value(lambda v: v.dtype != "bool")
    if x is None:
        return None
    y = b.value(lambda v: v.dtype == x.dtype and v.shape == x.shape)
    assert y is not None
    body = b.choose([
        f"{_calm(x, 'c')} + y", "y - c", f"jnp.where(i < 2, c, {_calm(x, 'c')})",
        f"jnp.flip({_calm(x, 'c')}) + y",
    ])  # fmt: skip
    if x.rank and x.shape[0]:
        body = b.choose([body, "c.at[i].set(1)", "c.at[i].add(y[-1])", f"c + {_calm(x, 'y[i]')}"])
    exact = x.is_integer
    stop = b.choose(["0", "1", "3", f"jnp.clip({b.index}, 0, 4)"])
    return f"lax.fori_loop(0, {stop}, lambda i, c, y={y.name}: {body}, {x.name})", exact


def _scan(b: Builder) -> Made:
    x = b.value(lambda v: v.rank > 0 and v.shape[0] > 0 and v.dtype != "bool")
    if x is None:
        return None
    y = b.value(lambda v: v.dtype == x.dtype and v.shape == x.shape[1:])
    start = f"{x.name}[0]" if y is None else y.name
    body = b.choose([
        f"({_calm(x, 'c')} + r, c)", f"(r, {_calm(x, 'c + r')})", "(c, (c, r))",
        f"({_calm(x, 'c - r')}, (r.sum(), c))",
    ])  # fmt: skip
    body = body.replace("r.sum()", f"r.sum(dtype='{x.dtype}')")
    leaf = b.integer(0, 1)
    reverse = bool(b.integer(0, 1))
    text = f"lax.scan(lambda c, r: {body}, {start}, {x.name}, reverse={reverse})"
    return f"jax.tree.leaves({text})[{leaf}]", x.is_integer


def _while(b: Builder) -> Made:
    x = b.value(lambda v: v.dtype != "bool")
    if x is None:
        return None
    body = b.choose([f"{_calm(x, 's[1]')}", "1 - s[1]", f"{_calm(x, 's[1] + y')}"])
    return (
        f"lax.while_loop(lambda s, n={b.index}: s[0] < n, "
        f"lambda s, y={x.name}: (s[0] + 1, {body}), (jnp.int32(0), {x.name}))[1]"
    ), x.is_integer


def _branch(b: Builder) -> Made:
    x = b.value(lambda v: v.dtype != "bool")
    if x is None:
        return None
    branches = [_calm(x, "a"), "a + y", "a", "y", "jnp.flip(a)", "jnp.zeros_like(a)"]
    if x.rank and x.shape[0]:
        branches += ["a.at[0].set(y[-1])", "a.at[-1:].set(1)", "a.at[::2].set(a[:1])"]
    chosen = [f"lambda a, y={x.name}: {b.choose(branches)}" for _ in range(b.integer(2, 3))]
    return f"lax.switch({b.index}, [{', '.join(chosen)}], {x.name})", x.is_integer


def _barrier(b: Builder) -> Made:
    x, y = b.value(), b.value()
    assert x is not None
    assert y is not None
    return f"lax.optimization_barrier(({x.name}, {y.name}))[0]", x.exact


STEPS = (_nested, _fori, _scan, _while, _branch, _barrier)
