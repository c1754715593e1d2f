"""Statements that move data: views, pads, concatenations, slices and updates of every kind.

Input: a draft. Output: one more statement in it. Invariant: what is moved is as exact as it was.
"""

from __future__ import annotations

import math

from tests.fuzz.programs.draft import MOST_ELEMENTS, Draft, Known, Refused

_MODES = ("clip", "fill", "wrap")
_SCATTER_MODES = ("drop", "clip", "promise_in_bounds", "drop")


def _with_axis(known: Known) -> bool:
    return known.is_plain and known.rank > 0


def view(draft: Draft) -> None:
    x, rng = draft.pick(_with_axis), draft.rng
    axis = rng.randrange(x.rank)
    order = rng.sample(range(x.rank), x.rank)
    texts = [
        f"jnp.transpose({x.name}, {tuple(order)})",
        f"jnp.flip({x.name}, {axis})",
        f"jnp.expand_dims({x.name}, {axis})",
        f"{x.name}.reshape(-1)",
        f"jnp.moveaxis({x.name}, {axis}, 0)",
        f"jnp.roll({x.name}, {rng.randint(-3, 3)}, {axis})",
        f"jnp.repeat({x.name}, {rng.randint(1, 3)}, axis={axis})",
        f"jnp.tile({x.name}, {rng.randint(1, 3)})",
        f"jnp.broadcast_to({x.name}, {(rng.randint(1, 4), *x.shape)})",
        f"{x.name}.reshape({_factors(draft, x.size)})",
    ]
    if x.rank >= 2:
        texts += [f"jnp.triu({x.name})", f"jnp.tril({x.name}, 1)", f"jnp.diagonal({x.name})"]
        texts += [f"jnp.rot90({x.name})", f"jnp.swapaxes({x.name}, 0, -1)"]
    if x.shape[axis] == 1:
        texts += [f"jnp.squeeze({x.name}, {axis})"] * 4
    draft.let(rng.choice(texts), x.exact)


def layouts(draft: Draft) -> None:
    """A value meets copies of itself whose elements lie in memory in another order: its axes are
    turned, and short axes and strides leave gaps between neighbours."""
    x, rng = draft.pick(lambda known: _with_axis(known) and known.size > 0), draft.rng
    for _ in range(rng.randint(1, 3)):
        order = rng.sample(range(x.rank), x.rank)
        sizes, parts = list[int](), list[str]()
        for axis in (*order, None):
            if rng.random() < 0.35:
                sizes.append(rng.randint(2, 5))
                parts.append(str(rng.randrange(sizes[-1])))
            if axis is not None:
                stride = rng.choice((1, 1, 1, 2, 3))
                sizes.append(x.shape[axis] * stride)
                parts.append(f"{rng.randrange(stride)}::{stride}")
        back = tuple(map(order.index, range(x.rank)))
        draft.let(
            f"jnp.resize({x.name}, {tuple(sizes)})[{', '.join(parts)}].transpose({back})", x.exact
        )
        apart = next(reversed(draft.scope))
        draft.let(f"jnp.{rng.choice(('add', 'maximum'))}({x.name}, {apart})", False)
        x = draft.scope[next(reversed(draft.scope))]


def _factors(draft: Draft, size: int) -> tuple[int, ...]:
    found, rest = list[int](), size
    for prime in (2, 3, 5, 7):
        while rest and rest % prime == 0:
            found.append(prime)
            rest //= prime
    found.append(rest)
    draft.rng.shuffle(found)
    while len(found) > 4 or (len(found) > 1 and draft.rng.random() < 0.4):
        found[:2] = [found[0] * found[1]]
    return tuple(found)


def slice_(draft: Draft) -> None:
    x, rng = draft.pick(_with_axis), draft.rng
    parts = []
    for size in x.shape:
        kind = rng.random()
        low = rng.randint(0, max(size - 1, 0))
        if kind < 0.4:
            parts.append(":")
        elif kind < 0.55 and size:
            parts.append(str(rng.randint(-size, size - 1)))
        elif kind < 0.75:
            parts.append(f"{low}:{rng.randint(low, size)}")
        elif kind < 0.9:
            parts.append(f"{low}::{rng.randint(1, 3)}")
        else:
            parts.append("::-1")
    if rng.random() < 0.15:
        parts.insert(rng.randint(0, len(parts)), "None")
    draft.let(f"{x.name}[{', '.join(parts)}]", x.exact)


def pad(draft: Draft) -> None:
    x, rng = draft.pick(_with_axis), draft.rng
    if rng.random() < 0.5:
        widths = tuple(
            (rng.randint(-1, 3), rng.randint(-1, 3), rng.choice((0, 0, 1))) for _ in x.shape
        )
        draft.let(f"lax.pad({x.name}, jnp.{x.dtype}({rng.choice((0, 1))}), {widths})", x.exact)
    else:
        mode = rng.choice(("constant", "edge", "reflect", "wrap"))
        widths2 = tuple((rng.randint(0, 2), rng.randint(0, 2)) for _ in x.shape)
        draft.let(f"jnp.pad({x.name}, {widths2}, mode='{mode}')", x.exact)


def join(draft: Draft) -> None:
    x, rng = draft.pick(_with_axis), draft.rng
    axis = rng.randrange(x.rank)

    def goes(other: Known) -> bool:
        return (
            other.dtype == x.dtype
            and other.rank == x.rank
            and all(
                a == b
                for at, (a, b) in enumerate(zip(x.shape, other.shape, strict=True))
                if at != axis
            )
        )

    parts = [x, *(draft.pick(goes) for _ in range(rng.randint(1, 2)))]
    rng.shuffle(parts)
    names = ", ".join(part.name for part in parts)
    exact = all(part.exact for part in parts)
    if rng.random() < 0.3 and len({part.shape for part in parts}) == 1:
        draft.let(f"jnp.stack([{names}], {rng.randint(0, x.rank)})", exact)
    else:
        draft.let(f"jnp.concatenate([{names}], {axis})", exact)


# ---------------------------------------------------------------------- at computed places


def _start(draft: Draft, size: int) -> str:
    """A scalar index that is a number, computed, or an element of an array."""
    how = draft.rng.random()
    if how < 0.4:
        return str(draft.rng.randint(-2, size + 1))
    if how < 0.5:
        known = draft.pick(lambda known: known.dtype in ("int32", "uint8") and known.size > 0)
        return f"{known.name}.ravel()[0]"
    return draft.pick(lambda known: known.shape == () and known.dtype in ("int32", "uint8")).name


def _indices(draft: Draft, size: int, rank: int = 1) -> str:
    """An array of indices, of which some may be out of bounds."""
    rng = draft.rng
    if rng.random() < 0.5:
        known = draft.pick(
            lambda known: (
                known.dtype in ("int32", "int8", "uint8")
                and known.rank == rank
                and known.size <= 24
            )
        )
        return known.name if rng.random() < 0.5 else f"({known.name} % {max(size, 1)})"
    low, high = (0, max(size - 1, 0)) if rng.random() < 0.6 else (-size - 2, size + 2)
    values = [rng.randint(low, high) for _ in range(rng.randint(1, 5))]
    return f"jnp.array({values}, jnp.int32)"


def dynamic(draft: Draft) -> None:
    x, rng = draft.pick(_with_axis), draft.rng
    starts = ", ".join(_start(draft, size) for size in x.shape)
    sizes = tuple(rng.randint(min(1, size), size) for size in x.shape)
    if rng.random() < 0.5:
        draft.let(f"lax.dynamic_slice({x.name}, ({starts},), {sizes})", x.exact)
        return
    y = draft.pick(
        lambda known: (
            known.dtype == x.dtype
            and known.rank == x.rank
            and all(a <= b for a, b in zip(known.shape, x.shape, strict=True))
        )
    )
    draft.let(f"lax.dynamic_update_slice({x.name}, {y.name}, ({starts},))", x.exact and y.exact)


def gather(draft: Draft) -> None:
    x, rng = draft.pick(_with_axis), draft.rng
    axis = rng.randrange(x.rank)
    size = x.shape[axis]
    if not size:
        raise Refused("nothing to gather from")
    at = _indices(draft, size)
    mode = rng.choice(_MODES)
    texts = [
        f"jnp.take({x.name}, {at}, axis={axis}, mode='{mode}')",
        f"{x.name}[{at}]" if axis == 0 else f"{x.name}[:, {at}]",
        f"{x.name}.at[{at}].get(mode='{mode}')",
        f"{x.name}.at[{at}].get(mode='fill', fill_value=3)",
    ]
    if x.rank >= 2:
        texts.append(f"{x.name}[{at}, {rng.randrange(-1, 1)}]")
        texts.append(f"{x.name}[jnp.array([0, 0]), jnp.array([{rng.randint(0, 3)}, -1])]")
    if x.exact:
        along = f"jnp.argsort({x.name}, axis={axis})"
        texts.append(f"jnp.take_along_axis({x.name}, {along}, axis={axis})")
    text = rng.choice(texts)
    # A fill is NaN or the least integer: exact, but not what small sums are made of.
    draft.let(text, x.exact and (not x.is_float or "fill'" not in text or "fill_value" in text))


def scatter(draft: Draft) -> None:
    x, rng = draft.pick(_with_axis), draft.rng
    if not x.shape[0]:
        raise Refused("nothing to scatter into")
    at, mode = _indices(draft, x.shape[0]), rng.choice(_SCATTER_MODES)
    if mode == "promise_in_bounds":
        values = [rng.randint(0, x.shape[0] - 1) for _ in range(rng.randint(1, 5))]
        at = f"jnp.array({values}, jnp.int32)"
    fn = rng.choice(("set", "add", "add", "min", "max", "mul"))
    if x.is_bool:
        fn = "set"
    if rng.random() < 0.4:
        place = rng.choice((f"{rng.randint(-x.shape[0], x.shape[0] - 1)}", "::2", "1:", "..., 0"))
        draft.let(f"{x.name}.at[{place}].{fn}({_update(draft, x)})", x.exact and fn != "mul")
        return
    if fn == "set":  # which of several updates of one element is the last is nobody's to define
        values = rng.sample(range(x.shape[0]), rng.randint(1, min(4, x.shape[0])))
        at = f"jnp.array({values}, jnp.int32)"
    where = at if x.rank < 2 or rng.random() < 0.7 else f"{at}, {rng.randrange(-1, 1)}"
    unique = ", unique_indices=True" if fn == "set" and rng.random() < 0.3 else ""
    call = f".{fn}({_update(draft, x)}, mode='{mode}'{unique})"
    draft.let(f"{x.name}.at[{where}]{call}", x.exact and (fn != "mul" or x.is_integer))


def _update(draft: Draft, x: Known) -> str:
    if draft.rng.random() < 0.5:
        return "True" if x.is_bool else str(draft.rng.randint(0, 3))
    found = draft.pick(
        lambda known: known.dtype == x.dtype and (known.exact or not x.exact) and known.size <= 64
    )
    return (
        found.name
        if found.shape == ()
        else f"jnp.max({found.name}, initial=0)"
        if not x.is_bool
        else "False"
    )


def segments(draft: Draft) -> None:
    x, rng = draft.pick(lambda known: _with_axis(known) and not known.is_bool), draft.rng
    if not 0 < x.shape[0] <= 64:
        raise Refused("too many segments")
    fn = rng.choice(("segment_sum", "segment_max", "segment_min"))
    which = [rng.randint(-1, 4) for _ in range(x.shape[0])]
    text = f"jax.ops.{fn}({x.name}, jnp.array({which}, jnp.int32), num_segments=4)"
    if fn != "segment_sum":
        text = f"jnp.clip({text}, 0, 9)"
    draft.let(text, x.exact and x.is_integer)


def made(draft: Draft) -> None:
    """Arrays from nothing."""
    rng = draft.rng
    n = rng.choice((1, 2, 3, 4, 5, 8, 17))
    shape = draft.pick().shape if rng.random() < 0.5 else (n,)
    dtype = rng.choice(("float32", "int32", "int8", "bfloat16", "uint8", "bool", "float16"))
    if math.prod(shape) > MOST_ELEMENTS:
        raise Refused("too large")
    texts = [
        f"jnp.full({shape}, {rng.randint(0, 1)}, jnp.{dtype})",
        f"jnp.arange({n}, dtype=jnp.int32)",
        f"jnp.arange({n}, dtype=jnp.float32)",
        f"jnp.eye({n}, dtype=jnp.float32)",
        f"lax.broadcasted_iota(jnp.int32, {(n, 3)}, {rng.randint(0, 1)})",
        f"jnp.linspace(0, 1, {n}, dtype=jnp.float32)",
        "jnp.zeros((0,), jnp.float32)",
        f"jnp.int32({rng.randint(-3, 9)})",
        f"jnp.asarray(np.arange({n * 2}).reshape(2, {n}), jnp.float32)",
    ]
    text = rng.choice(texts)
    draft.let(text, "linspace" not in text)
