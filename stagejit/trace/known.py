"""Small integers known while tracing: what `x.at[2:5]` and `x[-1]` compute their indices from.

Input: equations as they are emitted. Output: `value_of(var)`, a NumPy array, or None where the
value depends on an argument, is not an integer or bool, or is large; what has no elements is known.
Invariant: knowing a value never changes the program; it only lets a translation choose a static
form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stagejit.trace.program import Equation, Var

Array = np.ndarray[Any, np.dtype[Any]]

Index = tuple[int, ...]

MAX_ELEMENTS = 4096

# Index vectors such as `concatenate([i[None], 3])` are assembled by these.
_MOVERS = frozenset({"fill", "reshape", "broadcast", "insert_slice"})

# Wrapping is right for every entry; division is absent because it needs JAX's rules for zero.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "select": np.where,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
}


class Knowledge:
    """The values of those variables that constants alone determine.

    Evaluated as equations are defined, not on demand, so a long chain of them needs no deep stack.
    """

    def __init__(self) -> None:
        self._values: dict[Var, Array] = {}
        self._movers: dict[Var, Equation] = {}

    def value_of(self, var: Var) -> Array | None:
        if var.type.size == 0 and _is_exact(var):
            return np.zeros(var.type.shape, var.type.dtype.numpy)
        return self._values.get(var)

    def source_of_element(self, var: Var, index: Index) -> tuple[Var, Index] | None:
        """The operand, and the index into it, that this element of `var` is a copy of."""
        equation = self._movers.get(var)
        return None if equation is None else _element_source(equation, index)

    def define(self, var: Var, equation: Equation) -> None:
        if equation.kind in _MOVERS:
            self._movers[var] = equation
        if not _is_exact(var) or var.type.size > MAX_ELEMENTS:
            return
        operands = [self._values.get(operand) for operand in equation.operands]
        present = [value for value in operands if value is not None]
        if len(present) < len(operands):
            return
        with np.errstate(all="ignore"):
            result = _evaluate(equation, present)
        if result is not None:
            self._values[var] = np.asarray(result, dtype=var.type.dtype.numpy)


def _is_exact(var: Var) -> bool:
    return var.type.dtype.is_integer or var.type.dtype.kind == "bool"


def _element_source(equation: Equation, index: Index) -> tuple[Var, Index] | None:
    first = equation.operands[0]
    match equation.kind:
        case "fill":
            return first, ()
        case "reshape" if first.type.size:
            flat = np.ravel_multi_index(index, equation.results[0].type.shape)
            return first, tuple(map(int, np.unravel_index(flat, first.type.shape)))
        case "broadcast":
            return first, tuple(index[axis] for axis in equation.attrs["axes"])
        case "insert_slice" if None not in equation.attrs["offsets"]:
            offsets, strides = equation.attrs["offsets"], equation.attrs["strides"]
            place = [divmod(i - o, s) for i, o, s in zip(index, offsets, strides, strict=True)]
            inside = all(
                rest == 0 and 0 <= at < size
                for (at, rest), size in zip(place, first.type.shape, strict=True)
            )
            return (
                (first, tuple(at for at, _ in place)) if inside else (equation.operands[1], index)
            )
    return None


def _evaluate(equation: Equation, operands: list[Array]) -> Any:
    attrs = equation.attrs
    match equation.kind:
        case "const":
            return attrs["value"]
        case "iota":
            sizes = [-1 if axis == attrs["axis"] else 1 for axis in range(len(attrs["shape"]))]
            line = np.arange(attrs["shape"][attrs["axis"]]).reshape(sizes)
            return np.broadcast_to(line, attrs["shape"])
        case "fill":
            return np.broadcast_to(operands[0], attrs["shape"])
        case "convert":
            return operands[0].astype(attrs["dtype"].numpy)
        case "reshape":
            return operands[0].reshape(attrs["shape"])
        case "transpose":
            return operands[0].transpose(attrs["permutation"])
        case "reverse":
            return np.flip(operands[0], attrs["axes"])
        case "broadcast":
            sizes = [1] * len(attrs["shape"])
            for axis, size in zip(attrs["axes"], operands[0].shape, strict=True):
                sizes[axis] = size
            return np.broadcast_to(operands[0].reshape(sizes), attrs["shape"])
        case "map" if attrs["fn"] in _FUNCTIONS:
            return _FUNCTIONS[attrs["fn"]](*operands)
        case "empty":
            return np.zeros(attrs["shape"], attrs["dtype"].numpy)
        case "extract_slice" if None not in attrs["offsets"]:
            return operands[0][_box(attrs["offsets"], attrs["sizes"], attrs["strides"])]
        case "insert_slice" if None not in attrs["offsets"]:
            result = operands[1].copy()
            result[_box(attrs["offsets"], operands[0].shape, attrs["strides"])] = operands[0]
            return result
    return None


def _box(
    offsets: tuple[int, ...], sizes: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[slice, ...]:
    return tuple(
        slice(offset, offset + (size - 1) * stride + 1 if size else offset, stride)
        for offset, size, stride in zip(offsets, sizes, strides, strict=True)
    )
