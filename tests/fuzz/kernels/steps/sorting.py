"""Steps of random cases: rows in the order of their keys, with what lies beside them.

Input: a draft. Output: it has more values, or none where nothing fits. Keys are exact, as rounding
would change the order; there are many equal ones.
"""

from __future__ import annotations

from typing import Any

from stagejit.graph.ops import infer
from stagejit.types import bool_, f32, i8, i32, i64, u16
from tests.fuzz.kernels.draft import Draft, Drawn

_LONG = (1000, 300, 2000, 640, 3000, 129)
_BESIDE = (f32, i32, i64, i8, u16, bool_)


def sorted_rows(d: Draft) -> None:
    """By one key or several, whole rows or their first elements; positions, too."""
    x = d.one(lambda v: v.rank > 0 and 0 < v.size <= 4000 and v.exact)
    _sorted(d, x, d.c.pick((x.rank - 1, *range(x.rank))))


def long_rows(d: Draft) -> None:
    """A few rows, so long that several cores may share one."""
    extent = d.c.pick(_LONG)
    axis = d.c.below(2)
    rows = d.c.pick((1, 2, 3))
    _sorted(d, d.argument((extent, rows) if axis == 0 else (rows, extent), d.dtype), axis)


def _sorted(d: Draft, x: Drawn, axis: int) -> None:
    operands = [x]
    for _ in range(d.c.pick((0, 1, 2, 0, 4))):
        dtype = d.c.pick((x.dtype, *_BESIDE))
        operands.append(d.like(x, dtype=dtype))
    keys = 1
    while keys < len(operands) and operands[keys].exact and d.c.chance(3):
        keys += 1
    extent = x.shape[axis]
    count = extent if d.c.below(3) else d.c.pick((1, min(extent, 3), d.c.between(1, extent)))
    numbers = tuple(d.c.some(range(len(operands) + 1))) or (0,)
    sort_of(d, operands, numbers, axis=axis, keys=keys, count=count)


def sort_of(
    d: Draft, operands: list[Drawn], numbers: tuple[int, ...], *, axis: int, keys: int, count: int
) -> None:
    attrs: dict[str, Any] = {
        "axis": axis, "keys": keys, "count": count, "descending": bool(d.c.below(2)),
        "results": numbers,
    }  # fmt: skip
    given = [x.value for x in operands]
    types = infer("sort", [value.type for value in given], attrs)
    assert types is not None
    op = d.graph.add("sort", given, types, **attrs)
    for number, value in zip(numbers, op.results, strict=True):
        position = Drawn(value, True, float(operands[0].shape[axis]))
        source = operands[number] if number < len(operands) else position
        d.keep(Drawn(value, source.exact, source.bound, source.fraction))
