"""`lax.fft` as operations on arrays of real numbers.

Input: the equation of a transform over the last axes. Output: its result. Invariant: a transform of
real lines of even length is one of half the length, of pairs of neighbours; elements that do not
count are not read, so a NaN there gets nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from stagejit.graph.ir import Value
from stagejit.trace.complex.arithmetic import product
from stagejit.trace.complex.parts import Pair
from stagejit.trace.emitter import Emitter
from stagejit.trace.fourier.lines import (
    Lines,
    constant,
    fourier,
    lines_of,
    pairs_of,
    reversed_rows,
    rows_of,
)
from stagejit.trace.fourier.roots import roots
from stagejit.trace.math.expressions import Real
from stagejit.trace.translation import Site, Unsupported, integers

PARAMETERS: dict[str, tuple[str, ...]] = {"fft": ("fft_type", "fft_lengths")}
LONGEST = 1 << 22  # elements of a line: its roots of unity are constants of the program


def _fft(emit: Emitter, site: Site, x: Value) -> Value:
    lengths = integers(site.params["fft_lengths"])
    kind = str(site.params["fft_type"].name)
    given = site.inputs[0].shape
    if kind == "IRFFT" and given[-1] != lengths[-1] // 2 + 1:
        raise Unsupported(f"{given[-1]} elements of the transform of {lengths[-1]} real ones")
    if max(lengths) > LONGEST:
        raise Unsupported(f"a line of {max(lengths)} elements has too many roots of unity to keep")
    if not x.type.size or not site.result.size:
        return emit.full(0, site.result)
    batch, (*outer, length) = math.prod(given[: -len(lengths)]), lengths
    before, scale = batch * math.prod(outer), 1 / math.prod(lengths)
    if kind == "RFFT":
        lines = _of_real(emit.reshape(x, (before, length, 1)), emit, not outer)
        lines = _along(lines, batch, outer, 1, 1.0)
    elif kind == "IRFFT":
        lines = _along(pairs_of(emit, x), batch, outer, -1, 1.0, together=False)
        made = _to_real(lines.reshaped(before, length // 2 + 1, 1), length, scale)
        return emit.reshape(made, site.result.shape)
    else:
        sign, scale = (1, 1.0) if kind == "FFT" else (-1, scale)
        lines = _along(pairs_of(emit, x), batch, lengths, sign, scale)
    return emit.reshape(lines.value, site.result.shape)


def _along(
    x: Lines, batch: int, lengths: Sequence[int], sign: int, scale: float, *, together: bool = True
) -> Lines:
    """Transforms along all axes, the last ones first, from (batch, *lengths, rest)."""
    inner = math.prod(x.shape) // (batch * math.prod(lengths))
    for axis in reversed(range(len(lengths))):
        before = batch * math.prod(lengths[:axis])
        lines, last = x.reshaped(before, lengths[axis], inner), axis == 0
        x = fourier(lines, sign, scale if last else 1.0, together=together and last)
        inner *= lengths[axis]
    return x


def _of_real(x: Value, emit: Emitter, together: bool) -> Lines:
    """The first half of the transform of real lines (batch, length, 1), and the element after it.

    With z = x[::2] + i x[1::2] and its transform Z, those of the even and the odd elements are
    (Z[k] + conj Z[-k]) / 2 and (Z[k] - conj Z[-k]) / 2i."""
    batch, length, _ = x.type.shape
    half = length // 2
    if length % 2:
        lines = lines_of(emit, [_as_complex(Real(emit, x))])
        return fourier(lines, together=together, first=half + 1)
    made = fourier(Lines(emit, emit.reshape(x, (batch, half, 1, 2)), True))
    real, imaginary = rows_of(made, 0, 1)
    first, last = _as_complex(real + imaginary), _as_complex(real - imaginary)
    z = rows_of(made, 1, half)
    even, odd = _even_and_odd(z, _backwards(z))
    turns = roots(np.arange(1, half)[:, None], length) * -1j
    turned = product(odd, constant(real, turns))
    middle = (even[0] + turned[0]) * 0.5, (even[1] + turned[1]) * 0.5
    return lines_of(emit, [first, middle, last], together)


def _to_real(x: Lines, length: int, scale: float) -> Value:
    """The inverse: real lines, times `scale`. What is the imaginary part of the first element, and
    of the last one where the length is even, does not count."""
    emit, half = x.emit, length // 2
    if length % 2:
        first, rest = _as_complex(rows_of(x, 0, 1)[0]), rows_of(x, 1, half + 1)
        made = fourier(lines_of(emit, [first, rest, _backwards(rest)]), -1, scale)
        return made.part(0).value
    low, high = rows_of(x, 0, 1)[0], rows_of(x, half, half + 1)[0]
    start = (low + high) * scale, (low - high) * scale
    z = rows_of(x, 1, half)
    even, odd = _even_and_odd(z, _backwards(z))
    turned = product(odd, constant(low, roots(-np.arange(1, half)[:, None], length) * 1j))
    rest = (even[0] + turned[0]) * scale, (even[1] + turned[1]) * scale
    return fourier(lines_of(emit, [start, rest]), -1, together=True).value


def _as_complex(x: Real) -> Pair:
    return x, Real(x.emit, x.emit.full(0, x.value.type))


def _backwards(x: Pair) -> Pair:
    """The conjugates of elements, last to first."""
    real, imaginary = reversed_rows(x)
    return real, -imaginary


def _even_and_odd(x: Pair, y: Pair) -> tuple[Pair, Pair]:
    """x + y and x - y"""
    return (x[0] + y[0], x[1] + y[1]), (x[0] - y[0], x[1] - y[1])


RULES: dict[str, Any] = {"fft": _fft}
