"""Each float function at the values where IEEE 754 says what it is: zeros of both signs, NaN,
infinities, the smallest and the largest numbers; for each dtype and target, in vectors and scalars,
with denormals and, as on XLA's threads, without."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from stagejit import types
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.target import Target
from stagejit.graph.functions import MAP_FUNCTIONS
from stagejit.graph.meaning import scalar
from stagejit.types import DType
from tests.codegen.conftest import control_setter
from tests.codegen.math.scalar_kernels import (
    PREDICATES,
    Array,
    Compile,
    apply,
    arity,
    elementwise,
    evaluate,
)

TARGETS = [Target.host(), Target.avx2(), Target.sse2()]
FLOATS = [types.f16, types.bf16, types.f32, types.f64]
ATTRS = {"integer_pow": {"y": 3}, "round": {"rounding": "away"}}
NAMES = sorted(
    name
    for name, function in MAP_FUNCTIONS.items()
    if "float" in function.kinds and name not in ("select", "nextafter")
)
_DEFAULT_CONTROL = 0x1F80
_FLUSHING = 0x8040  # flush results to zero, take denormal operands for zero


class Limits:
    """Limits of a dtype as Python floats."""

    def __init__(self, dtype: DType) -> None:
        mantissa, high = {"f16": (10, 15), "bf16": (7, 127), "f32": (23, 127),
                          "f64": (52, 1023)}[dtype.name]  # fmt: skip
        self.eps, self.tiny = 2.0**-mantissa, 2.0 ** (1 - high)
        self.smallest, self.max = self.tiny * self.eps, (2 - self.eps) * 2.0**high


def specials(dtype: DType) -> Array:
    """Zeros, units and halves, the edges of the format, and what lies just inside and outside."""
    info = Limits(dtype)
    size = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 100.0, np.inf, info.max, info.tiny,
            info.tiny / 2, info.smallest, info.tiny * 1.5, info.tiny * 9, info.eps,
            1 - info.eps / 2, 1 + info.eps]  # fmt: skip
    return np.array([*size, *(-x for x in size), np.nan]).astype(dtype.numpy)


def operands(name: str, dtype: DType) -> list[Array]:
    grid = itertools.product(specials(dtype), repeat=arity(name))
    return [np.array(column, dtype.numpy) for column in zip(*grid, strict=True)]


def flushed(x: Array, dtype: DType) -> Array:
    return np.where(np.abs(x) < Limits(dtype).tiny, np.copysign(0, x), x)


def exact(name: str, dtype: DType, args: list[Array]) -> Array:
    """The function in float64, rounded."""
    with np.errstate(all="ignore"):
        wide = [x.astype(np.float64) for x in args]
        result = scalar.float_function(name, ATTRS.get(name, {}))(*wide)
        return result if name in PREDICATES else result.astype(dtype.numpy).astype(np.float64)


def agrees(actual: Array, truth: Array, dtype: DType) -> Array:
    """NaN for NaN, the same sign (of zeros too), at most four units in the last place."""
    if truth.dtype == bool:
        return actual == truth
    info = Limits(dtype)
    with np.errstate(all="ignore"):
        unit = np.maximum(np.abs(truth), info.tiny) * info.eps
        near = (actual == truth) | (np.abs(actual - truth) <= 4 * unit)
        signed = np.signbit(actual) == np.signbit(truth)
        return (near & signed) | (np.isnan(actual) & np.isnan(truth))


def flushed_agrees(actual: Array, truth: Array, dtype: DType) -> Array:
    """Agreement with a result that is flushed to zero where it is no normal number before it is
    rounded."""
    if truth.dtype == bool:
        return actual == truth
    lost = (actual == 0) & (np.abs(truth) <= Limits(dtype).tiny)
    return agrees(actual, truth, dtype) | lost & (np.signbit(actual) == np.signbit(truth))


def flushes(dtype: DType, target: Target, lanes: int) -> bool:
    """The instruction that rounds to bf16 takes denormals for zero in every mode."""
    return dtype is types.bf16 and target.has("avx512bf16") and lanes > 0


@contextmanager
def flushing(on: bool) -> Iterator[None]:
    setter = control_setter()
    setter(_DEFAULT_CONTROL | (_FLUSHING if on else 0))
    try:
        yield
    finally:
        setter(_DEFAULT_CONTROL)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_special_values(compile_kernel: Compile, name: str, dtype: DType, target: Target) -> None:
    args = operands(name, dtype)
    truth = exact(name, dtype, args)
    for lanes, flush in itertools.product((target.lanes(dtype), 0), (False, True)):
        with flushing(flush):
            actual = apply(compile_kernel, name, dtype, *args, target=target, lanes=lanes,
                           attrs=ATTRS.get(name))  # fmt: skip
        if flush or flushes(dtype, target, lanes):
            right = agrees_with_either(name, dtype, args, actual)
        else:
            right = agrees(as_reference(actual), truth, dtype)
        check(f"{name} {dtype} lanes={lanes} flush={flush}", args, actual, truth, right)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["neg", "abs"])
def test_signs_change_and_nothing_else(
    compile_kernel: Compile, name: str, dtype: DType, target: Target
) -> None:
    """Denormals stay, in any number of lanes."""
    x = specials(dtype)
    bits = np.dtype(f"u{x.itemsize}")
    for lanes, flush in itertools.product((0, 2, 4, target.lanes(dtype)), (False, True)):
        with flushing(flush):
            actual = apply(compile_kernel, name, dtype, x, target=target, lanes=lanes)
        truth = (-x if name == "neg" else np.abs(x)).view(bits)
        right = (actual.view(bits) == truth) | np.isnan(x)
        check(f"{name} {dtype} lanes={lanes} flush={flush}", [x], actual, truth, right)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_what_becomes_a_bfloat16_keeps_denormals(compile_kernel: Compile, target: Target) -> None:
    x = np.concatenate([specials(types.f32), specials(types.bf16).astype(np.float32)])
    x = np.append(x, np.float32(1.1754942e-38))  # rounds to the smallest normal number
    for lanes, flush in itertools.product((0, 2, 4, target.lanes(types.f32)), (False, True)):
        kernel = elementwise(
            lambda b, v: b.cast("fptrunc", v, "bf16"), [types.f32], types.bf16, lanes
        )
        with flushing(flush):
            actual = evaluate(compile_kernel, kernel, types.bf16, x, target=target)
        truth = x.astype(types.bf16.numpy)
        right = (actual.view("u2") == truth.view("u2")) | np.isnan(x)
        check(f"bf16 lanes={lanes} flush={flush}", [x], actual, truth, right)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", [name for name in NAMES if arity(name) > 1])
def test_constants_among_the_operands(compile_kernel: Compile, name: str, dtype: DType) -> None:
    """What is decided about a constant while compiling is what the CPU would decide."""
    x, target, half = specials(dtype), Target.host(), Limits(dtype).tiny / 2
    rest = np.ones_like(x)
    for place, number in itertools.product(range(arity(name)), (0.0, -0.0, half, -half)):
        args = [x if k == (place + 1) % arity(name) else rest for k in range(arity(name))]
        args[place] = np.full_like(x, number)

        def body(b: Builder, *values: Value, place: int = place, number: float = number) -> Value:
            operands = list(values)
            operands[place] = b.const(number, values[place].type)
            return vmath.emit(b, name, dtype, operands)

        result = types.bool_ if name in PREDICATES else dtype
        function = elementwise(body, [dtype] * len(args), result, target.lanes(dtype))
        with flushing(True):
            actual = evaluate(compile_kernel, function, result, *args, target=target)
        right = agrees_with_either(name, dtype, args, actual)
        check(f"{name} {dtype} of {number}", args, actual, exact(name, dtype, args), right)


def as_reference(actual: Array) -> Array:
    return actual if actual.dtype == bool else actual.astype(np.float64)


def agrees_with_either(name: str, dtype: DType, args: list[Array], actual: Array) -> Array:
    """Agreement with the function of the operands, any of which may be flushed to zero."""
    choices = [(x, flushed(x.astype(np.float64), dtype)) for x in args]
    right = np.zeros(actual.shape, bool)
    for taken in itertools.product(*choices):
        right |= flushed_agrees(as_reference(actual), exact(name, dtype, list(taken)), dtype)
    return right


def check(title: str, args: list[Array], actual: Array, truth: Array, right: Array) -> None:
    wrong = np.flatnonzero(~right)
    assert not wrong.size, "\n".join(
        [f"{title}: {wrong.size} wrong"]
        + [f"{[float(a[k]) for a in args]} -> {actual[k]}, not {truth[k]}" for k in wrong[:8]]
    )
