"""Every scalar function for every dtype against the interpreter's NumPy; conversions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from stagejit import types
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.target import Target
from stagejit.errors import InternalError
from stagejit.graph.functions import MAP_FUNCTIONS
from stagejit.graph.meaning import scalar
from stagejit.types import DType
from tests.codegen.math.scalar_kernels import (
    PREDICATES,
    Array,
    Compile,
    apply,
    arity,
    defined,
    elementwise,
    emitted,
    evaluate,
)

SIGNED = [types.i8, types.i16, types.i32, types.i64]
UNSIGNED = [types.u8, types.u16, types.u32, types.u64]
FLOATS = [types.f16, types.bf16, types.f32, types.f64]
ALL = [*SIGNED, *UNSIGNED, *FLOATS, types.bool_]
TARGETS = [Target.host(), Target.avx2(), Target.sse2(), Target.neon()]
ATTRS: dict[str, dict[str, Any]] = {
    "integer_pow": {"y": 5},
    "round": {"rounding": "away"},
    "threefry2x32": {"word": 1},
}


def operands(dtype: DType, count: int, size: int = 4096) -> list[Array]:
    """Small and large values, and every pair of the special ones."""
    rng = np.random.default_rng(7)
    if dtype.kind == "bool":
        return [rng.integers(0, 2, size).astype(bool) for _ in range(count)]
    if dtype.is_float:
        special = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, np.inf, -np.inf, np.nan]
        drawn = [
            rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4, size) for _ in range(count)
        ]
    else:
        info = np.iinfo(dtype.numpy)
        special = [0, 1, 2, 3, 7, info.bits - 1, info.bits, info.max, info.min, info.max - 1]
        special += [-1, -2] if dtype.is_signed else []
        small = rng.integers(0 if not dtype.is_signed else -9, 10, size)
        drawn = [
            np.where(rng.integers(0, 2, size), small,
                     rng.integers(info.min, info.max, size, dtype.numpy, endpoint=True))
            for _ in range(count)
        ]  # fmt: skip
    grid = np.array(list(itertools.product(special, repeat=count))).T
    if not dtype.is_float:
        grid = np.array(list(itertools.product(special, repeat=count)), object).T
    return [np.concatenate([d.astype(dtype.numpy), g.astype(dtype.numpy)])
            for d, g in zip(drawn, grid, strict=True)]  # fmt: skip


def assert_same(actual: Array, truth: Array) -> None:
    """Equal element by element, NaN to NaN (NumPy does not know bfloat16's)."""
    assert actual.dtype == truth.dtype
    if actual.dtype.itemsize == 2 and actual.dtype.kind not in "iu":
        actual, truth = actual.astype(np.float32), truth.astype(np.float32)
    np.testing.assert_array_equal(actual, truth)


def expected(name: str, dtype: DType, args: list[Array]) -> Array:
    attrs = ATTRS.get(name, {})
    if not dtype.is_float:
        return scalar.integer_function(name, attrs)(*args)
    wide = [a.astype(np.float64) for a in args]
    result = scalar.float_function(name, attrs)(*wide)
    return result if name in PREDICATES else result.astype(dtype.numpy)


INEXACT = frozenset([
    "exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "rsqrt", "cbrt", "erf", "erfc",
    "erf_inv", "pow", "atan2",
])  # fmt: skip
EXACT = sorted(set(MAP_FUNCTIONS) - INEXACT - {"integer_pow", "select", "nextafter"})


def pairs_of(names: Iterable[str]) -> Any:
    """Parameters `name, dtype` for each dtype that a function is defined for."""
    pairs = [(name, dtype) for name in names for dtype in ALL if defined(name, dtype)]
    return pytest.mark.parametrize(("name", "dtype"), pairs, ids=lambda value: str(value))


@pytest.mark.parametrize("lanes", [None, 0], ids=["vector", "scalar"])
@pairs_of([*EXACT, "integer_pow"])
def test_exact_functions(
    compile_kernel: Compile, name: str, dtype: DType, lanes: int | None
) -> None:
    if name == "integer_pow" and dtype.is_float:
        return  # rounds; see test_integer_power_of_floats
    args = operands(dtype, arity(name))
    actual = apply(compile_kernel, name, dtype, *args, lanes=lanes, attrs=ATTRS.get(name))
    with np.errstate(all="ignore"):
        assert_same(actual, expected(name, dtype, args))


@pytest.mark.parametrize("target", TARGETS[1:3], ids=lambda t: t.name)
@pairs_of(["add", "div", "rem", "max", "min", "round", "floor", "ceil", "clamp"])
def test_exact_functions_on_older_cpus(
    compile_kernel: Compile, name: str, dtype: DType, target: Target
) -> None:
    args = operands(dtype, arity(name), 256)
    attrs = ATTRS.get(name)
    actual = apply(compile_kernel, name, dtype, *args, target=target, attrs=attrs)
    with np.errstate(all="ignore"):
        assert_same(actual, expected(name, dtype, args))


@pytest.mark.parametrize("dtype", [types.f16, types.bf16], ids=str)
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sin", "erf", "logistic", "rsqrt", "pow"])
def test_short_floats_round_a_good_f32(compile_kernel: Compile, name: str, dtype: DType) -> None:
    """All 65536 operands; the f32 result is within 2 units, so the rounded one is within half of
    its own unit and a little."""
    x = np.arange(65536, dtype=np.uint16).view(dtype.numpy)
    args = [x, np.full_like(x, 1.5)][: arity(name)]
    actual = apply(compile_kernel, name, dtype, *args, lanes=16)
    with np.errstate(all="ignore"):
        exact = scalar.float_function(name, {})(*(a.astype(np.float64) for a in args))
        rounded = exact.astype(dtype.numpy)
        unit = np.spacing(np.abs(rounded)).astype(np.float64)
        close = np.abs(actual.astype(np.float64) - exact) <= 0.5003 * unit
        same = (actual == rounded) | np.isnan(exact)
        tiny = np.minimum(np.abs(x.astype(np.float64)), np.abs(exact)) < 1.2e-38  # flushed
    assert not (~close & ~same & ~tiny).any()
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(exact))


def test_integer_power_of_floats(compile_kernel: Compile) -> None:
    x = operands(types.f32, 1)[0]
    for y in (-3, -1, 0, 1, 2, 3, 7, 10):
        actual = apply(compile_kernel, "integer_pow", types.f32, x, attrs={"y": y})
        with np.errstate(all="ignore"):
            exact = np.power(x.astype(np.float64), y)
        np.testing.assert_allclose(actual, exact.astype(np.float32), rtol=6e-7)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_neighbours(compile_kernel: Compile, dtype: DType) -> None:
    x, y = operands(dtype, 2)
    smallest = np.array([0, 1, 1 << (dtype.bits - 1)], f"uint{dtype.bits}").view(dtype.numpy)
    x, y = np.concatenate([x, smallest, smallest]), np.concatenate([y, smallest[::-1], smallest])
    actual = apply(compile_kernel, "nextafter", dtype, x, y)
    assert_same(actual, np.nextafter(x, y))
    zeros = actual == 0  # between equal operands the second, as in C; else of the first's sign
    signs = np.where(x == y, np.signbit(y), np.signbit(x))
    np.testing.assert_array_equal(np.signbit(actual[zeros]), signs[zeros])


@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
def test_remainder_of_any_magnitudes(compile_kernel: Compile, dtype: DType) -> None:
    rng = np.random.default_rng(3)
    limit = 37 if dtype.bits == 32 else 300
    x = (rng.standard_normal(8192) * 10.0 ** rng.uniform(-limit, limit, 8192)).astype(dtype.numpy)
    y = (rng.standard_normal(8192) * 10.0 ** rng.uniform(-limit, limit, 8192)).astype(dtype.numpy)
    x[:4], y[:4] = [5.5, -5.5, 6, -6], [2, 2, 3, -3]
    smallest = np.finfo(dtype.numpy).smallest_subnormal
    x[4:8], y[4:8] = smallest * 7, smallest * 3
    for target in TARGETS[:3]:
        actual = apply(compile_kernel, "rem", dtype, x, y, target=target)
        np.testing.assert_array_equal(actual, np.fmod(x, y))
        np.testing.assert_array_equal(np.signbit(actual), np.signbit(np.fmod(x, y)))


@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize("lanes", [0, None], ids=["scalar", "vector"])
def test_remainder_next_to_multiples(
    compile_kernel: Compile, dtype: DType, lanes: int | None
) -> None:
    """Of as many as a quotient has room for, of more, and of divisors that have no bits to lose."""
    rng, info = np.random.default_rng(5), np.finfo(dtype.numpy)
    y = [rng.uniform(0.5, 2, 4096), info.tiny * 2.0 ** rng.uniform(0, info.nmant + 4, 4096)]
    y = np.concatenate(y).astype(dtype.numpy)
    x = (y * np.floor(2.0 ** rng.uniform(0, info.nmant + 4, 8192))).astype(dtype.numpy)
    x = np.nextafter(x, rng.choice([0, np.inf], 8192).astype(dtype.numpy))
    x = np.copysign(x, rng.choice([-1, 1], 8192).astype(dtype.numpy))
    x[:6], y[:6] = [np.inf, np.nan, 1, -1, 0, -0.0], [1, 1, np.inf, np.nan, 0, 3]
    for target in TARGETS[:3]:
        actual = apply(compile_kernel, "rem", dtype, x, y, target=target, lanes=lanes)
        with np.errstate(invalid="ignore"):
            wanted = np.fmod(x, y)
        np.testing.assert_array_equal(actual, wanted)
        np.testing.assert_array_equal(np.signbit(actual[5:]), np.signbit(wanted[5:]))


# -------------------------------------------------------------------- conversions


def interesting(dtype: DType) -> Array:
    rng = np.random.default_rng(11)
    if dtype.kind == "bool":
        return np.arange(256) % 3 == 0
    if dtype.is_float:
        limits = [2.0**k + d for k in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, -0.5, 0, 0.5, 1)]
        drawn = rng.standard_normal(4096) * 10.0 ** rng.uniform(-9, 20, 4096)
        special = [np.inf, np.nan, 0.0, -0.0, 65504, 65519.99, 65520, 6e-8, 3e-8, 2.98e-8, 1e-7]
        both = np.concatenate([drawn, limits, special])
        with np.errstate(over="ignore"):
            return np.concatenate([both, -both]).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    drawn = rng.integers(info.min, info.max, 4096, dtype.numpy, endpoint=True)
    shifted = drawn >> rng.integers(0, info.bits, 4096).astype(dtype.numpy)
    return np.concatenate(
        [drawn, shifted, halfway(dtype), np.array([0, info.min, info.max], dtype.numpy)]
    )


def halfway(dtype: DType) -> Array:
    """Integers in the middle between two floats of each format, and their neighbours."""
    info = np.iinfo(dtype.numpy)
    middles = [
        (1 << top) + (odd << (top - bits)) + near
        for bits in (8, 11, 24, 53)
        for top in range(bits, info.bits)
        for odd in (1, 3)
        for near in (-1, 0, 1)
    ]
    inside = [sign * m for sign in (-1, 1) for m in middles if info.min <= sign * m <= info.max]
    return np.array(inside, dtype.numpy)


@pytest.mark.parametrize("target", TARGETS[:3], ids=lambda t: t.name)
@pytest.mark.parametrize("to", ALL, ids=str)
@pytest.mark.parametrize("source", ALL, ids=str)
def test_conversions(compile_kernel: Compile, source: DType, to: DType, target: Target) -> None:
    x = interesting(source)
    function = elementwise(lambda b, v: vmath.convert(b, v, source, to), [source], to, 16)
    actual = evaluate(compile_kernel, function, to, x, target=target)
    with np.errstate(all="ignore"):
        truth = converted(x, source, to)
    # Hardware conversion to bf16 flushes denormals, as do the threads that run it.
    keep = ~((np.abs(truth) < 1.2e-38) & (truth != 0)) if to is types.bf16 else slice(None)
    assert_same(actual[keep], truth[keep])


def converted(x: Array, source: DType, to: DType) -> Array:
    if not to.is_float or source.kind == "bool":
        return scalar.convert(x, to.numpy)
    if to.bits > 16:
        return x.astype(to.numpy)
    return rounded_once(x, to)


def rounded_once(x: Array, to: DType) -> Array:
    """To 16 bits through an f32 that is rounded to odd; NumPy rounds twice."""
    if x.dtype == to.numpy:
        return x
    wide = x.astype(np.longdouble)
    near = wide.astype(np.float32)
    bits = near.view(np.int32)
    step = np.where(np.abs(near.astype(np.longdouble)) < np.abs(wide), 1, -1)
    inexact = (near.astype(np.longdouble) != wide) & np.isfinite(near) & (bits & 1 == 0)
    return np.where(inexact, bits + step, bits).astype(np.int32).view(np.float32).astype(to.numpy)


def test_bitcast(compile_kernel: Compile) -> None:
    x = np.arange(64, dtype=np.uint32) * 0x3F00001
    function = elementwise(lambda b, v: vmath.bitcast(b, v, types.f32), [types.u32], types.f32, 16)
    actual = evaluate(compile_kernel, function, types.f32, x, target=Target.host())
    np.testing.assert_array_equal(actual.view(np.uint32), x)


def test_an_unknown_function_is_a_fault_of_ours() -> None:
    b = Builder()
    with pytest.raises(InternalError, match="no scalar function for primitive `digamma`"):
        vmath.emit(b, "digamma", types.f32, [b.const(1.0, vmath.element_type(types.f32))])


# -------------------------------------------------------------------- code quality


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [types.f32, types.f64, types.bf16, types.i32], ids=str)
def test_no_function_becomes_a_call(assembly: Any, dtype: DType, target: Target) -> None:
    names = [n for n in vmath.SCALAR_FUNCTIONS if defined(n, dtype) and n[:6] != "select"]
    for name in names:
        function = emitted(name, dtype, target.lanes(dtype), ATTRS.get(name))
        lines = [
            line.split() for line in assembly(function, target).splitlines() if line[:1] == "\t"
        ]
        calls = [line[-1] for line in lines if line[0] in ("call", "callq", "bl", "blr")]
        own = [f".{callee.name}" for callee in function.callees]
        assert all(name.endswith(tuple(own)) for name in calls), (name, calls)


def test_hot_loops_do_not_spill(assembly: Any) -> None:
    """The chain tanh(x y + 1) exp(-x x) + sin(y): no vector moves to or from the stack."""

    def chain(b: Builder, x: Any, y: Any) -> Any:
        e = lambda name, *args: vmath.emit(b, name, types.f32, args)  # noqa: E731
        return e("tanh", x * y + 1.0) * e("exp", -(x * x)) + e("sin", y)

    if not Target.host().has_avx512:
        pytest.skip("needs 32 vector registers")
    function = elementwise(chain, [types.f32, types.f32], types.f32, 16)
    text = assembly(function, Target.host())
    assert ".sin_huge.0:" in text  # rare, and saves what it uses itself
    lines = text[: text.index(".sin_huge.0:")].splitlines()
    spills = [line for line in lines if "zmm" in line and "rsp" in line]
    assert not spills
