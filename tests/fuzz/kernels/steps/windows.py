"""Steps of random cases: windows, at borders too, and which of their elements they choose.

Input: a draft. Output: it has one more value, or none where nothing fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stagejit.graph.dims import WindowDims
from stagejit.types import bool_
from tests.fuzz.kernels.draft import Draft, Drawn


def window(d: Draft) -> None:
    window_of(d, d.one(lambda v: v.rank > 0 and v.size > 0))


def windows_of_windows(d: Draft) -> None:
    """Two in a row, and their operand beside them where shapes allow it."""
    x = d.one(lambda v: v.rank > 0 and 0 < v.size <= 5000)
    y = window_of(d, x)
    if y is not None:
        window_of(d, y)


def window_of(d: Draft, x: Drawn) -> Drawn | None:
    c = d.c
    dims = WindowDims(
        sizes=tuple(c.pick((1, 2, 3, 1, 2, 5)) for _ in x.shape),
        strides=tuple(c.pick((1, 1, 2, 3)) for _ in x.shape),
        padding=tuple(
            (c.pick((0, 0, 1, 2, -1)), c.pick((0, 0, 1, 3, -1))) if c.below(2) else (0, 0)
            for _ in x.shape
        ),
        dilation=tuple(c.pick((1, 1, 1, 2)) for _ in x.shape),
    )
    if 0 in dims.result_shape(x.shape):
        return None
    taps = math.prod(dims.sizes)
    if x.dtype is bool_:
        fns: Sequence[str] = ("and", "or", "xor")
    elif x.dtype.is_float:
        fns = ("max", "add", "min")
    else:
        fns = ("max", "add", "min", "mul", "and", "or", "xor")
    fn = c.pick(fns)
    exact, bound = x.exact, x.bound
    if x.exact and x.dtype is not bool_ and c.chance(4):
        fn, exact, bound = c.pick(("first_max", "first_min")), True, float(taps)
    elif fn in ("max", "min") and x.dtype.is_float and _has_borders_alone(dims, x.shape):
        return None  # infinities
    elif fn == "add":
        x = d.calm(x, 100.0)
        bound = x.bound * taps
    return d.add(
        "window", [x], exact=exact, bound=bound, fraction=x.fraction, fn=fn, sizes=dims.sizes,
        strides=dims.strides, padding=dims.padding, dilation=dims.dilation,
    )  # fmt: skip


def _has_borders_alone(dims: WindowDims, shape: Sequence[int]) -> bool:
    """Whether some window has no element."""
    counts = dims.result_shape(tuple(shape))
    for axis, (extent, count) in enumerate(zip(shape, counts, strict=True)):
        offsets = [dims.offsets(tap)[axis] for tap in dims.taps]
        for at in range(count):
            starts = [at * dims.strides[axis] + offset for offset in offsets]
            if not any(0 <= start < extent for start in starts):
                return True
    return False
