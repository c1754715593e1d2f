"""Where windows lie, and their taps: tap k of all windows is one strided slice of the operand.

Input: the parameters of a primitive. Output: `Windows`. Invariant: taps are numbered in row-major
order; an operand is padded, with the holes of its dilation, before a tap is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from stagejit.base.records import record

# Taps that stand in the code of a kernel one by one: a load and an operation each. More of them
# are a loop, or are taken axis by axis.
MOST_TAPS = 64
# Taps that take as long as a byte to or from memory: see Note [Recompute or store] of
# `dispatch/groups/cost.py`, where an operation is half a byte.
TAPS_A_BYTE = 2


@record
class Windows:
    """Windows over an operand of `shape`: for each axis their size, their stride, the padding
    before and after, the dilation of the operand and that of the window."""

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    holes: tuple[int, ...]
    steps: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int], params: Mapping[str, Any]) -> Windows:
        """From the parameters of one of JAX's primitives."""
        ones = (1,) * len(shape)
        return cls(
            tuple(shape),
            tuple(map(int, params["window_dimensions"])),
            tuple(map(int, params["window_strides"])),
            tuple((int(low), int(high)) for low, high in params["padding"]),
            tuple(map(int, params.get("base_dilation", ones))),
            tuple(map(int, params.get("window_dilation", ones))),
        )

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As `lax.reduce_window` takes them."""
        return self.sizes, self.strides, self.padding, self.holes, self.steps

    @property
    def counts(self) -> tuple[int, ...]:
        """How many windows there are along each axis."""
        made = []
        for axis, (low, high) in enumerate(self.padding):
            extent = self.shape[axis]
            padded = (extent - 1) * self.holes[axis] + 1 if extent else 0
            reach = (self.sizes[axis] - 1) * self.steps[axis] + 1
            made.append(max((padded + low + high - reach) // self.strides[axis] + 1, 0))
        return tuple(made)

    @property
    def taps(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*map(range, self.sizes))

    def along(self, axis: int) -> Windows:
        """These windows along one axis, and single elements along all others."""
        ones = (1,) * len(self.shape)
        one, none = ones[:axis], tuple((0, 0) for _ in self.shape)
        alone = {
            name: (*one, getattr(self, name)[axis], *ones[axis + 1 :])
            for name in ("sizes", "strides", "holes", "steps")
        }
        padding = (*none[:axis], self.padding[axis], *none[axis + 1 :])
        return Windows(self.shape, padding=padding, **alone)

    @property
    def axes(self) -> list[int]:
        """Those along which windows are more than elements, long strides first: these leave the
        least to do for the others."""
        axes = [axis for axis in range(len(self.shape)) if not self.is_trivial(axis)]
        return sorted(axes, key=lambda axis: -self.strides[axis])

    def is_trivial(self, axis: int) -> bool:
        """Whether the windows along an axis are its elements, one by one."""
        one = self.sizes[axis] == self.strides[axis] == self.holes[axis] == 1
        return one and self.padding[axis] == (0, 0)

    def padded(self, x: Any, value: Any) -> Any:
        """`x` with its borders and holes."""
        config = [
            (low, high, hole - 1)
            for (low, high), hole in zip(self.padding, self.holes, strict=True)
        ]
        return lax.pad(x, jnp.asarray(value, x.dtype), config) if any(map(any, config)) else x

    def with_holes(self, x: Any, value: Any) -> Any:
        """`x` with its holes and no border."""
        config = [(0, 0, hole - 1) for hole in self.holes]
        return lax.pad(x, jnp.asarray(value, x.dtype), config) if any(map(any, config)) else x

    def without_holes(self) -> Windows:
        """These windows over an operand that has been given its holes."""
        shape = [
            (extent - 1) * hole + 1 for extent, hole in zip(self.shape, self.holes, strict=True)
        ]
        ones = (1,) * len(shape)
        return Windows(tuple(shape), self.sizes, self.strides, self.padding, ones, self.steps)

    def tap(self, padded: Any, number: Sequence[int]) -> Any:
        """Tap `number` of all windows; `padded` is their operand, with borders."""
        first = [k * step for k, step in zip(number, self.steps, strict=True)]
        last = [
            at + (count - 1) * stride + 1
            for at, count, stride in zip(first, self.counts, self.strides, strict=True)
        ]
        return lax.slice(padded, first, last, self.strides)

    def taps_of(self, padded: Any) -> list[Any]:
        return [self.tap(padded, number) for number in self.taps]

    def tap_alone(self, number: Sequence[int]) -> Windows:
        """Windows of single elements: that tap. Of an operand without holes."""
        padding = []
        for axis, k in enumerate(number):
            low = self.padding[axis][0] - k * self.steps[axis]
            reach = (self.counts[axis] - 1) * self.strides[axis] + 1
            padding.append((low, reach - low - self.shape[axis]))
        ones = (1,) * len(self.shape)
        return Windows(self.shape, ones, self.strides, tuple(padding), ones, ones)

    def tap_in_loop(self, padded: Any, number: Any) -> Any:
        """The same for a number, in row-major order, that a loop counts."""
        first = [
            k * step
            for k, step in zip(jnp.unravel_index(number, self.sizes), self.steps, strict=True)
        ]
        reach = [
            (count - 1) * stride + 1
            for count, stride in zip(self.counts, self.strides, strict=True)
        ]
        rows = lax.dynamic_slice(padded, first, reach)
        return lax.slice(rows, [0] * len(reach), reach, self.strides)

    @property
    def are_whole(self) -> bool:
        """Whether every tap of every window is an element of the operand."""
        return not any(low or high for low, high in self.padding) and set(self.holes) <= {1}

    def inside(self) -> Any:
        """Bools in the shape of the operand with its borders: what is an element of it."""
        return self.padded(jnp.ones(self.shape, bool), False)
