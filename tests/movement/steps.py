"""The lines that random programs of data movement are made of.

A step reads values of the program so far and returns the text of a new one, and whether it was only
moved (or is of integers); None where no value fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from tests.movement.programs import Builder
    from tests.strategies import Drawn

Made = tuple[str, bool] | None


# ------------------------------------------------------------------ movement


def pad(b: Builder) -> Made:
    x = b.array_item()
    if x is None:
        return None
    config, negative = [], b.chance(3)
    for size in x.shape:
        inner = b.integer(0, 2) if b.chance(4) else 0
        grown = size + max(size - 1, 0) * inner
        low = b.integer(-2 if negative else 0, 2)
        high = b.integer(-2 if negative else 0, 2)
        config.append((low, max(high, -low - grown), inner))
    value = b.choose([0, 0, 0, 1, 1, "np.nan", "-np.inf"] if x.is_float else [0, 1])
    return f"m.pad({x.name}, {value}, {tuple(config)})", x.exact


def concat(b: Builder) -> Made:
    x = b.array_item()
    if x is None:
        return None
    axis = b.integer(0, x.rank - 1)

    def fits(y: Drawn) -> bool:
        return y.dtype == x.dtype and rest(y.shape, axis) == rest(x.shape, axis)

    parts = [x, *(b.array_item(fits) or x for _ in range(b.integer(1, 3)))]
    names, exact = ", ".join(y.name for y in parts), all(y.exact for y in parts)
    if all(y.shape == x.shape for y in parts) and b.chance(4):
        return f"m.stack([{names}], {axis})", exact
    return f"m.concat([{names}], {axis})", exact


def rest(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], -1, *shape[axis + 1 :]) if axis < len(shape) else (-2,)


def cut(b: Builder) -> Made:
    x = b.array_item()
    if x is None:
        return None
    parts = []
    for size in x.shape:
        start = b.integer(0, size // 2)
        stop = b.integer(start, size) if b.chance(2) else size
        parts.append(f"{start}:{stop}:{b.choose([1, 1, 1, 2, 3])}")
    return f"{x.name}[{', '.join(parts)}]", x.exact


def window(b: Builder) -> Made:
    x = b.array_item()
    if x is None:
        return None
    sizes = tuple(b.integer(0 if b.chance(8) else min(size, 1), size) for size in x.shape)
    return f"m.window({x.name}, {b.starts(x.rank)}, {sizes})", x.exact


def view(b: Builder) -> Made:
    x = b.array_item()
    if x is None:
        return None
    order = tuple(b.draw(st.permutations(range(x.rank))))
    axis = b.integer(0, x.rank - 1)
    return b.choose([
        f"{x.name}.transpose({order})",
        f"{x.name}.reshape({(x.shape[-1], *x.shape[:-1])})",
        f"{x.name}.reshape({(*x.shape[:axis], 1, *x.shape[axis:])})",
        f"{x.name}[{':, ' * axis}::-1]",
        f"m.repeat({x.name}, {b.integer(2, 3)}, {axis})",
        f"m.tile({x.name}, {(*(1,) * axis, b.integer(2, 3), *(1,) * (x.rank - axis - 1))})",
    ]), x.exact  # fmt: skip


def update(b: Builder) -> Made:
    x = b.array_item()
    if x is None:
        return None
    sizes = tuple(b.integer(min(size, 1), size) for size in x.shape)
    part, exact = b.fitting(sizes, x.dtype)
    return f"m.update({x.name}, {part}, {b.starts(x.rank)})", x.exact and exact


def put(b: Builder) -> Made:
    x = b.array_item(lambda x: x.size > 0)
    if x is None:
        return None
    box, sizes = [], []
    for size in x.shape:
        start = b.integer(0, size - 1)
        step = b.choose([1, 1, 1, 2])
        stop = b.integer(start + 1, size)
        box.append(f"{start}:{stop}:{step}")
        sizes.append(len(range(start, stop, step)))
    if b.chance(3):  # one row, perhaps not known before
        box[0], sizes = b.index(), sizes[1:]
        if box[0].isdigit():
            box[0] = str(int(box[0]) % x.shape[0])
    part, exact = b.fitting(tuple(sizes), x.dtype)
    method = b.choose(["put", "put", "add"]) if x.dtype != "bool" else "put"
    exact = x.exact and (exact if method == "put" else not x.is_float)
    return f"m.{method}({x.name}, np.s_[{', '.join(box)}], {part})", exact


# --------------------------------------------------------------- computation


def calm(x: Drawn, text: str) -> str:
    """`text`, not greater than the values of x."""
    return f"({text}) * 0.5" if x.is_float else text


def elementwise(b: Builder) -> Made:
    x = b.item(lambda x: x.dtype != "bool")
    if x is None:
        return None
    y = b.item(lambda y: y.dtype == x.dtype and y.shape in (x.shape, ())) or x
    n = x.name
    if x.is_float:
        return b.choose([
            f"m.tanh({n})", f"{n} * 0.5", f"({n} + {y.name}) * 0.5", f"m.maximum({n}, {y.name})",
            f"m.where({n} > 0, {n}, 0.2 * {n})", f"{n} * m.tanh({y.name})",
        ]), False  # fmt: skip
    return b.choose([f"{n} + 1", f"{n} + {y.name}", f"m.maximum({n}, {y.name})", f"-{n}"]), True


def select(b: Builder) -> Made:
    x = b.item(lambda x: x.exact and x.dtype != "bool")
    y = b.item(lambda y: x is not None and y.shape == x.shape)
    if x is None or y is None:
        return None
    z = b.item(lambda z: z.dtype == y.dtype and z.shape == y.shape) or y
    return f"m.where({x.name} > 0, {y.name}, {z.name})", y.exact and z.exact


def cast(b: Builder) -> Made:
    x = b.item()
    assert x is not None
    if x.is_float:
        target = b.choose(["float32", "bfloat16"])
        return f"m.cast({x.name}, '{target}')", x.exact and target == "float32"
    target = b.choose(["float32", "int32", "int8"])
    return f"m.cast({x.name}, '{target}')", x.dtype != "int32" or target != "float32"


def reduce(b: Builder) -> Made:
    x = b.array_item(lambda x: x.size > 0 and x.dtype != "bool")
    if x is None:
        return None
    axes = tuple(a for a in range(x.rank) if b.chance(2)) or (b.integer(0, x.rank - 1),)
    if b.chance(3):
        return f"m.max({x.name}, {axes})", x.exact
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    scaled = f" * {1 / count:.4g}" if x.is_float else ""
    return f"m.sum({x.name}, {axes}){scaled}", not x.is_float


def cumulative(b: Builder) -> Made:
    x = b.array_item(lambda x: x.size > 0 and x.dtype != "bool")
    if x is None:
        return None
    axis = b.integer(0, x.rank - 1)
    scaled = f" * {1 / x.shape[axis]:.4g}" if x.is_float else ""
    return f"m.cumsum({x.name}{scaled}, {axis})", not x.is_float


def dot(b: Builder) -> Made:
    x = b.array_item(lambda x: x.size > 0 and x.is_float)
    if x is None:
        return None
    y = b.item(lambda y: y.rank == 2 and y.dtype == x.dtype and y.shape[0] == x.shape[-1])
    if y is None or b.chance(2):
        y = b.array((x.shape[-1], b.choose([1, 3, 4, 8, 16, 17])), x.dtype)
    return f"m.dot({x.name} * {1 / x.shape[-1]:.4g}, m.tanh({y.name}))", False


def conv(b: Builder) -> Made:
    x = b.array_item(lambda x: x.size > 0 and x.is_float and x.rank in (3, 4))
    if x is None:
        return None
    padding, space = [], []
    for size in x.shape[2:]:
        low, high = b.choose([(1, 1), (1, 1), (0, 0), (0, 2)])
        space.append(min(b.choose([3, 3, 1, 2]), size + low + high))
        padding.append((low, high))
    shape = (b.choose([x.shape[1], 1, 4, 8]), x.shape[1], *space)
    kernel = b.array(shape, x.dtype)
    count = x.shape[1]
    for size in space:
        count *= size
    return f"m.conv({x.name} * {1 / count:.4g}, m.tanh({kernel.name}), {tuple(padding)})", False


# -------------------------------------------------------------- control flow


def body(b: Builder, x: Drawn, i: str) -> tuple[str, bool]:
    """A new `c` of the type of `x`, in iteration `i`, and whether it was only moved."""
    row = (1, *x.shape[1:])
    part, exact = b.fitting(row, x.dtype)
    zeros = "0, " * (x.rank - 1)
    around = ("(0, 0, 0), " * x.rank)[len("(0, 0, 0), ") :]
    other = b.item(lambda y: y.dtype == x.dtype and y.shape == x.shape) or x
    choices = [
        (f"m.update(c, {part}, ({i}, {zeros}))", exact),
        (f"m.update(c, m.window(c, ({i} + 1, {zeros}), {row}), ({i}, {zeros}))", True),
        ("m.concat([c[1:], c[:1]], 0)", True),
        (f"m.pad(c, 0, ((1, -1, 0), {around}))", True),
        (f"m.cond({i} > 1, lambda d: m.update(d, {part}, (0, {zeros})), lambda d: d, c)", exact),
        (f"m.put(c, np.s_[{i}], {other.name}[0])", other.exact),
    ]
    if x.dtype != "bool":
        mixed = calm(x, f"c + {other.name}")
        choices += [(mixed, not x.is_float), (f"m.add(c, np.s_[{i}], 1)", not x.is_float)]
    text, moved_only = b.choose(choices)
    return text, x.exact and moved_only


def loop(b: Builder) -> Made:
    x = b.array_item(lambda x: x.size > 0)
    if x is None:
        return None
    text, exact = body(b, x, "i")
    count = b.choose(["1", "3", "4", f"m.clip({b.index()}, 0, 4)"])
    return f"m.loop({count}, lambda i, c: {text}, {x.name})", exact


def scan(b: Builder) -> Made:
    x = b.array_item(lambda x: x.size > 0)
    rows = b.array_item(lambda y: y.size > 0)
    if x is None or rows is None:
        return None
    text, exact = body(b, x, "i")
    made, moved_only = b.choose([
        ("r", rows.exact), ("c[0]", exact), ("m.concat([c, c], 0)", exact),
        (calm(rows, "r + r") if rows.dtype != "bool" else "r", rows.exact and not rows.is_float),
    ])  # fmt: skip
    carry = b.chance(2)
    which = 0 if carry else 1
    text = f"m.scan(lambda c, r, i: ({text}, {made}), {x.name}, {rows.name})[{which}]"
    return text, exact if carry else moved_only


def cond(b: Builder) -> Made:
    x = b.array_item(lambda x: x.size > 0)
    if x is None:
        return None
    yes, exact = body(b, x, "0")
    no, moved_only = body(b, x, "1")
    text = f"m.cond({b.index()} > 0, lambda c: {yes}, lambda c: {no}, {x.name})"
    return text, exact and moved_only


STEPS = (
    pad, pad, pad, concat, concat, concat, cut, cut, window, view, update, update, put, put,
    elementwise, elementwise, elementwise, select, cast, reduce, cumulative, dot, conv, conv,
    loop, scan, cond,
)  # fmt: skip
