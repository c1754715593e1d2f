"""Steps of random cases: products of operands that lie in memory in fewer bytes than they are
summed in, as bound weights do, and of such as masks have made zero in whole tiles.

Input: a draft. Output: it has more values, or none where nothing fits.
"""

from __future__ import annotations

from typing import Any

from stagejit.graph.ops import build
from stagejit.types import bf16, bool_, f16, f32, i8, i16, i32, u8
from tests.fuzz.kernels.draft import Draft, Drawn
from tests.fuzz.kernels.steps.elementwise import scaled_of, unary_of

# Of sums, of rows and of columns: one tile of some target and its neighbours.
_DEPTHS = (2, 1, 3, 7, 16, 31, 32, 33, 64, 65, 128, 130)
_ROWS = (1, 1, 2, 3, 4, 5, 8, 13, 16, 17)
_COLUMNS = (2, 1, 5, 16, 17, 32, 33, 48, 64, 65, 100, 128)


def stored(d: Draft) -> None:
    """A product of f32, or of 16 bits, with a matrix of 16, 8 or 4 bits that is widened, times a
    scale for each column; a vector at times, or several of them."""
    c = d.c
    depth, columns = c.pick(_DEPTHS), c.pick(_COLUMNS)
    rows = () if c.chance(4) else (c.pick(_ROWS),)
    x = d.argument((*rows, depth), c.pick((f32, f32, bf16)))
    x = d.convert(x, f32)
    if c.chance(5):
        x = unary_of(d, x)
    form = c.below(4)
    across = form != 3 and bool(c.below(2))  # columns first, as in x @ w.T
    if form == 3:
        x, w = _in_nibbles(d, x, columns)
        axes: Any = ((x.rank - 1, x.rank - 2), (1, 0))
    else:
        shape = (columns, depth) if across else (depth, columns)
        w = d.convert(d.argument(shape, (i8, bf16, f16)[form]), f32)
        axes = ((x.rank - 1,), (1 if across else 0,))
    made = _product(d, x, w, axes, ((), ()), f32, depth)
    if c.below(3):
        scales = d.argument((columns,), f32)
        spread = d.view("broadcast", scales, shape=made.shape, axes=(made.rank - 1,))
        made = d.map("mul", made, spread)
    if c.chance(3):
        scaled_of(d, made)


def _in_nibbles(d: Draft, x: Drawn, columns: int) -> tuple[Drawn, Drawn]:
    """Rows k and k + depth / 2 of a matrix in the bytes of row k, from -8 to 7; and x, whose last
    axis is that of the halves, then that of the rows of each."""
    half = -(-x.shape[-1] // 2)
    if x.shape[-1] != 2 * half:
        x = d.convert(d.argument((*x.shape[:-1], 2 * half), f32), f32)
    shape = (2, half, columns)
    packed = d.view("broadcast", d.argument(shape[1:], u8), shape=shape, axes=(1, 2))
    packed = d.map("mul", packed, d.splat(29, u8, shape))  # all bits of a byte
    number = build(d.graph, "iota", (), shape=shape, axis=0, dtype=u8)
    bits = d.map("mul", Drawn(number, True, 2.0), d.splat(4, u8, shape))
    nibbles = d.map("shift_right_logical", packed, bits)
    nibbles = d.map("and", nibbles, d.splat(15, u8, shape))
    wide = d.convert(Drawn(nibbles.value, True, 15.0), f32)
    return (
        d.view("reshape", x, shape=(*x.shape[:-1], 2, half)),
        d.map("sub", wide, d.splat(8, f32, shape)),
    )


def widened(d: Draft) -> None:
    """A product of 8 or 16 bits, summed in 32; of two matrices, or of as many pairs of them; of
    bytes of which some have a sign at times, that are widened before."""
    c = d.c
    narrow, wide = c.pick(((i8, i32), (bf16, f32), (f16, f32), (u8, i32), (i16, i32)))
    depth, rows, columns = c.pick(_DEPTHS), c.pick(_ROWS), c.pick(_COLUMNS)
    batch = (c.pick((2, 1, 3)),) if c.chance(3) else ()
    first = len(batch)
    x = d.argument((*batch, rows, depth), narrow)
    other = c.pick((i8, u8)) if wide is i32 and narrow in (i8, u8) else narrow
    y = d.argument((*batch, *((columns, depth) if c.below(2) else (depth, columns))), other)
    at = first if y.shape[first] == depth else first + 1
    if other is not narrow or (wide is i32 and c.chance(3)):
        x, y = d.convert(x, wide), d.convert(y, wide)
    axes = tuple(range(first))
    made = _product(d, x, y, ((first + 1,), (at,)), (axes, axes), wide, depth)
    if c.chance(3):
        scaled_of(d, made)


def masked(d: Draft) -> None:
    """A product with a matrix of which places, lengths or a mask that is given leave a part."""
    c = d.c
    dtype = d.dtype if d.dtype.is_float else f32
    batch = (c.pick((2, 1, 3)),) if c.chance(3) else ()
    rows, depth, columns = c.pick((33, 2, 16, 64, 65)), c.pick(_DEPTHS), c.pick(_COLUMNS)
    shape = (*batch, rows, depth)
    x, first = d.argument(shape, dtype), len(batch)
    x = d.map("select", _mask(d, shape), x, d.splat(0, dtype, shape))
    y = d.argument((*batch, depth, columns), dtype)
    axes = tuple(range(first))
    contracting = (first + 1,), (first,)
    if c.below(2):  # summed over the rows of the mask
        y = d.argument((*batch, rows, columns), dtype)
        contracting = (first,), (first,)
    count = shape[contracting[0][0]]
    if c.below(2):
        x, y, contracting = y, x, contracting[::-1]
    _product(d, x, y, contracting, (axes, axes), dtype, count)


def _mask(d: Draft, shape: tuple[int, ...]) -> Drawn:
    """Of matrices of which places, lengths or a mask that is given leave a part."""
    c, first = d.c, len(shape) - 2
    places = [
        Drawn(build(d.graph, "iota", (), shape=shape, axis=axis, dtype=i32), True, 130.0)
        for axis in (first, first + 1)
    ]
    how = c.below(4)
    if how == 0:  # causal, and with an offset
        moved = d.map("add", places[0], d.splat(c.pick((0, 1, 17, -9, -200)), i32, shape))
        return d.map("le", places[1], moved)
    if how == 1:  # lengths
        lengths = d.index(shape[:-1])
        many = d.map("mul", lengths, d.splat(9, i32, lengths.shape))
        return d.map(
            "lt", places[1], d.view("broadcast", many, shape=shape, axes=tuple(range(first + 1)))
        )
    if how == 2:
        return d.argument(shape, bool_)
    axis = c.below(len(shape))  # a mask for whole rows or columns
    mask = d.argument((shape[axis],), bool_)
    return d.view("broadcast", mask, shape=shape, axes=(axis,))


def dropped(d: Draft) -> None:
    """A product of which masks drop a part, so that whole tiles may not be computed at all; at
    times in two ways, of which one keeps more, or none drops it."""
    c = d.c
    dtype = d.dtype if d.dtype.is_float else f32
    batch = (c.pick((2, 1, 3)),) if c.chance(3) else ()
    rows, columns = c.pick((33, 2, 1, 16, 64, 65)), c.pick(_COLUMNS)
    depth = c.pick((64, 33, 130, 7))
    first, shape = len(batch), (*batch, rows, columns)
    x = d.argument((*batch, rows, depth), dtype)
    y = d.argument((*batch, *((depth, columns) if c.below(2) else (columns, depth))), dtype)
    at = first if y.shape[first] == depth else first + 1
    axes = tuple(range(first))
    made = _product(d, x, y, ((first + 1,), (at,)), (axes, axes), dtype, depth)
    if c.chance(3):
        made = scaled_of(d, made)
    before = made
    for _ in range(c.between(1, 2)):
        other = d.splat(-2, dtype, shape) if c.below(2) else d.like(made)
        ways = (made, other) if c.below(2) else (other, made)
        made = d.map("select", _mask(d, shape), *ways)
    if c.chance(3):
        d.required.append(d.map("add", made, before))
    elif c.chance(3):
        d.required.append(d.map("select", _mask(d, shape), before, made))


def _product(
    d: Draft, x: Drawn, y: Drawn, contracting: Any, batch: Any, dtype: Any, depth: int
) -> Drawn:
    return d.add(
        "contract", [x, y], exact=x.exact and y.exact, bound=x.bound * y.bound * depth,
        fraction=x.fraction + y.fraction, contracting=contracting, batch=batch, dtype=dtype,
    )  # fmt: skip
