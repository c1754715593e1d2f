"""Fits the polynomials of `stagejit/codegen/math/coefficients.py`. Run by hand; needs mpmath.

    python tests/codegen/math/fit_coefficients.py [name ...]

Output: one line a polynomial: name, number of coefficients, largest relative error of the function
that it serves, coefficients. Method: Remez exchange in 60 digits on the error weighted to be the
relative error of the function. Coefficients are rounded to the working precision one at a time,
lowest first, and the rest refitted, so that later ones make up for the rounding of earlier ones, or
all at once where that leaves a smaller error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mpmath as mp  # type: ignore[import-not-found, unused-ignore]
import numpy as np

mp.mp.dps = 60
Real = Any
Function = Callable[[Real], Real]


@dataclass
class Problem:
    """Approximate `f` on [a, b] by sum(c_k v^k), error weighted by `weight`."""

    f: Function
    weight: Function
    a: Real
    b: Real
    count: int
    bits: int = 53
    fixed: Mapping[int, Real] = field(default_factory=dict)

    def rounded(self, number: Real) -> Real:
        return mp.mpf(float(np.float32(float(number))) if self.bits == 24 else float(number))


def remez(f: Function, weight: Function, powers: Sequence[int], a: Real, b: Real) -> list[Real]:
    """Coefficients of `powers` with the least largest weighted error."""
    count = len(powers) + 1
    grid = [a + (b - a) * (1 - mp.cos(mp.pi * k / 900)) / 2 for k in range(901)]
    values, weights = [f(g) for g in grid], [weight(g) for g in grid]
    at = [round(450 - 450 * mp.cos(mp.pi * (k + 0.5) / count) * 0.999) for k in range(count)]
    at = [int(900 * mp.acos(1 - mp.mpf(2) * min(max(k, 0), 900) / 900) / mp.pi) for k in at]
    best: tuple[Real, list[Real]] | None = None
    for _ in range(14):
        system, right = mp.matrix(count, count), mp.matrix(count, 1)
        for row, index in enumerate(at):
            for column, power in enumerate(powers):
                system[row, column] = weights[index] * grid[index] ** power
            system[row, count - 1] = (-1) ** row
            right[row] = weights[index] * values[index]
        solution = mp.lu_solve(system, right)
        found = [solution[k] for k in range(len(powers))]
        errors = [
            w * (v - sum(c * g**p for c, p in zip(found, powers, strict=True)))
            for g, v, w in zip(grid, values, weights, strict=True)
        ]
        worst = max(abs(error) for error in errors)
        if best is None or worst < best[0]:
            best = (worst, found)
        extrema = _extrema(errors, count)
        if extrema is None or extrema == at or worst < abs(solution[count - 1]) * mp.mpf("1.005"):
            break
        at = extrema
    assert best is not None
    return best[1]


def _extrema(errors: Sequence[Real], count: int) -> list[int] | None:
    """One index of the largest error for each run of equal sign, thinned to `count`."""
    runs: list[int] = []
    for index, error in enumerate(errors):
        if runs and (error > 0) == (errors[runs[-1]] > 0):
            if abs(error) > abs(errors[runs[-1]]):
                runs[-1] = index
        else:
            runs.append(index)
    while len(runs) > count:
        runs.pop(0 if abs(errors[runs[0]]) < abs(errors[runs[-1]]) else -1)
    return runs if len(runs) == count else None


def fit(problem: Problem) -> tuple[list[float], float]:
    """The rounded coefficients and the largest weighted error that they leave."""
    fits = [_rounded_fit(problem, one_by_one=True), _rounded_fit(problem, one_by_one=False)]
    return min(fits, key=lambda found: found[1])


def _rounded_fit(problem: Problem, *, one_by_one: bool) -> tuple[list[float], float]:
    done = dict(problem.fixed)
    rest = [power for power in range(problem.count) if power not in done]
    while rest:
        residue = lambda v: problem.f(v) - sum(c * v**p for p, c in done.items())  # noqa: B023, E731
        found = remez(residue, problem.weight, rest, mp.mpf(problem.a), mp.mpf(problem.b))
        take = 1 if one_by_one else len(rest)
        done |= {p: problem.rounded(c) for p, c in zip(rest[:take], found[:take], strict=True)}
        rest = rest[take:]
    points = [problem.a + (problem.b - problem.a) * mp.mpf(k) / 1000 for k in range(1001)]
    error = max(
        abs(problem.weight(v) * (problem.f(v) - sum(c * v**p for p, c in done.items())))
        for v in points
    )
    return [float(done[p]) for p in sorted(done)], float(error)


def odd(f: Function, limit: Real, count: int, *, bits: int = 53, leading: Real = 1) -> Problem:
    """f(x) = leading x + x z P(z), z = x^2; weighted to the relative error of f."""
    tiny = mp.mpf(10) ** -12

    def tail(z: Real) -> Real:
        x = mp.sqrt(max(z, tiny))
        return (f(x) / x - leading) / max(z, tiny)

    return Problem(tail, lambda z: max(z, tiny) * mp.sqrt(max(z, tiny)) / f(mp.sqrt(max(z, tiny))),
                   mp.mpf(0), mp.mpf(limit) ** 2, count, bits)  # fmt: skip


def odd_rest(f: Function, limit: Real, count: int, *, bits: int = 53) -> Problem:
    """f(x) = x + x P(z), z = x^2, for an f whose slope at 0 is no short number."""

    def rest(z: Real) -> Real:
        x = mp.sqrt(max(z, mp.mpf(10) ** -20))
        return f(x) / x - 1

    return Problem(rest, lambda z: 1 / (1 + rest(z)), mp.mpf(0), mp.mpf(limit) ** 2, count, bits)


def even(f: Function, limit: Real, count: int, bits: int = 53) -> Problem:
    """f(x) = 1 - z/2 + z^2 P(z)."""

    def tail(z: Real) -> Real:
        z = max(z, mp.mpf(10) ** -10)
        return (f(mp.sqrt(z)) - 1 + z / 2) / z**2

    return Problem(tail, lambda z: z**2 / f(mp.sqrt(z)), mp.mpf(0), mp.mpf(limit) ** 2, count, bits)


def exp_tail(limit: Real, count: int, base: Real = mp.e, bits: int = 53) -> Problem:
    """base^r = 1 + r P(r) with P(0) = log(base) free to round."""
    log = mp.log(base)

    def tail(r: Real) -> Real:
        return log if abs(r) < mp.mpf(10) ** -25 else mp.expm1(r * log) / r

    return Problem(tail, lambda r: r / mp.exp(r * log), -mp.mpf(limit), mp.mpf(limit), count, bits)


def expm1_tail(limit: Real, count: int, bits: int) -> Problem:
    """e^r - 1 = r + r^2 P(r), relative to expm1."""

    def tail(r: Real) -> Real:
        return mp.mpf(1) / 2 if abs(r) < mp.mpf(10) ** -20 else (mp.expm1(r) - r) / r**2

    def weight(r: Real) -> Real:
        return r if abs(r) < mp.mpf(10) ** -20 else r**2 / mp.expm1(r)

    return Problem(tail, weight, -mp.mpf(limit), mp.mpf(limit), count, bits, {0: mp.mpf(1) / 2})


def exp_second(limit: Real, count: int, bits: int) -> Problem:
    """e^r = 1 + r + r^2 P(r)."""

    def tail(r: Real) -> Real:
        return mp.mpf(1) / 2 if abs(r) < mp.mpf(10) ** -20 else (mp.expm1(r) - r) / r**2

    return Problem(tail, lambda r: r**2 / mp.exp(r), -mp.mpf(limit), mp.mpf(limit), count, bits)


def log_tail(count: int) -> Problem:
    """log(1 + f) = f - f^2/2 + f^3 P(f) on [-1/3, 1/3]."""

    def tail(f: Real) -> Real:
        if abs(f) < mp.mpf(10) ** -12:
            return mp.mpf(1) / 3 - f / 4
        return (mp.log1p(f) - f + f * f / 2) / f**3

    def weight(f: Real) -> Real:
        return f**2 if abs(f) < mp.mpf(10) ** -20 else f**3 / mp.log1p(f)

    return Problem(tail, weight, -mp.mpf(1) / 3, mp.mpf(1) / 3, count, 24)


def atanh_second(count: int) -> Problem:
    """2 atanh(s) = 2 s + 2/3 s^3 + s^5 P(z): for the logarithm in two words."""

    def tail(z: Real) -> Real:
        z = max(z, mp.mpf(10) ** -8)
        s = mp.sqrt(z)
        return (2 * mp.atanh(s) / s - 2 - z * 2 / 3) / z**2

    return Problem(tail, lambda z: z**2, mp.mpf(0), mp.mpf("0.1717") ** 2, count)


def erf_tail(count: int) -> Problem:
    """erfc(x)^(-1/8) = P(x), weighted to the relative error of erf."""

    def f(x: Real) -> Real:
        return mp.erfc(x) ** (-mp.mpf(1) / 8)

    def weight(x: Real) -> Real:
        return 8 * mp.erfc(x) / (mp.erf(x) * f(x))

    return Problem(f, weight, mp.mpf("1.2"), mp.mpf("3.95"), count, 24)


def scaled_erfc(count: int, *, low: Real, high: Real, centre: int, bits: int = 53) -> Problem:
    """(1 + 2x) e^(x^2) erfc(x) as a polynomial in t = (x - centre) / (x + centre)."""

    def f(t: Real) -> Real:
        x = centre * (1 + t) / (1 - t)
        return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)

    at = [(mp.mpf(x) - centre) / (mp.mpf(x) + centre) for x in (low, high)]
    return Problem(f, lambda t: 1 / f(t), at[0], at[1], count, bits)


def shifted_erfc(count: int) -> Problem:
    """(x + 1) e^(x^2) erfc(x) as a polynomial in t = (x - 1) / (x + 1), 0 <= x <= 10.3."""

    def f(t: Real) -> Real:
        x = (1 + t) / (1 - t)
        return (x + 1) * mp.exp(x * x) * mp.erfc(x)

    high = (mp.mpf("10.3") - 1) / (mp.mpf("10.3") + 1)
    return Problem(f, lambda t: 1 / f(t), -mp.mpf(1), high, count, 24)


def erf_inv_central(count: int) -> Problem:
    """erf_inv(x) / x as a polynomial in w - 2.5, w = -log(1 - x^2) < 5."""

    def f(v: Real) -> Real:
        w = max(v + mp.mpf("2.5"), mp.mpf(10) ** -12)
        x = mp.sqrt(-mp.expm1(-w))
        return mp.erfinv(x) / x

    return Problem(f, lambda v: 1 / f(v), -mp.mpf("2.5"), mp.mpf("2.5"), count)


def erf_inv_tail(count: int, centre: Real, high: Real) -> Problem:
    """erf_inv(x) / x as a polynomial in sqrt(w) - centre, for 5 <= w <= high."""

    def f(v: Real) -> Real:
        w = (v + centre) ** 2
        x = mp.sqrt(1 - mp.exp(-w))
        with mp.workdps(60):
            y = mp.sqrt(w - mp.log(w * mp.pi) / 2) if w > 3 else mp.mpf(1)
            for _ in range(8):  # Newton on log(erfc(y)) = log(1 - x), 1 - x = e^-w / (1 + x)
                target = mp.log(mp.exp(-w) / (1 + x))
                ratio = mp.exp(-y * y) / mp.erfc(y) * 2 / mp.sqrt(mp.pi)
                y += (mp.log(mp.erfc(y)) - target) / ratio
            return y / x

    return Problem(
        f, lambda v: 1 / f(v), mp.sqrt(5) - centre, mp.sqrt(mp.mpf(high)) - centre, count
    )


HALF_LN2 = mp.log(2) / 2 * mp.mpf("1.001")
QUARTER = mp.pi / 4 * mp.mpf("1.001")
HALF = mp.pi / 2 * mp.mpf("1.01")
PROBLEMS: dict[str, Callable[[], Problem]] = {
    "EXP_F32": lambda: exp_second(HALF_LN2, 5, 24),
    "EXP_F64": lambda: exp_second(HALF_LN2, 10, 53),
    "EXP2_F32": lambda: exp_tail(0.5005, 6, mp.mpf(2), 24),
    "EXP2_F64": lambda: exp_tail(0.5005, 11, mp.mpf(2)),
    "EXP2_SHORT_F64": lambda: exp_tail(0.5005, 7, mp.mpf(2)),
    "EXPM1_F32": lambda: expm1_tail(HALF_LN2, 6, 24),
    "EXPM1_F64": lambda: expm1_tail(HALF_LN2, 11, 53),
    "LOG_F32": lambda: log_tail(8),
    "LOG_F64": lambda: odd(lambda s: 2 * mp.atanh(s), "0.1717", 7, leading=2),
    "LOG_DOUBLE_F64": lambda: atanh_second(8),
    "LOG2_SHORT_F64": lambda: Problem(
        lambda z: 2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) / mp.log(2) if z else 2 / mp.log(2),
        lambda z: 1, mp.mpf(0), mp.mpf("0.1717") ** 2, 5),
    "SIN_F32": lambda: odd(mp.sin, HALF, 4, bits=24),
    "SIN_F64": lambda: odd(mp.sin, HALF, 9),
    "SIN_QUARTER_F32": lambda: odd(mp.sin, QUARTER, 3, bits=24),
    "COS_QUARTER_F32": lambda: even(mp.cos, QUARTER, 3, 24),
    "SIN_QUARTER_F64": lambda: odd(mp.sin, QUARTER, 7),
    "COS_QUARTER_F64": lambda: even(mp.cos, QUARTER, 7),
    "ASIN_F32": lambda: odd(mp.asin, 0.5, 5, bits=24),
    "ASIN_F64": lambda: odd(mp.asin, 0.5, 12),
    "ATAN_F32": lambda: odd(mp.atan, 1, 8, bits=24),
    "ATAN_F64": lambda: odd(mp.atan, 0.5, 14),
    "TANH_F32": lambda: odd(mp.tanh, "0.55", 5, bits=24),
    "SINH_F32": lambda: odd(mp.sinh, 1, 3, bits=24),
    "SINH_F64": lambda: odd(mp.sinh, 1, 8),
    "ERF_F32": lambda: odd_rest(mp.erf, "1.2", 8, bits=24),
    "ERF_F64": lambda: odd_rest(mp.erf, 1, 15),
    "ERF_TAIL_F32": lambda: erf_tail(8),
    "ERFC_F32": lambda: shifted_erfc(14),
    "ERFC_F64": lambda: scaled_erfc(24, low=0, high=28, centre=4),
    "ERF_INV_SHORT_F64": lambda: erf_inv_central(10),
    "ERF_INV_F64": lambda: erf_inv_central(13),
    "ERF_INV_TAIL_F64": lambda: erf_inv_tail(13, 4, "37.5"),
    "ERF_INV_TAIL_SHORT_F64": lambda: erf_inv_tail(12, 3, "17.5"),
    "CBRT_F64": lambda: Problem(
        lambda m: mp.cbrt(m), lambda m: 1 / mp.cbrt(m), mp.mpf("0.5"), mp.mpf(4), 5),
}  # fmt: skip


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PROBLEMS:
        coefficients, largest = fit(PROBLEMS[chosen]())
        print(chosen, len(coefficients), f"{largest:.3g}", coefficients, flush=True)
