"""Numbers in words, and that nobody has words of their own for sizes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stagejit.base.numbers import counted, flops_text, nbytes_text, seconds_text

PACKAGE = Path(__file__).resolve().parents[2] / "stagejit"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (10_239, "10,239 bytes"),
        (10 << 10, "10 KiB"),
        (1 << 20, "1 MiB"),
        ((3 << 20) // 2, "1.5 MiB"),
        (1000 << 20, "1,000 MiB"),
        (1 << 30, "1 GiB"),
    ],
)
def test_sizes_are_exact_where_small_and_else_in_units_of_1024(nbytes: int, text: str) -> None:
    assert nbytes_text(nbytes) == text


def test_operations_and_times_have_three_digits_where_they_are_large() -> None:
    assert [flops_text(n) for n in (1, 1088, 10**7 - 1)] == [
        "1 flop",
        "1,088 flops",
        "9,999,999 flops",
    ]
    assert flops_text(2 << 30) == "2.15 billion flops"
    assert flops_text(10**12) == "1 trillion flops"
    assert [seconds_text(t) for t in (0.0, 3e-9, 1.2345e-5, 2.0)] == [
        "0 s",
        "3 ns",
        "12.3 us",
        "2 s",
    ]
    assert counted(1, "copy") == "1 copy"
    assert counted(1200, "dispatch") == "1,200 dispatches"


def test_nobody_else_has_words_for_sizes() -> None:
    """A number in braces with a unit of bytes behind it; rates (GB/s) are no sizes."""
    own = re.compile(r"\}\s?[kKMGT]i?B\b(?!/s)")
    others = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if own.search(path.read_text(encoding="utf-8"))
    }
    assert others == set()
