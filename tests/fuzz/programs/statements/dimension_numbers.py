"""Statements that gather and scatter by dimension numbers of any kind: windows of all sizes, index
vectors with any number of components, axes walked together, in any order.

Input: a draft. Output: one more statement in it. Invariant: what XLA leaves open is not written: of
several updates of one element which is last, and updates by index vectors without components, of
which XLA applies one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.fuzz.programs.draft import MOST_ELEMENTS, Draft, Known, Refused

_DTYPES = ("int32", "int32", "int8", "uint8", "uint32", "int16")


@dataclass(frozen=True)
class _Indexing:
    """How the vectors of an index array, `indices` as text of `shape`, address windows of an array;
    see `graph/dims.py`. positions: where the window's axes are in what is gathered or scattered."""

    indices: str
    shape: tuple[int, ...]
    start_axes: tuple[int, ...]
    batch_axes: tuple[int, ...]
    index_batch_axes: tuple[int, ...]
    sizes: tuple[int, ...]
    collapsed: tuple[int, ...]
    positions: tuple[int, ...]

    @property
    def updates(self) -> tuple[int, ...]:
        """The shape of what is gathered or scattered."""
        dropped = {*self.collapsed, *self.batch_axes}
        window = iter([size for axis, size in enumerate(self.sizes) if axis not in dropped])
        others = iter(self.shape[:-1])
        rank = len(self.positions) + len(self.shape) - 1
        return tuple(next(window if at in self.positions else others) for at in range(rank))


def gather(draft: Draft) -> None:
    x, rng = _array(draft), draft.rng
    at = _indexing(draft, x)
    mode = rng.choice(("clip", "fill", "fill"))
    value = rng.choice((None, 0, 3)) if mode == "fill" else None
    filled = mode == "fill" and value is None and x.is_float  # with NaN
    numbers = (
        f"lax.GatherDimensionNumbers({at.positions}, {at.collapsed}, {at.start_axes},"
        f" {at.batch_axes}, {at.index_batch_axes})"
    )
    text = f"lax.gather({x.name}, {at.indices}, {numbers}, {at.sizes}, mode={mode!r}"
    draft.let(f"{text}, fill_value={value})", x.exact and not filled)


def scatter(draft: Draft) -> None:
    x, rng = _array(draft), draft.rng
    at = _indexing(draft, x)
    if not at.start_axes and math.prod(at.shape[:-1]) != 1:
        raise Refused("XLA does not apply all of these updates")
    fn = rng.choice(("scatter", "scatter_add", "scatter_sub", "scatter_min", "scatter_max"))
    if x.is_bool:
        fn = "scatter"
    numbers = (
        f"lax.ScatterDimensionNumbers({at.positions}, {at.collapsed}, {at.start_axes},"
        f" {at.batch_axes}, {at.index_batch_axes})"
    )
    updates = f"jnp.full({at.updates}, {rng.randint(0, 3)}, jnp.{x.dtype})"
    if fn != "scatter":  # of equal updates it does not matter which one is the last
        updates += f" + jnp.arange({at.updates[-1] if at.updates else 1}).astype(jnp.{x.dtype})"
        updates = updates if at.updates else f"({updates})[0]"
    mode = rng.choice(("clip", "drop"))
    draft.let(f"lax.{fn}({x.name}, {at.indices}, {updates}, {numbers}, mode={mode!r})", x.exact)


def _array(draft: Draft) -> Known:
    return draft.pick(lambda known: known.is_plain and known.size <= 256)


def _indexing(draft: Draft, x: Known) -> _Indexing:
    rng = draft.rng
    indices, shape = _indices(draft, x)
    axes = rng.sample(range(x.rank), x.rank)
    start_axes, rest = axes[: shape[-1]], axes[shape[-1] :]
    pairs: dict[int, int] = {}  # axes walked together
    for axis in rest:
        same = [at for at, size in enumerate(shape[:-1]) if size == x.shape[axis]]
        same = [at for at in same if at not in pairs.values()]
        if same and x.shape[axis] and rng.random() < 0.5:
            pairs[axis] = rng.choice(same)
    batch_axes = tuple(sorted(pairs))
    sizes = tuple(_window(rng, size, axis in pairs) for axis, size in enumerate(x.shape))
    unit = [axis for axis in range(x.rank) if sizes[axis] == 1 and axis not in pairs]
    collapsed = tuple(axis for axis in unit if rng.random() < 0.6)
    window_rank = x.rank - len(collapsed) - len(pairs)
    positions = sorted(rng.sample(range(window_rank + len(shape) - 1), window_rank))
    made = _Indexing(
        indices, shape, tuple(start_axes), batch_axes, tuple(pairs[axis] for axis in batch_axes),
        sizes, collapsed, tuple(positions),
    )  # fmt: skip
    if math.prod(made.updates) > MOST_ELEMENTS:
        raise Refused("too large")
    return made


def _window(rng: random.Random, size: int, walked: bool) -> int:
    if walked:
        return 1
    return rng.choice((1, size, rng.randint(0, size))) if size else 0


def _indices(draft: Draft, x: Known) -> tuple[str, tuple[int, ...]]:
    """Index vectors of no more components than x has axes: integers in scope, or numbers."""
    rng = draft.rng
    if rng.random() < 0.5:
        found = draft.pick(
            lambda known: known.is_integer and known.rank > 0 and known.shape[-1] <= x.rank
        )
        return found.name, found.shape
    components = rng.randint(0, x.rank)
    before = tuple(rng.choice((1, 2, 3, *x.shape[:1])) for _ in range(rng.randint(0, 2)))
    shape = (*before, components)
    count, dtype = math.prod(shape), rng.choice(_DTYPES)
    low = 0 if dtype.startswith("u") else -2
    values = _progression(rng, count) or [rng.randint(low, 5) for _ in range(count)]
    values = [max(value, low) for value in values]
    return f"jnp.array({values}, jnp.{dtype}).reshape({shape})", shape


def _progression(rng: random.Random, count: int) -> Sequence[int]:
    """Numbers at equal distances, for some: windows at such places may be one box."""
    first, step = rng.randint(-1, 3), rng.choice((0, 1, -1, 2))
    return [first + step * at for at in range(count)] if rng.random() < 0.4 else []
