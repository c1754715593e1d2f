"""Each op without side effects: the interpreter against machine code, bit for bit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.interpreter.arithmetic import DTYPES
from stagejit.codegen.ir.interpreter.rounding import from_integers, fused, narrowed
from stagejit.codegen.ir.interpreter.run import interpret
from stagejit.codegen.ir.nodes import I8, Function, Type, Value
from stagejit.codegen.ir.verifier import verify
from stagejit.codegen.target import Target

Array = np.ndarray[Any, np.dtype[Any]]
Agree = Callable[..., None]
INTEGERS, FLOATS, SHORT = ("i8", "i16", "i32", "i64"), ("f32", "f64"), ("f16", "bf16")
REDUCTIONS = ("add", "mul", "and", "or", "xor", "smin", "smax", "umin", "umax")
TARGETS = [Target.host(), Target.avx2(), Target.sse2()]


@pytest.fixture(params=TARGETS, ids=lambda target: target.name)
def agree(request: pytest.FixtureRequest, compile_kernel: Callable[..., Any]) -> Agree:
    """agree(body, *arrays, lanes=8): machine code and interpreter give the same for each of the
    values that `body(builder, *vectors)` makes."""

    def run(body: Callable[..., list[Value]], *arrays: Array, lanes: int = 8) -> None:
        target: Target = request.param
        function = kernel(body, arrays, lanes)
        nbytes = arrays[0].size * 64
        outputs = sum(not buffer.readonly for buffer in function.buffers)
        compiled, interpreted = np.zeros((2, outputs, nbytes), np.uint8)
        chunk = 0, arrays[0].size
        compile_kernel(function, target)([*arrays, *compiled], [], *chunk)
        types = [DTYPES[x.elem.elem] for x in function.buffers[len(arrays) :]]
        views = [x.view(t) for x, t in zip(interpreted, types, strict=True)]
        interpret(function, [*arrays, *views], [], *chunk, has_fma=target.has_fma)
        for found, wanted in zip(views, compiled, strict=True):
            assert_same(found, wanted.view(found.dtype))

    return run


def kernel(body: Callable[..., list[Value]], arrays: Sequence[Array], lanes: int) -> Function:
    """A kernel that does `body` for each group of lanes, with a buffer for each of its values."""
    names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    b = Builder()
    inputs = [b.buffer("x", Type(names[a.dtype]), readonly=True) for a in arrays]

    def step(i: Value) -> None:
        for value in body(b, *(b.load(x, i, lanes) for x in inputs)):
            if value.type.elem == "i1":
                value = b.cast("zext", value, "i8")
            y, count = b.buffer("y", value.type.scalar), max(value.type.lanes, 1)
            b.store(value, y, (i // max(lanes, 1)) * count)

    b.loop(b.lo, b.hi, max(lanes, 1), [], step)
    function = b.finish()
    verify(function)
    return function


def assert_same(a: Array, b: Array) -> None:
    """The same bits; any NaN is any other."""
    if a.dtype.kind not in "iu":
        with np.errstate(invalid="ignore"):
            nan, other = np.isnan(a), np.isnan(b)
        np.testing.assert_array_equal(nan, other)
        a, b = (np.where(nan, 0, x.view(f"i{x.itemsize}")) for x in (a, b))
    np.testing.assert_array_equal(a, b)


def numbers(elem: str, seed: int = 0, size: int = 128) -> Array:
    """Numbers of all magnitudes, and special ones, in any order."""
    rng = np.random.default_rng([seed, *elem.encode()])
    if not elem.startswith(("f", "b")):
        info = np.iinfo(DTYPES[elem])
        special = [0, 1, -1, 2, -2, info.min, info.max, info.min + 1, 7, 64, -64]
        drawn = rng.integers(info.min, info.max, size, DTYPES[elem], endpoint=True)
        drawn >>= rng.integers(0, info.bits, size).astype(drawn.dtype)
    else:
        special = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, math.inf, -math.inf, math.nan,
                   3.0, 127.5, -128.5, 1e10, -1e10, 2.0**31, 2.0**63, -(2.0**31), -(2.0**63),
                   8388609.0, 2.0**52 + 1, 1e-40, 1e-310, 65519.0, 65520.0, 3.4e38]  # fmt: skip
        drawn = rng.standard_normal(size) * 10.0 ** rng.uniform(-9, 9, size)
        with np.errstate(all="ignore"):
            drawn = narrowed(drawn, DTYPES[elem])
            special = narrowed(np.array(special), DTYPES[elem])
    drawn[rng.permutation(size)[: len(special)]] = special
    return drawn


ints = pytest.mark.parametrize("elem", INTEGERS)
floats = pytest.mark.parametrize("elem", FLOATS)


def arithmetic(b: Builder, names: str, *operands: Value) -> list[Value]:
    return [b.binary(name, *operands) for name in names.split()]


def binary(b: Builder, names: str, p: Value, q: Value) -> list[Value]:
    return [b.binary(name, p, q) for name in names.split()]


def unary(b: Builder, names: str, p: Value) -> list[Value]:
    return [b.unary(name, p) for name in names.split()]


def compared(b: Builder, names: str, p: Value, q: Value, signed: bool = True) -> list[Value]:
    return [b.compare(name, p, q, signed=signed) for name in names.split()]


@pytest.mark.parametrize("lanes", [0, 8, 64])
@ints
def test_integer_ops(agree: Agree, elem: str, lanes: int) -> None:
    def body(b: Builder, p: Value, q: Value) -> list[Value]:
        return [
            *arithmetic(b, "add sub mul and or xor", p, q),
            *binary(b, "smin smax umin umax umulh", p, q),
            *unary(b, "ctpop ctlz cttz bitreverse abs", p),
            *compared(b, "eq ne lt le gt ge", p, q),
            *compared(b, "lt le gt ge", p, q, signed=False),
        ]

    agree(body, numbers(elem), numbers(elem, 1), lanes=lanes)


@ints
def test_divisions_and_shifts(agree: Agree, elem: str) -> None:
    x, y = numbers(elem), numbers(elem, 1)
    y[(y == 0) | (y == -1)] = 3
    bits = 8 * x.itemsize
    agree(lambda b, p, q: [*arithmetic(b, "div rem udiv urem", p, q),
                           *arithmetic(b, "shl lshr ashr", p, q & (bits - 1))], x, y)  # fmt: skip


@pytest.mark.parametrize("lanes", [0, 8, 32])
@floats
def test_float_ops(agree: Agree, elem: str, lanes: int) -> None:
    def body(b: Builder, p: Value, q: Value, r: Value) -> list[Value]:
        return [
            *arithmetic(b, "add sub mul div", p, q),
            *binary(b, "copysign fmin fmax fminimum fmaximum", p, q),
            *unary(b, "fneg fabs sqrt floor ceil trunc roundeven", p),
            *compared(b, "eq ne lt le gt ge uno", p, q),
            *(b.fma(p, q, r), b.fma(p, q, -(p * q))),
        ]

    agree(body, *(numbers(elem, seed, 256) for seed in range(3)), lanes=lanes)


@floats
def test_zeros_and_their_like_in_extrema(agree: Agree, elem: str) -> None:
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3.0], DTYPES[elem])
    x, y = (a.ravel() for a in np.meshgrid(special, special))
    agree(lambda b, p, q: binary(b, "fmin fmax fminimum fmaximum copysign", p, q), x, y)


@floats
def test_scaling(agree: Agree, elem: str) -> None:
    rng = np.random.default_rng(0)
    a = rng.uniform(0.25, 4, 512).astype(DTYPES[elem])
    limit = 160 if elem == "f32" else 1100
    n = np.rint(rng.uniform(-limit, limit, 512)).astype(DTYPES[elem])
    n[:5], a[4:7] = [np.inf, -np.inf, 1e30, -1e30, np.nan], [np.nan, 0, -0.0]
    agree(lambda b, p, q: [b.scalef(p, q)], a, n)


def casts(a: Type, b: Type) -> list[str]:
    """The names of the casts from a to b."""
    names = ["bitcast"] if a.bits == b.bits and a != b else []
    if a.is_float and b.is_float:
        return names + (["fptrunc"] if a.bits > b.bits else ["fpext"] if a.bits < b.bits else [])
    if a.is_float or b.is_float:
        return names + (["fptosi", "fptoui"] if a.is_float else ["sitofp", "uitofp"])
    return names + (["trunc"] if a.bits > b.bits else ["zext", "sext"] if a.bits < b.bits else [])


@pytest.mark.parametrize("lanes", [0, 8])
@pytest.mark.parametrize("elem", [*INTEGERS, *FLOATS, *SHORT])
def test_casts(agree: Agree, elem: str, lanes: int) -> None:
    def body(b: Builder, p: Value) -> list[Value]:
        return [
            b.cast(name, p, to)
            for to in (*INTEGERS, *FLOATS, *SHORT)
            for name in casts(p.type.scalar, Type(to))
        ]

    agree(body, numbers(elem, 2), lanes=lanes)


def test_masks(agree: Agree) -> None:
    def body(b: Builder, p: Value, q: Value) -> list[Value]:
        on, other = b.compare("lt", p, q), b.compare("gt", q, 5)
        scalar = b.compare("lt", b.extract(p, 0), 9)
        made = [b.cast(name, on, to) for to in INTEGERS for name in ("zext", "sext")]
        made += [b.cast(name, on, to) for to in (*FLOATS, *SHORT) for name in ("sitofp", "uitofp")]
        made += [*arithmetic(b, "and or xor", on, other), b.select(on, p, q)]
        return [*made, b.select(scalar, p, q), b.reduce("or", on), b.reduce("and", on)]

    agree(body, numbers("i32"), numbers("i32", 1))


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
def test_reductions(agree: Agree, lanes: int) -> None:
    def of_integers(b: Builder, p: Value) -> list[Value]:
        return [
            b.reduce(name, p)
            for name in ["add", "mul", "and", "or", "xor", "smin", "smax", "umin", "umax"]
        ]

    for elem in INTEGERS:
        agree(of_integers, numbers(elem), lanes=lanes)
    for elem in FLOATS:
        x = np.random.default_rng(0).standard_normal(128).astype(DTYPES[elem])
        agree(lambda b, p: [b.reduce(name, p) for name in ("fadd", "fmul")], x, lanes=lanes)
        agree(lambda b, p: [b.reduce(name, p) for name in ("fminimum", "fmaximum")],
              numbers(elem), lanes=lanes)  # fmt: skip


@pytest.mark.parametrize("elem", [*INTEGERS, *FLOATS, *SHORT])
def test_lanes(agree: Agree, elem: str) -> None:
    def body(b: Builder, p: Value, q: Value) -> list[Value]:
        return [
            b.shuffle(p, None, [3, 1, 0, 7]),
            b.shuffle(p, q, [0, 8, 1, 9, 2, 10, 3, 11, 15, 15, 4, 4, 0, 0, 0, 8]),
            b.splat(b.extract(p, 5), 4),
            b.insert(p, b.extract(q, 1), 6),
            b.select(b.active(3, 8), p, q),
            *([] if elem in SHORT else [b.lane_ids(8, p.type.scalar)]),
            *([b.unary("fneg", p)] if p.type.is_float else []),
        ]

    agree(body, numbers(elem), numbers(elem, 1))


def test_lanes_that_a_shuffle_leaves_open_are_no_numbers() -> None:
    x, y = np.arange(4.0), np.zeros(4)
    b = Builder()
    ins, out = b.buffer("x", Type("f64"), readonly=True), b.buffer("y", Type("f64"))
    b.store(b.shuffle(b.load(ins, 0, 4), None, [2, -1, 0, -1]), out, 0)
    interpret(b.finish(), [x, y])
    np.testing.assert_array_equal(y, [2, np.nan, 0, np.nan])


@pytest.mark.parametrize("lanes", [1, 4, 8, 64])
def test_masks_below(run_kernel: Callable[..., None], lanes: int) -> None:
    b = Builder()
    y, index, limit = b.buffer("y", I8), b.param(), b.param()
    b.store(b.cast("zext", b.mask_below(index, limit, lanes), "i8"), y, 0)
    for pair in ((0, 3), (5, 5), (9, 2), (0, 10**12), (-3, 1), (2**40, 2**40 + 7), (0, -5)):
        compiled, interpreted = np.full((2, lanes), 7, np.int8)
        run_kernel(b.finish(), [compiled], pair)
        interpret(b.finish(), [interpreted], pair)
        np.testing.assert_array_equal(interpreted, compiled, str(pair))


# -------------------------------------------------------------------- rounding, exactly


def exactly_fused(a: float, b: float, c: float) -> float:
    """Of finite numbers."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def test_fused_multiply_add_of_all_magnitudes() -> None:
    """Also where the product, its error, or the result is denormal, and where nearly all of the
    product and the summand cancels."""
    rng = np.random.default_rng(0)
    draw = rng.standard_normal((2, 3000)) * 2.0 ** rng.integers(-540, 540, (2, 3000))
    a, b = draw
    with np.errstate(all="ignore"):
        c = np.where(rng.random(3000) < 0.5, -a * b * (1 + 2.0**-50), rng.standard_normal(3000))
        c[::7] *= 2.0 ** rng.integers(-1000, 1000, c[::7].size)
        c = np.where(np.isfinite(c), c, 1.0)
        found = fused(a, b, c)
    expected = [
        exactly_fused(*triple) for triple in zip(*map(np.ndarray.tolist, (a, b, c)), strict=True)
    ]
    np.testing.assert_array_equal(found, expected)


def test_fused_multiply_add_of_zeros_and_infinities() -> None:
    """An infinite summand is more than any product of numbers; zeros keep their sign."""
    huge, inf = 1e300, math.inf
    a = np.array([huge, -huge, inf, 0.0, -0.0, -0.0, 2.0, 0.0, huge])
    b = np.array([huge, huge, 1.0, inf, 1.0, 1.0, 3.0, 5.0, huge])
    c = np.array([-inf, inf, -inf, 1.0, -0.0, 0.0, -6.0, -7.0, -huge])
    wanted = [-inf, inf, math.nan, math.nan, -0.0, 0.0, 0.0, -7.0, inf]
    with np.errstate(all="ignore"):
        assert_same(fused(a, b, c), np.array(wanted))


def test_fused_multiply_add_of_f32_is_not_rounded_twice() -> None:
    one = np.float32(1)
    a = np.array([one + np.float32(2**-23)] * 3)
    b = np.array([one + np.float32(2**-23)] * 3)
    c = np.array([2**-24, 2**-24 - 2**-48, -(2**-24)], np.float32)
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    for found, want in zip(fused(a, b, c), exact, strict=True):
        near = [np.nextafter(found, np.float32(side)) for side in (-np.inf, np.inf)]
        distance = abs(Fraction(float(found)) - want)
        assert all(distance <= abs(Fraction(float(x)) - want) for x in near)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def test_numbers_are_narrowed_once(dtype: Any) -> None:
    """Numbers just beside the middle of two neighbours, which f32 would take for the middle."""
    every = np.arange(1 << 15, dtype=np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):  # NaN
        every = np.sort(every.astype(np.float64))
    every = every[np.isfinite(every)]
    low, high = every[:-1], every[1:]
    middle = (low + high) / 2
    for nudge, want in ((np.nextafter(middle, -np.inf), low), (np.nextafter(middle, np.inf), high)):
        inside = (nudge > low) & (nudge < high)
        np.testing.assert_array_equal(
            narrowed(nudge, dtype).astype(np.float64)[inside], want[inside]
        )


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def test_integers_are_rounded_once(dtype: Any, *, signed: bool) -> None:
    kind = np.int64 if signed else np.uint64
    middles = [(2 * k + 1) << e for k, e in itertools.product((128, 129, 255), range(1, 54))]
    x = np.array([m + d for m in middles for d in (-1, 0, 1)], kind)
    with np.errstate(all="ignore"):
        found = from_integers(x, dtype).astype(np.float64)
    below = {np.dtype(np.float16): 11, np.dtype(ml_dtypes.bfloat16): 8}[np.dtype(dtype)]
    for number, got in zip(x.tolist(), found, strict=True):
        step = 1 << max(number.bit_length() - below, 0)
        rest = number % step
        up = rest * 2 > step or (rest * 2 == step and (number // step) % 2)
        want = number - rest + (step if up else 0)
        assert got == (math.inf if dtype == np.float16 and want >= 65520 else want)
