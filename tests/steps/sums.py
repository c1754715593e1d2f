"""Steps of random programs: reductions and products."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.strategies import Builder, Made


def _reduce(b: Builder) -> Made:
    x = b.value(lambda v: v.rank > 0)
    if x is None:
        return None
    axes = tuple(a for a in range(x.rank) if b.integer(0, 1)) or (b.axis(x),)
    if x.dtype == "bool":
        return f"{b.choose(['jnp.any', 'jnp.all'])}({x.name}, {axes})", True
    if x.size and x.exact and b.integer(0, 3) == 0:
        return f"{b.choose(['jnp.argmax', 'jnp.argmin'])}({x.name}, {axes[0]})", True
    if all(x.shape) and b.integer(0, 1):
        return f"{b.choose(['jnp.max', 'jnp.min'])}({x.name}, {axes})", x.exact
    return f"jnp.sum({x.name}, {axes})", x.is_integer


def _cumulative(b: Builder) -> Made:
    x = b.value(lambda v: v.rank > 0 and v.dtype != "bool")
    if x is None:
        return None
    fn = b.choose(["lax.cumsum", "lax.cummax", "lax.cummin"])
    exact = x.is_integer or (x.exact and fn != "lax.cumsum")
    return f"{fn}({x.name}, {b.axis(x)}, {bool(b.integer(0, 1))})", exact


def _softmax(b: Builder) -> Made:
    x = b.value(lambda v: v.rank > 0 and v.is_float and v.size > 0)
    return None if x is None else (f"jax.nn.softmax({x.name}, {b.axis(x)})", False)


def _contract(b: Builder) -> Made:
    x = b.value(lambda v: v.rank > 0 and v.dtype != "bool")
    if x is None:
        return None
    y = b.value(lambda v: v.dtype == x.dtype and v.rank > 0 and set(v.shape) & set(x.shape))
    assert y is not None
    size = b.choose(sorted(set(x.shape) & set(y.shape)))
    left, right = x.shape.index(size), y.shape.index(size)
    batch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    if left and right and x.shape[0] == y.shape[0]:
        batch = ((0,), (0,))
    x_text = f"lax.tanh({x.name})" if x.is_float else x.name
    return f"lax.dot_general({x_text}, {y.name}, ((({left},), ({right},)), {batch}))", x.is_integer


def _conv(b: Builder) -> Made:
    x = b.value(lambda v: v.is_float and 1 <= v.rank <= 3 and all(v.shape))
    if x is None:
        return None
    channels, length = b.integer(1, 3), b.integer(1, 3)
    kernel = f"jnp.full(({channels}, 1, {length}), 0.25, '{x.dtype}')"
    padding = (b.integer(-1, 2), b.integer(length, length + 1))
    image = f"{x.name}.reshape({(1, 1, x.size)})"
    if b.integer(0, 1):
        config = ((0, 0, 0), (0, 0, 0), (b.integer(0, 2), b.integer(0, 2), b.choose([0, 0, 1])))
        image = f"lax.pad({image}, jnp.asarray({b.choose([0, 1])}, '{x.dtype}'), {config})"
        padding = b.choose([(0, 0), padding]) if x.size >= 8 else padding
    return (
        f"lax.conv_general_dilated({image}, {kernel}, "
        f"({b.integer(1, 2)},), ({padding},), lhs_dilation=({b.integer(1, 2)},), "
        f"rhs_dilation=({b.integer(1, 2)},))"
    ), False


STEPS = (_reduce, _reduce, _cumulative, _softmax, _contract, _conv)
