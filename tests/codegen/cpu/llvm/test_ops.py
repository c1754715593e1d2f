"""Each arithmetic and vector op of the loop-nest IR, also on CPUs without its instruction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from stagejit.codegen.cpu.llvm.lower import lower
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import F32, F64, I16, I32, I64, Function, Type, Value
from stagejit.codegen.ir.verifier import verify
from stagejit.codegen.target import Target
from tests.randomness import RNG

Array = np.ndarray[Any, np.dtype[Any]]
SHORT = replace(Target.host().with_short_vectors, name="short")
TARGETS = [Target.host(), Target.avx2(), Target.sse2(), *[SHORT] * Target.host().has_avx512]
NUMPY = {"f32": np.float32, "f64": np.float64, "i16": np.int16, "i32": np.int32, "i64": np.int64,
         "i8": np.int8}  # fmt: skip


@pytest.fixture(params=TARGETS, ids=lambda target: target.name)
def compute(
    request: pytest.FixtureRequest, compile_kernel: Callable[..., Any]
) -> Callable[..., Array]:
    """compute(body, *arrays, lanes=8): `body(b, *vectors)` on each group of lanes."""

    def run(
        body: Callable[..., Value], *arrays: Array, lanes: int = 8, elem: Type | None = None
    ) -> Array:
        types = [next(t for t, n in NUMPY.items() if n == a.dtype) for a in arrays]
        b = Builder()
        inputs = [b.buffer("x", Type(t), readonly=True) for t in types]
        outputs = []

        def step(i: Value) -> None:
            value = body(b, *(b.load(x, i, lanes) for x in inputs))
            if value.type.elem == "i1":
                value = b.cast("zext", value, "i8")
            outputs.append(b.buffer("y", value.type.scalar))
            at = i if value.type.lanes == lanes else i // max(lanes, 1)
            b.store(value, outputs[0], at)

        b.loop(b.lo, b.hi, max(lanes, 1), [], step)
        function = b.finish()
        verify(function)
        result = np.zeros(arrays[0].size, NUMPY[outputs[0].elem.elem])
        compile_kernel(function, request.param)([*arrays, result], [], 0, arrays[0].size)
        return result

    return run


def floats(dtype: type, size: int = 64) -> Array:
    return (RNG.standard_normal(size) * 10.0 ** RNG.uniform(-3, 3, size)).astype(dtype)


def integers(dtype: type, size: int = 64) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, size, dtype, endpoint=True)


@pytest.mark.parametrize("lanes", [0, 4, 16])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("opcode", "function"),
    [("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc), ("roundeven", np.rint),
     ("sqrt", lambda x: np.sqrt(np.abs(x))), ("fabs", np.abs), ("fneg", np.negative)],
)  # fmt: skip
def test_unary_float_ops(
    compute: Callable[..., Array], opcode: str, function: Any, dtype: type, lanes: int
) -> None:
    x = floats(dtype)
    x[:16] = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, -0.3, 1e10, -1e10, 2.0**52 + 1,
              np.inf, -np.inf, np.nan, 8388609]  # fmt: skip
    x = np.abs(x) if opcode == "sqrt" else x
    actual = compute(lambda b, v: b.unary(opcode, v), x, lanes=lanes)
    expected = function(x)
    np.testing.assert_array_equal(actual, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual[known]), np.signbit(expected[known]))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("opcode", ["ctpop", "ctlz", "cttz", "bitreverse", "abs"])
def test_unary_integer_ops(compute: Callable[..., Array], opcode: str, dtype: type) -> None:
    x = integers(dtype)
    x[:4] = [0, 1, -1, np.iinfo(dtype).min]
    bits = np.iinfo(dtype).bits
    binary = [np.binary_repr(v, bits) for v in x]
    functions: dict[str, Callable[[str], int]] = {
        "ctpop": lambda s: s.count("1"),
        "ctlz": lambda s: len(s) - len(s.lstrip("0")),
        "cttz": lambda s: len(s) - len(s.rstrip("0")),
        "bitreverse": lambda s: int(s[::-1], 2),
        "abs": lambda s: int(s, 2) if s[0] == "0" else (1 << bits) - int(s, 2),
    }
    expected = np.array([functions[opcode](s) for s in binary], object)
    wrapped = np.where(expected >= 1 << (bits - 1), expected - (1 << bits), expected).astype(dtype)
    np.testing.assert_array_equal(compute(lambda b, v: b.unary(opcode, v), x), wrapped)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extrema(compute: Callable[..., Array], dtype: type) -> None:
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3.0], dtype)
    x, y = (a.ravel() for a in np.meshgrid(special, special))
    x86_min = np.where(x < y, x, y)
    np.testing.assert_array_equal(compute(lambda b, p, q: b.binary("fmin", p, q), x, y), x86_min)
    x86_max = np.where(x > y, x, y)
    np.testing.assert_array_equal(compute(lambda b, p, q: b.binary("fmax", p, q), x, y), x86_max)
    low = compute(lambda b, p, q: b.binary("fminimum", p, q), x, y)
    np.testing.assert_array_equal(low, np.minimum(x, y))
    zeros = (x == 0) & (y == 0)
    np.testing.assert_array_equal(
        np.signbit(low[zeros]), np.signbit(x[zeros]) | np.signbit(y[zeros])
    )
    signs = compute(lambda b, p, q: b.binary("copysign", p, q), x, y)
    np.testing.assert_array_equal(signs, np.copysign(x, y))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_integer_extrema_and_products(compute: Callable[..., Array], dtype: type) -> None:
    x, y = integers(dtype), integers(dtype)
    unsigned = f"uint{np.iinfo(dtype).bits}"
    for name, truth in (("smin", np.minimum(x, y)), ("smax", np.maximum(x, y))):
        np.testing.assert_array_equal(
            compute(lambda b, p, q, n=name: b.binary(n, p, q), x, y), truth
        )
    larger = np.maximum(x.view(unsigned), y.view(unsigned)).view(dtype)
    np.testing.assert_array_equal(compute(lambda b, p, q: b.binary("umax", p, q), x, y), larger)
    pairs = zip(x.view(unsigned), y.view(unsigned), strict=True)
    bits = np.iinfo(dtype).bits
    upper = np.array([(int(a) * int(c)) >> bits for a, c in pairs], object).astype(unsigned)
    actual = compute(lambda b, p, q: b.binary("umulh", p, q), x, y)
    np.testing.assert_array_equal(actual.view(unsigned), upper)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exact_multiply_add(compute: Callable[..., Array], dtype: type) -> None:
    """x * y - round(x * y) is the rounding error, which two roundings cannot see."""
    x, y = floats(dtype), floats(dtype)
    product = x * y
    actual = compute(lambda b, p, q, r: b.fma(p, q, -r, exact=True), x, y, product)
    triples = zip(x.tolist(), y.tolist(), product.tolist(), strict=True)
    errors = [float(Fraction(a) * Fraction(c) - Fraction(d)) for a, c, d in triples]
    np.testing.assert_allclose(actual, errors, rtol=1e-12)
    assert np.any(actual != 0)


def test_multiply_add_without_the_instruction(assembly: Callable[[Function, Target], str]) -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    value = b.load(x, 0, 4)
    b.store(b.fma(value, 2.0, 1.0), y, 0)
    text = assembly(b.finish(), Target.sse2())
    assert "addps" in text
    assert "vfmadd" in assembly(b.finish(), Target.avx2())


@pytest.mark.parametrize("lanes", [0, 4, 16, 32])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scaling_by_powers_of_two(compute: Callable[..., Array], dtype: type, lanes: int) -> None:
    a = RNG.uniform(0.7, 1.42, 256).astype(dtype)
    limit = 160 if dtype is np.float32 else 1100
    n = np.rint(RNG.uniform(-limit, limit, 256)).astype(dtype)
    n[:4], a[4:6] = [np.inf, -np.inf, 1e30, -1e30], [np.nan, 0]
    actual = compute(lambda b, p, q: b.scalef(p, q), a, n, lanes=lanes)
    with np.errstate(all="ignore"):
        expected = np.ldexp(a, np.clip(n, -3000, 3000).astype(np.int32))
    np.testing.assert_array_equal(actual, expected.astype(dtype))


def test_shuffles(compute: Callable[..., Array]) -> None:
    x = np.arange(64, dtype=np.float32)
    reverse = compute(lambda b, v: b.shuffle(v, None, range(7, -1, -1)), x)
    np.testing.assert_array_equal(reverse, x.reshape(8, 8)[:, ::-1].ravel())
    interleave = [0, 8, 1, 9, 2, 10, 3, 11]
    both = compute(lambda b, v, w: b.shuffle(v, w, interleave), x, -x).reshape(8, 4, 2)
    np.testing.assert_array_equal(both[..., 0], x.reshape(8, 8)[:, :4])
    np.testing.assert_array_equal(both[..., 1], -x.reshape(8, 8)[:, :4])
    loose = compute(lambda b, v: b.shuffle(v, None, [3, -1, 0, -1, 1, -1, 2, -1]), x)
    np.testing.assert_array_equal(loose.reshape(8, 8)[:, ::2], x.reshape(8, 8)[:, [3, 0, 1, 2]])


def test_lanes_in_and_out(compute: Callable[..., Array]) -> None:
    x = np.arange(64, dtype=np.int32)
    fifth = compute(lambda b, v: b.splat(b.extract(v, 5), 8), x)
    np.testing.assert_array_equal(fifth, np.repeat(x.reshape(8, 8)[:, 5], 8))
    put = compute(lambda b, v: b.insert(v, b.const(-1, I32), 2), x).reshape(8, 8)
    assert (put[:, 2] == -1).all()
    assert (put[:, 3] == x.reshape(8, 8)[:, 3]).all()
    for elem in (I16, I32, I64, F32, F64):
        ids = compute(lambda b, v, e=elem: b.lane_ids(8, e), x)
        np.testing.assert_array_equal(ids, np.tile(np.arange(8), 8))


@pytest.mark.parametrize(
    ("opcode", "dtype", "function"),
    [
        ("add", np.int32, np.sum),
        ("mul", np.int32, np.prod),
        ("and", np.int64, np.bitwise_and.reduce),
        ("or", np.int16, np.bitwise_or.reduce),
        ("xor", np.int8, np.bitwise_xor.reduce),
        ("smin", np.int32, np.min),
        ("smax", np.int8, np.max),
        ("fminimum", np.float32, np.min),
        ("fmaximum", np.float64, np.max),
        ("fadd", np.float32, np.sum),
        ("fmul", np.float64, np.prod),
    ],
)
def test_reductions(
    compute: Callable[..., Array], opcode: str, dtype: type, function: Callable[..., Any]
) -> None:
    x = floats(dtype) if np.dtype(dtype).kind == "f" else integers(dtype)
    actual = compute(lambda b, v: b.reduce(opcode, v), x)[:8]
    exact = object if np.dtype(dtype).kind == "i" and opcode in ("add", "mul") else dtype
    expected = [_wrapped(function(row.astype(exact)), dtype) for row in x.reshape(8, 8)]
    if opcode in ("fadd", "fmul"):
        largest = np.abs(x).max() if opcode == "fadd" else 0  # a sum of both signs may be near zero
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * largest)
    else:
        np.testing.assert_array_equal(actual, expected)


def _wrapped(value: Any, dtype: type) -> Any:
    if np.dtype(dtype).kind != "i":
        return dtype(value)
    bits = np.iinfo(dtype).bits
    wrapped = int(value) & ((1 << bits) - 1)
    return dtype(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def test_nan_in_reductions(compute: Callable[..., Array]) -> None:
    x = floats(np.float32)
    x[3], x[12] = np.nan, np.inf
    for opcode, function in (("fmaximum", np.max), ("fminimum", np.min)):
        actual = compute(lambda b, v, o=opcode: b.reduce(o, v), x)[:8]
        np.testing.assert_array_equal(actual, function(x.reshape(8, 8), 1))


@pytest.mark.parametrize("lanes", [1, 4, 8, 16, 32, 64, 128])
def test_masks(run_kernel: Callable[..., None], lanes: int) -> None:
    b = Builder()
    y = b.buffer("y", Type("i8"))
    index, limit = b.param(), b.param()
    b.store(b.cast("zext", b.mask_below(index, limit, lanes), "i8"), y, 0)
    function = b.finish()
    for first, last in ((0, 3), (5, 5), (9, 2), (0, 10**12), (-3, 1), (2**40, 2**40 + 7), (0, -5),
                        (-(2**61), 2**61)):  # fmt: skip
        out = np.full(lanes, 7, np.int8)
        run_kernel(function, [out], [first, last])
        expected = [first + k < last for k in range(lanes)]
        np.testing.assert_array_equal(out, np.array(expected, np.int8), str((first, last)))


def test_constant_masks_are_literals() -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    b.store(b.load(x, 0, 4, mask=b.active(3, 4)), y, 0, mask=b.active(4, 4))
    text = lower(b.finish(), "k", Target.host())
    assert "<4 x i1> <i1 true, i1 true, i1 true, i1 false>" in text
    assert "masked.store" not in text


def test_comparisons(compute: Callable[..., Array]) -> None:
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3.0], np.float32)
    x, y = (a.ravel() for a in np.meshgrid(special, special))
    cases: Sequence[tuple[str, Any]] = [
        ("eq", x == y), ("ne", x != y), ("lt", x < y), ("le", x <= y), ("gt", x > y),
        ("ge", x >= y), ("uno", np.isnan(x) | np.isnan(y)),
    ]  # fmt: skip
    for predicate, expected in cases:
        actual = compute(lambda b, p, q, n=predicate: b.compare(n, p, q), x, y)
        np.testing.assert_array_equal(actual.astype(bool), expected)


def test_unsigned_comparisons(compute: Callable[..., Array]) -> None:
    x, y = integers(np.int32), integers(np.int32)
    actual = compute(lambda b, p, q: b.compare("lt", p, q, signed=False), x, y)
    np.testing.assert_array_equal(actual.astype(bool), x.view(np.uint32) < y.view(np.uint32))
