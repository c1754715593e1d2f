"""The ops that random programs are made of: each step adds one line.

A step reads values of the program so far and returns the text of a new one, and whether all correct
evaluations agree on its bits; None where no value fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from tests.strategies import Builder, Drawn

Made = tuple[str, bool] | None


# -------------------------------------------------------------- elementwise


def _unary(b: Builder) -> Made:
    x = b.value(lambda v: v.is_float)
    if x is None:
        return None
    n = x.name
    return b.choose([
        f"lax.tanh({n})", f"lax.sin({n})", f"lax.cos({n})", f"lax.logistic({n})", f"lax.erf({n})",
        f"lax.exp(-jnp.abs({n}))", f"lax.log(jnp.abs({n}) + 1)", f"lax.sqrt(jnp.abs({n}) + 1)",
        f"lax.rsqrt(jnp.abs({n}) + 1)", f"lax.log1p(jnp.abs({n}))", f"lax.expm1(lax.tanh({n}))",
        f"lax.atan({n})", f"lax.asinh({n})", f"lax.square(lax.tanh({n}))",
        f"lax.integer_pow(lax.tanh({n}), 3)", f"lax.cbrt(jnp.abs({n}) + 1)", f"jax.nn.relu({n})",
        f"jax.nn.silu({n})", f"lax.exp2(lax.tanh({n}))", f"{n} * 0.5",
    ]), False  # fmt: skip


def _exact_unary(b: Builder) -> Made:
    x = b.value()
    assert x is not None
    if x.dtype == "bool":
        return f"~{x.name}", True
    if x.is_integer:
        return b.choose([
            f"-{x.name}", f"jnp.abs({x.name})", f"lax.sign({x.name})", f"~{x.name}",
            f"lax.population_count({x.name})", f"lax.clz({x.name})", f"lax.square({x.name})",
            f"{x.name} // 3", f"{x.name} % 5", f"lax.integer_pow({x.name}, 3)",
        ]), True  # fmt: skip
    if not x.exact:
        return f"-{x.name}", False
    return b.choose(
        [
            f"lax.floor({x.name})",
            f"lax.ceil({x.name})",
            f"lax.sign({x.name})",
            f"lax.round({x.name}, lax.RoundingMethod.TO_NEAREST_EVEN)",
            f"lax.round({x.name})",
            f"jnp.abs({x.name})",
        ]
    ), True


def _binary(b: Builder) -> Made:
    x = b.value(lambda v: v.dtype != "bool")
    if x is None:
        return None
    y = b.value(lambda v: v.dtype == x.dtype and v.shape in (x.shape, ()))
    assert y is not None
    if x.is_float:
        fn = b.choose(["jnp.add", "jnp.subtract", "jnp.maximum", "jnp.minimum", "_mul", "_div"])
        if fn == "_mul":
            return f"lax.tanh({x.name}) * {y.name}", False
        if fn == "_div":
            return f"{x.name} / (jnp.abs({y.name}) + 1)", False
        exact = fn in ("jnp.maximum", "jnp.minimum") and x.exact and y.exact
        return f"{fn}({x.name}, {y.name})", exact
    fn = b.choose(
        [
            "lax.add",
            "lax.sub",
            "lax.mul",
            "lax.max",
            "lax.min",
            "lax.bitwise_and",
            "lax.bitwise_or",
            "lax.bitwise_xor",
            "lax.div",
            "lax.rem",
            "lax.shift_left",
            "lax.shift_right_logical",
            "lax.shift_right_arithmetic",
        ]
    )
    second = y.name if y.shape == x.shape else f"jnp.broadcast_to({y.name}, {x.shape})"
    if fn in ("lax.div", "lax.rem"):  # XLA folds x / x to 1, for zero too
        second = f"({second} | 1)"
    return f"{fn}({x.name}, {second})", True


def _compare(b: Builder) -> Made:
    x = b.value(lambda v: v.exact)
    y = b.value(
        lambda v: x is not None and v.exact and v.dtype == x.dtype and v.shape in (x.shape, ())
    )
    if x is None or y is None:
        return None
    return f"{x.name} {b.choose(['<', '<=', '>', '>=', '==', '!='])} {y.name}", True


def _select(b: Builder) -> Made:
    predicate = b.value(lambda v: v.dtype == "bool")
    if predicate is None:
        return None
    x = b.value(lambda v: v.shape in (predicate.shape, ()))
    y = b.value(lambda v: x is not None and v.dtype == x.dtype and v.shape in (x.shape, ()))
    if x is None or y is None:
        return None
    return f"jnp.where({predicate.name}, {x.name}, {y.name})", x.exact and y.exact


def _clamp(b: Builder) -> Made:
    x = b.value(lambda v: v.dtype != "bool")
    if x is None:
        return None
    return f"jnp.clip({x.name}, 1, 5)", x.exact


def _convert(b: Builder) -> Made:
    x = b.value()
    assert x is not None
    targets = [*b.floats] if x.is_float and not x.exact else [*b.floats, *b.integers, "bool"]
    target = b.choose(targets)
    exact = x.exact and ("float" not in target or x.dtype in ("bool", "int8", "uint8", "float32"))
    if x.is_integer and target in ("float16", "bfloat16"):
        exact = False
    return f"{x.name}.astype('{target}')", exact


# ---------------------------------------------------------------- movement


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


# ------------------------------------------------------ reductions, products


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


def _nested(b: Builder) -> Made:
    x = b.value(lambda v: v.is_float)
    if x is None:
        return None
    return f"jax.jit(lambda a: jnp.where(a > a, a, a + 1))({x.name})", False


# ------------------------------------------------------------------ control flow

# Bodies read other values through default arguments: a closure would look for them in the wrong
# scope while the program is still being drawn.


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


STEPS = (
    _unary, _unary, _exact_unary, _binary, _binary, _compare, _select, _clamp, _convert, _view,
    _view, _transpose, _slice, _dynamic_slice, _update, _at, _gather, _join, _pad, _reduce, _reduce,
    _cumulative, _softmax, _contract, _conv, _nested, _fori, _scan, _while, _branch,
    _barrier,
)  # fmt: skip
