"""Numbers in words: counts, bytes, operations, seconds.

Input: numbers, or formulas of symbolic sizes. Output: strings. Invariant: the same on any machine,
and the same in texts, pages, pictures and reasons; sizes are in units of 1,024 bytes.
"""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """1 copy, 2 copies, 3 dispatches."""
    if count == 1:
        return f"1 {what}"
    plural = f"{what[:-1]}ie" if what.endswith("y") else what
    return f"{number_text(count)} {plural}{'es' if what.endswith('ch') else 's'}"


def a_type(value: object) -> str:
    """Of what type a value is: "a list", "an int"."""
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeioAEIO" else f"a {name}"


def nbytes_text(nbytes: int) -> str:
    """Exact up to 10 KiB, then three digits; a formula where it depends on symbolic sizes."""
    if not isinstance(nbytes, int):
        return f"{nbytes} bytes"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= max(size, 10 << 10):
            return f"{_digits(nbytes / size)} {unit}"
    return f"{nbytes:,} byte{'s' * (nbytes != 1)}"


def flops_text(flops: int) -> str:
    """Exact up to ten million, then three digits; a formula where it depends on symbolic sizes."""
    if isinstance(flops, int):
        for words, size in (("trillion", 10**12), ("billion", 10**9), ("million", 10**6)):
            if flops >= max(size, 10**7):
                return f"{_digits(flops / size)} {words} flops"
    return counted(flops, "flop")


def _digits(number: float) -> str:
    """Three, or all before the point."""
    return f"{number:,.0f}" if number >= 99.95 else f"{number:.3g}"


def number_text(number: int) -> str:
    return f"{number:,}" if isinstance(number, int) else str(number)


def seconds_text(seconds: float) -> str:
    """Of a model, which knows no more than three digits."""
    if not seconds:
        return "0 s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds * 1e9)} ns"
