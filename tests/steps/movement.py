"""Steps of random programs: what moves elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from tests.strategies import Builder, Drawn, Made


def _view(b: Builder) -> Made:
    x = b.value()
    assert x is not None
    n, axis = x.name, b.integer(0, x.rank)
    options = [
        f"jnp.expand_dims({n}, {axis})",
        f"{n}.reshape({x.size})",
        f"jnp.broadcast_to({n}, {(b.integer(0, 3), *x.shape)})",
        f"jnp.ravel({n})",
    ]
    if x.rank:
        order = tuple(b.draw(st.permutations(range(x.rank))))
        options += [
            f"jnp.transpose({n}, {order})",
            f"lax.rev({n}, ({b.axis(x)},))",
            f"{n}.reshape({(x.shape[-1], *x.shape[:-1])})",
            f"jnp.flip({n})",
        ]
        grown = list(x.shape)
        grown.insert(axis, b.integer(1, 3))
        axes = [i for i in range(x.rank + 1) if i != axis]
        options += [f"lax.broadcast_in_dim({n}, {tuple(grown)}, {tuple(axes)})"]
    if 1 in x.shape:
        options.append(f"jnp.squeeze({n}, {x.shape.index(1)})")
    return b.choose(options), x.exact


def _transpose(b: Builder) -> Made:
    x = b.value(lambda v: v.rank > 1)
    if x is None:
        return None
    first = b.integer(0, x.rank - 1)
    order = [*range(first, x.rank), *range(first)]
    if b.integer(0, 1):
        order.reverse()
    return f"jnp.transpose({x.name}, {tuple(order)})", x.exact


def _slice(b: Builder) -> Made:
    x = b.value(lambda v: v.rank > 0)
    if x is None:
        return None
    parts = []
    for size in x.shape:
        start = b.integer(0, size)
        stop = b.integer(start, size)
        parts.append(f"{start}:{stop}:{b.integer(1, 3)}")
    return f"{x.name}[{', '.join(parts)}]", x.exact


def _dynamic_slice(b: Builder) -> Made:
    x = b.value(lambda v: v.rank > 0)
    if x is None:
        return None
    starts, sizes = _box(b, x)
    return f"lax.dynamic_slice({x.name}, {starts}, {sizes})", x.exact


def _box(b: Builder, x: Drawn) -> tuple[str, tuple[int, ...]]:
    """Starts, of which some are known at run time only, and sizes."""
    sizes = tuple(b.integer(0, size) for size in x.shape)
    starts = [b.choose([b.index, "jnp.int32(0)", "jnp.int32(1)"]) for _ in x.shape]
    return f"({', '.join(starts)},)", sizes


def _update(b: Builder) -> Made:
    x = b.value(lambda v: v.rank > 0)
    if x is None:
        return None
    starts, sizes = _box(b, x)
    update = f"jnp.full({sizes}, 2, '{x.dtype}')"
    same = b.value(
        lambda v: (
            v.dtype == x.dtype
            and v.rank == x.rank
            and all(a <= c for a, c in zip(v.shape, x.shape, strict=True))
        )
    )
    exact = x.exact
    if same is not None and b.integer(0, 1):
        update, exact = same.name, x.exact and same.exact
    return f"lax.dynamic_update_slice({x.name}, {update}, {starts})", exact


def _at(b: Builder) -> Made:
    x = b.value(lambda v: v.rank > 0 and v.size > 0 and v.dtype != "bool")
    if x is None:
        return None
    size = x.shape[0]
    start = b.integer(0, size)
    index = b.choose(
        [
            f"{start}:{b.integer(start, size)}",
            f"{b.integer(0, size - 1)}",
            b.index,
            f"::{b.integer(1, 3)}",
            "::-1",
            f"jnp.array([{b.integer(0, size - 1)}, 0])",
        ]
    )
    if x.rank > 1 and b.integer(0, 1):
        index += f", {b.integer(0, x.shape[1] - 1)}"
    method = b.choose(["set", "set", "add", "min", "max"])
    if "array" in index and method == "set":
        method = "add"  # the order of writes to one element is not defined
    exact = x.exact and (method != "add" or not x.is_float)
    return f"{x.name}.at[{index}].{method}(2)", exact


def _gather(b: Builder) -> Made:
    x = b.value(lambda v: v.rank > 0 and v.size > 0)
    if x is None:
        return None
    axis = b.axis(x)
    rows = [b.integer(-x.shape[axis], x.shape[axis] - 1) for _ in range(b.integer(1, 4))]
    options = [
        f"jnp.take({x.name}, jnp.array({rows}), axis={axis})",
        f"{x.name}[{b.index}]",
        f"jnp.take({x.name}, {b.index} + jnp.arange(3), axis={axis}, mode='clip')",
    ]
    if not x.is_float:  # the default mode gives NaN, which is not of moderate size
        options.append(f"jnp.take({x.name}, {b.index} + jnp.arange(3), axis={axis})")
    return b.choose(options), x.exact


def _join(b: Builder) -> Made:
    x = b.value(lambda v: v.rank > 0)
    if x is None:
        return None
    axis = b.axis(x)

    def rest(v: Drawn) -> tuple[int, ...]:
        return v.shape[:axis] + v.shape[axis + 1 :]

    parts = [x]
    for _ in range(b.integer(1, 2)):
        more = b.value(lambda v: v.dtype == x.dtype and v.rank == x.rank and rest(v) == rest(x))
        assert more is not None
        parts.append(more)
    names = ", ".join(v.name for v in parts)
    exact = all(v.exact for v in parts)
    if all(v.shape == x.shape for v in parts) and b.integer(0, 1):
        return f"jnp.stack([{names}], {axis})", exact
    return f"jnp.concatenate([{names}], {axis})", exact


def _pad(b: Builder) -> Made:
    x = b.value(lambda v: v.rank > 0)
    if x is None:
        return None
    config = []
    for size in x.shape:
        low, interior = b.integer(-2, 2), b.integer(0, 2)
        grown = size + max(size - 1, 0) * interior
        config.append((low, max(b.integer(-2, 2), -low - grown), interior))
    return f"lax.pad({x.name}, jnp.asarray(1, '{x.dtype}'), {config})", x.exact


STEPS = (_view, _view, _transpose, _slice, _dynamic_slice, _update, _at, _gather, _join, _pad)
