"""Sets of small numbers as the bits of one integer: unions and differences of thousands are fast.

Invariant: bit n is set iff n is a member.
"""

from __future__ import annotations

from collections.abc import Iterator


def bits(numbers: int) -> Iterator[int]:
    """Members of a bit set, smallest first."""
    while numbers:
        lowest = numbers & -numbers
        yield lowest.bit_length() - 1
        numbers ^= lowest
