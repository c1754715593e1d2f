"""Whether the code of a user's elementwise op means what its `interpret` says.

Input: an op of a region. Output: nothing, or an ExtensionError with an element where they differ.
Invariant: both are given the same elements: random ones, zeros, ones, small and large integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stagejit.base.extension import Extension
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.interpreter.run import interpret
from stagejit.codegen.ir.nodes import Buffer, storage_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.graph.evaluator import Evaluator
from stagejit.graph.ir import Op
from stagejit.types import DType

Array = np.ndarray[Any, np.dtype[Any]]
_COMPARED = 64  # elements
_DIFFERENT = 1 << 16
_ROUNDINGS = {2: 8, 4: 64, 8: 64}  # by bytes: of code, where its meaning is rounded once


def require_its_meaning(op: Op, own: Extension) -> None:
    """own: whose op it is. Raises ExtensionError where an element differs by more than rounding."""
    random = np.random.default_rng(0)
    operands = [_elements(random, value.type.dtype, value.type.shape) for value in op.operands]
    with np.errstate(all="ignore"), own.running("failed in its interpret"):
        (result,) = Evaluator("declared").op(op, operands)
    given = [array.reshape(-1)[:_COMPARED] for array in operands]
    wanted = result.reshape(-1)[:_COMPARED]
    made = _by_code(op, given, wanted)
    for at in np.flatnonzero(~_alike(made, wanted)):
        elements = ", ".join(str(array[at]) for array in given)
        raise own.fault(
            f"has code that does not do what its interpret does: of {elements} the code makes "
            f"{made[at]}, interpret {wanted[at]}"
        )


def _elements(random: np.random.Generator, dtype: DType, shape: Sequence[int]) -> Array:
    count = min(int(np.prod(shape)), _DIFFERENT)
    made: Array
    if dtype.kind == "bool":
        made = random.random(count) < 0.5
    elif dtype.is_float:
        made = random.standard_normal(count) * 4
        made[:2] = (0.0, 1.0)[:count]
    else:
        large = np.iinfo(dtype.numpy)
        made = random.integers(large.min // 2, large.max // 2, count, dtype.numpy)
        made[::2] = random.integers(0, 9, made[::2].shape)
    return np.resize(made.astype(dtype.numpy), shape)


def _by_code(op: Op, operands: Sequence[Array], like: Array) -> Array:
    """What the code makes of elements, one by one."""
    b, code = Builder(), op.definition.code
    assert code is not None
    sources = [
        b.buffer("in", storage_type(value.type.dtype), readonly=True) for value in op.operands
    ]
    result = b.buffer("out", storage_type(op.result.type.dtype))
    is_bool = [value.type.dtype.kind == "bool" for value in (*op.operands, op.result)]

    def loaded(buffer: Buffer, i: Register, *, as_bool: bool) -> Register:
        element = b.load(buffer, i)
        return b.compare("ne", element, 0) if as_bool else element

    def element(i: Register) -> None:
        pairs = zip(sources, is_bool, strict=False)
        made = code(b, op, [loaded(buffer, i, as_bool=yes) for buffer, yes in pairs])
        b.store(b.cast("zext", made, result.elem.elem) if is_bool[-1] else made, result, i)

    b.loop(0, like.size, 1, (), element)
    made = np.zeros_like(like)
    interpret(b.finish(), [*map(_stored, operands), _stored(made)])
    return made


def _stored(array: Array) -> Array:
    """A bool is a byte in memory."""
    return np.ascontiguousarray(array).view(np.uint8) if array.dtype == bool else array


def _alike(made: Array, wanted: Array) -> Array:
    if wanted.dtype.kind in "biu":
        return np.asarray(made == wanted)
    step = 2.0**-7 if wanted.dtype.kind == "V" else float(np.finfo(wanted.dtype).eps)
    one, other = made.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        room = (
            _ROUNDINGS[wanted.itemsize]
            * step
            * np.maximum(np.maximum(np.abs(one), np.abs(other)), 1.0)
        )
        near = np.abs(one - other) <= room
    return np.asarray(near | (one == other) | (np.isnan(one) & np.isnan(other)))
