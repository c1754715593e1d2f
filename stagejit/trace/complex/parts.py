"""The real and imaginary parts of complex numbers, which are the last axis of what they are stored
as.

Input: values of pairs, or of parts. Output: the others. Invariant: parts that were joined are at
hand again, so a chain of complex operations never stores a pair between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from stagejit.graph.ir import Value
from stagejit.trace.emitter import Emitter
from stagejit.trace.math.expressions import Real
from stagejit.types import TensorType

Pair = tuple[Real, Real]


def is_complex(aval: Any) -> bool:
    return bool(jnp.issubdtype(aval.dtype, np.complexfloating))


def part_of(emit: Emitter, x: Value, part: int) -> Value:
    """One part of every element of a type whose parts have one axis, such as the real ones."""
    if x in emit.parts:
        return emit.parts[x][part]
    shape = x.type.shape[:-1]
    offsets = (*(0,) * len(shape), part)
    return emit.reshape(emit.extract(x, offsets, (*shape, 1)), shape)


def joined(emit: Emitter, parts: Sequence[Value]) -> Value:
    """The inverse of `part_of` for all parts, scalars among them stretched. Whoever reads it by
    parts reads these, and where everybody does it is never made."""
    parts = emit.stretched(parts)
    shape = parts[0].type.shape
    result = emit.empty(TensorType(parts[0].type.dtype, (*shape, len(parts))))
    for at, part in enumerate(parts):
        row = emit.reshape(part, (*shape, 1))
        result = emit.insert(row, result, (*(0,) * len(shape), at))
    emit.parts[result] = tuple(parts)
    return result


def as_complex(emit: Emitter, real: Value) -> Value:
    return joined(emit, (real, emit.full(0, real.type)))


def pair_of(emit: Emitter, x: Value) -> Pair:
    return Real(emit, part_of(emit, x, 0)), Real(emit, part_of(emit, x, 1))


def of_pair(pair: Pair) -> Value:
    real, imaginary = pair
    return joined(real.emit, (real.value, imaginary.value))
