"""A weight in fewer bytes: as bf16, or as integers with a scale for each channel.

Input: a value, the form, its channels. Output: ops that make what lies in memory, and ops that make
the weight of that again. Invariant: who reads it, in whichever product, reads the same elements.

Note [Symmetric integers]: with the largest magnitude m of a channel, 8 bits hold x as round(x / s)
for s = m / 127, 4 bits for s = m / 7. A scale that is the same for all terms of a sum multiplies
the sum; one along the axis that is summed over (a product with the transpose, as in a gradient)
multiplies the other operand. Two of 4 bits are in one byte, each 8 more than the number: of the two
halves of an axis that is summed over, or of a panel, so that a vector of bytes is two of numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stagejit.base.records import record
from stagejit.graph.ir import Graph, Value
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops import build, filled
from stagejit.rewrites.split.partial import converted, mapped
from stagejit.rewrites.split.pieces import put_along, taken_along
from stagejit.types import TensorType, bf16, f32, i8, u8

_LARGEST = {"int8": 127, "int4": 7}
_BITS = {"bf16": 16, "int8": 8, "int4": 4}
_LEAST_SCALE = 2.0**-126  # the smallest normal number of f32
_LARGE = 2.0**100  # up to here weights have one answer to whether they stay finite
_NIBBLE, _ZERO = 4, 8
_PANELS_FROM = 1 << 18  # elements of a matrix
_WIDTHS = (128, 64, 32)  # columns of a panel
_PART_OF_ZEROS = 8  # of columns, at most one in so many is put beside them


@record
class Stored:
    """A weight as it lies in memory. channels: its axes that have scales of their own; packed: the
    axis along which two are in a byte, or None. summed: of a matrix in panels the axis that these
    have whole, see Note [Panels]; None of any other."""

    value: Value
    narrow: Value
    scale: Value | None = None
    channels: tuple[int, ...] = ()
    packed: int | None = None
    summed: int | None = None

    @property
    def columns(self) -> int:
        """Of a matrix in panels, with those of zeros that make the last panel a whole one."""
        panels, _, nbytes = self.narrow.shape
        return panels * nbytes * (1 if self.packed is None else 2)

    def wide(self, graph: Graph) -> Value:
        """Without scales, in the type of the weight. Two in a byte have an axis of 2 before
        `packed`, but in panels."""
        dtype = self.value.type.dtype
        if self.packed is None:
            return converted(graph, self.narrow, dtype)
        made = self._unpacked(graph, self.packed)
        if self.summed is None:
            return made
        panels, steps, nbytes = self.narrow.shape
        return build(graph, "reshape", [made], shape=(panels, steps, 2 * nbytes))

    def _unpacked(self, graph: Graph, at: int) -> Value:
        """Low halves, then high ones, along a new axis."""
        dtype, shape = self.value.type.dtype, self.narrow.shape
        halves = (*shape[:at], 2, *shape[at:])
        axes = (*range(at), *range(at + 1, len(halves)))
        both = build(graph, "broadcast", [self.narrow], shape=halves, axes=axes)
        number = build(graph, "iota", (), shape=halves, dtype=u8, axis=at)
        shift = mapped(graph, "mul", number, filled(graph, _NIBBLE, number.type))
        half = mapped(graph, "shift_right_logical", both, shift)
        number = mapped(graph, "and", half, filled(graph, 15, half.type))
        made = converted(graph, number, dtype)
        return mapped(graph, "sub", made, filled(graph, _ZERO, made.type))

    def transposed(self, graph: Graph, value: Value, order: Sequence[int]) -> Stored:
        """Axis i of `value` is axis `order[i]` of the weight."""
        if self.summed is not None:
            summed = order.index(self.summed)
            channels = tuple(order.index(axis) for axis in self.channels)
            return replace(self, value=value, channels=channels, summed=summed)
        narrow = build(graph, "transpose", [self.narrow], permutation=tuple(order))
        channels = tuple(order.index(axis) for axis in self.channels)
        packed = None if self.packed is None else order.index(self.packed)
        return Stored(value, narrow, self.scale, channels, packed)

    def whole(self, graph: Graph) -> Value:
        """Without scales, in the shape of the weight."""
        if self.summed is not None:
            wide = self.wide(graph)
            order = (1, 0, 2) if self.summed == 0 else (0, 2, 1)
            wide = build(graph, "transpose", [wide], permutation=order)
            shape = list(self.value.shape)
            shape[1 - self.summed] = self.columns
            wide = build(graph, "reshape", [wide], shape=tuple(shape))
            return taken_along(graph, wide, 1 - self.summed, 0, self.value.shape[1 - self.summed])
        return build(graph, "reshape", [self.wide(graph)], shape=self.value.shape)

    def restored(self, graph: Graph) -> Value:
        """What stands for the weight in any product."""
        made = self.whole(graph)
        if self.scale is None:
            return made
        return mapped(graph, "mul", made, along(graph, self.scale, made.shape, self.channels))


def narrowed(
    graph: Graph, value: Value, form: str, channels: tuple[int, ...], summed: int | None
) -> Stored:
    if form == "bf16":
        return _in_panels(graph, Stored(value, converted(graph, value, bf16)), channels)
    if form == "int4" and summed is None:
        form = "int8"  # nothing to pair
    largest = _LARGEST[form]
    others = tuple(axis for axis in range(value.type.rank) if axis not in channels)
    magnitude = mapped(graph, "abs", value)
    if others:
        magnitude = build(graph, "reduce", [magnitude], fn="max", axes=others)
    scale = mapped(graph, "div", magnitude, filled(graph, float(largest), magnitude.type))
    # One for zeros, too; of a smaller one kernels would make a zero, and divide by it.
    scale = mapped(graph, "max", scale, filled(graph, _LEAST_SCALE, magnitude.type))
    ratio = mapped(graph, "div", value, along(graph, scale, value.shape, channels))
    rounded = build(graph, "map", [ratio], fn="round", dtype=f32, rounding="even")
    if form == "int8":
        narrow = converted(graph, rounded, i8)
        return _in_panels(graph, Stored(value, narrow, scale, channels), channels)
    assert summed is not None
    positive = mapped(graph, "add", rounded, filled(graph, float(_ZERO), rounded.type))
    number = converted(graph, positive, u8)
    panels = _in_panels(graph, Stored(value, number, scale, channels), channels, paired=True)
    if panels.summed is not None:
        return replace(panels, narrow=_in_bytes(graph, panels.narrow, 2), packed=2)
    return Stored(value, _in_bytes(graph, number, summed), scale, channels, summed)


def _in_bytes(graph: Graph, value: Value, axis: int) -> Value:
    """Those of the second half of an axis above those of the first."""
    low, high = (_half(graph, value, axis, first) for first in (0, 1))
    high = mapped(graph, "shift_left", high, filled(graph, _NIBBLE, high.type))
    return mapped(graph, "or", low, high)


def bits_of(form: str, paired: bool) -> int:
    """Of an element. paired: see `stays_finite`."""
    return _BITS[form if paired or form == "bf16" else "int8"]


def has_infinities(form: str) -> bool:
    """Whether Inf and NaN are numbers of a form, too."""
    return form not in _LARGEST


def has_steps(form: str, largest: float, paired: bool = True) -> bool:
    """Whether the scale of numbers up to this magnitude is what the note says: one that would be
    subnormal is the least of the normal numbers, of which small weights are few multiples."""
    if largest == 0 or form not in _LARGEST:
        return True
    steps = _LARGEST[form if paired else "int8"]
    return largest / steps >= _LEAST_SCALE


def stays_finite(form: str, largest: float, paired: bool = True) -> bool:
    """Whether finite numbers up to this magnitude are still finite once they are restored: smaller
    ones are if the largest is, as no rounding changes an order. paired: whether it is summed over
    an axis of which two may be in a byte."""
    return _stays_finite(form, max(largest, _LARGE), paired)


@functools.lru_cache(maxsize=64)
def _stays_finite(form: str, largest: float, paired: bool) -> bool:
    graph = Graph("largest")
    value = graph.add_input("w", TensorType(f32, (2,)))
    graph.set_outputs([narrowed(graph, value, form, (), 0 if paired else None).restored(graph)])
    (restored,) = interpret(graph, [[largest, largest]])
    return bool(np.isfinite(restored).all())


def _in_panels(
    graph: Graph, stored: Stored, channels: tuple[int, ...], *, paired: bool = False
) -> Stored:
    """Note [Panels]: a vector times a matrix takes as long as the matrix takes from memory, which
    is least where a core reads one line after the other. So a large matrix lies in panels of some
    columns, all of them as long as the sum: element (k, n) is (n / width, k, n % width). So does
    any matrix of which two numbers are in a byte: both are of one step then, and a tile makes
    either where it reads them; those of two steps would be made in scratch, in each call. So such
    a matrix whose columns are no whole panels, as those of a vocabulary are, gets some of zeros."""
    value, size = stored.value, stored.value.type.size
    if value.type.rank != 2 or len(channels) != 1 or (size < _PANELS_FROM and not paired):
        return stored
    (axis,) = channels
    columns, steps = value.shape[axis], value.shape[1 - axis]
    width = min(_WIDTHS if paired else _WIDTHS[:1], key=lambda width: -columns % width)
    zeros = -columns % width
    if zeros and not (paired and zeros * _PART_OF_ZEROS <= columns):
        return stored
    narrow, columns = stored.narrow, columns + zeros
    if zeros:
        sizes = (steps, columns) if axis else (columns, steps)
        whole = filled(graph, _ZERO, TensorType(narrow.type.dtype, sizes))
        narrow = put_along(graph, narrow, whole, axis, 0)
    shape = [steps, columns // width, width] if axis else [columns // width, width, steps]
    split = build(graph, "reshape", [narrow], shape=tuple(shape))
    order = (1, 0, 2) if axis else (0, 2, 1)
    narrow = build(graph, "transpose", [split], permutation=order)
    return replace(stored, narrow=narrow, summed=1 - axis)


def _half(graph: Graph, value: Value, axis: int, number: int) -> Value:
    rank, count = value.type.rank, value.shape[axis] // 2
    return build(
        graph, "extract_slice", [value],
        offsets=tuple(number * count if at == axis else 0 for at in range(rank)),
        sizes=tuple(count if at == axis else n for at, n in enumerate(value.shape)),
        strides=(1,) * rank,
    )  # fmt: skip


def along(graph: Graph, value: Value, shape: Sequence[int], axes: Sequence[int]) -> Value:
    """Repeated, with axis i along `axes[i]` of the result."""
    order = sorted(range(len(axes)), key=lambda at: axes[at])
    if order != list(range(len(axes))):
        value = build(graph, "transpose", [value], permutation=tuple(order))
    known = [
        (axis, size) for axis, size in zip(sorted(axes), value.shape, strict=True) if size != 1
    ]
    value = build(graph, "reshape", [value], shape=tuple(size for _, size in known))
    if not known:
        return build(graph, "fill", [value], shape=tuple(shape))
    return build(graph, "broadcast", [value], shape=tuple(shape), axes=tuple(a for a, _ in known))
