"""Steps of random cases: contractions and convolutions, before and after other steps.

Input: a draft. Output: it has more values, or none where nothing fits.
"""

from __future__ import annotations

from stagejit.types import bool_, f32
from tests.fuzz.kernels.draft import Draft, Drawn
from tests.fuzz.kernels.steps.elementwise import binary_of, scaled_of, unary_of

_INNER = (2, 1, 3, 4, 7, 8, 16, 17, 33)
_FREE = (2, 1, 3, 5, 8, 13, 16, 17, 31, 33)


def contract(d: Draft) -> None:
    """x, along one or two of its axes, with an array of random order of axes."""
    x = d.one(lambda v: v.rank > 0 and v.dtype is not bool_ and 0 < v.size <= 3000)
    c, x = d.c, d.calm(x)
    if c.chance(3):
        x = unary_of(d, x)
        x = d.calm(x)
    axes = list(c.order(x.rank))
    inner = sorted(axes[: c.between(1, min(2, x.rank))])
    batch = sorted(axes[len(inner) : len(inner) + c.below(2)])
    free = [c.pick(_FREE) for _ in range(c.below(3))]
    sizes = [*(x.shape[i] for i in batch), *(x.shape[i] for i in inner), *free]
    if x.size * max(1, *free, 1) > 40000 or len(sizes) > 5:
        return
    order = c.order(len(sizes))
    places = {axis: at for at, axis in enumerate(order)}
    y = d.like(x, tuple(sizes[i] for i in order))
    y = d.calm(y)
    contracting = tuple(inner), tuple(places[len(batch) + i] for i in range(len(inner)))
    batches = tuple(batch), tuple(places[i] for i in range(len(batch)))
    depth = 1
    for axis in inner:
        depth *= x.shape[axis]
    if c.below(2):
        x, y = y, x
        contracting, batches = contracting[::-1], batches[::-1]
    result = d.add(
        "contract", [x, y], exact=x.exact and y.exact, bound=x.bound * y.bound * depth,
        fraction=x.fraction + y.fraction, contracting=contracting, batch=batches, dtype=x.dtype,
    )  # fmt: skip
    epilogue(d, result)


def epilogue(d: Draft, x: Drawn) -> None:
    """What is done with a product where it is stored."""
    for _ in range(d.c.below(3)):
        how = d.c.below(5)
        if how == 0:
            x = binary_of(d, x, d.like(x))
        elif how == 1:
            x = scaled_of(d, x)
        elif how == 2:
            x = unary_of(d, x)
        elif how == 3 and (cut := _cut(d, x)) is not None:
            x = cut
        elif x.rank > 1:
            x = d.view("transpose", x, permutation=d.c.order(x.rank))


def _cut(d: Draft, x: Drawn) -> Drawn | None:
    """Every second, third ... element along some axes side by side, as images are made smaller and
    deeper: what was between them is an axis of its own, in another place."""
    factors: dict[int, int] = {}
    for axis in reversed(range(x.rank)):
        fitting = [n for n in (2, 3, 4, 5, 8) if x.shape[axis] % n == 0 and x.shape[axis] > n]
        if fitting and len(factors) < 2 and d.c.below(2):
            factors[axis] = d.c.pick(fitting)
    shape: list[int] = []
    outer, inner = [], []
    for axis, size in enumerate(x.shape):
        outer.append(len(shape))
        shape.append(size // factors.get(axis, 1))
        if axis in factors:
            inner.append(len(shape))
            shape.append(factors[axis])
    if not inner:
        return None
    at = d.c.below(x.rank + 1)
    order = (*outer[:at], *inner, *outer[at:])
    return d.view("transpose", d.view("reshape", x, shape=tuple(shape)), permutation=order)


def product_of(d: Draft, x: Drawn) -> Drawn | None:
    """A product with the type of x."""
    if x.dtype is bool_ or x.rank < 2:
        return None
    depth = d.c.pick(_INNER)
    lhs = d.argument((*x.shape[:-1], depth), x.dtype)
    rhs = d.argument((depth, x.shape[-1]), x.dtype)
    return d.add(
        "contract", [lhs, rhs], exact=True, bound=9.0 * depth, fraction=4,
        contracting=((x.rank - 1,), (0,)), batch=((), ()), dtype=x.dtype,
    )  # fmt: skip


def conv(d: Draft) -> None:
    """A convolution of one or two spatial dimensions, of an image that may be computed."""
    x = d.one(lambda v: v.rank in (3, 4) and v.dtype.is_float and 0 < v.size <= 2000)
    c, x = d.c, d.calm(x)
    if c.chance(3):
        x = d.calm(unary_of(d, x))
    spatial = x.rank - 2
    spec = c.pick(((0, 1), (0, x.rank - 1)))
    inside = [axis for axis in range(x.rank) if axis not in spec]
    lhs_spec = (*spec, *inside)
    features = x.shape[spec[1]]
    groups = c.pick((1, 1, features)) if features else 1
    out = groups * c.pick((1, 2, 3, 8, 17) if groups == 1 else (1, 2))
    window = tuple(c.pick((1, 2, 3)) for _ in range(spatial))
    rhs = d.calm(d.like(x, (out, features // groups, *window)))
    depth = features // groups
    for size in window:
        depth *= size
    padding = tuple((c.below(3), c.below(3)) for _ in range(spatial))
    dilation = tuple(c.pick((1, 1, 2)) for _ in range(spatial))
    lhs_dilation = tuple(c.pick((1, 1, 1, 2)) for _ in range(spatial))
    result = d.add(
        "conv", [x, rhs], exact=x.exact and rhs.exact, bound=x.bound * rhs.bound * max(depth, 1),
        fraction=x.fraction + rhs.fraction, lhs_spec=lhs_spec,
        rhs_spec=tuple(range(x.rank)), out_spec=c.pick((lhs_spec, tuple(range(x.rank)))),
        strides=tuple(c.pick((1, 2)) for _ in range(spatial)), padding=padding,
        lhs_dilation=lhs_dilation, rhs_dilation=dilation,
        feature_groups=groups, batch_groups=1, dtype=x.dtype,
    )  # fmt: skip
    if result.size:
        epilogue(d, result)


def image(d: Draft) -> None:
    """A convolution of an image of its own, wide enough that vectors run along its rows, and what
    takes the pixels of the result apart."""
    c = d.c
    dtype = d.dtype if d.dtype.is_float else f32
    height, width = c.pick((4, 8, 6, 1, 16)), c.pick((32, 16, 64, 24, 48, 65))
    channels = c.pick((1, 2, 3))
    spec, shape = c.pick((
        ((0, 1, 2, 3), (1, channels, height, width)), ((0, 3, 1, 2), (1, height, width, channels)),
    ))  # fmt: skip
    window = c.pick(((3, 3), (1, 3), (2, 2), (1, 5)))
    out = c.pick((1, 2, 4, 3, 8))
    x = d.argument(shape, dtype)
    rhs = d.argument((out, channels, *window), dtype)
    result = d.add(
        "conv", [x, rhs], exact=True, bound=x.bound * rhs.bound * channels * window[0] * window[1],
        fraction=x.fraction + rhs.fraction, lhs_spec=spec, rhs_spec=(0, 1, 2, 3), out_spec=spec,
        strides=(1, c.pick((1, 2))), lhs_dilation=(1, 1), rhs_dilation=(1, c.pick((1, 2))),
        padding=tuple((c.below(2), size - 1) for size in window), feature_groups=1,
        batch_groups=1, dtype=dtype,
    )  # fmt: skip
    if result.size:
        epilogue(d, _cut(d, result) or result)
