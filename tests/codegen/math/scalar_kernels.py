"""Kernels that apply one scalar function to arrays, and references in extended precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from stagejit import types
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Buffer, Function, Value, storage_type
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.target import Target
from stagejit.graph.functions import MAP_FUNCTIONS
from stagejit.types import DType

Array = np.ndarray[Any, np.dtype[Any]]
Compile = Callable[..., Callable[..., None]]


PREDICATES = frozenset(name for name, function in MAP_FUNCTIONS.items() if function.predicate)


def arity(name: str) -> int:
    return MAP_FUNCTIONS[name].arity


def defined(name: str, dtype: DType) -> bool:
    """Whether the function takes operands of the dtype."""
    function = MAP_FUNCTIONS[name]
    return dtype.kind in function.kinds and function.bits in (0, dtype.bits)


def load(b: Builder, buffer: Buffer, dtype: DType, index: Value, lanes: int) -> Value:
    value = b.load(buffer, index, lanes)
    return b.compare("ne", value, 0) if dtype.kind == "bool" else value


def elementwise(
    body: Callable[..., Value],
    dtypes: Sequence[DType],
    result: DType,
    lanes: int,
    *,
    few: bool = False,
) -> Function:
    """`out[i] = body(b, *inputs[i])` over [lo, hi), `lanes` at a time (0: scalar). few: as where
    there are few values."""
    b = Builder()
    b.few = few
    inputs = [b.buffer("x", storage_type(dtype), readonly=True) for dtype in dtypes]
    output = b.buffer("out", storage_type(result))

    def step(i: Value) -> None:
        args = [load(b, x, t, i, lanes) for x, t in zip(inputs, dtypes, strict=True)]
        value = body(b, *args)
        b.store(b.cast("zext", value, "i8") if value.type.elem == "i1" else value, output, i)

    b.loop(b.lo, b.hi, max(lanes, 1), [], step)
    return b.finish()


def emitted(
    name: str,
    dtype: DType,
    lanes: int,
    attrs: Mapping[str, Any] | None = None,
    dtypes: Sequence[DType] | None = None,
    *,
    few: bool = False,
) -> Function:
    """The kernel of one primitive on operands of `dtype`."""
    return elementwise(
        lambda b, *args: vmath.emit(b, name, dtype, args, attrs),
        dtypes or [dtype] * arity(name),
        types.bool_ if name in PREDICATES else dtype,
        lanes,
        few=few,
    )


def evaluate(
    compile_kernel: Compile, function: Function, result: DType, *args: Array, target: Target
) -> Array:
    """Runs an elementwise kernel over arrays of one length, padded to whole vectors."""
    size = args[0].size
    padded = -(-size // 64) * 64
    inputs = [np.resize(a, padded) for a in args]
    output = np.zeros(padded, result.numpy)
    compile_kernel(function, target)([*inputs, output], [], 0, padded)
    return output[:size]


def apply(
    compile_kernel: Compile,
    name: str,
    dtype: DType,
    *args: Array,
    target: Target | None = None,
    lanes: int | None = None,
    attrs: Mapping[str, Any] | None = None,
    dtypes: Sequence[DType] | None = None,
    few: bool = False,
) -> Array:
    """One primitive on arrays, through the compiler."""
    target = target or Target.host()
    lanes = target.lanes(dtype) if lanes is None else lanes
    function = emitted(name, dtype, lanes, attrs, dtypes, few=few)
    result = types.bool_ if name in PREDICATES else dtype
    return evaluate(compile_kernel, function, result, *args, target=target)


# -------------------------------------------------------------------- references


def exact_erfc(x: Array) -> Array:
    """erfc in extended precision: a series of positive terms below 1.25, above a continued
    fraction. Abramowitz and Stegun 7.1.6 and 7.1.14."""
    a = np.abs(x.astype(np.longdouble))
    root_pi = np.sqrt(np.longdouble(np.pi) + np.longdouble(1.2246467991473531772e-16))
    term = total = np.minimum(a, 1.25)
    for k in range(1, 60):
        term = term * 2 * np.minimum(a, 1.25) ** 2 / (2 * k + 1)
        total = total + term
    below = 1 - 2 / root_pi * np.exp(-(np.minimum(a, 1.25) ** 2)) * total
    big = np.maximum(a, 1.25)
    fraction = big.copy()
    for k in range(500, 0, -1):
        fraction = big + (np.longdouble(k) / 2) / fraction
    above = np.exp(-(big**2)) / (root_pi * fraction)
    upper = np.where(a < 1.25, below, above)
    return np.where(x < 0, 2 - upper, upper)


def exact_erf(x: Array) -> Array:
    a = np.abs(x.astype(np.longdouble))
    small = np.minimum(a, 1)
    root_pi = np.sqrt(np.longdouble(np.pi) + np.longdouble(1.2246467991473531772e-16))
    term = total = small
    for k in range(1, 40):
        term = term * 2 * small**2 / (2 * k + 1)
        total = total + term
    near = 2 / root_pi * np.exp(-(small**2)) * total
    return np.copysign(np.where(a < 1, near, 1 - exact_erfc(a)), x)


def exact_erf_inv(x: Array) -> Array:
    """SciPy's value after a Newton step in extended precision."""
    a = np.abs(x.astype(np.longdouble))
    y = special.erfinv(a.astype(np.float64)).astype(np.longdouble)
    finite = np.where(np.isfinite(y), y, 0)
    residual = np.where(a < 0.5, exact_erf(finite) - a, (1 - a) - exact_erfc(finite))
    slope = np.exp(finite**2) * np.sqrt(np.longdouble(np.pi)) / 2
    return np.copysign(np.where(np.isfinite(y), finite - residual * slope, y), x)


def errors_in_ulp(actual: Array, exact: Array) -> Array:
    """Distance from the exact value in units of the last place of its rounding; infinite where one
    is NaN or infinite and the other is not. Tiny results count as correct if tiny."""
    dtype = actual.dtype
    rounded = exact.astype(dtype)
    smallest = np.finfo(dtype).tiny
    finite = np.isfinite(rounded)
    unit = np.spacing(np.abs(np.where(finite, rounded, 1))).astype(np.longdouble)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(actual.astype(np.longdouble) - exact) / unit
    same = (np.isnan(actual) & np.isnan(rounded)) | (actual == rounded)
    both_tiny = (np.abs(actual) <= smallest) & (np.abs(rounded) <= smallest)
    error = np.where(same & ~finite | both_tiny, 0, error)
    return np.where(finite | same, np.nan_to_num(error, nan=np.inf), np.inf)


def random_bits(rng: np.random.Generator, count: int, dtype: DType) -> Array:
    """Floats of all magnitudes, NaN and infinity among them; denormals become zeros."""
    bits = rng.integers(0, 2**dtype.bits - 1, count, np.uint64, endpoint=True)
    values = bits.astype(f"uint{dtype.bits}").view(dtype.numpy)
    return np.where(np.abs(values) < np.finfo(dtype.numpy).tiny, np.copysign(0, values), values)
