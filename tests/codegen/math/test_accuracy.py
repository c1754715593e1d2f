"""Every transcendental function against extended precision: at most 2 units in the last place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from stagejit import types
from stagejit.codegen.ir.nodes import Function
from stagejit.codegen.target import Target
from stagejit.types import DType
from tests.codegen.conftest import control_setter
from tests.codegen.math.scalar_kernels import (
    Array,
    Compile,
    apply,
    errors_in_ulp,
    exact_erf,
    exact_erf_inv,
    exact_erfc,
    random_bits,
)

QUICK, THOROUGH = 1 << 14, 1 << 20


@dataclass(frozen=True)
class Case:
    """`low`, `high`: where half of the inputs are drawn from in f32; `wide` times that in f64."""

    exact: Callable[[Array], Array]
    low: float
    high: float
    wide: float = 1
    limits: tuple[float, float] = (2.0, 2.0)


CASES = {
    "exp": Case(np.exp, -105, 90, 8),
    "exp2": Case(np.exp2, -150, 130, 8),
    "expm1": Case(np.expm1, -30, 90, 8),
    "log": Case(np.log, 0, 4),
    "log1p": Case(np.log1p, -1, 50),
    "logistic": Case(lambda x: 1 / (1 + np.exp(-x)), -105, 105, 7),
    "tanh": Case(np.tanh, -11, 11, 2),
    "sinh": Case(np.sinh, -90, 90, 8),
    "cosh": Case(np.cosh, -90, 90, 8),
    "asinh": Case(np.arcsinh, -10, 10),
    "acosh": Case(np.arccosh, 1, 10),
    "atanh": Case(np.arctanh, -1, 1),
    "sin": Case(np.sin, -400, 400),
    "cos": Case(np.cos, -400, 400),
    "tan": Case(np.tan, -400, 400),
    "asin": Case(np.arcsin, -1, 1),
    "acos": Case(np.arccos, -1, 1),
    "atan": Case(np.arctan, -10, 10),
    "sqrt": Case(np.sqrt, 0, 10, limits=(0.51, 0.51)),
    "rsqrt": Case(lambda x: 1 / np.sqrt(x), 0, 10),
    "cbrt": Case(np.cbrt, -10, 10),
    "erf": Case(exact_erf, -5, 5),
    "erfc": Case(exact_erfc, -5, 10, 2.65, limits=(2.0, 3.0)),
    "erf_inv": Case(exact_erf_inv, -1, 1),
}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2, -2, 88.72, 88.73, -87.3, 709.78,
           -744.4, 9.0, 1e-8, 0.92699, 0.927, 2e5, 1e9, 16777216, 3e38, -3e38]  # fmt: skip


def inputs(case: Case, dtype: DType, count: int) -> Array:
    rng = np.random.default_rng(count)
    wide = case.wide if dtype.bits == 64 else 1
    ranged = rng.uniform(case.low * wide, case.high * wide, count // 2)
    small = ranged[: count // 8] * 10.0 ** rng.uniform(-9, 0, count // 8)
    near_one = 1 + rng.uniform(-1, 1, count // 8) * 10.0 ** rng.uniform(-9, 0, count // 8)
    drawn = np.concatenate([ranged, small, near_one, SPECIAL]).astype(dtype.numpy)
    return np.concatenate([drawn, random_bits(rng, count // 4, dtype)])


def check(compile_kernel: Compile, name: str, dtype: DType, target: Target, **kwargs: Any) -> None:
    case = CASES[name]
    x = inputs(case, dtype, kwargs.pop("count"))
    actual = apply(compile_kernel, name, dtype, x, target=target, **kwargs)
    with np.errstate(all="ignore"):
        exact = case.exact(x.astype(np.longdouble))
        error = errors_in_ulp(actual, exact)
    worst = int(np.argmax(error))
    limit = case.limits[dtype.bits == 64]
    assert error[worst] <= limit, f"{name}({x[worst]!r}) = {actual[worst]!r}: {error[worst]} ulp"
    zero = exact == 0
    np.testing.assert_array_equal(np.signbit(actual[zero]), np.signbit(exact[zero]))


@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_error_in_vectors(compile_kernel: Compile, name: str, dtype: DType) -> None:
    check(compile_kernel, name, dtype, Target.host(), count=QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_error_over_a_million_inputs(compile_kernel: Compile, name: str, dtype: DType) -> None:
    many = name.startswith("erf") and dtype.bits == 64  # the reference is a series
    check(compile_kernel, name, dtype, Target.host(), count=THOROUGH >> 4 if many else THOROUGH)


@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_error_in_scalars(compile_kernel: Compile, name: str, dtype: DType) -> None:
    check(compile_kernel, name, dtype, Target.host(), count=1 << 10, lanes=0)


@pytest.mark.parametrize("lanes", [0, None], ids=["scalars", "vectors"])
@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_error_of_few_values(
    compile_kernel: Compile, name: str, dtype: DType, lanes: int | None
) -> None:
    """See Note [Few values]."""
    check(compile_kernel, name, dtype, Target.host(), count=QUICK, lanes=lanes, few=True)


@pytest.mark.parametrize("lanes", [2, 3, 64])
@pytest.mark.parametrize("name", ["exp", "sin", "tanh", "log"])
def test_error_in_vectors_that_fill_no_register(
    compile_kernel: Compile, name: str, lanes: int
) -> None:
    function_lanes = {2: 2, 3: 4, 64: 64}[lanes]
    check(compile_kernel, name, types.f32, Target.host(), count=1 << 10, lanes=function_lanes)


@pytest.mark.parametrize("target", [Target.avx2(), Target.sse2()], ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_error_on_older_cpus(
    compile_kernel: Compile, name: str, dtype: DType, target: Target
) -> None:
    check(compile_kernel, name, dtype, target, count=1 << 12)


# -------------------------------------------------------------------- flushed denormals


@pytest.fixture
def compile_flushing(compile_kernel: Compile) -> Compile:
    """`compile_kernel`, with denormal operands and results flushed to zero during each call."""
    if not Target.host().is_x86:
        pytest.skip("sets the control register of x86")
    set_control = control_setter()

    def compile_(function: Function, target: Target) -> Callable[..., None]:
        kernel = compile_kernel(function, target)

        def run(*args: Any) -> None:
            set_control(0x1F80 | 0x8040)
            kernel(*args)
            set_control(0x1F80)

        return run

    return compile_


@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_flushed_denormals_count_as_zeros(
    compile_flushing: Compile, name: str, dtype: DType
) -> None:
    tiny, least = np.finfo(dtype.numpy).tiny, np.finfo(dtype.numpy).smallest_subnormal
    magnitudes = [
        0,
        least,
        tiny / 2,
        tiny * 0.999,
        tiny,
        tiny * 1.5,
        tiny * 2,
        tiny * 2**20,
        1,
        87.5,
    ]
    magnitudes += [88, 103, 110, 708.5, 709, 744, 800, 1e30, np.inf, np.nan]
    x = np.array([*magnitudes, *(-m for m in magnitudes)], dtype.numpy)
    actual = apply(compile_flushing, name, dtype, x)
    seen = np.where(np.abs(x) < tiny, np.copysign(0, x), x).astype(np.longdouble)
    with np.errstate(all="ignore"):
        exact = CASES[name].exact(seen)
        error = errors_in_ulp(
            actual, np.where(np.abs(exact) <= 2 * tiny, np.copysign(0, exact), exact)
        )
    allowed = (np.abs(exact) <= 2 * tiny) & (np.abs(actual) <= 2 * tiny)
    assert not ((error > 3) & ~allowed).any(), (x, actual)
    known = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(actual[known]), np.signbit(exact[known]))


# -------------------------------------------------------------------- functions of two arguments


def pairs(rng: np.random.Generator, dtype: DType, count: int) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        x = np.concatenate(
            [np.exp(rng.uniform(-20, 20, count)), 1 + rng.uniform(-0.1, 0.1, count),
             random_bits(rng, count, dtype), rng.uniform(-4, 4, count)]
        ).astype(dtype.numpy)  # fmt: skip
        y = np.concatenate(
            [rng.uniform(-8, 8, count), rng.uniform(-900, 900, count),
             random_bits(rng, count, dtype), rng.integers(-9, 10, count)]
        ).astype(dtype.numpy)  # fmt: skip
    grid = np.array(np.meshgrid(np.array(SPECIAL, dtype.numpy), np.array(SPECIAL, dtype.numpy)))
    return np.concatenate([x, grid[0].ravel()]), np.concatenate([y, grid[1].ravel()])


@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize(("name", "exact"), [("pow", np.power), ("atan2", np.arctan2)])
def test_error_of_two_arguments(
    compile_kernel: Compile, name: str, exact: Callable[..., Array], dtype: DType
) -> None:
    x, y = pairs(np.random.default_rng(5), dtype, QUICK)
    actual = apply(compile_kernel, name, dtype, x, y)
    with np.errstate(all="ignore"):
        reference = exact(x.astype(np.longdouble), y.astype(np.longdouble))
        error = errors_in_ulp(actual, reference)
    worst = int(np.argmax(error))
    assert error[worst] <= 2.0, (x[worst], y[worst], actual[worst], reference[worst])
    zero = reference == 0
    np.testing.assert_array_equal(np.signbit(actual[zero]), np.signbit(reference[zero]))
